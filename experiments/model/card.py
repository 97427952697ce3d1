"""Write the model card and the experiment's result from the files that hold the figures.

python card.py MODEL_DIR
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from checkpoint import shape_of
from train import PRESETS

HERE = Path(__file__).parent
TEMPLATE = """\
# strata-mini

A {total:.1f} M-parameter mixture-of-experts language model for Python source text, with one
multi-token prediction (MTP) layer. It exists so that strata can be run, tuned and tested at real
depths without a download. It completes code in form more than in sense: use it for measurements.

- Layout: `mellum` as in `transformers` 5.24; `generate(..., use_mtp=True)` drafts with it.
- Shape: vocabulary {s.vocab:,}, hidden {s.hidden}, {s.layers} layers, {s.heads} query heads and
  {s.kv_heads} K/V head of {s.head_dim}, query and key norm, rotary base {s.rope_base:.0e},
  {s.experts} experts top-{s.top_k} of width {s.expert_width}, tied embeddings, one MTP layer
  with a dense feed-forward block of {s.mtp_width}. Positions to {s.positions:,};
  trained to {cells:,}.
- Size: {size:.1f} MB in bfloat16. A cell of K/V costs {cell:,} bytes over all layers, an expert
  {expert:,} bytes; all routed experts together are worth {ring:,} cells of ring.
- Tokenizer: byte-level BPE trained on the same text; id 0, `<|end_of_document|>`, ends a document.

## Training

{tokens:,.0f} M tokens in {seconds:,.0f} s on one H200 by `experiments/model/train.py`, from random
weights, in three phases of growing length: {phases}.

Text: Python sources and the documentation in them from {count} packages with permissive licences,
{chars:,.0f} M characters after removing duplicate files, files outside 0.4 to 400 KB, files with
lines over 400 characters and vendored folders; at most 8 M characters a package. The held-out
packages ({heldout}) were read first, so no file that they hold is in the training text. Of the
passages' runs of eight lines, {overlap:.1f} % at most (the worst passage; {overlap_mean:.2f} % on
average) occur anywhere in it (`overlap.py`).

## Figures

Held-out passages (`data/passages`), last 1,024 of the first `depth` cells, mean over the passages.
Agreement: how often the drafter names the main model's own choice, teacher forced; step 2 is
fed by step 1. Measured in bfloat16 on one H200 by `experiments/model/evaluate.py`; each passage's
figures stand in `experiments/model/figures.json`.

| depth, cells | passages | loss | agreement, step 1 | agreement, step 2 |
| --- | --- | --- | --- | --- |
{figures}

## Limits

- English and Python only; no instruction following, no safety training, no factual reliability.
- Loss at a depth depends on the passages' text at that depth as well as on the depth.
- The drafter was trained for up to three chained steps; longer chains are extrapolation.

## Sources and licences

The weights are released under Apache-2.0 like the project. The training text is not included;
it came from these packages (`python` is the standard library):

| package | version | licence |
| --- | --- | --- |
{sources}
"""


def card(model: Path) -> str:
    """Return the text of the model card."""
    shape = shape_of(json.loads((model / "config.json").read_text()))
    manifest = json.loads((HERE / "manifest.json").read_text())
    figures = json.loads((HERE / "figures.json").read_text())
    log = json.loads((HERE / "training-log.json").read_text())
    shares = json.loads((HERE / "overlap.json").read_text()).values()
    train = [entry for entry in manifest if entry["split"] == "train"]
    heldout = sorted(entry["package"] for entry in manifest if entry["split"] == "heldout")
    expert_bytes = 2 * 3 * shape.hidden * shape.expert_width
    cell_bytes = 2 * 2 * shape.layers * shape.kv_heads * shape.head_dim
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    last = {row["phase"]: row for row in log}
    lengths = [phase.cells for phase in PRESETS["bundled"].phases]
    begin = 0.0
    phases = []
    for phase, row in sorted(last.items()):
        phases.append(f"{row['seconds'] - begin:.0f} s at {lengths[phase]:,} cells")
        begin = row["seconds"]
    return TEMPLATE.format(
        s=shape,
        total=size / 2e6,
        size=size / 1e6,
        cells=lengths[-1],
        cell=cell_bytes,
        expert=expert_bytes,
        ring=shape.layers * shape.experts * expert_bytes // cell_bytes,
        tokens=log[-1]["tokens"] / 1e6,
        seconds=log[-1]["seconds"],
        phases=", ".join(phases),
        count=len(train),
        chars=sum(entry["num_chars"] for entry in train) / 1e6,
        heldout=", ".join(heldout),
        overlap=100 * max(shares),
        overlap_mean=100 * sum(shares) / len(shares),
        figures=figure_rows(figures),
        sources="\n".join(f"| {e['package']} | {e['version']} | {e['licence']} |" for e in train),
    )


def figure_rows(figures: list[dict]) -> str:
    """Return the table rows of the measured depths."""
    return "\n".join(
        f"| {row['depth_cells']:,} | {row['num_passages']} | {row['loss']:.2f} "
        f"| {100 * row['agreement_1_ratio']:.1f} % | {100 * row['agreement_2_ratio']:.1f} % |"
        for row in figures
    )


def main() -> None:
    """Parse the command line and write the card."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    args = parser.parse_args()
    (args.model / "README.md").write_text(card(args.model))


if __name__ == "__main__":
    main()
