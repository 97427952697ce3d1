"""Routed expert products and the fetch of experts, inside captured graphs, by rows and misses.

Sizes are a model's. A product reads experts where they lie: all in slots, or some in host memory. A
fetch is one resolve of a window's experts and the gather of what misses, as a round with a budget
does it in every layer; its lists drift over more experts than there are slots, and the misses that
it had are counted on the device and stand beside its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from strata.bench.timing import Timing, capture, time_calls
from strata.kernels.experts import slot_product
from strata.kernels.gather import gather_pages
from strata.kernels.resolve import Admitted, ResolveState, resolve
from strata.kernels.resolve.state import LOOKUPS, MISSES
from strata.lm.config import LMConfig

CALLS = 24
"""Calls a graph; as many lists of a fetch, each with experts of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFigure:
    """One operation for one window; `misses` are experts that a call brings over the bus."""

    op: str
    """`product` or `fetch`."""
    rows: int
    misses: float
    bytes: int
    """What the misses of a call hold."""
    timing: Timing

    @property
    def gb_per_s(self) -> float:
        """Return 10^9 bytes of missing experts a second."""
        return self.bytes / self.timing.us / 1e3


def expert_bytes(config: LMConfig) -> int:
    """Return the bytes of one expert in bfloat16."""
    return 3 * config.expert_width * config.hidden * torch.bfloat16.itemsize


def measure_experts(
    config: LMConfig, rows: list[int], misses: list[int], samples: int
) -> Iterator[ExpertFigure]:
    """Yield product and fetch for each number of rows, with as many misses as a window can have.

    A window of R rows has R times k experts, so a number of misses above that is left out.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    bench = _Experts(config, device, most=max(misses))
    for count in rows:
        for missing in misses:
            if missing <= min(count * config.experts_per_token, config.experts):
                yield bench.product(count, missing, samples)
                yield bench.fetch(count, missing, samples)


class _Experts:
    """Experts in host memory and a pool for half of them."""

    def __init__(self, config: LMConfig, device: torch.device, most: int) -> None:
        self._config = c = config
        self._device = device
        # What a fetch of `most` misses brings in, no other list of its graph asks for.
        self._number = max(c.layers * c.experts, c.experts + CALLS * most)
        shape = (self._number, 3 * c.expert_width, c.hidden)
        self._host = (torch.randn(shape) / c.hidden**0.5).bfloat16().pin_memory()
        self._everything = self._host.to(device)

    def product(self, rows: int, missing: int, samples: int) -> ExpertFigure:
        """Time a product whose window reads `missing` distinct experts in place."""
        c, device = self._config, self._device
        x = torch.randn(rows, c.hidden, device=device).bfloat16()
        ids = torch.stack([torch.randperm(c.experts)[: c.experts_per_token] for _ in range(rows)])
        weights = torch.rand(rows, c.experts_per_token, device=device).bfloat16()
        table = torch.arange(self._number, dtype=torch.int32, device=device)
        distinct = torch.unique(ids)
        missing = min(missing, len(distinct))
        away = distinct[torch.randperm(len(distinct))[:missing]]
        layers = torch.arange(c.layers)[:, None] * c.experts
        table[(layers + away).flatten().to(device)] = -1
        ids = ids.to(device)

        def body(call: int) -> None:
            slot_product(
                x, ids, weights, self._everything, table=table, host=self._host,
                base=call % c.layers * c.experts,
            )  # fmt: skip

        return self._figure("product", rows, missing, body, samples)

    def fetch(self, rows: int, missing: int, samples: int) -> ExpertFigure:
        """Time a resolve and a gather of a window of which about `missing` experts are new."""
        c, device = self._config, self._device
        asked = min(rows * c.experts_per_token, c.experts)
        slots = min(self._number // 2, asked + max(1, missing) * CALLS // 2)
        pool = torch.empty(slots, *self._host.shape[1:], dtype=torch.bfloat16, device=device)
        state = ResolveState.empty(1, self._number, slots, "clock", device)
        admitted = Admitted.empty(1, asked, device)
        lists = []
        for call in range(CALLS):
            fresh = torch.arange(missing) + call * missing
            fresh = asked + fresh % (self._number - asked)
            mine = torch.cat([torch.arange(asked - missing), fresh])
            lists.append(mine[torch.randperm(asked)].int().to(device))

        def body(call: int) -> None:
            resolve(state, lists[call], admitted, layer=0)
            gather_pages(
                self._host, pool, admitted.pages[0], admitted.slots[0], admitted.count[0, :1],
                planes=1,
            )  # fmt: skip

        figure = self._figure("fetch", rows, missing, body, samples)
        counts = state.counters[0].tolist()
        counted = counts[MISSES] / counts[LOOKUPS] * asked
        return ExpertFigure(
            op=figure.op,
            rows=rows,
            misses=counted,
            bytes=round(counted * expert_bytes(c)),
            timing=figure.timing,
        )

    def _figure(
        self, op: str, rows: int, missing: int, body: Callable[[int], None], samples: int
    ) -> ExpertFigure:
        def every() -> None:
            for call in range(CALLS):
                body(call)

        graph = capture(every)
        timing = time_calls(graph.replay, calls=CALLS, samples=samples)
        moved = missing * expert_bytes(self._config)
        return ExpertFigure(op=op, rows=rows, misses=missing, bytes=moved, timing=timing)
