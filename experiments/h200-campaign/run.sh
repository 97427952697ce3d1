#!/bin/sh
# From the JSON lines of the two sweeps to every figure of the README; needs no GPU.
#
#     experiments/h200-campaign/run.sh own.jsonl shared.jsonl OUT
#
# OUT/own and OUT/shared get: verdict.txt, evaluate.txt and .json, replay.txt and .svg, ring-policy.json,
# report.html, and the trials as Parquet (trials/). The database stays in OUT/strata.duckdb.
set -eu
own=$1 shared=$2 out=$3
db=$out/strata.duckdb
mkdir -p "$out"

for pair in "own=$own" "shared=$shared"; do
    name=${pair%%=*} lines=${pair#*=} study=h200-${pair%%=*}
    here=$out/$name
    mkdir -p "$here"
    strata tune import "$lines" --db "$db"
    strata tune doctor --db "$db"
    strata tune verdict "$study" --db "$db" | tee "$here/verdict.txt"
    strata policy export --db "$db" --study "$study" --out "$here/ring-policy.json"
    strata tune report "$study" --db "$db" --out "$out/reports"
    cp "$out/reports/$study"-*/report.html "$here/report.html"
    strata model evaluate "$study" --db "$db" --json "$here/evaluate.json" | tee "$here/evaluate.txt"
    strata tune replay "$study" --db "$db" --seeds 20 --arms 30 --out "$here/replay.svg" \
        --sampler random --sampler tpe --sampler gp --sampler cost-model | tee "$here/replay.txt"
    strata tune export "$study" --db "$db" --parquet "$here/trials"
done
