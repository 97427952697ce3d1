"""Kernels of a round to its parts: by what they do, and by where they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import strata.kernels
from strata.bench.parts import KERNELS, PARTS, Launch, attribute, part_of
from strata.bench.profile import summarise

NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16>"
GEMM = "nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN"
ARGMAX = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps>>"
)
LAYER = [NORM, GEMM, "_append", "_score", "_choose", "_resolve", "_gather", "_attend_splits"]
LAYER += ["_reduce_splits", GEMM, NORM, "_route", "_resolve", "_gather", "_product"]

DRAFT = [GEMM, NORM, "flash_fwd", GEMM, ARGMAX, GEMM, NORM, GEMM, ARGMAX]


def launches(*graphs: list[str], apart_us: float = 1.0) -> list[Launch]:
    """Return kernels of 1 us, each starting `apart_us` after the one before."""
    found: list[Launch] = []
    for number, names in enumerate(graphs):
        for name in names:
            start = len(found) * apart_us
            found.append(Launch(name=name, graph=number, start_us=start, end_us=start + 1.0))
    return found


def test_every_kernel_of_the_engine_is_listed() -> None:
    """A launch is spelt `_name[grid](...)`."""
    found: set[str] = set()
    for path in Path(strata.kernels.__file__).parent.glob("*/[tw]*.py"):  # triton.py and wide.py
        found |= set(re.findall(r"^\s+(_\w+)\[", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert found - set(KERNELS) == set()


def test_parts_are_known() -> None:
    assert {*map(part_of, [*KERNELS, GEMM, ARGMAX, NORM])} <= set(PARTS)
    assert part_of("a kernel of nobody") == "other"


@pytest.mark.parametrize("drafting", [False, True])
def test_a_gather_is_of_those_that_asked(drafting: bool) -> None:
    verify = ["_embed", *LAYER, *LAYER, NORM, GEMM, ARGMAX]
    round_ = [*DRAFT, *verify] if drafting else verify
    parts = attribute(launches(round_, ["_resolve"], round_))
    assert parts.count("resolve") == 2 * 2 + 1
    assert parts.count("gather") == 2 * 2
    assert parts.count("expert fetch") == 2 * 4
    assert parts.count("experts") == 2 * 4
    assert parts.count("head") == 2 * 2
    assert parts.count("projections") == 2 * 4
    assert parts.count("drafter") == (2 * len(DRAFT) if drafting else 0)


def test_fused_kernels_are_told_apart_by_what_follows() -> None:
    layer = ["_project", "_score", "_choose", "_resolve", "_gather", "_attend_splits"]
    layer += ["_project_out", "_resolve", "_gather", "_product"]
    verify = ["_embed", *layer, *layer, "_project", "_pick", "_accept", "_join", "_project"]
    draft = ["_attend_window", "_project_out", "_product", "_project", "_pick"]
    expected = [
        "other",
        *["projections", "selection", "selection", "resolve", "gather", "attention"],
        *["projections", "expert fetch", "expert fetch", "experts"],
        *["projections", "selection", "selection", "resolve", "gather", "attention"],
        *["projections", "expert fetch", "expert fetch", "experts"],
        *["head", "head", "other", "drafter", "drafter"],
    ]
    of_draft = ["drafter"] * len(draft)
    assert attribute(launches([*draft, *verify])) == of_draft + expected
    assert attribute(launches(draft, verify)) == of_draft + expected  # a graph each
    assert attribute(launches(verify)) == expected
    assert attribute(launches(["_bear", *draft, *verify])) == ["resolve", *of_draft, *expected]


@pytest.mark.parametrize("apart", [1, 2, 3])
def test_what_is_fetched_ahead_stands_between_any_others(apart: int) -> None:
    plain = ["_embed", *LAYER, *LAYER, "_project", "_pick", "_accept", "_join", "_project"]
    side = iter(["_forecast_experts", "_reserve", "_fetch", "_publish", "_forecast_pages"])
    mixed = []
    for i, name in enumerate(plain):
        mixed += [name, *([next(side, "_publish")] if i % apart == apart - 1 else [])]
    parts = attribute(launches(mixed))
    assert [part for part in parts if part != "prefetch"] == attribute(launches(plain))
    assert parts.count("prefetch") == len(mixed) - len(plain)


def test_behind_the_head_the_drafter_writes_its_cells() -> None:
    parts = attribute(launches(["_embed", *LAYER, GEMM, ARGMAX, NORM, GEMM, "_append"]))
    assert parts[-5:] == ["head", "head", "other", "drafter", "drafter"]


def test_the_sum_of_the_parts_is_the_whole() -> None:
    round_ = [[*DRAFT, "_embed", *LAYER, GEMM, ARGMAX], ["Memcpy DtoH (Device -> Pinned)"]]
    profile = summarise(launches(*round_ * 3), rounds=3)
    kernels = sum(map(len, round_))
    assert profile.per_round == pytest.approx(kernels)
    assert profile.us_round == pytest.approx(kernels)
    assert sum(time.per_round for time in profile.kernels.values()) == pytest.approx(kernels)
    assert tuple(profile.parts) == PARTS


def test_kernels_that_overlap_count_once() -> None:
    names = [["_embed", *["_project"] * 7]]
    profile = summarise(launches(*names, apart_us=0.25), rounds=1)
    assert profile.per_round == 8
    assert profile.us_round == pytest.approx(1.0 + 7 * 0.25)
