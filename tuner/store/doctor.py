"""Look a trial database over, and repair what can be repaired without losing a figure.

Every row is read as it is kept, so that one damaged row does not hide the others. A repair takes
rows out and writes them, as they were, into JSON lines beside the database first; what belongs to
a plan is then measured again by ``--resume``. Nothing is ever made up or changed.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from strata.errors import StoreError
from strata.files import write_whole
from strata.tuner.arms import ORDER, digest
from strata.tuner.measure import PROTOCOL
from strata.tuner.record import COLUMNS, TrialRecord
from strata.tuner.roster import Roster, pair_objection
from strata.tuner.store.duck import ROW_NUMBER, STUDY_COLUMNS, DuckStore, plain_rows
from strata.tuner.store.migrations import VERSION
from strata.tuner.store.place import log_of
from strata.tuner.store.snapshot import copied
from strata.tuner.study import StudyRecord

Row = dict[str, Any]
State = Literal["wrong", "lost", "note"]
"""``wrong`` can be repaired, ``lost`` cannot, a ``note`` is no fault."""

HEAD_BYTES, BLOCK_BYTES = 3 * 4_096, 1 << 18
"""What a file of DuckDB is made of: a head, and whole blocks of the size that it has by itself."""

WAY_OUT = "what can be read leaves it by strata tune export"

PassagesHash = Callable[[StudyRecord], str | None]
"""Returns the hash of a study's passages as they are here, None where its model is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found, and the rows that a repair would take out."""

    state: State
    place: str
    message: str
    trials: tuple[int, ...] = ()
    """Row numbers, as the database gives them until it is written to."""
    studies: tuple[int, ...] = ()


@dataclass(slots=True)
class Examination:
    """What a database holds and what is wrong with it."""

    version: int
    studies: list[StudyRecord] = field(default_factory=list)
    num_trials: int = 0
    findings: list[Finding] = field(default_factory=list)

    def of(self, *states: State) -> list[Finding]:
        """Return the findings of some states."""
        return [one for one in self.findings if one.state in states]


def examine(path: Path, passages_hash: PassagesHash = lambda study: None) -> Examination:
    """Return what is found in the database at `path`, which is only read.

    Raises StoreError where it cannot be opened or read at all: another run has it, a newer strata
    wrote it, it is something else, or its blocks are damaged.
    """
    with DuckStore(path, read_only=True) as store:
        version = store.found_version
        found = _examine(store, version, passages_hash)
        found.findings += _of_file(path)
    if version < VERSION:
        words = (
            f"schema {version}, and this strata writes {VERSION}; opening it to measure brings it "
            "up"
        )
        found.findings.insert(0, Finding(state="note", place="schema", message=words))
    return found


def _of_file(path: Path) -> Iterator[Finding]:
    """Yield what is wrong with the file as such: its length, whether it can be written, its log.

    Reading meets the blocks that it needs alone, so a copy is opened to be written to.
    """
    log = log_of(path)
    if log.is_file() and log.stat().st_size:
        words = f"{log.name} has what was stored last and belongs to it; move or copy both"
        yield Finding(state="note", place="file", message=words)
    elif excess := (path.stat().st_size - HEAD_BYTES) % BLOCK_BYTES:
        words = f"it is damaged: it ends {excess} bytes into a block of {BLOCK_BYTES}; {WAY_OUT}"
        yield Finding(state="lost", place="file", message=words)
        return
    with copied(path) as copy:
        try:
            with DuckStore(copy) as store:
                store.checkpoint()
        except StoreError as error:
            words = f"{str(error).replace(str(copy), str(path))}; {WAY_OUT}"
            yield Finding(state="lost", place="file", message=words)


def repair(path: Path) -> Path | None:
    """Take out the rows of every ``wrong`` finding; return the file that keeps them, if any.

    Raises StoreError where the database or the file beside it cannot be written.
    """
    with DuckStore(path, must_exist=True) as store:  # opening it brings the schema up to date
        wrong = _examine(store, VERSION, lambda study: None).of("wrong")
        taken = {
            "trials": {one for finding in wrong for one in finding.trials},
            "studies": {one for finding in wrong for one in finding.studies},
        }
        lines = [
            json.dumps({"table": table, "row": row}, default=str)
            for table, numbers in taken.items()
            for row in store.raw_rows(table)
            if row[ROW_NUMBER] in numbers
        ]
        if not lines:
            return None
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
        kept = path.with_name(f"{path.name}.removed-{stamp}.jsonl")
        try:
            write_whole(kept, "".join(line + "\n" for line in lines).encode())
        except OSError as error:
            raise StoreError(f"{kept} cannot be written: {error.strerror}") from None
        for table, numbers in taken.items():
            store.remove_rows(table, sorted(numbers))
    return kept


