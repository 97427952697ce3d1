"""Decode at the shapes that people run, on random weights: share of a plain read's bandwidth.

    python experiments/real-geometry/run.py --shape olmoe --depth 1K --spec 0,3 --out FILE

Weights of the named shape are made on the device, and the rounds of the launches for large shapes
stand beside those of the launches for small ones (`--launches`), in one run. One JSON line an arm:
the median of the repeats with least and most, the bytes that a round of one row must read, what
that is of a plain read measured in the same run, and the kernels of a round by part.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from strata.bench.decode import Arm, measure_decode
from strata.bench.timing import capture, time_calls
from strata.config import SessionConfig
from strata.kernels import wide
from strata.lm.config import LMConfig, load_config
from strata.lm.layers import Rotary
from strata.lm.linear import Linear
from strata.lm.model import LanguageModel, bundled_model_path
from strata.lm.tokenizer import load_tokenizer
from strata.lm.weights import AttentionWeights, MtpWeights, Weights
from strata.units import parse_bytes, parse_cells

KIND = torch.bfloat16
SHAPES: dict[str, dict[str, int]] = {
    "olmoe": {"layers": 16, "heads": 16, "kv_heads": 4, "experts": 64, "expert_width": 1024},
    "a3b": {
        "layers": 48,
        "heads": 32,
        "kv_heads": 4,
        "experts": 128,
        "expert_width": 768,
        "vocab": 151_936,
    },
}
"""OLMoE's proportions, and Qwen3-30B-A3B's; hidden 2,048, heads of 128, eight experts a token."""


def config_of(shape: str, layers: int | None) -> LMConfig:
    sizes = SHAPES[shape]
    config = replace(
        load_config(bundled_model_path()),
        hidden=2_048,
        head_dim=128,
        experts_per_token=8,
        mtp_dense_width=8 * sizes["expert_width"],
        tied=False,
        **sizes,
    )
    return replace(config, layers=layers or config.layers)


def random_model(c: LMConfig, device: torch.device, *, pinned: bool) -> LanguageModel:
    """Return a model of random weights; its experts are `pinned` in host memory, or device ones."""
    random = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, scale: float | None = None) -> torch.Tensor:
        scale = shape[-1] ** -0.5 if scale is None else scale
        tensor = torch.empty(shape, dtype=KIND, device=device)
        return tensor.normal_(std=scale, generator=random)

    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(shape, dtype=KIND, device=device)

    def attention() -> AttentionWeights:
        return AttentionWeights(
            norm=ones(c.hidden),
            qkv=Linear(normal((c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden)),
            qk_norm=ones(c.heads + c.kv_heads, c.head_dim),
            out=Linear(normal(c.hidden, c.heads * c.head_dim)),
            post_norm=ones(c.hidden),
        )

    experts = torch.empty(
        (c.layers * c.experts, 3 * c.expert_width, c.hidden),
        dtype=KIND,
        device="cpu" if pinned else device,
        pin_memory=pinned,
    )
    for layer in experts.split(c.experts):
        layer.copy_(normal(*layer.shape, scale=c.hidden**-0.5), non_blocking=True)
    mlp = normal(3 * c.mtp_dense_width, c.hidden)
    embedding = normal(c.vocab, c.hidden, scale=1.0)
    weights = Weights(
        embedding=embedding,
        head=Linear(normal(c.vocab, c.hidden)),
        norm=ones(c.hidden),
        layers=tuple(attention() for _ in range(c.layers)),
        routers=tuple(Linear(normal(c.experts, c.hidden)) for _ in range(c.layers)),
        mtp=MtpWeights(
            fc=Linear(normal(c.hidden, 2 * c.hidden)),
            norm_embedding=ones(c.hidden),
            norm_hidden=ones(c.hidden),
            attention=attention(),
            mlp=mlp,
            gate_up=Linear(mlp[: 2 * c.mtp_dense_width]),
            down=Linear(mlp[2 * c.mtp_dense_width :].T),
            norm=ones(c.hidden),
        ),
        experts=experts,
    )
    folder = bundled_model_path()
    return LanguageModel(
        config=c,
        weights=weights,
        tokenizer=load_tokenizer(folder, c),
        device=device,
        dtype=KIND,
        model_hash="random",
        folder=folder,
        rotary=Rotary(c, device),
        _device_experts=None if pinned else experts,
    )


def bytes_of_a_row(c: LMConfig) -> int:
    """Return the weights that a token of plain decoding must read; K/V is left out."""
    heads = (c.heads + 2 * c.kv_heads) + c.heads
    layer = heads * c.head_dim * c.hidden + c.experts * c.hidden
    layer += c.experts_per_token * 3 * c.expert_width * c.hidden
    return (c.layers * layer + c.vocab * c.hidden) * KIND.itemsize


def plain_read_gb_s(device: torch.device) -> float:
    data = torch.empty(1 << 30, dtype=KIND, device=device).normal_()
    timing = time_calls(capture(lambda: data.sum()).replay, calls=1, samples=5)
    return data.nbytes / timing.us / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="olmoe")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--depth", default="1K")
    parser.add_argument("--spec", default="0,3")
    parser.add_argument("--launches", default="narrow,wide")
    parser.add_argument("--vram-budget", help="experts stay in host memory, like 24GiB")
    parser.add_argument("--max-new", type=int, default=128)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    device = torch.device("cuda", 0)
    read = plain_read_gb_s(device)
    torch.cuda.empty_cache()
    c = config_of(given.shape, given.layers)
    start = time.perf_counter()
    model = random_model(c, device, pinned=given.vram_budget is not None)
    torch.cuda.synchronize()
    print(f"weights of {given.shape} in {time.perf_counter() - start:.1f} s; {read:.0f} GB/s")
    budget = given.vram_budget and parse_bytes(given.vram_budget, name="--vram-budget")
    config = SessionConfig(vram_budget_bytes=budget)
    least = wide.LEAST_HIDDEN
    depths = [parse_cells(depth, name="--depth") for depth in given.depth.split(",")]
    arms = [
        Arm(depth=depth, drafts=int(drafts), ring=0 if budget is None else None)
        for depth in depths
        for drafts in given.spec.split(",")
    ]
    with given.out.open("a", encoding="utf-8") as out:
        for launches in given.launches.split(","):
            wide.LEAST_HIDDEN = least if launches == "wide" else c.hidden + 1
            figures = measure_decode(
                model, arms, config, max_new=given.max_new, repeats=5, seed=0, on_step=lambda: None
            )
            for figure in figures:
                line = describe(c, figure, read) | {"shape": given.shape, "launches": launches}
                line |= {"vram_budget": given.vram_budget, "layers": c.layers}
                out.write(json.dumps(line) + "\n")
                out.flush()
                print(json.dumps(line), flush=True)


def describe(c: LMConfig, figure: Any, read_gb_s: float) -> dict[str, Any]:
    rounds, profile = figure.rounds_s, figure.profile
    share = rounds.median * bytes_of_a_row(c) / 1e9 / read_gb_s
    return {
        "depth": figure.arm.depth,
        "drafts": figure.arm.drafts,
        "tok_s": [figure.tok_s.median, figure.tok_s.min, figure.tok_s.max],
        "rounds_s": [rounds.median, rounds.min, rounds.max],
        "read_share": share if figure.arm.drafts == 0 else None,
        "plain_read_gb_s": read_gb_s,
        "tokens_round": figure.tokens_round,
        "token_hash": figure.token_hash[:16],
        "experts": [figure.experts.lookups, figure.experts.misses],
        "kernels": profile and profile.per_round,
        "us": profile and {k: round(v.us_round, 1) for k, v in profile.parts.items() if v.us_round},
        "longest": profile
        and {
            k[:40]: [v.per_round, round(v.us_round, 1)]
            for k, v in list(profile.kernels.items())[:10]
        },
    }


if __name__ == "__main__":
    main()
