"""The store on disk: one DuckDB file, opened by the driver alone.

While a writer has the file no other process can open it, not even to read; so trials return
their records over a pipe and this process writes them, one transaction a pair. Of readers there
may be many at once, and beside a writer they read a copy (`snapshot`). The file is attached with
an older storage version so that releases of DuckDB before this one can read it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb

from strata.errors import StoreError
from strata.tuner.record import COLUMNS, TrialRecord
from strata.tuner.store.base import Outcome, TrialStore, check_new, check_try
from strata.tuner.store.migrations import MIGRATIONS, VERSION
from strata.tuner.store.place import connect, made_beside, refuse_place
from strata.tuner.store.snapshot import HeldError, copied, holder_of
from strata.tuner.store.text import read_json
from strata.tuner.study import StudyRecord
from strata.tuner.workload import Workload

STORAGE_VERSION = "v1.2.0"
WORKLOAD_COLUMNS = (
    "record", "workload", "model_hash", "engine_version", "device", "conditions", "name",
    "depth_cells", "rounds", "tokens", "tries", "hits", "created_at",
)  # fmt: skip
ROW_NUMBER = "row number"
"""How `raw_rows` calls the database's own count of a row."""

_MARK = "strata trial store"
_JSON_COLUMNS = ("ledger", "environment", "conditions")
STUDY_COLUMNS = tuple(field.name for field in fields(StudyRecord))


