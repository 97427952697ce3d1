"""`--spec auto`: acceptance decides, and nothing else."""

from __future__ import annotations

import inspect
from copy import deepcopy

from hypothesis import given
from hypothesis import strategies as st

from strata.config import MAX_DRAFTS
from strata.draft import adaptive


@given(st.lists(st.integers(0, MAX_DRAFTS), max_size=200))
def test_auto_stays_within_its_bounds_and_repeats(fates):
    counts = []
    for _ in range(2):
        drafts, seen = adaptive.AutoDrafts("cpu"), []
        for fate in fates:
            asked = drafts.next()
            assert 0 <= asked <= MAX_DRAFTS
            drafts.learn(asked, min(asked, fate))
            seen.append(asked)
        counts.append(seen)
    assert counts[0] == counts[1]


def test_auto_stops_drafting_what_is_never_accepted_and_comes_back():
    drafts = adaptive.AutoDrafts("cpu")
    for _ in range(200):
        drafts.learn(drafts.next(), 0)
    late = [drafts.next() for _ in range(400)]
    assert late.count(0) > 350
    assert 1 in late, "what is not tried is not learned"
    for _ in range(4_000):
        asked = drafts.next()
        drafts.learn(asked, asked)
    assert drafts.next() >= 2


@given(st.lists(st.integers(0, 2 * MAX_DRAFTS), max_size=60), st.sampled_from(["cpu", "cuda"]))
def test_what_is_foreseen_comes(fates, device):
    drafts = adaptive.AutoDrafts(device)
    asked = drafts.next()
    for fate in fates:
        seen = drafts.foresee(asked)
        after = []
        for outcome in range(asked + 1):
            twin = deepcopy(drafts)
            twin.learn(asked, outcome)
            after.append(twin.next())
        assert seen is None or set(after) == {seen}
        assert seen is not None or asked
        drafts.learn(asked, min(asked, fate))
        asked = drafts.next()
        assert seen in (None, asked)
    assert adaptive.FixedDrafts(3).foresee(7) == 3


def test_auto_reads_no_clock():
    source = inspect.getsource(adaptive)
    assert not any(word in source for word in ("perf_counter", "import time", "monotonic"))
