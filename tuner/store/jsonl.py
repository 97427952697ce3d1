"""Trials as JSON lines: how they come home from the machine that ran them.

The first line is the study, each line after it one trial, or a note of a try: that it began, or how
it ended without a result. What a crash cut short at the end (a line, or a pair that lacks runs) is
left out and measured again; any other damage is refused with its line number.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from strata.errors import StoreError
from strata.files import is_stream, write_whole
from strata.tuner.arms import ORDER
from strata.tuner.fields import shown
from strata.tuner.record import TrialRecord
from strata.tuner.roster import Roster, check_pairs
from strata.tuner.store.base import OUTCOMES, Outcome, TrialStore
from strata.tuner.store.lock import open_alone
from strata.tuner.store.manifest import (
    FileFacts,
    beside,
    check_manifest,
    check_rows,
    write_manifest,
)
from strata.tuner.store.memory import MemoryStore
from strata.tuner.store.text import read_json
from strata.tuner.store.writers import Writers
from strata.tuner.study import SCHEMA as STUDY_SCHEMA
from strata.tuner.study import StudyRecord

TRY_SCHEMA = "strata.try/1"


class JsonlStore(MemoryStore):
    """Keeps one study in a file of JSON lines that only grows, by one process at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_alone(path)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}") from None
        try:
            whole = _fill(self, path)
            beside(path).unlink(missing_ok=True)  # it spoke of the file before it grew
            self._file.truncate(whole)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    def add_study(self, study: StudyRecord) -> None:
        """Add the one study of the file."""
        if self._studies and study.study not in self._studies:
            other = next(iter(self._studies))
            raise StoreError(f"{self.path} holds study {other}, not {study.study}; give it another")
        is_new = not self._studies
        super().add_study(study)
        if is_new:
            self._append([_study_line(study)])

    def add_trials(self, records: Sequence[TrialRecord]) -> None:
        """Add the runs of a pair, in one write."""
        super().add_trials(records)
        self._append([record.to_line() for record in records])

    def add_try(self, study: str, pair_id: str, outcome: Outcome) -> None:
        """Note how a try of a pair began or ended, as a line of its own."""
        super().add_try(study, pair_id, outcome)
        line = {"record": TRY_SCHEMA, "study": study, "pair_id": pair_id, "outcome": outcome}
        self._append([json.dumps(line, separators=(",", ":"))])

    def close(self) -> None:
        """Let go of the file; what could not be written was reported by the write."""
        with suppress(OSError):
            if not self._studies and not self.path.stat().st_size:
                self.path.unlink()  # nothing came of it
            self._file.close()

    def _append(self, lines: Sequence[str]) -> None:
        try:
            self._file.write("".join(line + "\n" for line in lines).encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written: {error.strerror}") from None


def export_jsonl(store: TrialStore, study: str, path: Path) -> int:
    """Write one study as JSON lines and their manifest beside; count its trials.

    Each file is written beside its place and renamed there.
    """
    record = store.study(study)
    trials = store.every_trial(record.study)
    lines = [_study_line(record), *(trial.to_line() for trial in trials)]
    try:
        if not (streams := is_stream(path)):
            beside(path).unlink(missing_ok=True)
        write_whole(path, "".join(line + "\n" for line in lines).encode())
        if not streams:
            facts = FileFacts.of(path, rows=len(lines))
            write_manifest(beside(path), study=record.study, files={path.name: facts})
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
    return len(trials)


def read_jsonl(path: Path) -> tuple[StudyRecord, list[TrialRecord]]:
    """Return the study of a file and its trials, held against a manifest where one is beside."""
    if beside(path).is_file():
        files = check_manifest(beside(path))
        if path.name not in files:
            raise StoreError(f"{beside(path)} does not name {path.name}")
        check_rows(path, files[path.name], found=path.read_bytes().count(b"\n"))
    source = MemoryStore()
    _fill(source, path)
    if not source.studies():
        raise StoreError(f"{path} holds no study; `strata tune run-trials` writes such a file")
    study = source.studies()[0]
    return study, source.every_trial(study.study)


def _fill(store: MemoryStore, path: Path) -> int:
    """Read a file into `store`; return the bytes up to the end of its last whole pair."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    writers = Writers()
    read: list[tuple[TrialRecord | None, int]] = []  # None for what is no trial
    for number, line in enumerate(lines, start=1):
        origin = f"{path}, line {number}"
        value, trial = read_json(line, origin=origin), None
        is_study = isinstance(value, dict) and value.get("record") == STUDY_SCHEMA
        if number == 1 or is_study:
            study = StudyRecord.from_json(value, origin=origin)
            writers.study(study, origin=origin)
            roster = Roster(study)
            MemoryStore.add_study(store, study)
        elif isinstance(value, dict) and value.get("record") == TRY_SCHEMA:
            _add_try(store, value, origin)
        else:
            trial = TrialRecord.from_json(value, origin=origin)
            if words := roster.objection(trial):
                raise StoreError(f"{origin}: trial {shown(trial.trial_id)} {words}")
            writers.trial(number, trial, origin=origin)
        read.append((trial, len(line)))
    cut = _last_pair(read)
    read = read[: len(read) - cut] if 0 < cut < len(ORDER) else read
    trials = [trial for trial, _ in read if trial is not None]
    if trials:
        check_pairs(trials, origin=str(path))
        MemoryStore.add_trials(store, trials)
    return sum(size for _, size in read)


def _last_pair(read: Sequence[tuple[TrialRecord | None, int]]) -> int:
    """Return how many records at the end belong to one pair."""
    last = read[-1][0] if read else None
    if last is None:
        return 0
    pairs = (trial is not None and trial.pair_id == last.pair_id for trial, _ in reversed(read))
    return sum(1 for _ in takewhile(bool, pairs))


def _add_try(store: MemoryStore, value: dict[str, Any], origin: str) -> None:
    names = {"record", "study", "pair_id", "outcome"}
    words = all(isinstance(one, str) for one in value.values())
    if set(value) != names or not words or value["outcome"] not in OUTCOMES:
        raise StoreError(f"{origin}: a try has {', '.join(sorted(names))} and a known outcome")
    MemoryStore.add_try(store, value["study"], value["pair_id"], value["outcome"])


def _study_line(study: StudyRecord) -> str:
    return json.dumps(study.to_json(), separators=(",", ":"))