def _examine(store: DuckStore, version: int, passages_hash: PassagesHash) -> Examination:
    studies, trials = store.raw_rows("studies"), store.raw_rows("trials")
    found = Examination(version=version, num_trials=len(trials))
    found.findings += _duplicates("trial", "trial_id", trials)
    found.findings += _duplicates("study", "study", studies)
    by_study: dict[str, list[Row]] = defaultdict(list)
    for row in trials:
        by_study[str(row["study"])].append(row)
    for row in studies:
        mine = by_study.pop(str(row["study"]), [])
        try:
            study = StudyRecord.from_json(_plain(row, STUDY_COLUMNS), origin="the studies")
        except StoreError as error:
            taken = tuple(int(one[ROW_NUMBER]) for one in mine)
            found.findings.append(
                Finding(
                    state="wrong",
                    place=str(row["study"]),
                    message=f"{error}; the study cannot be trusted, nor its {len(mine)} trials",
                    trials=taken,
                    studies=(int(row[ROW_NUMBER]),),
                )
            )
            continue
        found.studies.append(study)
        found.findings += _of_study(study, mine, passages_hash)
    try:
        store.workloads()
    except StoreError as error:
        found.findings.append(Finding(state="lost", place="acceptance", message=str(error)))
    for key, orphans in by_study.items():
        found.findings.append(
            _taken(key, orphans, f"{len(orphans)} trials of no study that is here")
        )
    return found


def _duplicates(what: str, column: str, rows: list[Row]) -> Iterator[Finding]:
    """Yield ids that stand twice; of a trial's copies that differ none is known to be right."""
    counts = Counter(row[column] for row in rows)
    for key in (one for one, count in counts.items() if count > 1):
        same = [row for row in rows if row[column] == key]
        alike = {json.dumps(row | {ROW_NUMBER: 0}, default=str, sort_keys=True) for row in same}
        message = f"{what} {key} is there {len(same)} times"
        spare = same[1:]
        if len(alike) > 1:
            message += " and not alike"
            if what == "trial":
                spare = [row for row in rows if row["pair_id"] == same[0]["pair_id"]]
        numbers = tuple(int(row[ROW_NUMBER]) for row in spare)
        of_table = {"trials": numbers} if what == "trial" else {"studies": numbers}
        yield Finding(state="wrong", place=str(same[0]["study"]), message=message, **of_table)


def _of_study(study: StudyRecord, rows: list[Row], passages_hash: PassagesHash) -> list[Finding]:
    findings = _hashes(study, passages_hash)
    pairs: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        pairs[str(row["pair_id"])].append(row)
    roster = None
    try:
        roster = Roster(study)
    except StoreError as error:
        findings.append(_lost(study, str(error)))
    sound: set[str] = set()
    for key, runs in pairs.items():
        if words := _damage(roster, runs):
            findings.append(_taken(study.study, runs, f"pair {key}: {words}"))
        else:
            sound |= {str(run["trial_id"]) for run in runs}
    due = set() if roster is None else _due(study)
    if missing := len(due - sound):
        words = f"{len(due) - missing} of {len(due)} planned trials are stored and sound; "
        findings.append(_note(study, words + "`strata tune PLAN --resume` measures the rest"))
    failed = Counter(str(row["kind"]) for row in rows if row["kind"] != "ok")
    if failed:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(failed.items()))
        findings.append(_note(study, f"trials without figures: {listed}"))
    return findings


def _hashes(study: StudyRecord, passages_hash: PassagesHash) -> list[Finding]:
    """Hold the stored hashes against what is here; key and plan were checked as it was read."""
    findings = []
    if study.protocol_sha256 != digest(PROTOCOL):
        findings.append(_note(study, "it was measured by another protocol than this strata's"))
    here = passages_hash(study)
    if here is None:
        findings.append(_note(study, "its passages were not hashed: its model is not here"))
    elif here != study.passages_sha256:
        words = "its passages differ from those of this strata, so a sweep here is another study"
        findings.append(_note(study, words))
    return findings


def _due(study: StudyRecord) -> set[str]:
    """Return the ids of the trials that run whatever the others show."""
    grid = study.grid
    return {
        pair.trial_id(position)
        for arm in grid.arms()
        for pair in grid.pairs(arm, study=study.study)
        for position in range(len(ORDER))
    }


def _damage(roster: Roster | None, runs: list[Row]) -> str:
    """Return what is wrong with the runs of one pair, or nothing."""
    records = []
    for run in runs:
        try:
            record = TrialRecord.from_json(_plain(run, tuple(COLUMNS)), origin="the trials")
        except StoreError as error:
            return str(error)
        if roster is not None and (words := roster.objection(record)):
            return f"trial {record.trial_id} {words}"
        records.append(record)
    return pair_objection(records)


def _plain(row: Row, columns: tuple[str, ...]) -> dict[str, object]:
    values = [row.get(name) for name in columns]
    return next(plain_rows([values], columns, origin="a row"))


def _taken(study: str, rows: list[Row], message: str) -> Finding:
    ordinals = tuple(int(row[ROW_NUMBER]) for row in rows)
    return Finding(state="wrong", place=study, message=message, trials=ordinals)


def _lost(study: StudyRecord, message: str) -> Finding:
    return Finding(state="lost", place=f"{study.study} ({study.name})", message=message)


def _note(study: StudyRecord, message: str) -> Finding:
    return Finding(state="note", place=f"{study.study} ({study.name})", message=message)
