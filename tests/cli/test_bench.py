"""`strata bench`, as a person types it."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from strata.cli.main import app


def bench(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", *words])


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")
def test_without_a_gpu_it_is_one_sentence() -> None:
    result = bench("gather")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error: strata bench gather measures a CUDA device, and this machine has none\n"
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--page-bytes", "4KiB,100"), "--page-bytes: '100'"),
        (("--page-bytes", "0"), "--page-bytes: '0'"),
        (("--page-bytes", "many"), "--page-bytes: 'many'"),
        (("--pages", "1,-2"), "--pages: '-2'"),
        (("--pages", ""), "--pages: ''"),
        (("--samples", "4"), "--samples"),
        (("--json", "nowhere/out.json"), "--json: nowhere is no folder"),
    ],
)
def test_a_switch_that_cannot_be_is_named(words: tuple[str, ...], named: str) -> None:
    result = bench("gather", *words)
    assert result.exit_code == 2
    assert named in result.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--multiples", "x"), "--multiples: 'x'"),
        (("--multiples", "0"), "--multiples: '0'"),
        (("--select", "0"), "--select: 0 reads everything"),
    ],
)
def test_evict_names_its_own_switches(words: tuple[str, ...], named: str) -> None:
    result = bench("evict", *words)
    assert result.exit_code == 2
    assert named in result.stderr


@pytest.mark.gpu
def test_every_figure_is_written() -> None:
    result = bench("gather", "--page-bytes", "4KiB,16KiB", "--pages", "0,1,200", "--json", "-")
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    assert [(f["page_bytes"], f["pages"]) for f in written["figures"]] == [
        (size, pages) for size in (4096, 16384) for pages in (0, 1, 200)
    ]
    assert written["plain_copy_gb_per_s"] > 0
    for figure in written["figures"]:
        assert 0 < figure["min_us"] <= figure["us"] <= figure["max_us"]
        bytes_moved = figure["page_bytes"] * figure["pages"]
        assert figure["gb_per_s"] == pytest.approx(bytes_moved / figure["us"] / 1e3)
