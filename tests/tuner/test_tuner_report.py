"""The page: its numbers are the database's and the verdict's, and it is read at any width."""

from __future__ import annotations

import json
import lzma
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tuner_samples import FACTS, SMALL_PLAN, all_pairs, make_records
from typer.testing import CliRunner

from strata.cli.policy import app as policy_app
from strata.cli.tune import app as tune_app
from strata.tuner.arms import ArmGrid, PairSpec
from strata.tuner.conclude import NOTHING_TO_USE, conclude
from strata.tuner.plan import parse_plan
from strata.tuner.record import TrialRecord
from strata.tuner.report import summarise
from strata.tuner.report.figures import draw_all
from strata.tuner.report.page import render
from strata.tuner.store import MemoryStore, TrialStore, import_study
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord, create_study
from strata.tuner.sweep import due_pairs
from strata.tuner.verdict import verdict_of

GOLDEN = Path(__file__).parents[1] / "golden"
PLAIN = SMALL_PLAN.replace("fresh = [1, 2]", "fresh = [1, 2, 3]").replace(
    "rings = [32, 64, 128]", "rings = [32, 128]"
)
ONE = PLAIN.replace("tiers = [32, 64]", "tiers = [64]\nmodes = ['off']")
PRICED = PLAIN.replace("[measure]", '[measure]\npurposes = ["decode", "break-even", "prefill"]')
TELEPHONE_PX, DESK_PX = 338, 1072
"""What a section of the page leaves for a figure at 390 and at 1,280 pixels."""


