"""Checks of what a window's rows go through between their tokens and their successors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from strata.bench.checks.inputs import ROWS, Inputs
from strata.bench.checks.routing import chose, one_value_router
from strata.config import MAX_ROWS, PAGE_CELLS
from strata.kernels import accept, embed, experts, head, out_proj, qkv
from strata.kernels.paged_attention import Splits
from strata.kernels.wide import counter_shape
from strata.lm.layers import Rotary
from strata.lm.linear import Linear
from strata.lm.weights import AttentionWeights


def check_embed(given: Inputs) -> bool:
    """Compare embeddings with their norm, and the drafter's joined rows."""
    c, vocab, eps = given.config, 64, given.config.norm_eps
    tokens, hidden = given.order(vocab)[:ROWS], given.normal(ROWS, c.hidden)
    embedding = given.normal(vocab, c.hidden)
    gains = (given.normal(c.hidden), given.normal(c.hidden), given.normal(c.hidden))
    fc = given.normal(c.hidden, 2 * c.hidden, scale=c.hidden**-0.5)
    first, normed, joined, joined_normed = (torch.zeros_like(hidden) for _ in range(4))
    embed.ref.embed_rows(tokens, embedding, gains[0], eps=eps, residual=first, normed=normed)
    embed.ref.join_rows(
        tokens, hidden, embedding, gains, Linear(fc), eps=eps, residual=joined, normed=joined_normed
    )
    out = [given.put(torch.zeros_like(hidden)) for _ in range(4)]
    at, table = given.put(tokens), given.put(embedding)
    there = (given.put(gains[0]), given.put(gains[1]), given.put(gains[2]))
    embed.embed_rows(at, table, there[0], eps=eps, residual=out[0], normed=out[1])
    embed.join_rows(
        at,
        given.put(hidden),
        table,
        there,
        Linear(given.put(fc)),
        eps=eps,
        residual=out[2],
        normed=out[3],
        counter=_counter(given),
    )
    return all(map(given.near, out, (first, normed, joined, joined_normed)))


def check_qkv(given: Inputs) -> bool:
    """Compare queries and cells, and both stores: behind a page table, and a ring of cells."""
    c, pages, slots = given.config, 8, 5
    planes, rotary = 2 * c.kv_heads, Rotary(c, torch.device("cpu"))
    x = given.normal(ROWS, c.hidden)
    table = torch.full((pages,), -1, dtype=torch.int32)
    table[3] = 2
    positions = torch.arange(ROWS) + 5 * PAGE_CELLS - ROWS + 1  # the last row begins page 5
    table[4] = 1
    paged = (slots * planes, PAGE_CELLS, c.head_dim)
    ring = (slots * planes, 1, c.head_dim)
    for shape, host, at in (
        (paged, (pages * planes, *paged[1:]), table),
        (ring, None, None),
    ):
        w = AttentionWeights(
            norm=x[0],
            qkv=Linear(given.normal((c.heads + planes) * c.head_dim, c.hidden, scale=0.1)),
            qk_norm=given.normal(c.heads + c.kv_heads, c.head_dim),
            out=Linear(x),
            post_norm=x[0],
        )
        want = _cells(given, shape, host, at, torch.device("cpu"))
        qkv.ref.project_cells(
            x, w, rotary, positions, want[0], eps=c.norm_eps, q=want[1], cells=want[2]
        )
        floats = qkv.part_floats(c.hidden, c.heads + planes, c.head_dim)
        got = _cells(given, shape, host, at, given.device)
        qkv.project_cells(
            given.put(x),
            AttentionWeights(
                norm=w.norm,
                qkv=Linear(given.put(w.qkv.weight)),
                qk_norm=given.put(w.qk_norm),
                out=w.out,
                post_norm=w.post_norm,
            ),
            Rotary(c, given.device),
            given.put(positions),
            got[0],
            eps=c.norm_eps,
            q=got[1],
            cells=got[2],
            parts=torch.zeros(ROWS, floats, device=given.device),
            counter=_counter(given),
        )
        given.wait()
        pairs = [(got[1], want[1]), (got[2], want[2]), (got[0].pool, want[0].pool)]
        if got[0].host is not None and want[0].host is not None:
            pairs.append((got[0].host, want[0].host))
        if not all(given.near(a, b) for a, b in pairs):
            return False
    return True


