"""Which part of a round a kernel belongs to.

A captured round is one launch of graphs, so the host sees no part of it. What a profiler sees are
names in order. A name says what a kernel does, its place says for whom: the same gather brings in
pages behind a selection and experts behind routing, and what runs before the window's rows are
embedded drafts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

PARTS = (
    "resolve",
    "gather",
    "expert fetch",
    "prefetch",
    "append",
    "selection",
    "attention",
    "experts",
    "projections",
    "drafter",
    "head",
    "other",
)
"""`expert fetch` is residency and copies of experts, `experts` routing and products. `prefetch`
runs beside the others, so its time is not the round's. `other` is what no rule names: norms,
rotations, sums, copies and the bookkeeping of a round."""

KERNELS = {
    "_accept": "other",
    "_add_tile": "projections",
    "_add_weighted": "experts",
    "_append": "append",
    "_attend_splits": "attention",
    "_attend_window": "drafter",
    "_bear": "resolve",
    "_bound": "selection",
    "_choose": "selection",
    "_down": "experts",
    "_embed": "other",
    "_fetch": "prefetch",
    "_flash": "attention",
    "_forecast_experts": "prefetch",
    "_forecast_pages": "prefetch",
    "_gate_up": "experts",
    "_gather": "gather",
    "_heads": "projections",
    "_join": "drafter",
    "_noise": "head",
    "_norm": "other",
    "_norm_route": "experts",
    "_pick": "head",
    "_product": "experts",
    "_project": "projections",
    "_project_out": "projections",
    "_project_tile": "projections",
    "_publish": "prefetch",
    "_reduce_queries": "attention",
    "_reduce_splits": "attention",
    "_remember": "other",
    "_reserve": "prefetch",
    "_resolve": "resolve",
    "_route": "experts",
    "_score": "selection",
    "_score_rows": "selection",
    "_sort": "experts",
    "_turns": "other",
    "_widen": "selection",
    "_window_down": "experts",
    "_window_gate_up": "experts",
}
"""Every kernel that strata launches, by its name. Before `_pick` a `_project` is the head's;
`_project_out` also reduces what attention split and routes."""

EMBEDS = "_embed"
"""The first kernel of a window's rows; what runs before it in a graph is the drafter's."""
ROUTERS = ("_route", "_project_out", "_norm_route")
"""Behind these a resolve and a gather are of experts."""
HEAD_ENDS = ("_pick", "ArgMax")
"""What draws from the logits; the product before it is the head's."""

LIBRARY = (
    ("flash", "attention"),
    ("fmha", "attention"),
    ("sdpa", "attention"),
    ("nvjet", "projections"),
    ("gemm", "projections"),
    ("gemv", "projections"),
    ("splitKreduce", "projections"),
    ("cutlass", "projections"),
    ("ArgMax", "head"),
)
"""Kernels of libraries, by a word in their name; the first that fits."""

GRAPH_KERNELS = 2
"""Kernels of one launch from which on it is a graph's."""
_OF_A_LAYER = ("projections", "append", "attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel that ran."""

    name: str
    graph: int
    """The launch it belongs to; all kernels of one launch of a graph share it."""
    start_us: float
    end_us: float


def part_of(name: str) -> str:
    """Return the part that the name of a kernel alone says."""
    if name in KERNELS:
        return KERNELS[name]
    return next((part for word, part in LIBRARY if word in name), "other")


def attribute(launches: Sequence[Launch]) -> list[str]:
    """Return the part of each of `launches`, in the order in which they ran."""
    parts: list[str] = []
    for together in _by_launch(launches):
        names = [launch.name for launch in together]
        if len(names) < GRAPH_KERNELS:
            parts += map(part_of, names)
            continue
        drafts = names.index(EMBEDS) if EMBEDS in names else len(names)
        # Pages are born for drafts and rows alike.
        before = (part_of(name) for name in names[:drafts])
        parts += [part if part == "resolve" else "drafter" for part in before]
        parts += _verify_parts(names[drafts:])
    return parts


def _by_launch(launches: Sequence[Launch]) -> Iterator[list[Launch]]:
    for _, together in groupby(launches, key=lambda launch: launch.graph):
        yield list(together)


def _verify_parts(names: Sequence[str]) -> list[str]:
    """Return the parts of the kernels of one forward of the main model.

    Behind the head the drafter writes its cells.
    """
    parts = [part_of(name) for name in names]
    of_experts = False
    product: int | None = None
    for i, name in enumerate(names):
        if parts[i] in ("resolve", "gather") and of_experts:
            parts[i] = "expert fetch"
        elif parts[i] == "selection":
            of_experts = False
        elif name in ROUTERS:
            of_experts = True
        if parts[i] == "projections":
            product = i
        elif any(end in name for end in HEAD_ENDS) and product is not None:
            parts[product], product = "head", None
        elif parts[i] not in ("other", "prefetch"):
            product = None
    behind = len(parts) - parts[::-1].index("head") if "head" in parts else len(parts)
    drafter = ["drafter" if part in _OF_A_LAYER else part for part in parts[behind:]]
    return parts[:behind] + drafter
