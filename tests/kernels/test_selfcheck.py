"""The check before any speed is printed: it passes what is right and names what is wrong."""

from __future__ import annotations

import importlib
import secrets
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import strata.kernels
from strata.bench import selfcheck
from strata.bench.checks import CHECKS
from strata.cli.main import app
from strata.errors import SelfCheckError
from strata.kernels import device
from strata.kv.transfer import Transfer
from strata.lm import LanguageModel
from tests.conftest import TINY

pytest.importorskip("triton")
WHERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if WHERE.type == "cuda" else torch.float32


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_kernels", lambda _: True)


def test_every_kernel_has_a_check() -> None:
    folder = Path(strata.kernels.__file__).parent
    assert {path.parent.name for path in folder.glob("*/triton.py")} == set(CHECKS)


@pytest.mark.parametrize("op", sorted(CHECKS))
def test_kernels_pass(op: str, tiny: LanguageModel, kernels: None) -> None:
    selfcheck.check_kernels(tiny.config, WHERE, DTYPE, [op])


def spoil(name: str, function: Any) -> Any:
    """Return `function` with something that it wrote, or returns, changed a little."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        if name == "accept":
            args[0].positions.add_(1)
        elif name == "gather_pages":
            args[1].view(-1)[: args[1].shape[-1]] += 1
        elif name == "append_cells":
            args[3].view(-1)[-1] += 1
        elif name in ("bear_pages", "publish", "resolve"):
            args[0].table[0, :1] = 3
        elif name == "fetch":
            args[1].view(-1).add_(1)
        elif name == "forecast_experts":
            args[2].copy_(args[2].flip(1))
        elif name == "forecast_pages":
            args[3].copy_(args[3].flip(1))
        elif name == "reserve":
            args[2].slots.copy_(args[2].slots.flip(1))
        elif name in ("bound_pages", "widen_bounds"):
            args[0].add_(1)
        elif name == "attend_prompt" or name == "norm_rows":
            kwargs["out"].mul_(1.1)
        elif name in ("write_product", "write_turns"):
            args[2].mul_(1.1)
        elif name == "project_heads":
            kwargs["pages"].mul_(1.1)
        elif name == "sort_pairs":
            kwargs["order"].copy_(kwargs["order"].flip(0))
        elif name == "add_experts":
            kwargs["x"].mul_(1.1)
        elif name in ("norm_and_route", "embed_rows", "join_rows", "project_out"):
            kwargs["normed"].mul_(1.1)
        elif name == "project_cells":
            args[5].pool.mul_(1.1)
        elif name in ("split_attention", "attend_window"):
            out.sums.mul_(1.1)
        elif name == "route":
            return out[0].flip(1), out[1]
        elif name == "draw":
            out.tokens.add_(1)
        else:
            return out.roll(1, -1)
        return out

    return broken


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("accept", "accept"),
        ("append", "append_cells"),
        ("attention", "attend_prompt"),
        ("embed", "embed_rows"),
        ("embed", "join_rows"),
        ("experts", "route"),
        ("experts", "slot_product"),
        ("gather", "gather_pages"),
        ("grouped", "add_experts"),
        ("grouped", "norm_and_route"),
        ("grouped", "sort_pairs"),
        ("head", "draw"),
        ("newborn", "bear_pages"),
        ("out_proj", "project_out"),
        ("paged_attention", "attend_dense"),
        ("paged_attention", "attend_selected"),
        ("paged_attention", "split_attention"),
        ("prefetch", "fetch"),
        ("prefetch", "forecast_experts"),
        ("prefetch", "forecast_pages"),
        ("prefetch", "publish"),
        ("prefetch", "reserve"),
        ("project", "norm_rows"),
        ("project", "project_heads"),
        ("project", "write_product"),
        ("project", "write_turns"),
        ("qkv", "project_cells"),
        ("resolve", "resolve"),
        ("select", "bound_pages"),
        ("select", "select_pages"),
        ("select", "widen_bounds"),
        ("window_attention", "attend_window"),
    ],
)
def test_a_broken_kernel_is_named(
    op: str, name: str, tiny: LanguageModel, kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"strata.kernels.{op}.triton")
    monkeypatch.setattr(module, name, spoil(name, getattr(module, name)))
    with pytest.raises(SelfCheckError, match=f"the {op} kernel does not agree") as raised:
        selfcheck.check_kernels(tiny.config, WHERE, DTYPE, [op])
    assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    ("selected", "pooled", "left_out"),
    [
        (False, False, {"select", "resolve", "gather", "prefetch"}),
        (False, True, {"select"}),
        (True, False, set()),
    ],
)
def test_a_run_answers_for_the_kernels_that_it_uses(
    tiny: LanguageModel,
    kernels: None,
    monkeypatch: pytest.MonkeyPatch,
    selected: bool,
    pooled: bool,
    left_out: set[str],
) -> None:
    checked: list[str] = []
    monkeypatch.setattr(selfcheck, "check_kernels", lambda *given: checked.extend(given[-1]))
    selfcheck.check_run(tiny, selected=selected, pooled=pooled)
    assert {*checked} == {*CHECKS} - left_out


def test_a_command_prints_no_speed_while_a_kernel_is_broken(
    kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if WHERE.type == "cuda":
        pytest.skip("the stand-in model runs interpreted")
    module = importlib.import_module("strata.kernels.head.triton")
    monkeypatch.setattr(module, "draw", spoil("draw", module.draw))
    words = ["bench", "decode", "--depth", "64", "--model", str(TINY), "--device", "cpu"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: the head kernel does not agree with its reference")


def test_the_engine_passes_and_a_broken_copy_of_pages_does_not(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda _: 7)
    selfcheck.check_engine(tiny)
    right = Transfer.bring_in

    def wrong(self: Transfer, layer: int, pages: torch.Tensor, slots: torch.Tensor) -> None:
        if len(pages) > 5:  # the seed; a miss leaves its slot as it was
            right(self, layer, pages, slots)

    monkeypatch.setattr(Transfer, "bring_in", wrong)
    with pytest.raises(SelfCheckError, match="with a ring of 96 cells"):
        selfcheck.check_engine(tiny)
