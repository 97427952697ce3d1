"""The backtest on the seed figures, and what a malformed file is told."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strata
from strata.errors import UsageError
from strata.models.backtest import COLUMNS, LEARNED, LEARNED_LEFT_OUT, Backtest, Settings, backtest
from strata.models.backtest_rows import Row, read_rows
from strata.models.direct import fit_direct

SEED = Path(strata.__file__).parent / "data" / "seed" / "decode_by_ring.csv"
GOLDEN = Path(__file__).parent / "golden" / "backtest_seed.json"
HEADER = "id,rule,tier_cells,mtp,ring_control,ring_arm,delta_pct\n"


def seed_backtest() -> Backtest:
    settings = Settings(kv_resident_cells=49_152, ring_default_cells=32_768, max_new=256)
    return backtest(read_rows(SEED), settings)


@pytest.fixture(scope="module")
def seed() -> Backtest:
    return seed_backtest()


def as_text(found: Backtest) -> dict[str, dict[str, str]]:
    return {
        result.row.id: {
            column: f"{result.outcomes[column].ring_cells}: {result.outcomes[column]}"
            for column in COLUMNS
        }
        for result in found.results
    }


def test_seed_backtest_is_the_golden_one(seed: Backtest) -> None:
    assert as_text(seed) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_seed_figures_that_the_issue_names(seed: Backtest) -> None:
    by_id = {result.row.id: result for result in seed.results}
    reversal = by_id["v020-depth-32k"].outcomes
    assert (reversal["fixed"].ring_cells, str(reversal["fixed"])) == (
        49_152,
        "-9.1 % (as recorded)",
    )
    assert (reversal["depth"].ring_cells, reversal["depth"].basis) == (33_040, "row's own rule")
    for name in ("v020-depth-32k", "v020-adapt-32k", "v020-fixed-32k-nomtp"):
        assert by_id[name].outcomes["adapt"].delta_pct == 0.0
    deep = by_id["v020-adapt-128k"].outcomes
    assert deep["adapt"].delta_pct == 15.3
    assert deep[LEARNED].ring_cells == 49_152
    for result in seed.results:
        if result.row.tier_cells != 131_072:
            assert result.outcomes[LEARNED].ring_cells == 32_768


def test_seed_learned_bound(seed: Backtest) -> None:
    fit = seed.fit
    assert fit.degrees_of_freedom == 3
    assert fit.noise_log_sd == pytest.approx(0.0679, abs=1e-4)
    (deep,) = [e for e in fit.estimates if e.tier_cells == 131_072]
    assert deep.rows == 2
    assert deep.effect_ratio == pytest.approx(0.161, abs=1e-3)
    assert deep.lower_ratio == pytest.approx(0.037, abs=1e-3)
    assert [e.ring_cells for e in fit.table.entries] == [49_152]


def test_one_row_alone_does_not_carry_the_deep_ring(seed: Backtest) -> None:
    """Leaving out either 128K row leaves one whose bound is below zero: two rows decide it."""
    assert {r.outcomes[LEARNED_LEFT_OUT].ring_cells for r in seed.results} == {32_768}


def run(tmp_path: Path, text: str, **settings: int) -> Backtest:
    path = tmp_path / "rows.csv"
    path.write_text(HEADER + text, encoding="utf-8")
    fields = {"kv_resident_cells": 49_152, "ring_default_cells": 32_768} | settings
    return backtest(read_rows(path), Settings(**fields))


def test_never_the_nearest_ring(tmp_path: Path) -> None:
    found = run(tmp_path, "a,,131072,1,32768,49136,20\n")
    assert str(found.results[0].outcomes["fixed"]) == "not measured"


def test_an_unpublished_delta_is_not_measured(tmp_path: Path) -> None:
    found = run(tmp_path, "a,fixed,131072,1,32768,49152,\n")
    assert found.results[0].outcomes["fixed"].basis == "not measured"
    assert found.fit.estimates == ()


def test_without_same_ring_rows_nothing_is_learned(tmp_path: Path) -> None:
    found = run(tmp_path, "a,,131072,1,32768,49152,90\nb,,131072,1,32768,49152,91\n")
    assert found.fit.noise_log_sd is None
    assert found.results[0].outcomes[LEARNED].ring_cells == 32_768


def test_rows_of_another_control_ring_are_no_evidence(tmp_path: Path) -> None:
    text = "".join(f"s{i},,1024,1,32768,32768,0.1\n" for i in range(3))
    strong = run(tmp_path, text + "a,,131072,1,32768,49152,50\n")
    other = run(tmp_path, text + "a,,131072,1,16384,49152,50\n")
    assert strong.results[3].outcomes[LEARNED].ring_cells == 49_152
    assert other.results[3].outcomes[LEARNED].ring_cells == 32_768


def test_the_best_bound_wins_among_rings(tmp_path: Path) -> None:
    text = "".join(f"s{i},,1024,1,32768,32768,0.1\n" for i in range(3))
    text += "a,,131072,1,32768,49152,20\nb,,131072,1,32768,40960,30\n"
    assert run(tmp_path, text).results[3].outcomes[LEARNED].ring_cells == 40_960


SAME = "".join(f"s{i},,65536,0,8192,8192,{d}\n" for i, d in enumerate((0.5, -0.5, 0.4)))
OUTLIER = "a1,,65536,0,8192,16384,2.0\na2,,65536,0,8192,16384,2.5\na3,,65536,0,8192,16384,900000\n"


@pytest.mark.parametrize(
    "same", [SAME, SAME * 10, SAME.rpartition("s2")[0]], ids=["three", "thirty", "two"]
)
def test_one_outlier_makes_no_gain(tmp_path: Path, same: str) -> None:
    """However many rows tell of little noise, what a pool's own rows scatter counts."""
    lines = [f"n{i}{line[2:]}\n" for i, line in enumerate(same.splitlines())]
    found = run(tmp_path, OUTLIER + "".join(lines), ring_default_cells=8_192)
    (estimate,) = found.fit.estimates
    assert estimate.effect_ratio > 20
    assert estimate.lower_ratio is None or estimate.lower_ratio < 0
    assert found.fit.table.entries == ()


