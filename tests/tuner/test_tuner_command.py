"""`strata tune` on the real engine and a tiny checkpoint, from the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tuner_samples import SMALL_PLAN, all_pairs
from typer.testing import CliRunner

from strata.cli.main import app as main
from strata.cli.tune import app
from strata.policy.table_file import load_table
from strata.tuner.conclude import NOTHING_TO_USE
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord

TINY = Path(__file__).parent.parent / "data" / "tiny"
COMMAND = [sys.executable, "-c", "from strata.cli.tune import app; app()"]


@dataclass(frozen=True)
class Swept:
    """A folder with a plan in it and what a whole sweep printed and left there."""

    folder: Path
    output: str
    errors: str

    @property
    def plan(self) -> Path:
        return self.folder / "small.toml"

    @property
    def database(self) -> Path:
        return self.folder / "runs" / "strata.duckdb"

    @property
    def study_folder(self) -> Path:
        return next(one for one in (self.folder / "runs").iterdir() if one.is_dir())

    def study(self) -> StudyRecord:
        with DuckStore(self.database) as store:
            return store.study("small")


def tune(*words: object, folder: Path) -> tuple[int, str, str]:
    """Run the command in this process; return (exit code, stdout, stderr)."""
    arguments = [str(word) for word in words]
    result = CliRunner().invoke(app, [*arguments, *(["--out", str(folder / "runs")])])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    folder = tmp_path_factory.mktemp("swept")
    (folder / "small.toml").write_text(SMALL_PLAN)
    code, output, errors = tune(folder / "small.toml", "--model", TINY, folder=folder)
    assert code == 0, errors
    return Swept(folder, output, errors)


def stored_ids(database: Path) -> list[str]:
    with DuckStore(database) as store:
        return [record.trial_id for s in store.studies() for record in store.trials(s.study)]


def engines(database: Path) -> set[str]:
    with DuckStore(database) as store:
        return {study.engine_version for study in store.studies()}


def planned_ids(study: StudyRecord) -> list[str]:
    return [pair.trial_id(position) for pair in all_pairs(study) for position in range(4)]


def test_every_planned_trial_is_measured_on_the_engine(swept: Swept) -> None:
    study = swept.study()
    with DuckStore(swept.database) as store:
        records = store.trials(study.study)
    assert sorted(r.trial_id for r in records) == sorted(planned_ids(study))
    assert {r.kind for r in records} == {"ok"}
    for record in records:
        assert record.rounds_per_s
        assert record.tokens == 12
        assert record.ledger
        assert record.kv_hits is not None
        assert record.kv_misses is not None
        assert record.kv_lookups == record.kv_hits + record.kv_misses
    small = [r for r in records if (r.tier_cells, r.ring_cells) == (64, 32)]
    assert all(r.kv_misses for r in small)  # the context does not fit this ring
    whole = [r for r in records if r.pool_cells == r.context_cells]
    assert not any(r.kv_misses for r in whole)


def test_the_arms_of_a_passage_say_the_same(swept: Swept) -> None:
    study = swept.study()
    with DuckStore(swept.database) as store:
        records = store.trials(study.study)
    for passage in {r.passage for r in records}:
        mine = [r for r in records if r.passage == passage]
        assert len({r.token_hash for r in mine}) == 1
        for mode in ("off", "on"):
            assert len({r.rounds for r in mine if r.mode == mode}) == 1


def test_it_leaves_a_table_and_names_the_line_that_uses_it(swept: Swept) -> None:
    table = load_table(swept.study_folder / "ring-policy.json")
    study = swept.study()
    assert table.provenance["plan_sha256"] == study.plan_sha256
    assert {(e.tier_cells, e.mode) for e in table.entries} == {
        (tier, mode) for tier in (32, 64) for mode in ("off", "on")
    }
    last = swept.output.strip().splitlines()[-1]
    if all(entry.verdict != "better" for entry in table.entries):
        assert last == NOTHING_TO_USE  # the noise of a real sweep decides
    else:
        assert "strata generate --kv-ring-policy learned --kv-ring-table" in last
        assert str(swept.study_folder / "ring-policy.json") in last


def generate(target: Path, *words: object, **environ: str) -> tuple[dict[str, Any], str]:
    """Continue a passage of the sweep at the command; return its figures and what it said."""
    line = ["generate", "--model", TINY, "--device", "cpu", "--passage", "64:1", "--max-new", 12]
    line += ["--ignore-eos", "--json", target, *words]
    done = CliRunner().invoke(main, [str(word) for word in line], env=environ)
    assert done.exit_code == 0, done.output
    return json.loads(target.read_text()), done.stderr


def test_the_session_that_is_started_next_obeys_the_table(swept: Swept, tmp_path: Path) -> None:
    """The plan fixed a window and a default ring that no plain session has; nobody names them."""
    table = next(swept.study_folder.glob("*.json"))
    plain, _ = generate(tmp_path / "plain.json")
    assert plain["mtp_window_cells"] != 64
    named = {"STRATA_KV_RING_POLICY": "learned", "STRATA_KV_RING_TABLE": str(table)}
    switches = ["--kv-ring-policy", "learned"]
    folder = tmp_path / "home" / "strata" / "policies"
    folder.mkdir(parents=True)
    for words, environ in (
        ([*switches, "--kv-ring-table", table], {}),
        ([], named),
        (switches, {"XDG_DATA_HOME": str(tmp_path / "home")}),
    ):
        if environ.get("XDG_DATA_HOME"):
            shutil.copy(table, folder)
        obeyed, said = generate(tmp_path / "obeyed.json", *words, **environ)
        assert "does not apply" not in said
        assert "which sets window 64, default ring 64)" in said.replace("\n", "")
        assert (obeyed["mtp_window_cells"], obeyed["tokens"]) == (64, plain["tokens"])
    told, said = generate(tmp_path / "told.json", "--mtp-window", 32, **named)
    assert "mtp_window is 64 in the table and 32 here" in said
    assert (told["mtp_window_cells"], told["tokens"]) == (32, plain["tokens"])
    _, said = generate(tmp_path / "told.json", "--kv-select", 32, **named)
    assert "does not apply: select is 0 in the table and 32 here;" in said


def test_the_page_agrees_with_database_and_table(swept: Swept) -> None:
    page = (swept.study_folder / "report.html").read_text()
    block = re.search(r'<script type="application/json" id="summary">(.*?)</script>', page, re.S)
    assert block is not None
    summary = json.loads(block.group(1))
    document = json.loads((swept.study_folder / "ring-policy.json").read_text())
    assert summary["table"] == document
    study = swept.study()
    with DuckStore(swept.database) as store:
        frame = store.frame(study.study)
    assert summary["trials"] == len(frame)
    for cell in summary["cells"]:
        mine = frame[
            (frame["tier_cells"] == cell["tier_cells"])
            & (frame["mode"] == cell["mode"])
            & (frame["ring_cells"] == cell["ring_cells"])
        ]
        means = mine.groupby("passage")["rounds_per_s"].mean()
        assert cell["rounds_per_s"]["mean"] == pytest.approx(means.mean())
        assert cell["hit_ratio"] == pytest.approx(mine["kv_hits"].sum() / mine["kv_lookups"].sum())
        assert f"{cell['rounds_per_s']['mean']:,.1f}" in page
        assert cell["predicted_rounds_per_s"]["mean"] > 0
    for entry in document["entries"]:
        assert entry["verdict"] in page
    assert summary["model"]["refused"] is None
    assert not re.search(r'(src|href)="(https?:)?//', page)  # nothing is fetched


def test_a_finished_study_is_not_repeated(swept: Swept) -> None:
    before = stored_ids(swept.database)
    code, _, errors = tune(swept.plan, "--model", TINY, folder=swept.folder)
    assert code == 0, errors
    code, output, _ = tune(swept.plan, "--model", TINY, "--resume", folder=swept.folder)
    assert code == 0
    assert "use it: strata generate" in output or NOTHING_TO_USE in output
    assert stored_ids(swept.database) == before


def test_list_and_show(swept: Swept) -> None:
    code, output, _ = tune("--list", folder=swept.folder)
    assert code == 0
    assert "small" in output
    assert "22/22" in output
    code, output, _ = tune("--show", "small", folder=swept.folder)
    assert code == 0
    assert swept.study().plan_sha256 in output
    assert "verdict" in output
    code, _, errors = tune("--show", "nothing", folder=swept.folder)
    assert code == 2
    assert errors.startswith("error: no study matches 'nothing'")


def test_trials_travel_as_json_lines(swept: Swept, tmp_path: Path) -> None:
    lines = tmp_path / "t.jsonl"
    words = ("export", "small", "--jsonl", lines, "--db", swept.database)
    assert tune(*words, folder=swept.folder)[0] == 0
    code, output, errors = tune("import", lines, folder=tmp_path)
    assert code == 0, errors
    assert "88 trials new, 0 known; 22/22 pairs" in output
    again = tune("import", lines, folder=tmp_path)[1]
    assert "88 known" in again
    assert f"--out {tmp_path}" in again, "the line to conclude with names the same folder"
    assert tune("report", "small", folder=tmp_path)[0] == 0
    here = next((tmp_path / "runs").glob("small-*/ring-policy.json"))
    assert load_table(here).entries == load_table(swept.study_folder / "ring-policy.json").entries


def test_run_trials_needs_no_database(tmp_path: Path) -> None:
    plan = tmp_path / "p.toml"
    plan.write_text(SMALL_PLAN.replace("tiers = [32, 64]", "tiers = [32]\nmodes = ['off']"))
    lines = tmp_path / "t.jsonl"
    words = ["run-trials", str(plan), "--jsonl", str(lines), "--model", str(TINY)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    assert lines.read_text().count('"record":"strata.trial/') == 4 * 4
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0
    assert lines.read_text().count('"record":"strata.trial/') == 4 * 4
    assert not list(tmp_path.glob("*.duckdb"))


def test_axes_are_files_and_studies_of_their_own(tmp_path: Path) -> None:
    plan = tmp_path / "p.toml"
    text = SMALL_PLAN.replace("tiers = [32, 64]", "tiers = [32]\nmodes = ['off']\nrings = [32]")
    text = text.replace("rings = [32, 64, 128]\n", "").replace("fresh = [1, 2]", "fresh = []")
    plan.write_text(text + "[axes]\ncontext = ['own', 256]\n")
    words = ["run-trials", str(plan), "--jsonl", str(tmp_path / "t.jsonl"), "--model", str(TINY)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    assert "plan small is 2 studies: small.context-own, small.context-256" in result.stderr
    files = sorted(tmp_path.glob("*.jsonl"))
    assert [one.name for one in files] == ["small.context-256-t.jsonl", "small.context-own-t.jsonl"]
    for one in files:
        code, output, errors = tune("import", one, folder=tmp_path)
        assert code == 0, errors
        assert "2/2 pairs" in output


def test_a_killed_driver_loses_nothing_and_resume_repeats_nothing(
    swept: Swept, tmp_path: Path
) -> None:
    """SIGKILL of the driver half way, then --resume: the same set of ids, none twice."""
    words = [str(swept.plan), "--model", str(TINY), "--out", str(tmp_path / "runs")]
    driver = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True)
    assert driver.stderr is not None
    for line in driver.stderr:
        if line.startswith("11/22"):
            break
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    database = tmp_path / "runs" / "strata.duckdb"
    half = stored_ids(database)
    assert 44 <= len(half) < 88
    code, _, errors = tune(swept.plan, "--model", TINY, "--resume", folder=tmp_path)
    assert code == 0, errors
    if engines(database) != engines(swept.database):
        pytest.skip("the engine's sources were edited while this test ran")
    ids = stored_ids(database)
    assert ids[: len(half)] == half
    assert len(ids) == len(set(ids))
    assert set(ids) == set(stored_ids(swept.database))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_stop_cleanly(
    swept: Swept, number: signal.Signals, tmp_path: Path
) -> None:
    words = [str(swept.plan), "--model", str(TINY), "--out", str(tmp_path / "runs")]
    driver = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True)
    assert driver.stderr is not None
    for line in driver.stderr:
        if line.startswith("3/22"):
            break
    driver.send_signal(number)
    rest = driver.communicate(timeout=120)[1]
    assert driver.returncode == 130, rest
    assert "go on with --resume" in rest
    assert "Traceback" not in rest
    assert len(stored_ids(tmp_path / "runs" / "strata.duckdb")) % 4 == 0


def test_a_locked_database_is_one_sentence(swept: Swept, tmp_path: Path) -> None:
    with DuckStore(tmp_path / "runs" / "strata.duckdb"):
        done = subprocess.run(
            [*COMMAND, str(swept.plan), "--out", str(tmp_path / "runs")],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"process {os.getpid()} has it open" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.toml"], "cannot be read"),
        (["quick", "--model", "no/such/folder"], "no/such/folder"),
        (["quick", "--model", str(TINY), "--device", "abacus"], "--device"),
        (["quick", "--sampler", "luck"], "none of grid, random, tpe, gp, cost-model"),
        (["--list"], "no trial database"),
        (["--show", "x"], "no trial database"),
        (["import", "nothing.jsonl"], "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    words: list[str], message: str, tmp_path: Path
) -> None:
    code, output, errors = tune(*words, folder=tmp_path)
    assert code == 2
    assert output == ""
    assert message in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1


def test_a_plan_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "p.toml"
    plan.write_text(SMALL_PLAN.replace("tiers", "tears"))
    code, _, errors = tune(plan, folder=tmp_path)
    assert code == 2
    assert "'tears' in [grid] (line 4)" in errors
    assert not (tmp_path / "runs").exists()


def test_the_trial_process_dies_with_its_driver_only(swept: Swept) -> None:
    """No process of the sweep above is left."""
    mine = []
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"strata.tuner.trial" in command and str(os.getpid()).encode() in command:
                mine.append(entry.name)
    assert not mine
