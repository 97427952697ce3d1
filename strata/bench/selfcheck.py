"""Refuse to print a speed where what is timed computes something wrong.

Every kernel that a run uses is called once on small random inputs, fresh each time, on the device
of the run, and held against its torch reference on the CPU. Inputs whose result is a decision
(pages, slots, experts, tokens) are whole numbers, so that sums are exact and decisions equal.
Where no kernel runs, sessions of two rings must give the same logits, bit by bit.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from strata.config import (
    PAGE_CELLS,
    KvConfig,
    SamplingParams,
    Selection,
    SessionConfig,
    SpecConfig,
    tail_pages,
)
from strata.device import device_name
from strata.errors import SelfCheckError
from strata.kernels import append, device, experts, gather, head, paged_attention, resolve, select
from strata.lm.config import LMConfig
from strata.lm.model import LanguageModel
from strata.sampling import Sampler
from strata.session import create_session

ROWS = 3
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""Norm of the difference over the norm, for results that are sums."""
ENGINE_CELLS, ENGINE_SELECT, ENGINE_STEPS = 480, 64, 9
"""The first token is the prompt's, so that 8 steps decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Shapes of a run, where it computes, and the source of its random inputs."""

    config: LMConfig
    device: torch.device
    dtype: torch.dtype
    random: torch.Generator

    def normal(self, *shape: int) -> torch.Tensor:
        """Return normal numbers in the run's type, on the CPU."""
        return torch.randn(*shape, generator=self.random).to(self.dtype)

    def whole(self, high: int, *shape: int) -> torch.Tensor:
        """Return whole numbers from minus `high` to `high` in the run's type, on the CPU."""
        return torch.randint(-high, high + 1, shape, generator=self.random).to(self.dtype)

    def order(self, count: int) -> torch.Tensor:
        """Return 0 to `count` - 1 in random order."""
        return torch.randperm(count, generator=self.random)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of `tensor` on the device."""
        return tensor.clone().to(self.device)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of `tensor` as kernels read host memory."""
        return tensor.pin_memory() if self.device.type == "cuda" else tensor.clone()


def check_run(model: LanguageModel, *, selected: bool, pooled: bool) -> None:
    """Hold what a session of `model` uses against its references.

    `selected` where rows read a selection, `pooled` where experts have a budget. Raises
    SelfCheckError, naming what disagrees.
    """
    if device.has_kernels(torch.empty(0, device=model.device)):
        ops = ["append", "paged_attention", "experts", "head"]
        ops += ["select"] * selected + ["resolve", "gather"] * (selected or pooled)
        check_kernels(model.config, model.device, model.dtype, ops)
    else:
        check_engine(model)


def check_kernels(
    config: LMConfig, where: torch.device, dtype: torch.dtype, ops: Iterable[str]
) -> None:
    """Hold the kernels of `ops`, keys of CHECKS, against their references on device `where`."""
    seed = secrets.randbits(31)
    for op in ops:
        random = torch.Generator().manual_seed(seed)
        given = Inputs(config=config, device=where, dtype=dtype, random=random)
        if not CHECKS[op](given):
            raise SelfCheckError(
                f"the {op} kernel does not agree with its reference on {device_name(where)} "
                f"(random inputs of seed {seed}), so no speed is printed; "
                f"run the tests of strata/kernels/{op}"
            )


def check_engine(model: LanguageModel) -> None:
    """Decode a few tokens with every page resident and with the minimum ring; compare all bits."""
    seed = secrets.randbits(31)
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(model.config.vocab, (ENGINE_CELLS,), generator=random).tolist()
    minimum = ENGINE_SELECT + tail_pages(PAGE_CELLS) * PAGE_CELLS
    if not torch.equal(_logits(model, ids, 0), _logits(model, ids, minimum)):
        raise SelfCheckError(
            f"the engine's logits with a ring of {minimum} cells are not those with every page "
            f"resident, on {device_name(model.device)} (random prompt of seed {seed}), so no "
            "speed is printed; run the tests of strata/kv"
        )


