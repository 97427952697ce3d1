#!/bin/sh
# From the JSON lines of sweeps to every figure of the README; needs no GPU.
#
#     experiments/h200-campaign/run.sh OUT own.jsonl shared.jsonl
#
# Each file holds one study and gets a folder of its own name, OUT/own and OUT/shared: verdict.txt, evaluate.txt and
# .json, replay.txt and .svg, replay-gp.txt, ring-policy.json, report.html, and the trials as Parquet (trials/) beside its database.
set -eu
out=$1
shift

for lines in "$@"; do
    here=$out/$(basename "$lines" .jsonl)
    db=$here/strata.duckdb
    mkdir -p "$here"
    study=$(head -n 1 "$lines" | python -c 'import json; print(json.loads(input())["name"])')
    strata tune import "$lines" --db "$db"
    strata tune doctor --db "$db"
    strata tune verdict "$study" --db "$db" | tee "$here/verdict.txt"
    strata policy export --db "$db" --study "$study" --out "$here/ring-policy.json"
    strata tune report "$study" --db "$db" --out "$out/reports"
    cp "$out/reports/$study"-*/report.html "$here/report.html"
    strata model evaluate "$study" --db "$db" --json "$here/evaluate.json" | tee "$here/evaluate.txt"
    strata tune export "$study" --db "$db" --parquet "$here/trials"
    strata tune replay "$study" --db "$db" --seeds 20 --arms 30 --out "$here/replay.svg" \
        --sampler random --sampler tpe --sampler cost-model | tee "$here/replay.txt"
    # Optuna's GP takes half a minute a seed, so it is stopped sooner, and one thread is faster than two.
    OMP_NUM_THREADS=1 strata tune replay "$study" --db "$db" --seeds 20 --arms 20 --sampler gp | tee "$here/replay-gp.txt"
done
