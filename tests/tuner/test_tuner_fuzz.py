"""Whatever stands in a field of a real study, it is taken or answered with one sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.errors import StrataError
from strata.tuner.conclude import conclude
from strata.tuner.record import TrialRecord
from strata.tuner.report import summarise, write_report
from strata.tuner.store import MemoryStore, import_study
from strata.tuner.store.doctor import examine
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord
from strata.tuner.verdict import verdict_of

LINES = Path(__file__).parents[2] / "experiments" / "h200-first" / "trials.jsonl"
ODD = [
    10**12,
    2**63,
    10**400,
    -1,
    0,
    1e308,
    5e-324,
    math.nan,
    math.inf,
    "\ud800",
    "../../evil",
    "\0",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
IGNORED = list(HealthCheck)

Study = list[dict[str, Any]]


@pytest.fixture(scope="module")
def real() -> Study:
    """Return a real study: its record, and the runs of its first pairs."""
    found = [json.loads(line) for line in LINES.read_text().splitlines()]
    return [one for one in found if not one["record"].startswith("strata.try")][: 1 + 4 * 3]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@settings(max_examples=300, deadline=None, suppress_health_check=IGNORED)
@given(data=st.data(), value=VALUES)
def test_a_record_is_taken_or_refused(real: Study, data: st.DataObject, value: object) -> None:
    row = data.draw(st.sampled_from([0, 1, 2]))
    changed = real[row] | {data.draw(st.sampled_from(sorted(real[row]))): value}
    read = StudyRecord.from_json if row == 0 else TrialRecord.from_json
    try:
        taken = read(changed)
    except StrataError as error:
        words = str(error)
    else:
        words = ""
        assert json.dumps(taken.to_json(), ensure_ascii=False, allow_nan=False).encode()
    assert "\n" not in words.encode().decode()  # one line, and it can be printed


@settings(max_examples=6, deadline=None, suppress_health_check=IGNORED)
@given(data=st.data(), value=VALUES)
def test_what_import_takes_is_concluded_from(
    real: Study, place: Path, data: st.DataObject, value: object
) -> None:
    row = data.draw(st.sampled_from([0, 1, 2]))
    loose = ["message", "started_at", "ledger", "conditions", "token_hash", "tpot_p50_ms",
             "prefill_s", "accepted", "drafted", "kv_hits"]  # fmt: skip
    keys = ["environment", "created_at", "kv_dtype", "name"] if row == 0 else loose
    changed = [dict(one) for one in real]
    changed[row][data.draw(st.sampled_from(keys))] = value
    path, store = place / "t.jsonl", MemoryStore()
    path.write_text("".join(json.dumps(one) + "\n" for one in changed))
    try:
        study, *_ = import_study(store, path)
        verdict_of(store, study)
        table = conclude(store, study)
        write_report(summarise(store, study, table), place / "report.html")
    except StrataError:
        return
    assert (place / "report.html").stat().st_size


@pytest.fixture(scope="module")
def stored(real: Study, place: Path) -> Path:
    path = place / "real.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in real))
    with DuckStore(place / "real.duckdb") as store:
        import_study(store, path)
    return place / "real.duckdb"


@settings(max_examples=8, deadline=None, suppress_health_check=IGNORED)
@given(data=st.data(), number=st.integers(-(2**63), 2**63 - 1) | st.floats())
def test_what_the_doctor_passes_a_verdict_takes_and_nothing_else(
    real: Study, stored: Path, data: st.DataObject, number: float
) -> None:
    numeric = sorted(key for key, value in real[1].items() if isinstance(value, int | float))
    key = data.draw(st.sampled_from(numeric))
    path = stored.with_name("edited.duckdb")
    path.write_bytes(stored.read_bytes())
    with duckdb.connect(str(path)) as raw:
        try:
            raw.execute(f'UPDATE trials SET "{key}" = ? WHERE ordinal = 2', [number])
        except duckdb.Error:
            return  # the column holds no such number
    is_sound = not examine(path).of("wrong", "lost")
    with DuckStore(path, read_only=True) as store:
        try:
            verdict_of(store, store.studies()[0])
        except StrataError:
            assert not is_sound
        else:
            assert is_sound
