"""`strata model`: fitted, judged and asked from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from planted_grid import planted_study
from typer.testing import CliRunner

from strata.cli.model import app
from strata.errors import TableError
from strata.lm import LanguageModel
from strata.policy import load_table
from strata.tuner.store import open_database

BUDGET = "48MiB"


def ask(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words), env={"COLUMNS": "250"})
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, bundled: LanguageModel) -> Path:
    path = tmp_path_factory.mktemp("model") / "planted.duckdb"
    with open_database(path) as store:
        planted_study(store, model_hash=bundled.model_hash)
    return path


@pytest.fixture(scope="module")
def fitted(database: Path) -> Path:
    path = database.with_name("cost-model.json")
    text = ask("fit", "planted", "--db", str(database), "--out", str(path))
    assert "an expert that is fetched" in text
    assert "depths 1,024 to 32,768" in text
    assert str(path) in text
    return path


def test_a_model_lands_beside_the_report_by_default(database: Path) -> None:
    ask("fit", "planted", "--db", str(database))
    assert list(database.parent.glob("planted-*/cost-model.json"))


def test_evaluate_prints_every_method_and_policy(database: Path, tmp_path: Path) -> None:
    out = tmp_path / "judged.json"
    words = ["evaluate", "planted", "--db", str(database), "--halvings", "2"]
    text = ask(*words, "--json", str(out))
    found = json.loads(out.read_text())
    error = {(row["left_out"], row["method"]): row["mean_abs_error"] for row in found["errors"]}
    for left_out in ("depth", "ring"):
        ours = error[left_out, "cost model"]
        assert ours < 0.04
        for rival in ("linear interpolation", "nearest neighbour", "random forest"):
            assert ours < error[left_out, rival]
    assert all(one["p_value"] > 0.01 for one in found["coverage"])
    assert found["silence"]["silent"] == found["silence"]["asked"] > 0
    for word in ("rank correlation", "fixed 8192", "depth", "adapt", "need", "fit", "learned"):
        assert word in text
    assert found["scored_on"] == "fresh"
    assert {"best fixed in hindsight", "default ring", "depth", "adapt", "need", "fit"} <= {
        row["rival"] for row in found["rivals"]
    }
    assert len(found["entries"]) == 10
    for word in ("learned over it", "best in hindsight", "fresh passages, every ring on each"):
        assert word in text
    assert "independent documents: " in text
    assert "always at 2 of 2 depths" in text
    assert "no evidence" in text


def test_predict_asks_the_ledger_and_never_offers_what_does_not_fit(fitted: Path) -> None:
    words = ["predict", str(fitted), "--depth", "32K", "--spec", "1", "--vram-budget", BUDGET]
    found = json.loads(ask(*words, "--json", "-"))
    rings = [row["ring_cells"] for row in found["sessions"]]
    assert max(rings) < 16_384  # which would take 48 MiB alone
    assert all(row["expert_slots"] >= 4 for row in found["sessions"])
    text = ask(*words, "--ring", "24K")
    assert "does not fit the memory budget" in text


def test_predict_gives_numbers_inside_and_none_outside(fitted: Path) -> None:
    text = ask("predict", str(fitted), "--depth", "4K", "--spec", "0", "--ring", "4K")
    assert "fastest" in text
    assert "a prediction is no verdict" in text
    text = ask("predict", str(fitted), "--depth", "64K", "--spec", "0")
    assert "no evidence: depth_cells 65,536 lies outside the measured 1,024 to 32,768" in text
    assert "fastest" not in text


def test_of_rings_that_are_alike_the_default_is_the_fastest(fitted: Path) -> None:
    text = ask("predict", str(fitted), "--depth", "4K", "--spec", "0", "--ring", "12K")
    assert "(default)" in text  # both hold the whole context
    assert "- fastest" in text


def test_a_stored_study_is_asked_as_its_file_is(fitted: Path, database: Path) -> None:
    words = ["--depth", "4K", "--spec", "1", "--ring", "2K", "--json", "-"]
    one = json.loads(ask("predict", str(fitted), *words))
    other = json.loads(ask("predict", "planted", "--db", str(database), *words))
    assert one == other


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "nowhere.json"], "cost model nowhere.json cannot be read"),
        (["fit", "nobody"], "nobody"),
        (["fit", "planted", "--confidence", "1"], "--confidence: 1.0 is not between 0 and 1"),
        (["evaluate", "planted", "--json", "no/such/file"], "--json: no/such is no folder"),
    ],
)
def test_what_cannot_be_done_is_said(database: Path, words: list[str], message: str) -> None:
    assert message in ask(*words, "--db", str(database), code=2)


def test_another_checkpoint_than_the_measured_one_is_refused(fitted: Path) -> None:
    tiny = Path(__file__).parent.parent / "data" / "tiny"
    words = ["predict", str(fitted), "--vram-budget", BUDGET, "--model", str(tiny)]
    assert "name the folder of that one" in ask(*words, code=2)


def test_a_ring_of_no_cells_is_refused(fitted: Path) -> None:
    assert "--ring: 0 is not above zero" in ask("predict", str(fitted), "--ring", "0", code=2)


ESTIMATE = [
    "predict", "--device-profile", "h200", "--kv-select", "2048", "--vram-budget", "64MiB",
    "--depth", "32K",
]  # fmt: skip


def test_an_estimate_is_marked_and_no_table(tmp_path: Path) -> None:
    out = tmp_path / "estimate.json"
    text = ask(*ESTIMATE, "--json", str(out))
    assert "ESTIMATE for NVIDIA H200" in text
    assert "nothing was measured" in text
    assert "no evidence (estimate)" in text
    found = json.loads(out.read_text())
    assert found["estimate"] is True
    assert [one["mode"] for one in found["entries"]] == ["off", "on"]
    for entry in found["entries"]:
        assert entry["verdict"] == "no evidence"
        assert entry["predicted"] is True
        assert entry["expert_slots"] >= 4
    with pytest.raises(TableError, match="schema must be"):
        load_table(out)


def test_an_estimate_never_offers_a_ring_that_does_not_fit() -> None:
    text = ask(*ESTIMATE, "--ring", "8K", "--ring", "32K", "--spec", "3")
    assert "does not fit the memory budget" in text


def test_a_depth_that_does_not_fit_leaves_the_others() -> None:
    words = ["predict", "--device-profile", "h200", "--kv-select", "512", "--spec", "0"]
    text = ask(*words, "--vram-budget", "32MiB", "--depth", "1K", "--depth", "131072")
    assert "cannot hold this session" in text  # 25 MB of key bounds beside 9.5 MB of weights
    assert "1K off 0" in text
    assert "128K off 0" not in text


def test_misses_of_a_study_serve_an_estimate(fitted: Path) -> None:
    words = ["predict", str(fitted), *ESTIMATE[1:], "--json", "-"]
    found = json.loads(ask(*words))
    assert found["conditions"]["page_cells"] == 16
    usual = json.loads(ask(*ESTIMATE, "--json", "-"))
    assert found["entries"] != usual["entries"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict"], "or give --device-profile"),
        (["predict", "--device-profile", "no.toml"], "give a TOML or JSON file or one of: h200"),
        ([*ESTIMATE, "--accepted", "1"], "--accepted: 1.0 is not between 0 and 1"),
        ([*ESTIMATE[:-4], "--vram-budget", "1MiB"], "cannot hold this session"),
        ([*ESTIMATE, "--model", "nowhere"], "nowhere is no folder"),
    ],
)
def test_an_estimate_that_cannot_be_is_said(words: list[str], message: str) -> None:
    assert message in ask(*words, code=2)


def test_switches_of_an_estimate_are_a_studys_own(fitted: Path) -> None:
    assert "they go with --device-profile" in ask(
        "predict", str(fitted), "--kv-select", "512", code=2
    )
