"""`strata policy check`: a few entries are measured again, and judged by their own claim."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner_samples import FACTS, make_records
from typer.testing import CliRunner

from strata import __version__
from strata.cli.policy import app
from strata.errors import TableError
from strata.passages import documents
from strata.policy import Entry, Fingerprint, PolicyTable, make_tiers, save_table
from strata.policy.table import DOCUMENTS
from strata.tuner.arms import PairSpec
from strata.tuner.check import (
    check_entries,
    choose_entries,
    confirming_passages,
    freshness,
    pair_of,
    refuse_elsewhere,
)
from strata.tuner.environment import EngineFacts
from strata.tuner.passages import documents_of
from strata.tuner.record import TrialRecord

TINY = Path(__file__).parent.parent / "data" / "tiny"
FINGERPRINT = Fingerprint(
    device=FACTS.device,
    model_hash=FACTS.model_hash,
    kv_dtype=FACTS.kv_dtype,
    page_cells=16,
    mtp_window=64,
    vram_budget_bytes=None,
)


def entry(tier: int, lower: float, **fields: object) -> Entry:
    given: dict[str, object] = {"effect_ratio": lower + 0.05, "lower_ratio": lower, "mode": "on"}
    return Entry(tier_cells=tier, ring_cells=32, verdict="better", **(given | fields))  # type: ignore[arg-type]


KEPT = Entry(tier_cells=32, mode="off", ring_cells=64, verdict="equivalent")
TABLE = PolicyTable(
    created="2026-01-02T03:04:05Z",
    engine_version=__version__,
    fingerprint=FINGERPRINT,
    provenance={"study": "s", "plan_sha256": None, "protocol_sha256": None,
                "passages_sha256": None, "measured_from": None, "measured_to": None},
    default_ring_cells=64,
    margin_ratio=0.02,
    tiers=make_tiers([32, 64, 128]),
    entries=(KEPT, entry(32, 0.03), entry(64, 0.01, mode="off"), entry(128, 0.2)),
)  # fmt: skip


class Runner:
    """Answers each pair with the gain of its tier, a little apart from passage to passage."""

    def __init__(self, gains: dict[int, float], spread: float = 0.001, **changes: object) -> None:
        self.gains, self.spread, self.changes = gains, spread, changes
        self.pairs: list[PairSpec] = []

    def run_pair(
        self, spec: PairSpec, facts: EngineFacts, *, timeout_s: float
    ) -> list[TrialRecord]:
        self.pairs.append(spec)
        wobble = self.spread * (-1) ** len(self.pairs)
        runs = make_records(spec, gain=self.gains[spec.tier_cells] * math.exp(wobble))
        return [replace(run, **self.changes) if run.arm == "arm" else run for run in runs]  # type: ignore[arg-type]


def outcomes(runner: Runner, entries: list[Entry]) -> list[str]:
    found = check_entries(TABLE, entries, runner, FACTS, passages=4, max_new=32, timeout_s=1.0)
    return [one.outcome for one in found]


def test_only_entries_that_move_a_ring_are_measured_the_least_sure_first() -> None:
    assert [one.lower_ratio for one in choose_entries(TABLE, count=2)] == [0.01, 0.03]
    assert [one.tier_cells for one in choose_entries(TABLE, tiers=[128, 32], count=9)] == [32, 128]
    with pytest.raises(TableError, match="no tier 4096; it has 32, 64, 128"):
        choose_entries(TABLE, tiers=[4096], count=1)


def test_a_claim_holds_fails_or_stays_open() -> None:
    entries = choose_entries(TABLE, count=3)
    assert outcomes(Runner({32: 1.10, 64: 1.10, 128: 1.10}), entries) == ["holds"] * 3
    assert outcomes(Runner({32: 1.01, 64: 0.90, 128: 1.02 / 1.002}), entries)[:2] == [
        "does not hold", "does not hold"
    ]  # fmt: skip
    assert outcomes(Runner({32: 1.02, 64: 1.02, 128: 1.02}, 0.05), entries) == ["undecided"] * 3


def test_a_ring_that_cannot_run_does_not_hold() -> None:
    runner = Runner({32: 1.1, 64: 1.1, 128: 1.1}, kind="wrong output", message="other tokens")
    (found,) = check_entries(
        TABLE, [TABLE.entries[1]], runner, FACTS, passages=2, max_new=32, timeout_s=1.0
    )
    assert (found.outcome, found.passages, found.mean) == ("does not hold", 0, None)
    assert found.reason == "wrong output: other tokens"


def test_a_pair_is_run_under_the_conditions_of_the_table() -> None:
    pair = pair_of(TABLE, TABLE.entries[1], "32:1", max_new=32)
    assert (pair.mode, pair.spec, pair.mtp_window_cells) == ("on", 1, 64)
    assert (pair.default_ring_cells, pair.arm_ring_cells, pair.context_cells) == (64, 32, 80)
    off = pair_of(TABLE, TABLE.entries[2], "64:1", max_new=32)
    assert (off.mode, off.spec, off.mtp_window_cells) == ("off", 0, None)
    shared = replace(TABLE, fingerprint=replace(FINGERPRINT, context=1_000))
    assert pair_of(shared, TABLE.entries[2], "64:1", max_new=32).context_cells == 1_008


def chosen_on(*seeds: int) -> PolicyTable:
    named = {DOCUMENTS: " ".join(sorted(documents_of(seeds)))}
    return replace(TABLE, provenance={**TABLE.provenance, **named})


def test_a_failure_is_held_against_the_ring_where_it_is_the_rings() -> None:
    """A pair that fails marks all of its runs, whichever side it was."""

    class Failing(Runner):
        def run_pair(
            self, spec: PairSpec, facts: EngineFacts, *, timeout_s: float
        ) -> list[TrialRecord]:
            runs = super().run_pair(spec, facts, timeout_s=timeout_s)
            return [replace(run, **self.changes) for run in runs]  # type: ignore[arg-type]

    def said(failed_arm: str | None) -> list[str]:
        lost = {"kind": "out of memory", "message": "full", "failed_arm": failed_arm}
        return outcomes(Failing({32: 1.1}, **lost), [TABLE.entries[1]])

    assert said("default") == said("both") == ["undecided"]
    assert said("arm") == said(None) == ["does not hold"]


def test_passages_are_those_meant_to_confirm_where_the_table_names_none() -> None:
    assert confirming_passages(TABLE, 3, 64) == ["64:1", "64:3", "64:5"]
    assert "none of 3 passages is known to be fresh" in freshness(TABLE, ["64:1", "64:3", "64:5"])


@given(seeds=st.sets(st.integers(0, 99), min_size=1), count=st.integers(2, 40))
def test_documents_the_table_was_not_chosen_on_come_first(seeds: set[int], count: int) -> None:
    """Seeds wrap around: seed 29 of 28 documents is seed 1 again, by its text."""
    table = chosen_on(*seeds)
    names = confirming_passages(table, count, 64)
    of = [documents_of([int(name.partition(":")[2])]) for name in names]
    fresh = [one.isdisjoint(documents_of(seeds)) for one in of]
    every = len(documents())
    assert len(set(of)) == len(names) == min(count, every)
    assert fresh == sorted(fresh, reverse=True)
    assert sum(fresh) == min(count, every - len(documents_of(seeds)))
    told = freshness(table, names)
    assert told.startswith(f"{'all ' * all(fresh)}{sum(fresh) or 'none'} ")
    assert ("no further document that ships is left" in told) == (not all(fresh))


def test_an_entry_says_how_many_of_its_passages_were_fresh() -> None:
    table = chosen_on(*(seed for seed in range(28) if seed not in (4, 9)))
    runner = Runner({32: 1.1})
    (found,) = check_entries(
        table, [TABLE.entries[1]], runner, FACTS, passages=3, max_new=32, timeout_s=1.0
    )
    assert [pair.passage for pair in runner.pairs] == ["32:9", "32:4", "32:1"]
    assert (found.passages, found.fresh) == (3, 2)


def test_a_table_of_another_machine_is_not_measured() -> None:
    refuse_elsewhere(TABLE, FACTS)
    with pytest.raises(TableError, match="device is cpu: test in the table and other here"):
        refuse_elsewhere(TABLE, replace(FACTS, device="other"))


def run(*words: object, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_the_command_measures_on_the_engine(tmp_path: Path) -> None:
    """What it says of a real table is a timing's business; that it says it is tested."""
    from strata.device import device_name
    from strata.lm import load_model

    model = load_model(TINY, "cpu")
    words = ["--model", TINY, "--device", "cpu", "--passages", 2, "--max-new", 16, "--entries", 1]
    path = tmp_path / "t.json"
    save_table(TABLE, path)
    errors = run("check", path, *words, code=2)[1]
    assert errors.startswith(f"error: policy table {path}: it is not obeyed here")
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    here = replace(FINGERPRINT, device=device_name(model.device), model_hash=model.model_hash)
    torch.set_num_threads(before)
    save_table(replace(TABLE, fingerprint=here), path)
    result = CliRunner().invoke(app, [str(word) for word in ("check", path, *words)])
    assert result.exit_code in (0, 1), result.output
    assert "of 1 entries: " in result.stdout
    assert "none of 2 passages is known to be fresh" in result.stdout
    assert result.stderr.count("is done") == 2
    assert (result.exit_code == 1) == ("1 does not hold" in result.stdout)
    save_table(replace(TABLE, fingerprint=here, entries=(KEPT,)), path)
    assert "nothing to measure" in run("check", path, *words)[0]
