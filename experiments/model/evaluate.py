"""Measure held-out loss and drafter agreement by depth.

For each depth and passage the model reads the passage's first `depth` cells. Over the last 1,024
of them: the loss of the next token, and how often the drafter names the main model's own choice,
teacher forced. Step 1 is fed the main model's state of the cell before. Step 2 is fed step 1's
result of the cell before, and reads the keys and values of step 1 at all earlier cells, as an
engine's second draft does.

    python evaluate.py MODEL_DIR PASSAGES_DIR --json figures.json
"""

from __future__ import annotations

import argparse
import json
import lzma
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F
from checkpoint import load
from network import Network, product_dtype, rms_norm
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

DEPTHS = (1_024, 4_096, 16_384, 32_768, 65_536, 131_072)
LAST = 1_024
ROWS = 64
FLASH = SDPBackend.FLASH_ATTENTION


def read_passages(folder: Path, tokenizer: Tokenizer, count: int, cells: int) -> dict[str, Tensor]:
    """Return the first `cells` token ids of `count` passages, by id."""
    index = json.loads((folder / "index.json").read_text())[:count]
    texts = (lzma.decompress((folder / entry["file"]).read_bytes()).decode() for entry in index)
    ids = (tokenizer.encode(text[: 8 * cells]).ids[:cells] for text in texts)
    return {entry["id"]: torch.tensor(row) for entry, row in zip(index, ids, strict=True)}


def second_step(net: Network, tokens: Tensor, first: Tensor, kv: tuple[Tensor, Tensor]) -> Tensor:
    """Return step 2's normed rows [R, H] for the last R = len(first) cells.

    `tokens` [R] are these cells' tokens, `first` [R, H] step 1's results of the cells before, and
    `kv` [1, C, G, D] step 1's keys and values of cells 1 to C, the last of which are the R rows.
    """
    block, shape = net.drafter.block, net.shape
    keys, values = (part[0].float() for part in kv)
    x = net.drafter.join(F.embedding(tokens, net.embedding), first)
    cos, sin = net.positions(1, len(keys) + 1 - len(x), len(x))
    q, k, v = (part.float() for part in block.enter(x, cos, sin))
    group = shape.heads // shape.kv_heads
    mixed = []
    for at in range(0, len(x), ROWS):
        rows = torch.arange(at, min(at + ROWS, len(x)), device=x.device)
        query = q[rows].unflatten(1, (shape.kv_heads, group))  # [R, G, Q / G, D]
        past = torch.einsum("rghd,cgd->rghc", query, keys)
        cell = rows + len(keys) - len(x)
        hidden = torch.arange(len(keys), device=x.device) >= cell[:, None]
        past = past.masked_fill(hidden[:, None, None], float("-inf"))
        own = (query * k[rows][:, :, None]).sum(-1, keepdim=True)
        weight = (torch.cat((past, own), -1) * shape.head_dim**-0.5).softmax(-1)
        out = torch.einsum("rghc,cgd->rghd", weight[..., :-1], values)
        mixed.append((out + weight[..., -1:] * v[rows][:, :, None]).flatten(1))
    y, _ = block.leave(x, torch.cat(mixed).to(x.device, product_dtype(x)))
    return rms_norm(y, net.drafter.norm, shape.eps)


@torch.no_grad()
def measure(net: Network, tokens: Tensor) -> tuple[float, float, float]:
    """Return (loss, agreement of step 1, of step 2) over the last cells of tokens [depth + 1]."""
    window, target = tokens[:-1], tokens[-LAST:]
    hidden, _ = net.trunk(window[None])
    logits = F.linear(hidden[-LAST:], net.embedding)
    loss = F.cross_entropy(logits, target).item()
    choice = logits.argmax(-1)[1:]
    first, kv = net.draft(window[None, 1:], hidden[:-1], 1)
    last = first[1 - LAST :]
    step_1 = F.linear(last, net.embedding).argmax(-1) == choice
    step_2 = F.linear(second_step(net, window[2 - LAST :], last[:-1], kv), net.embedding)
    agree_2 = step_2.argmax(-1) == choice[1:]
    return loss, step_1.float().mean().item(), agree_2.float().mean().item()


def evaluate(model: Path, passages: Path, depths: list[int], count: int) -> list[dict]:
    """Measure each depth over `count` passages."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = load(model, slab=66_048).to(device)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = read_passages(passages, tokenizer, count, max(depths) + 1)
    results = []
    for depth in depths:
        start = time.monotonic()
        with sdpa_kernel(FLASH) if device.type == "cuda" else nullcontext():
            rows = {name: measure(net, row[: depth + 1].to(device)) for name, row in texts.items()}
        columns = list(zip(*rows.values(), strict=True))
        loss, step_1, step_2 = (round(statistics.fmean(column), 4) for column in columns)
        results.append(
            {
                "depth_cells": depth,
                "num_passages": len(rows),
                "last_cells": LAST,
                "loss": loss,
                "agreement_1_ratio": step_1,
                "agreement_2_ratio": step_2,
                "by_passage": {k: [round(value, 4) for value in v] for k, v in rows.items()},
            }
        )
        seconds = time.monotonic() - start
        print(f"{depth:7,}: loss {loss:.3f}, agreement {step_1:.3f} {step_2:.3f} ({seconds:.1f} s)")
    return results


def main() -> None:
    """Parse the command line, measure, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("passages", type=Path)
    parser.add_argument("--depths", type=int, nargs="+", default=list(DEPTHS))
    parser.add_argument("--count", type=int, default=99, help="passages a depth")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = evaluate(args.model, args.passages, args.depths, args.count)
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