class _Recorder(Sampler):
    """A greedy sampler that keeps what it drew from."""

    def __init__(self) -> None:
        super().__init__(SamplingParams())
        self.seen: list[torch.Tensor] = []

    def scores(self, logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Keep `logits` and pass them on."""
        self.seen.append(logits.clone())
        return super().scores(logits, positions)


def _logits(model: LanguageModel, ids: list[int], ring: int) -> torch.Tensor:
    """Return the logits [steps, V] of a continuation with a ring of `ring` cells (0: all)."""
    config = SessionConfig(
        kv=KvConfig(resident_cells=ring, selection=Selection(cells=ENGINE_SELECT)),
        spec=SpecConfig(drafts=0),
    )
    session = create_session(model, config, prompt_cells=len(ids), max_new=ENGINE_STEPS, environ={})
    session.prefill(ids)
    recorder = _Recorder()
    session.engine.first_token(recorder)
    for _ in range(1, ENGINE_STEPS):
        session.engine.round(recorder, 0)
    session.close()
    return torch.cat(recorder.seen)


def _near(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether sums agree; a NaN does not."""
    got, expected = got.cpu().double(), expected.cpu().double()
    return bool((got - expected).norm() <= TOLERANCE[dtype] * expected.norm())


def _same_bits(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(got.cpu().view(torch.uint8), expected.cpu().view(torch.uint8))


def _gather(given: Inputs) -> bool:
    c, pages, slots = given.config, 24, 12
    planes = 2 * c.kv_heads
    host = given.normal(pages * planes, PAGE_CELLS, c.head_dim)
    pool = given.normal(slots * planes, PAGE_CELLS, c.head_dim)
    lists = (given.order(pages)[:slots].int(), given.order(slots).int())
    lists[1][2] = -1
    count = torch.tensor([slots - 3], dtype=torch.int32)
    expected = pool.clone()
    gather.ref.gather_pages(host, expected, *lists, count, planes=planes)
    got = given.put(pool)
    on_device = [given.put(t) for t in (*lists, count)]
    gather.gather_pages(given.pin(host), got, *on_device, planes=planes)
    return _same_bits(got, expected)


def _append(given: Inputs) -> bool:
    c = given.config
    cells = given.normal(ROWS, 2, c.kv_heads, c.head_dim)
    count = ROWS * 2 * c.kv_heads
    host, pool = given.normal(2 * count, c.head_dim), given.normal(2 * count, c.head_dim)
    rows = (given.order(2 * count)[:count], given.order(2 * count)[:count])
    rows[1][0] = -1
    expected = host.clone(), pool.clone()
    append.ref.append_cells(cells, expected[0], rows[0], expected[1], rows[1])
    got = given.pin(host), given.put(pool)
    append.append_cells(given.put(cells), got[0], given.put(rows[0]), got[1], given.put(rows[1]))
    if given.device.type == "cuda":
        torch.cuda.synchronize(given.device)
    return all(_same_bits(a, b) for a, b in zip(got, expected, strict=True))


def _paged_attention(given: Inputs) -> bool:
    c, pages = given.config, 24
    planes, last = 2 * c.kv_heads, pages * PAGE_CELLS - 7
    q = given.normal(ROWS, c.kv_heads, c.group, c.head_dim)
    host = given.normal(pages * planes, PAGE_CELLS, c.head_dim)
    table = torch.full((pages,), -1, dtype=torch.int32)
    kept = given.order(pages)[: pages // 2]
    table[kept] = given.order(len(kept)).int()
    pool = given.normal(len(kept) * planes, PAGE_CELLS, c.head_dim)
    positions = torch.arange(last - ROWS + 1, last + 1)
    own = torch.arange(pages - 2, pages)
    listed = torch.stack(
        [torch.cat([given.order(pages - 2)[:8].sort().values, own]) for _ in range(ROWS)]
    )
    cpu = (q, pool, host, table, positions)
    there = (
        given.put(q),
        given.put(pool),
        given.pin(host),
        given.put(table),
        given.put(positions),
    )
    dense = paged_attention.attend_dense(*there)
    chosen = paged_attention.attend_selected(*there, given.put(listed))
    return _near(dense, paged_attention.ref.attend_dense(*cpu), given.dtype) and _near(
        chosen, paged_attention.ref.attend_selected(*cpu, listed), given.dtype
    )


def _select(given: Inputs) -> bool:
    c, pages, count, tail = given.config, 60, 12, tail_pages(PAGE_CELLS)
    a, b = (given.whole(9, c.kv_heads, pages, c.head_dim).float() for _ in range(2))
    bounds = torch.cat([torch.maximum(a, b), torch.minimum(a, b)], -1)
    q = given.whole(4, ROWS, c.kv_heads, c.group, c.head_dim)
    own = torch.tensor([pages - 2, *[pages - 1] * (ROWS - 1)])
    expected = select.ref.select_pages(q, bounds, own, count=count, tail=tail)
    on_device = [given.put(t) for t in (q, bounds, own)]
    got = select.select_pages(*on_device, count=count, tail=tail)
    return torch.equal(got.cpu(), expected)


def _resolve(given: Inputs) -> bool:
    pages, slots, asked = 64, 24, 10
    states = [
        resolve.ResolveState.empty(1, pages, slots, "clock", where)
        for where in (given.device, torch.device("cpu"))
    ]
    outs = [resolve.Admitted.empty(1, ROWS * asked, s.table.device) for s in states]
    keep = torch.tensor([pages - 2])
    for step in range(8):
        window = 2 * step + given.order(40)
        rows = torch.stack([window[given.order(40)[:asked]] for _ in range(ROWS)]).int()
        on_device = given.put(rows)
        resolve.resolve(states[0], on_device, outs[0], layer=0, keep_from=given.put(keep))
        resolve.ref.resolve(states[1], rows, outs[1], layer=0, keep_from=keep)
        count = outs[1].count.tolist()[0]
        got = [t.cpu() for t in (states[0].table, states[0].owner, states[0].counters)]
        got += [outs[0].count.cpu(), outs[0].pages[0, : count[1]].cpu()]
        got += [outs[0].slots[0, : count[0]].cpu()]
        expected = [states[1].table, states[1].owner, states[1].counters, outs[1].count]
        expected += [outs[1].pages[0, : count[1]], outs[1].slots[0, : count[0]]]
        if not all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)):
            return False
    return True


def _experts(given: Inputs) -> bool:
    c = given.config
    logits, count = given.normal(ROWS, c.experts), c.experts_per_token
    ids, weights = experts.route(given.put(logits), count=count, normalise=c.normalise_router)
    share = logits.softmax(-1, dtype=torch.float32)
    best = share.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    expected = experts.ref.route(logits, count=count, normalise=c.normalise_router)[1]
    if not (torch.equal(ids.cpu(), best) and _near(weights, expected, given.dtype)):
        return False
    host = (given.normal(c.experts, 3 * c.expert_width, c.hidden) / c.hidden**0.5).to(given.dtype)
    x, shares = given.normal(ROWS, c.hidden), expected.to(given.dtype)
    table = torch.full((c.experts,), -1, dtype=torch.int32)
    held = given.order(c.experts)[: (c.experts + 1) // 2]
    table[held] = torch.arange(len(held), dtype=torch.int32)
    pool = host[held].clone()
    args = (given.put(x), given.put(best), given.put(shares))
    got = experts.slot_product(
        *args, given.put(pool), table=given.put(table), host=given.pin(host), base=0
    )
    resident = experts.slot_product(*args, given.put(host))
    exact = experts.ref.slot_product(
        x.float(), best, shares.float(), host.float(), table=None, host=None, base=0
    )
    return _near(got, exact, given.dtype) and _near(resident, exact, given.dtype)


def _head(given: Inputs) -> bool:
    c = given.config
    vocab = min(c.vocab, 1000)
    x, weight = given.whole(1, ROWS, c.hidden), given.whole(1, vocab, c.hidden)
    expected = head.ref.draw(
        x, None, weight, eps=c.norm_eps, positions=None, seed=None, temperature=None
    )
    got = head.draw(given.put(x), None, given.put(weight), eps=c.norm_eps)
    if not torch.equal(got.tokens.cpu(), expected.tokens):
        return False
    x, weight = given.normal(ROWS, c.hidden), given.normal(vocab, c.hidden) / c.hidden**0.5
    weight, norm = weight.to(given.dtype), given.normal(c.hidden)
    normed = torch.nn.functional.rms_norm(x.float(), x.shape[-1:], norm.float(), c.norm_eps)
    args = [given.put(t) for t in (x, norm, weight)]
    drawn = head.draw(*args, eps=c.norm_eps, with_logits=True)
    assert drawn.logits is not None
    return _near(drawn.logits, normed @ weight.float().T, given.dtype)


CHECKS: dict[str, Callable[[Inputs], bool]] = {
    "append": _append,
    "experts": _experts,
    "gather": _gather,
    "head": _head,
    "paged_attention": _paged_attention,
    "resolve": _resolve,
    "select": _select,
}
"""What holds the kernels of each folder of strata/kernels that has a Triton twin."""
