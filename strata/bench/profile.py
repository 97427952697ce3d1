"""The kernels of a session's rounds, by torch's profiler: how many, how long, of which part."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch

from strata.bench.parts import PARTS, Launch, attribute
from strata.config import SamplingParams
from strata.sampling import Sampler
from strata.session import Session

ROUNDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """Kernels of a name, or of a part, in an average round.

    A kernel may start while the one before it still runs; its time counts from that one's end, so
    that times add up to what the device was busy.
    """

    per_round: float
    us_round: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundProfile:
    """What an average round launched; copies and fills count as kernels."""

    rounds: int
    parts: dict[str, KernelTime]
    """One entry a part of PARTS, also where nothing ran."""
    kernels: dict[str, KernelTime]
    """By name, the longest first."""

    @property
    def per_round(self) -> float:
        """Return the number of kernels a round."""
        return sum(part.per_round for part in self.parts.values())

    @property
    def us_round(self) -> float:
        """Return how long the device was busy in a round; gaps between kernels are not in it."""
        return sum(part.us_round for part in self.parts.values())


def profile_rounds(session: Session, params: SamplingParams, drafts: int) -> RoundProfile:
    """Return the kernels of rounds right behind the prompt of `session`, on a GPU.

    The session has generated with `params` before, so that its graphs are captured. At most
    ROUNDS rounds, as many as fit into `params.max_new`.
    """
    engine, sampler = session.engine, Sampler(params)
    rounds = max(1, min(ROUNDS, params.max_new // (drafts + 1) - 2))
    device = session.model.device
    session.rewind()
    engine.first_token(sampler)
    engine.round(sampler, drafts)
    torch.cuda.synchronize(device)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
    ) as recorded:
        for _ in range(rounds):
            engine.round(sampler, drafts)
        torch.cuda.synchronize(device)
    events = [e for e in recorded.events() if e.device_type.name == "CUDA"]
    events.sort(key=lambda event: event.time_range.start)
    launches = [
        Launch(name=e.name, graph=e.id, start_us=e.time_range.start, end_us=e.time_range.end)
        for e in events
    ]
    return summarise(launches, rounds=rounds)


def summarise(launches: list[Launch], *, rounds: int) -> RoundProfile:
    """Return counts and times of `launches`, in order of their start, over `rounds` rounds."""
    by_part: dict[str, list[float]] = {part: [] for part in PARTS}
    by_name: dict[str, list[float]] = defaultdict(list)
    busy_until = float("-inf")
    for launch, part in zip(launches, attribute(launches), strict=True):
        us = max(0.0, launch.end_us - max(launch.start_us, busy_until))
        busy_until = max(busy_until, launch.end_us)
        by_part[part].append(us)
        by_name[launch.name].append(us)
    parts = {part: _mean(times, rounds) for part, times in by_part.items()}
    kernels = {name: _mean(times, rounds) for name, times in by_name.items()}
    longest = sorted(kernels.items(), key=lambda item: -item[1].us_round)
    return RoundProfile(rounds=rounds, parts=parts, kernels=dict(longest))


def _mean(times: list[float], rounds: int) -> KernelTime:
    return KernelTime(per_round=len(times) / rounds, us_round=sum(times) / rounds)