def test_an_outlier_elsewhere_makes_a_lone_row_less_sure(tmp_path: Path) -> None:
    lone = "b,,131072,0,8192,16384,9\n"
    alone = run(tmp_path, SAME + lone, ring_default_cells=8_192)
    beside = run(tmp_path, SAME + lone + OUTLIER, ring_default_cells=8_192)
    assert [entry.tier_cells for entry in alone.fit.table.entries] == [131_072]
    assert beside.fit.table.entries == ()


@pytest.mark.parametrize("noise", ["0", "0,0", "0,0,0,0", "0,0,0.01"])
def test_no_noise_is_no_certainty(tmp_path: Path, noise: str) -> None:
    rows = [f"s{i},,65536,0,8192,8192,{d}\n" for i, d in enumerate(noise.split(","))]
    found = run(tmp_path, "".join(rows) + "a1,,65536,0,8192,16384,0.01\n", ring_default_cells=8192)
    assert found.fit.table.entries == ()
    assert {r.outcomes[LEARNED].ring_cells for r in found.results} == {8_192}


@given(gain=st.floats(-50, 100), spread=st.floats(0, 200), count=st.integers(2, 6))
def test_more_scatter_never_makes_a_ring_surer(gain: float, spread: float, count: int) -> None:
    def bound(wide: float) -> float:
        logs = np.log1p(gain / 100) + wide / 100 * np.linspace(-1, 1, count)
        rows = [row(f"a{i}", 16_384, 100 * np.expm1(one)) for i, one in enumerate(logs)]
        rows += [row(f"s{i}", 8_192, one) for i, one in enumerate((0.5, -0.5, 0.4))]
        (found,) = fit_direct(rows, 8_192, [65_536], lambda _, ring: ring).estimates
        assert found.lower_ratio is not None
        return found.lower_ratio

    assert bound(spread) <= bound(spread / 2) + 1e-9


def row(name: str, arm_cells: int, delta_pct: float) -> Row:
    return Row(
        line=2, id=name, rule="", tier_cells=65_536, mode="off", ring_control_cells=8_192,
        ring_arm_cells=arm_cells, delta_pct=float(delta_pct),
    )  # fmt: skip


def test_rings_of_one_pool_are_one_ring(tmp_path: Path) -> None:
    """At 1K both rings are the whole context: the row measured no ring, whatever it is called."""
    found = run(tmp_path, "x1,,1024,0,32768,49152,-40\nx2,,1024,0,32768,32768,1\n")
    for result in found.results:
        assert {one.delta_pct for one in result.outcomes.values()} == {0.0}
    assert str(found.results[0].outcomes["fixed"]) == "0 % (control's pool)"
    assert (found.fit.estimates, found.fit.one_pool_rows) == ((), 1)


