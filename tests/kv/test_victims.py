"""Victim policies against versions that do one slot at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.kernels.resolve.ref import LRFU_DECAY
from strata.kv.residency import Residency
from strata.kv.victims import Clock, Lrfu, make_victims

CPU = torch.device("cpu")


class SlowClock:
    """Second chance, one slot at a time."""

    def __init__(self, slots: int) -> None:
        self.referenced = [False] * slots
        self.hand = 0

    def touch(self, slots: list[int]) -> None:
        for slot in slots:
            self.referenced[slot] = True

    def choose(self, evictable: list[bool], count: int) -> list[int]:
        victims: list[int] = []
        count = min(count, sum(evictable))
        while len(victims) < count:
            slot = self.hand
            self.hand = (self.hand + 1) % len(evictable)
            if not evictable[slot] or slot in victims:
                continue
            if self.referenced[slot]:
                self.referenced[slot] = False
            else:
                victims.append(slot)
        return victims


class SlowLrfu:
    """Every slot keeps the times it was read since it was last a victim."""

    def __init__(self, slots: int) -> None:
        self.reads: list[list[int]] = [[] for _ in range(slots)]
        self.time = 0

    def touch(self, slots: list[int]) -> None:
        self.time += 1
        for slot in slots:
            self.reads[slot].append(self.time)

    def weight(self, slot: int) -> float:
        return math.fsum(2 ** (-LRFU_DECAY * (self.time - read)) for read in self.reads[slot])

    def choose(self, evictable: list[bool], count: int) -> list[int]:
        order = sorted(
            (slot for slot, can in enumerate(evictable) if can),
            key=lambda slot: (round(self.weight(slot), 9), slot),
        )
        for slot in order[:count]:
            self.reads[slot] = []
        return sorted(order[:count])


@st.composite
def histories(draw):
    """Return slots and a list of touches (a set) and choices ((evictable, count))."""
    slots = draw(st.integers(1, 9))
    touch = st.frozensets(st.integers(0, slots - 1)).map(sorted)
    choice = st.tuples(
        st.lists(st.booleans(), min_size=slots, max_size=slots), st.integers(1, slots)
    )
    return slots, draw(st.lists(touch | choice, max_size=40))


@pytest.mark.parametrize("name", ["clock", "lrfu"])
@settings(max_examples=200, deadline=None)
@given(history=histories())
def test_a_policy_chooses_what_the_slow_one_does(name, history):
    slots, steps = history
    fast = make_victims(name, 2, slots, CPU)
    slow = SlowClock(slots) if name == "clock" else SlowLrfu(slots)
    for step in steps:
        if isinstance(step, list):
            fast.touch(1, torch.tensor(step, dtype=torch.long))
            slow.touch(step)
            continue
        evictable, count = step
        given_mask = torch.tensor(evictable)
        victims = fast.choose(1, given_mask.clone(), count).tolist()
        assert victims == slow.choose(evictable, count)
        assert len(victims) == len({*victims}) == min(count, sum(evictable))
        assert all(evictable[victim] for victim in victims)
    if isinstance(slow, SlowClock):
        assert fast.state()["referenced"][1].tolist() == slow.referenced
    untouched = next(iter(make_victims(name, 2, slots, CPU).state().values()))[0]
    assert torch.equal(next(iter(fast.state().values()))[0], untouched), "another layer changed"


@pytest.mark.parametrize("policy", [Clock, Lrfu])
def test_clear_forgets_everything(policy):
    fresh, used = policy(1, 4, CPU), policy(1, 4, CPU)
    used.touch(0, torch.tensor([0, 2]))
    used.choose(0, torch.ones(4, dtype=torch.bool), 3)
    used.clear()
    for step in range(8):
        evictable = torch.ones(4, dtype=torch.bool)
        assert torch.equal(
            used.choose(0, evictable.clone(), 2), fresh.choose(0, evictable.clone(), 2)
        )
        for one in (used, fresh):
            one.touch(0, torch.tensor([step % 4]))


def make_residency(name: str, slots: int, pages: int) -> Residency:
    table = torch.zeros(1, pages, dtype=torch.int32)
    owner = torch.zeros(1, slots, dtype=torch.int32)
    return Residency(make_victims(name, 1, slots, CPU), table, owner)


@pytest.mark.parametrize("name", ["clock", "lrfu"])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_resolve_never_takes_a_slot_from_what_it_was_asked_for(name, data):
    pages = data.draw(st.integers(1, 12))
    slots = data.draw(st.integers(1, pages))
    residency = make_residency(name, slots, pages)
    for _ in range(data.draw(st.integers(1, 12))):
        wanted = sorted(data.draw(st.sets(st.integers(0, pages - 1), min_size=1)))
        keep_from = data.draw(st.none() | st.integers(0, pages))
        kept = set() if keep_from is None else {*range(keep_from, pages)}
        before = {int(page) for page in residency.owner[0] if page >= 0}
        old, admission = residency.resolve(0, torch.tensor(wanted), keep_from=keep_from)
        residency.check_integrity()
        after = {int(page) for page in residency.owner[0] if page >= 0}
        assert ((old >= 0).tolist()) == [page in before for page in wanted]
        assert before & ({*wanted} | kept) <= after, "a page lost its slot while it was needed"
        came = set() if admission is None else {*admission.pages.tolist()}
        assert came == after - before
        assert came == {*wanted} & after - before
        missed = {*wanted} - after
        if missed:
            assert after <= {*wanted} | kept, "a page was read in place beside an evictable slot"
            assert len(after) == slots


def test_integrity_check_sees_damage():
    for damage in ("table", "owner", "filled"):
        residency = make_residency("clock", 3, 5)
        residency.resolve(0, torch.tensor([1, 4]))
        residency.check_integrity()
        if damage == "table":
            residency.table[0, 1] = -1
        elif damage == "owner":
            residency.owner[0, 0] = 2
        else:
            residency.filled[0] = 1
        with pytest.raises(AssertionError):
            residency.check_integrity()