def _cells(
    given: Inputs,
    pool: tuple[int, ...],
    host: tuple[int, ...] | None,
    table: torch.Tensor | None,
    where: torch.device,
) -> tuple[qkv.CellStore, torch.Tensor, torch.Tensor]:
    """Return an empty store, and room for queries and cells."""
    c, dtype = given.config, given.dtype
    memory = None if host is None else torch.zeros(host, dtype=dtype)
    store = qkv.CellStore(
        pool=torch.zeros(pool, dtype=dtype, device=where),
        host=memory if memory is None or where.type == "cpu" else memory.pin_memory(),
        table=None if table is None else table.to(where),
    )
    return (
        store,
        torch.zeros(ROWS, c.heads, c.head_dim, dtype=dtype, device=where),
        torch.zeros(ROWS, 2, c.kv_heads, c.head_dim, dtype=dtype, device=where),
    )


def check_out_proj(given: Inputs) -> bool:
    """Compare residual and norm for a window and for one row of it, and a router's choice."""
    c, queries = given.config, ROWS * given.config.heads
    weight = given.normal(c.hidden, c.heads * c.head_dim, scale=(c.heads * c.head_dim) ** -0.5)
    gain, before = given.normal(c.hidden), given.normal(ROWS, c.hidden)
    sums = given.normal(queries, 3, c.head_dim).float()
    stats = torch.rand(2, queries, 3, generator=given.random) + 0.5
    router, places = one_value_router(given)
    for row in (None, torch.tensor([ROWS - 1])):
        rows = ROWS if row is None else 1
        some = slice(0, rows * c.heads)
        here = Splits(sums=sums[some], stats=stats[:, some], positions=None, cells=0)
        residual, normed = before.clone(), torch.zeros_like(before[:rows])
        out_proj.ref.project_out(
            here,
            Linear(weight),
            gain,
            eps=c.norm_eps,
            residual=residual,
            normed=normed,
            router=None,
            row=row,
        )
        got, got_normed = given.put(before), given.put(torch.zeros_like(normed))
        chosen = out_proj.Router(
            weight=Linear(given.put(router)),
            normalise=c.normalise_router,
            ids=torch.zeros(rows, c.experts_per_token, dtype=torch.int32, device=given.device),
            weights=given.put(torch.zeros(rows, c.experts_per_token, dtype=given.dtype)),
        )
        out_proj.project_out(
            Splits(sums=given.put(here.sums), stats=given.put(here.stats), positions=None, cells=0),
            Linear(given.put(weight)),
            given.put(gain),
            eps=c.norm_eps,
            residual=got,
            normed=got_normed,
            parts=torch.zeros(
                out_proj.part_shape(rows, c.hidden, c.heads, c.head_dim, c.experts),
                device=given.device,
            ),
            counter=_counter(given),
            router=chosen if row is None else None,
            row=None if row is None else given.put(row),
        )
        if not (given.near(got[:rows], residual[:rows]) and given.near(got_normed, normed)):
            return False
        logits = got_normed.cpu()[:, places]
        if row is None and not chose(given, logits, chosen.ids, chosen.weights):
            return False
    return True