def test_rings_past_the_context_share_one_estimate(tmp_path: Path) -> None:
    rows = "a,,32768,0,16384,40960,10\nb,,32768,0,16384,65536,12\nc,,32768,0,16384,20480,5\n"
    found = run(tmp_path, rows, ring_default_cells=16_384)
    told = [(one.ring_cells, one.rows) for one in found.fit.estimates]
    assert told == [(20_480, 1), (40_960, 2)]
    assert found.results[0].outcomes["fixed"].delta_pct == 10
    assert found.results[2].outcomes["fixed"].basis == "not measured"


@pytest.mark.parametrize(
    "figure",
    ["1_0.5", "nan", "NaN", "inf", "-inf", "infinity", "1e400", "1e7", "\u0661", "\uff11", " 1",
     "1 ", "1\t", "0x10", "1,5", "+-1", ".", "1e", "1e-400", "--1", "-100", "-1e3", "1e1_0"],
)  # fmt: skip
def test_a_figure_that_no_table_means_is_refused(tmp_path: Path, figure: str) -> None:
    with pytest.raises(UsageError, match=r"line 2, column delta_pct: .* is not a percentage"):
        run(tmp_path, f'a,,65536,0,8192,16384,"{figure}"\n')


@pytest.mark.parametrize(
    "figure", ["-9.1", "+3", "0", "16.90", ".5", "5.", "1e-05", "1E2", "900000"]
)
def test_a_figure_as_tables_print_it_is_read(tmp_path: Path, figure: str) -> None:
    found = run(tmp_path, f"a,,65536,0,8192,16384,{figure}\n")
    assert found.results[0].row.delta_pct == float(figure)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,,1k,1,32768,49152,1\n", "line 2, column tier_cells: '1k'"),
        ("a,,1024,2,32768,49152,1\n", "line 2, column mtp: '2'"),
        ("a,,1024,1,32768,49152,1\nb,,1024,1,-5,49152,1\n", "line 3, column ring_control: '-5'"),
        ("a,,1024,1,32768,,1\n", "line 2, column ring_arm: ''"),
        ("a,,1024,1,32768,9999999999999,1\n", "line 2, column ring_arm"),
        ("a,,1024,1,32768,49152,fast\n", "line 2, column delta_pct: 'fast'"),
        ("a,,1024,1,32768,49152,-100\n", "line 2, column delta_pct"),
        ("a,,1024,1,32768,49152,nan\n", "line 2, column delta_pct"),
        ("a,adpt,1024,1,32768,49152,1\n", "line 2, column rule: 'adpt'"),
        (",fixed,1024,1,32768,49152,1\n", "line 2, column id"),
        ("a,,1024,1,32768,49152,1\na,,1024,1,32768,49152,1\n", "line 3, column id"),
        ("a,,1024,1,32768,49152\n", "line 2: 6 fields"),
        ("a,,1024,1,32768,49152,1,2\n", "line 2: 8 fields"),
        ('"a,,1024,1,32768,49152,1\n', "is not CSV"),
        ("", "no row"),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(tmp_path, text)


def test_a_note_may_hold_any_line_break(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    text = HEADER.replace("\n", ",note\n") + 'a,,1024,1,32768,49152,1,"two\nlines\u2028three"\n'
    path.write_text(text + "b,,1024,1,32768,49152,x,\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 4, column delta_pct: 'x'"):
        read_rows(path)


@given(st.text(alphabet='a1,-."\n\r\x00é', max_size=60))
def test_no_text_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_text(HEADER + text, encoding="utf-8", newline="")
    with contextlib.suppress(UsageError):
        read_rows(path)


def test_a_malformed_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with pytest.raises(UsageError, match="cannot be read"):
        read_rows(path)
    path.write_text("id,rule,tier_cells,mtp,ring_control,ring_arm\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 1, column delta_pct: is missing"):
        read_rows(path)
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="line 1, column id"):
        read_rows(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_rows(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_rows(tmp_path)


if __name__ == "__main__":  # writes the golden file anew; look at the difference before keeping it
    GOLDEN.write_text(json.dumps(as_text(seed_backtest()), indent=1) + "\n", encoding="utf-8")