class Page(HTMLParser):
    """Keeps the text of a page by block, the cells of its tables and the figures within."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.facts: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.code: list[str] = []
        self._into: list[str] | None = None
        self.svgs = re.findall(r"<svg.*?</svg>", html, flags=re.S)
        self.summary = json.loads(re.findall(r'id="summary">(.*?)</script>', html, flags=re.S)[0])
        self.feed(re.sub(r"<(svg|style|script).*?</\1>", "", html, flags=re.S))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._into = self.tables[-1][-1]
            self._into.append("")
        elif tag in ("b", "span", "code", "h2", "p", "dt"):
            if tag == "span" and self._into is not None and self.tables and self._in_row():
                return
            self._into = self.code if tag == "code" else self.facts
            self._into.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "b", "code", "h2", "p", "dt"):
            self._into = None

    def handle_data(self, data: str) -> None:
        if self._into:
            self._into[-1] = " ".join(f"{self._into[-1]}{data}".split())

    def _in_row(self) -> bool:
        return bool(self.tables[-1]) and self._into is self.tables[-1][-1]

    def table(self, head: str) -> list[dict[str, str]]:
        """Return the rows of the table whose header has a cell `head`."""
        heads, *rows = next(one for one in self.tables if head in one[0])
        return [dict(zip(heads, row, strict=True)) for row in rows]

    def fact(self, words: str) -> str:
        """Return the text that holds `words`."""
        return next(one for one in self.facts if words in one)

    def above(self, words: str) -> str:
        """Return the bold text above the one that holds `words`."""
        return self.facts[self.facts.index(self.fact(words)) - 1]


def study_of(text: str) -> StudyRecord:
    grid = ArmGrid(parse_plan(text, origin="test"), 64)
    return create_study(grid, FACTS, created_at="2026-01-02T03:04:05+00:00")


def runs(pair: PairSpec) -> list[TrialRecord]:
    """Return a pair in which ring 128 is a tenth faster, with a little noise by passage."""
    noise = 0.003 * int(pair.passage.partition(":")[2])
    return make_records(pair, gain=(1.1 if pair.arm_ring_cells == 128 else 1.0) + noise)


def lost(pair: PairSpec) -> list[TrialRecord]:
    gone = {"kind": "crash", "message": "killed", "rounds_per_s": None, "failed_arm": "both"}
    return [replace(one, **gone) for one in make_records(pair)]  # type: ignore[arg-type]


def page_of(store: TrialStore, study: StudyRecord, path: str | None = None) -> Page:
    return Page(render(summarise(store, study, conclude(store, study), table_path=path)))


def golden() -> tuple[StudyRecord, list[TrialRecord]]:
    """Return a study with pairs that failed and pairs that were tried again."""
    store = MemoryStore()
    with TemporaryDirectory() as folder:
        lines = Path(folder) / "t.jsonl"
        lines.write_bytes(lzma.decompress((GOLDEN / "trials-5.jsonl.xz").read_bytes()))
        study, *_ = import_study(store, lines)
    return study, store.every_trial(study.study)


def database_counts(study: StudyRecord, store: TrialStore) -> Counter[str]:
    """Return what became of each pair, from its records alone."""
    kinds: dict[str, set[str]] = {}
    for one in store.trials(study.study):
        kinds.setdefault(one.planned_id, set()).add(one.kind)
    due = {pair.pair_id for pair in due_pairs(study, store)}
    counts = Counter("measured" if one == {"ok"} else "failed" for one in kinds.values())
    counts["missing"] = len(due - set(kinds))
    return counts


@given(more=st.integers(min_value=0, max_value=2**9 - 1))
@settings(max_examples=4, deadline=None, phases=[Phase.generate])
def test_the_page_counts_what_the_database_holds(more: int) -> None:
    """For the first pair, which decodes, and any of the others, one bit each.

    A pair that was tried again is there with its first try, as every sweep leaves it.
    """
    study, records = golden()
    pairs = list(dict.fromkeys(one.pair_id for one in records))
    kept_pairs = {pair for bit, pair in enumerate(pairs) if (2 * more + 1) >> bit & 1}
    kept_pairs |= {one.planned_id for one in records if one.pair_id in kept_pairs}
    store = MemoryStore()
    store.add_study(study)
    for pair in pairs:
        if pair in kept_pairs:
            store.add_trials([one for one in records if one.pair_id == pair])
    page, due = page_of(store, study), database_counts(study, store)
    words = page.fact("pairs measured")
    assert page.above("pairs measured") == f"{due['measured']} of {due.total()}"
    assert words == f"pairs measured, {due['failed']} failed, {due['missing']} missing"
    last, every = store.trials(study.study), store.every_trial(study.study)
    assert page.above("of them usable") == str(len(last))
    runs_words = page.fact("of them usable")
    assert runs_words.startswith(f"runs, {sum(one.kind == 'ok' for one in last)} of them usable")
    assert (f"{len(every) - len(last)} more" in runs_words) == (len(every) > len(last))
    found, rows = verdict_of(store, study), page.table("ring tested")
    by_place = {(str(e.tier_cells), e.mode): e for e in found.entries}
    assert by_place.keys() <= {(row["prompt"], row["drafter"]) for row in rows}
    for row in rows:
        entry = by_place.get((row["prompt"], row["drafter"]))
        best = entry and entry.best
        assert row["verdict"] == found.word_at(int(row["prompt"]), row["drafter"])
        assert row["ring tested"] == (str(best.ring_cells) if best else "none")
        assert row["its gain"] == (f"{100 * math.expm1(best.mean):+.1f} %" if best else "-")
        assert row["passages"] == str(best.passages if best else 0)
    assert all(line in page.facts for line in found.reasons)


def test_costs_and_prompts_are_counted_apart_and_together() -> None:
    study, store = study_of(PRICED), MemoryStore()
    store.add_study(study)
    first = True
    for pair in all_pairs(study):
        fails = pair.purpose == "prefill" and first
        first = first and not fails
        store.add_trials(lost(pair) if fails else runs(pair))
    page = page_of(store, study)
    pairs = {row["pairs to"]: row for row in page.table("planned")}
    names = {"decode": "decode", "break-even": "price the drafter", "prefill": "time the prompt"}
    for purpose, words in names.items():
        mine = [pair for pair in all_pairs(study) if pair.purpose == purpose]
        row = pairs[words]
        assert int(row["planned"]) == len(mine) == int(row["measured"]) + int(row["failed"])
        assert int(row["runs"]) == 4 * len(mine)
    assert pairs["time the prompt"]["failed"] == "1"
    total = len(all_pairs(study))
    assert page.above("pairs measured") == f"{total - 1} of {total}"
    assert page.above("of them usable") == str(len(store.every_trial(study.study)))
    (failure,) = {(row["kind"], row["pairs to"]) for row in page.table("first message")}
    assert failure == ("crash", "time the prompt")


@pytest.mark.parametrize(
    ("make", "left_out", "counts", "used"),
    [
        (runs, 0, "8 of 8", True),
        (runs, 1, "7 of 8", False),
        (lost, 0, "0 of 8", False),
        (make_records, 0, "8 of 8", False),
    ],
)
def test_the_page_ends_as_the_command_does(
    make: object, left_out: int, counts: str, used: bool, tmp_path: Path
) -> None:
    """What is measured, all that failed, what is partial, and what adopts nothing."""
    study, db, out = study_of(ONE), tmp_path / "t.duckdb", tmp_path / "runs"
    out.mkdir()
    with DuckStore(db) as store:
        store.add_study(study)
        pairs = [one for one in all_pairs(study) if one.arm_ring_cells != 64]
        for pair in all_pairs(study)[: len(all_pairs(study)) - left_out]:
            store.add_trials(make(pair))  # type: ignore[operator]
    assert len(pairs) == 8
    said = CliRunner().invoke(tune_app, ["report", "small", "--db", str(db), "--out", str(out)])
    assert said.exit_code == 0, said.output
    (path,) = out.glob("*/report.html")
    page = Page(path.read_text(encoding="utf-8"))
    total = len(all_pairs(study))
    done = total - left_out if make is not lost else 0
    assert page.above("pairs measured") == f"{done} of {total}"
    lines = [line for line in said.stdout.splitlines() if line.startswith("use it:")]
    assert bool(lines) == used
    assert page.code[:1] == lines if used else "use it" not in " ".join(page.code + page.facts)
    if not left_out:
        assert (NOTHING_TO_USE in said.stdout) != used
        table = ["export", "--db", str(db), "--out", str(tmp_path / "t.json")]
        exported = CliRunner().invoke(policy_app, table)
        assert (NOTHING_TO_USE in exported.stderr) != used
        assert ("use it: strata generate" in exported.stderr) == used


def test_a_row_names_the_ring_that_its_verdict_is_about() -> None:
    """The default stays, and what is said of 128 is not said of it."""
    study, store = study_of(ONE), MemoryStore()
    store.add_study(study)
    for pair in all_pairs(study):
        store.add_trials(make_records(pair, gain={32: 0.8, 128: 0.9}.get(pair.arm_ring_cells, 1)))
    (row,) = page_of(store, study).table("ring tested")
    assert (row["ring taken"], row["verdict"]) == ("64 (default)", "worse")
    assert (row["ring tested"], row["its gain"]) == ("128", "-10.0 %")


@pytest.mark.parametrize("tiers", [1, 2, 4, 8])
def test_figures_can_be_read_on_a_telephone_and_shout_nowhere(tiers: int) -> None:
    names = [32 * (n + 1) for n in range(tiers)]
    text = PLAIN.replace("tiers = [32, 64]", f"tiers = {names}\nmodes = ['off']").replace(
        "[1, 2, 3]", "[1]"
    )
    study, store = study_of(text), MemoryStore()
    store.add_study(study)
    for pair in all_pairs(study):
        store.add_trials(runs(pair))
    summary = summarise(store, study, conclude(store, study))
    for name, rows in draw_all(summary).items():
        assert sum(map(len, rows)) == {"rounds": tiers, "decode": tiers, "gains": tiers,
                                       "choice": 1, "ledger": 1}.get(name, 1)  # fmt: skip
        for svg in (svg for panels in rows for svg in panels):
            root = ElementTree.fromstring(svg)
            natural = float(root.attrib["width"].removesuffix("pt")) * 4 / 3
            units = float(root.attrib["viewBox"].split()[2])
            sizes = [float(px) for px in re.findall(r"font(?:-size)?: (?:bold )?([\d.]+)px", svg)]
            assert sizes
            for room in (TELEPHONE_PX, DESK_PX):
                shown = [size * min(natural, room) / units for size in sizes]
                assert min(shown) > 8.5, (name, room)
                assert max(shown) < 15, (name, room)


def test_a_figure_shrinks_with_its_page_and_never_grows() -> None:
    """What the sizes above rest on; and no two panels give a group the same name."""
    study, store = study_of(ONE), MemoryStore()
    store.add_study(study)
    for pair in all_pairs(study):
        store.add_trials(runs(pair))
    html = render(summarise(store, study, conclude(store, study)))
    assert re.search(r"svg \{ max-width: 100%; height: auto;", html)
    assert not re.search(r"svg \{[^}]*[^-]width: 100%", html)
    ids = re.findall(r'<[a-z]+ id="([^"]+)"', html)
    assert not [one for one in ids if one.startswith(("axes", "figure", "patch", "text"))]
