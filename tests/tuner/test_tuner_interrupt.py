"""A Ctrl-C in the middle of a statement stops the run, and what was measured is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tuner_samples import all_pairs, make_records

from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord


class Interrupted:
    """A connection that a signal meets once, at the `at`-th statement that begins with `word`."""

    def __init__(self, real: Any, word: str, at: int) -> None:
        self._real, self._word, self._left = real, word, at

    def execute(self, statement: str, *values: Any) -> Any:
        if statement.startswith(self._word):
            self._left -= 1
            if self._left == 0:
                raise RuntimeError("Query interrupted")
        return self._real.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@pytest.mark.parametrize(("word", "at"), [("INSERT", 1), ("INSERT", 3), ("COMMIT", 1)])
def test_the_pair_that_ended_is_kept(
    study: StudyRecord, tmp_path: Path, word: str, at: int
) -> None:
    records = make_records(all_pairs(study)[0])
    with DuckStore(tmp_path / "t.duckdb") as store:
        store.add_study(study)
        store._db = Interrupted(store._db, word, at)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            store.add_trials(records)
    with DuckStore(tmp_path / "t.duckdb") as store:
        assert store.trials(study.study) == records


def test_a_question_that_is_interrupted_stops_the_run(study: StudyRecord, tmp_path: Path) -> None:
    with DuckStore(tmp_path / "t.duckdb") as store:
        store.add_study(study)
        store._db = Interrupted(store._db, "SELECT", 1)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            store.trial_ids(study.study)