class DuckStore(TrialStore):
    """Keeps studies and trials in the DuckDB file at `path`, made where it is missing.

    With `read_only` it must be there and stays as it is; an older schema is brought up to date in
    memory. `found_version` is the schema that the file has. What another process is writing is read
    as it was a moment ago, and `writer` says who that is.
    """

    def __init__(self, path: Path, *, must_exist: bool = False, read_only: bool = False) -> None:
        self.path = path
        self._read_only = read_only
        refuse_place(path)
        self._is_new = not path.exists()
        if (must_exist or read_only) and self._is_new:
            raise StoreError(f"no trial database at {path}; `strata tune` makes one")
        self._db = connect()
        self.writer = ""
        try:
            if self._is_new:
                self._make()
            with ExitStack() as stack:
                self._attach(stack)
                self.found_version = self._version()
                self._refuse_newer(self.found_version)
                if read_only and (self.writer or self.found_version < VERSION):
                    self._read_into_memory()
            self._migrate(self.found_version)
        except BaseException:
            self.close()
            raise

    def add_study(self, study: StudyRecord) -> None:
        """Add a study, once."""
        for known in self.studies():
            if known.study == study.study:
                if not known.same_identity(study):
                    raise StoreError(f"study {study.study} is stored already with other facts")
                return
        with self._transaction():
            self._insert("studies", STUDY_COLUMNS, [study.to_json()])

    def add_trials(self, records: Sequence[TrialRecord]) -> None:
        """Add the runs of a pair, all or none; a Ctrl-C meanwhile waits for them."""
        ids = [record.trial_id for record in records]
        check_new(records, studies=self._study_keys(), known=self._known(ids))
        try:
            self._write_trials(records)
        except KeyboardInterrupt:
            if not self._known(ids):
                self._write_trials(records)
            raise

    def _write_trials(self, records: Sequence[TrialRecord]) -> None:
        with self._transaction():
            self._insert("trials", tuple(COLUMNS), [record.to_json() for record in records])

    def _known(self, ids: list[str]) -> set[str]:
        """Return which of `ids` are stored."""
        with self._reported("cannot be read"):
            found = self._db.execute(
                "SELECT trial_id FROM trials WHERE trial_id IN (SELECT unnest(?))", [ids]
            ).fetchall()
        return {row[0] for row in found}

    def studies(self) -> list[StudyRecord]:
        """Return every study, oldest first."""
        rows = self._select("studies", STUDY_COLUMNS, "true", [])
        return [StudyRecord.from_json(row, origin=str(self.path)) for row in rows]

    def every_trial(self, study: str) -> list[TrialRecord]:
        """Return the trials of a study by its full key, those that were tried again included."""
        rows = self._select("trials", tuple(COLUMNS), "study = ?", [study])
        return [TrialRecord.from_json(row, origin=str(self.path)) for row in rows]

    def trial_ids(self, study: str) -> set[str]:
        """Return the ids of the trials of a study."""
        with self._reported("cannot be read"):
            rows = self._db.execute("SELECT trial_id FROM trials WHERE study = ?", [study])
            return {row[0] for row in rows.fetchall()}

    def add_workload(self, workload: Workload) -> None:
        """Keep a workload, once: its name must be new."""
        self.refuse_known_workload(workload.workload)
        rows = workload.rows()
        with self._transaction():
            self._insert("acceptance", tuple(rows[0]), rows)

    def refuse_known_workload(self, name: str) -> None:
        """Raise StoreError where a workload of that name is stored, which never changes."""
        if name in {one.workload for one in self.workloads()}:
            raise StoreError(
                f"workload {name!r} is stored already and cannot change; give it another name"
            )

    def workloads(self) -> list[Workload]:
        """Return every workload, oldest first."""
        by_name: dict[str, list[dict[str, object]]] = {}
        for row in self._select("acceptance", WORKLOAD_COLUMNS, "true", []):
            by_name.setdefault(str(row["workload"]), []).append(row)
        return [Workload.from_rows(rows, origin=str(self.path)) for rows in by_name.values()]

    def workload(self, name: str) -> Workload:
        """Return a workload by its name; raise StoreError where there is none."""
        every = self.workloads()
        for one in every:
            if one.workload == name:
                return one
        listed = ", ".join(one.workload for one in every) or "none"
        raise StoreError(f"no workload is called {name!r}; there are: {listed}")

    def copy_rows(self, table: str, study: str, path: Path) -> int:
        """Write the rows of one study in `table` as Parquet, in their order, and count them."""
        names = ", ".join(f'"{name}"' for name in _columns_of(table))
        query = f"SELECT {names} FROM {table} WHERE study = {quoted(study)} ORDER BY ordinal"
        with self._reported("cannot be exported"):
            self._db.execute(
                f"COPY ({query}) TO {quoted(str(path))} (FORMAT parquet, COMPRESSION zstd)"
            )
            (count,) = self._db.execute(
                f"SELECT count(*) FROM {table} WHERE study = ?", [study]
            ).fetchall()[0]
        return int(count)

    def add_try(self, study: str, pair_id: str, outcome: Outcome) -> None:
        """Note that a try of a pair began, or how it ended without a result."""
        check_try(study, studies=self._study_keys())
        with self._transaction():
            row: dict[str, object] = {"study": study, "pair_id": pair_id, "outcome": outcome}
            self._insert("tries", tuple(row), [row])

    def tries(self, study: str) -> dict[str, Counter[str]]:
        """Return how often each outcome was noted, by pair."""
        found: dict[str, Counter[str]] = {}
        with self._reported("cannot be read"):
            rows = self._db.execute("SELECT pair_id, outcome FROM tries WHERE study = ?", [study])
            for pair, outcome in rows.fetchall():
                found.setdefault(pair, Counter())[outcome] += 1
        return found

    def raw_rows(self, table: str) -> list[dict[str, Any]]:
        """Return every row of a table as it is kept, with its number, for a check of the file."""
        with self._reported("cannot be read"):
            query = f'SELECT rowid AS "{ROW_NUMBER}", * FROM {table} ORDER BY ordinal, rowid'
            found = self._db.execute(query)
            names = [column[0] for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def remove_rows(self, table: str, numbers: Sequence[int]) -> None:
        """Take rows out of a table by their numbers of this moment; only a repair does."""
        with self._transaction():
            self._db.execute(
                f"DELETE FROM {table} WHERE rowid IN (SELECT unnest(?))", [list(numbers)]
            )

    def checkpoint(self) -> None:
        """Write what the log beside the file has into the file itself."""
        with self._reported("cannot be written"):
            self._db.execute("CHECKPOINT")

    def close(self) -> None:
        """Let go of the file, its log emptied if that can be; safe to call twice."""
        if not self._read_only:
            with suppress(StoreError):  # the log keeps what the file could not take
                self.checkpoint()
        self._db.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file; one that was made for what has failed goes again."""
        if kind is not None and self._is_new and not (self._study_keys() or self.workloads()):
            self.path.unlink(missing_ok=True)
        self.close()

    def _study_keys(self) -> set[str]:
        with self._reported("cannot be read"):
            return {row[0] for row in self._db.execute("SELECT study FROM studies").fetchall()}

    def _make(self) -> None:
        """Make an empty database of the newest schema."""
        with self._reported("cannot be made"), made_beside(self.path) as scratch:
            self._attach_file(scratch)
            self._migrate(0)
            self._db.execute("CHECKPOINT")
            self._db.execute("USE memory")
            self._db.execute("DETACH db")

    def _attach(self, stack: ExitStack) -> None:
        """Open the file, or to read what is being written a copy of it, which `stack` removes."""
        try:
            self._attach_file(self.path)
        except HeldError as error:
            if not self._read_only:
                raise
            self.writer = error.holder
            self._attach_file(stack.enter_context(copied(self.path)))

    def _attach_file(self, path: Path) -> None:
        how = "READ_ONLY" if self._read_only else f"STORAGE_VERSION '{STORAGE_VERSION}'"
        with self._reported("cannot be opened"):
            self._db.execute(f"ATTACH {quoted(str(path.absolute()))} AS db ({how})")
            self._db.execute("USE db")

    def _read_into_memory(self) -> None:
        """Go on with a copy of everything in memory, which may change."""
        with self._reported("cannot be read"):
            self._db.execute("ATTACH ':memory:' AS copied")
            self._db.execute("COPY FROM DATABASE db TO copied")
            self._db.execute("USE copied")
            self._db.execute("DETACH db")

    def _refuse_newer(self, version: int) -> None:
        if version > VERSION:
            raise StoreError(
                f"{self.path} was written by a newer strata (schema {version}, this one knows "
                f"{VERSION}); upgrade strata or give --db another path"
            )

    def _migrate(self, version: int) -> None:
        """Bring the schema up to date from `version`, one step a transaction."""
        for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
            with self._transaction():
                if number == 1:
                    self._db.execute("CREATE TABLE store (mark VARCHAR, version BIGINT)")
                    self._db.execute("INSERT INTO store VALUES (?, 0)", [_MARK])
                self._db.execute(step)
                self._db.execute("UPDATE store SET version = ?", [number])

    def _version(self) -> int:
        """Return the schema version of the file, 0 for an empty one."""
        with self._reported("cannot be read"):
            tables = {
                row[0]
                for row in self._db.execute(
                    "SELECT table_name FROM duckdb_tables() WHERE database_name = 'db'"
                ).fetchall()
            }
            if not tables:
                return 0
            rows = []
            if "store" in tables:
                rows = self._db.execute("SELECT mark, version FROM store").fetchall()
        if len(rows) != 1 or rows[0][0] != _MARK:
            raise StoreError(f"{self.path} is a database of something else; give --db another path")
        version = rows[0][1]
        if version is None or version < 1:
            raise StoreError(f"{self.path} is damaged: its schema version is {version}")
        return int(version)

    def _insert(
        self, table: str, columns: Sequence[str], rows: Sequence[dict[str, object]]
    ) -> None:
        names = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" for _ in columns)
        next_ordinal = f"(SELECT coalesce(max(ordinal), 0) + 1 FROM {table})"
        for row in rows:
            values = [
                json.dumps(value) if name in _JSON_COLUMNS and value is not None else value
                for name in columns
                for value in [row.get(name)]
            ]  # fmt: skip
            self._db.execute(
                f"INSERT INTO {table} (ordinal, {names}) VALUES ({next_ordinal}, {marks})", values
            )

    def _select(
        self, table: str, columns: Sequence[str], where: str, values: list[object]
    ) -> Iterator[dict[str, object]]:
        names = ", ".join(f'"{name}"' for name in columns)
        with self._reported("cannot be read"):
            rows = self._db.execute(
                f"SELECT {names} FROM {table} WHERE {where} ORDER BY ordinal", values
            ).fetchall()
        yield from plain_rows(rows, columns, origin=str(self.path))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._reported("cannot be written"):
            self._db.execute("BEGIN TRANSACTION")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        with suppress(duckdb.Error):  # a failed commit has ended it, or the database with it
            self._db.execute("ROLLBACK")

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Turn whatever the database or the file system raises into one StoreError."""
        try:
            yield
        except duckdb.Error as error:
            if holder := holder_of(str(error)):
                raise HeldError(f"{self.path} {what}", holder=holder) from None
            raise StoreError(f"{self.path} {what}: {_reason(error)}") from None
        except OSError as error:
            raise StoreError(f"{self.path} {what}: {error.strerror or error}") from None
        except RuntimeError as error:
            if "interrupted" not in str(error):
                raise
            raise KeyboardInterrupt from None  # DuckDB's word for a signal in mid-statement


def plain_rows(
    rows: Iterable[Sequence[object]], columns: Sequence[str], *, origin: str
) -> Iterator[dict[str, object]]:
    """Yield rows by column name, what is kept as JSON text parsed."""
    for values in rows:
        row = dict(zip(columns, values, strict=True))
        for name in _JSON_COLUMNS:
            if isinstance(text := row.get(name), str):
                row[name] = read_json(text, origin=f"{origin} is damaged: a {name}")
        yield row


def quoted(text: str) -> str:
    """Return a text as a literal of SQL, where no parameter may stand."""
    return "'" + text.replace("'", "''") + "'"


def _columns_of(table: str) -> tuple[str, ...]:
    return STUDY_COLUMNS if table == "studies" else tuple(COLUMNS)


def _reason(error: Exception) -> str:
    """Return the first sentence of a database error, in plain words for the common ones."""
    text = " ".join(str(error).split())
    first, lowered = text.partition(". ")[0], text.lower()
    if "cannot be lowered" in lowered:
        return "another program or a newer strata wrote it; give --db another path"
    if "version number" in lowered or "storage version" in lowered:
        return "a newer DuckDB wrote it, so strata did not; give --db another path"
    if any(word in lowered for word in ("no space", "file too large", "could not write")):
        return "the disk is full or the file may not grow; free space, then start again"
    if "catalog error" in lowered or "binder error" in lowered:
        return "its tables are not those of a trial database; give --db another path"
    if "permission denied" in lowered or "read-only" in lowered:
        return "it may not be written to; copy it to where it may, and name the copy with --db"
    if "corrupt" in lowered or "could not read enough" in lowered:
        return f"it is damaged ({first[:200]}); put a copy back, or give --db another path"
    return first[:300]