def check_experts(given: Inputs) -> bool:
    """Compare routing, and products of experts in slots, in host memory, and settled."""
    c, logits = given.config, given.normal(ROWS, given.config.experts)
    ids, weights = experts.route(
        given.put(logits), count=c.experts_per_token, normalise=c.normalise_router
    )
    if not chose(given, logits, ids, weights):
        return False
    scale = c.hidden**-0.5
    host = given.normal(c.experts, 3 * c.expert_width, c.hidden, scale=scale)
    x, residual = given.normal(ROWS, c.hidden), given.normal(ROWS, c.hidden)
    gain, chosen, shares = given.normal(c.hidden), ids.cpu(), weights.cpu()
    table = torch.full((c.experts,), -1, dtype=torch.int32)
    held = given.order(c.experts)[: (c.experts + 1) // 2]
    table[held] = torch.arange(len(held), dtype=torch.int32)
    exact = experts.ref.slot_product(
        x.float(), chosen, shares.float(), host.float(), table=None, host=None, base=0
    )
    parts = experts.part_shape(ROWS, c.experts_per_token, c.hidden, c.expert_width)
    settled = experts.Settled(
        residual=given.put(residual),
        gain=given.put(gain),
        eps=c.norm_eps,
        normed=given.put(torch.zeros_like(x)),
        parts=torch.zeros(parts, device=given.device),
        counter=_counter(given),
    )
    args, pool = (given.put(x), ids.int(), weights), given.put(host[held])
    where, pinned = given.put(table), given.pin(host)
    apart = experts.slot_product(*args, pool, table=where, host=pinned)
    resident = experts.slot_product(*args, given.put(host))
    experts.slot_product(*args, pool, table=where, host=pinned, settled=settled)
    total = residual.float() + exact
    normed = F.rms_norm(total, (c.hidden,), gain.float(), c.norm_eps)
    return all(
        given.near(got, expected)
        for got, expected in (
            (apart, exact),
            (resident, exact),
            (settled.residual, total),
            (settled.normed, normed),
        )
    )


def check_head(given: Inputs) -> bool:
    """Compare the tokens of logits that are whole numbers, often equal, and random logits."""
    c, vocab = given.config, min(given.config.vocab, 1000)
    x, weight = given.whole(1, ROWS, c.hidden), given.whole(1, vocab, c.hidden)
    expected = head.ref.draw(
        x, None, weight, eps=c.norm_eps, positions=None, seed=None, temperature=None
    )
    got = head.draw(given.put(x), None, given.put(weight), eps=c.norm_eps)
    if not torch.equal(got.tokens.cpu(), expected.tokens):
        return False
    if not _draws_alike(given, x, weight):
        return False
    x, norm = given.normal(ROWS, c.hidden), given.normal(c.hidden)
    weight = given.normal(vocab, c.hidden, scale=c.hidden**-0.5)
    normed = F.rms_norm(x.float(), (c.hidden,), norm.float(), c.norm_eps)
    drawn = head.draw(
        given.put(x), given.put(norm), given.put(weight), eps=c.norm_eps, with_logits=True
    )
    assert drawn.logits is not None
    return given.near(drawn.logits, normed @ weight.float().T)


def _draws_alike(given: Inputs, x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether top-k, top-p and min-p leave the same tokens to draw from."""

    def tokens(op: Any, where: torch.device) -> torch.Tensor:
        drawn = op.draw(
            x.to(where),
            None,
            weight.to(where),
            eps=given.config.norm_eps,
            positions=torch.arange(ROWS, device=where),
            seed=torch.tensor([5], device=where),
            temperature=torch.tensor([2.5], device=where),
            cuts=torch.tensor([50, 0.9, 0.001], dtype=torch.float64, device=where),
        )
        return drawn.tokens.cpu()  # type: ignore[no-any-return]

    return torch.equal(tokens(head, given.device), tokens(head.ref, torch.device("cpu")))


def check_accept(given: Inputs) -> bool:
    """Compare boards behind windows of which none, some and all drafts hold."""
    for held in range(MAX_ROWS):
        boards = [accept.Board.empty(where) for where in (given.device, torch.device("cpu"))]
        tokens = given.order(50)[:MAX_ROWS]
        targets = tokens.roll(-1)
        targets[held:] += 50
        for board in boards:
            board.start(1000 + held, 7, PAGE_CELLS)
            board.tokens.copy_(tokens)
            board.targets.copy_(targets)
        for run, board in zip((accept.accept, accept.ref.accept), boards, strict=True):
            shares = torch.ones(MAX_ROWS, device=board.positions.device)
            run(board, rows=MAX_ROWS, page_cells=PAGE_CELLS, shares=shares)
        given.wait()
        states = ([*board.state(), board.result] for board in boards)
        if not all(torch.equal(a.cpu(), b) for a, b in zip(*states, strict=True)):
            return False
    return True


def _counter(given: Inputs) -> torch.Tensor:
    c = given.config
    shape = counter_shape(ROWS, c.hidden, c.heads + 2 * c.kv_heads)
    return torch.zeros(shape, dtype=torch.int32, device=given.device)
