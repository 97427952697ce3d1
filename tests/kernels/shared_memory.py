"""Compile the kernels for a GPU that need not be there, and print the shared memory of each.

A geometry's operations get tensors without memory; where a kernel would be launched it is compiled
instead, down to what settles its shared memory. A program of its own, because whether Triton
interprets is chosen once for a process:

    python -m tests.kernels.shared_memory [--every]

prints a JSON line for each kernel of each geometry. `--every` goes through several hundred
geometries and takes minutes.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton
from triton._C.libtriton import ir, llvm
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from strata.config import tail_pages
from strata.kernels.accept import Board
from strata.kernels.accept import triton as accept
from strata.kernels.append import triton as append
from strata.kernels.attention import triton as attention
from strata.kernels.embed import triton as embed
from strata.kernels.experts import part_shape
from strata.kernels.experts import triton as experts
from strata.kernels.experts import wide as wide_experts
from strata.kernels.grouped import triton as grouped
from strata.kernels.head import block_count
from strata.kernels.head import triton as head
from strata.kernels.newborn import triton as newborn
from strata.kernels.out_proj import Router
from strata.kernels.out_proj import part_shape as out_shape
from strata.kernels.out_proj import triton as out_proj
from strata.kernels.out_proj import wide as wide_out
from strata.kernels.paged_attention import Splits, split_shape, supports
from strata.kernels.paged_attention import triton as paged
from strata.kernels.prefetch import Pending
from strata.kernels.prefetch import triton as prefetch
from strata.kernels.project import triton as project
from strata.kernels.qkv import CellStore, part_floats
from strata.kernels.qkv import triton as qkv
from strata.kernels.qkv import wide as wide_qkv
from strata.kernels.resolve import Admitted, ResolveState
from strata.kernels.resolve import triton as resolve
from strata.kernels.select import triton as select
from strata.kernels.wide import counter_shape, is_wide
from strata.kernels.window_attention import triton as window_attention
from strata.kernels.window_attention import window_shape
from strata.lm.linear import Linear

META = torch.device("meta")
TARGET = GPUTarget("cuda", 90, 32)
F32, I32, I64 = torch.float32, torch.int32, torch.int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What of a model and a session kernels choose their blocks by; as it stands, the bundled."""

    hidden: int = 256
    heads: int = 8
    kv_heads: int = 1
    head_dim: int = 64
    experts: int = 48
    chosen: int = 4
    width: int = 64
    dense: int = 512
    page: int = 16
    rows: int = 8
    slots: int = 1000

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype or torch.bfloat16, device=META)


BUNDLED = Geometry()
ODD = Geometry(hidden=72, heads=6, kv_heads=2, head_dim=80, experts=8, chosen=1, width=24, page=4)
CHOSEN = [
    BUNDLED,
    ODD,
    Geometry(hidden=8192, heads=64, kv_heads=8, head_dim=128, experts=512, width=2048, page=64),
    Geometry(hidden=64, heads=32, kv_heads=2, head_dim=256, experts=300, rows=1, page=1),
]
"""Geometries at the edges, few enough for a test. Tensors are bfloat16, as on every GPU."""


def every_geometry() -> Iterator[Geometry]:
    """Yield `CHOSEN`, then many in between."""
    yield from CHOSEN
    yield Geometry(hidden=2048, heads=32, kv_heads=4, head_dim=128, experts=128, width=768)
    yield Geometry(hidden=1000, heads=32, head_dim=8, experts=2, chosen=2, width=8, page=3)
    yield Geometry(hidden=96, heads=64, kv_heads=2, experts=1, chosen=1, slots=16_000)
    for dim, kv_heads, group in itertools.product(
        (8, 16, 64, 80, 128, 192, 256), (1, 2, 8), (1, 3, 8, 16, 32)
    ):
        yield Geometry(head_dim=dim, kv_heads=kv_heads, heads=kv_heads * group)
    for hidden, number in itertools.product((64, 72, 1000, 4096, 8192), (1, 16, 100, 256, 512)):
        yield Geometry(hidden=hidden, experts=number, chosen=min(8, number), width=hidden)
    for page, rows in itertools.product((1, 3, 16, 100, 1024), (1, 2, 8)):
        yield Geometry(page=page, rows=rows)
        yield Geometry(page=page, rows=rows, kv_heads=4, head_dim=128)


def run_rows(g: Geometry) -> None:
    """Take the rows of a window from tokens to tokens, pages aside."""
    state, normed, gain = g.empty(g.rows, g.hidden), g.empty(g.rows, g.hidden), g.empty(g.hidden)
    wide, planes = is_wide(g.hidden), 2 * g.kv_heads
    at = g.empty(g.rows, dtype=I64)
    counter = g.empty(*counter_shape(g.rows, g.hidden, g.heads + planes), dtype=I32)
    rest: dict[str, Any] = {"eps": 1e-6, "residual": state, "normed": normed}
    vocab = 8192
    embedding = g.empty(vocab, g.hidden)
    embed.embed_rows(at, embedding, gain, **rest)
    weight = g.empty(g.hidden, 2 * g.hidden)
    embed.join_rows(at, state, embedding, (gain, gain, gain), weight, counter=counter, **rest)

    pool = g.empty(8 * planes, g.page, g.head_dim)
    table = g.empty(8, dtype=I32)
    floats = part_floats(g.hidden, g.heads + planes, g.head_dim)
    shared = {"parts": g.empty(g.rows, floats, dtype=F32), "counter": counter} if wide else {}
    for store in (
        CellStore(pool=pool, host=pool, table=table),
        CellStore(pool=pool.view(-1, 1, g.head_dim), host=None, table=None),
    ):
        (wide_qkv if wide else qkv).project_cells(
            normed,
            g.empty((g.heads + planes) * g.head_dim, g.hidden),
            g.empty(g.heads + g.kv_heads, g.head_dim),
            g.empty(g.head_dim // 2, dtype=F32),
            at,
            store,
            eps=1e-6,
            q=g.empty(g.rows, g.heads, g.head_dim),
            cells=g.empty(g.rows, 2, g.kv_heads, g.head_dim),
            **shared,
        )

    splits = split_shape(g.rows, g.heads, g.head_dim, 100, g.page)
    ids, weights = g.empty(g.rows, g.chosen, dtype=I32), g.empty(g.rows, g.chosen)
    router = Linear(g.empty(g.experts, g.hidden))
    for positions, choice in ((at, True), (None, False)):
        (wide_out if wide else out_proj).project_out(
            Splits(
                sums=g.empty(*splits, dtype=F32),
                stats=g.empty(2, *splits[:2], dtype=F32),
                positions=positions,
                cells=128,
            ),
            g.empty(g.hidden, g.heads * g.head_dim),
            gain,
            parts=g.empty(*out_shape(g.rows, g.hidden, g.heads, g.head_dim, g.experts), dtype=F32),
            counter=counter,
            router=Router(weight=router, normalise=True, ids=ids, weights=weights)
            if choice
            else None,
            row=None if choice else at[:1],
            **rest,
        )
    for width, settled in ((g.width, True), (g.dense, True), (g.width, False)):
        (wide_experts if wide else experts).slot_product(
            normed,
            ids,
            weights,
            g.empty(g.experts, 3 * width, g.hidden),
            table=table,
            host=g.empty(g.experts, 3 * width, g.hidden),
            out=normed,
            parts=g.empty(*part_shape(g.rows, g.chosen, g.hidden, width), dtype=F32),
            counter=counter,
            residual=state if settled else None,
            gain=gain if settled else None,
        )
    prefetch.forecast_experts(normed, router.weight, ids, weights)
    experts.route(g.empty(g.rows, g.experts), count=g.chosen, normalise=True)
    board = Board.empty(META)
    accept.accept(board, rows=g.rows, page_cells=g.page, shares=g.empty(g.rows, dtype=F32))
    seen = g.empty(vocab, dtype=I32)
    accept.remember(board, seen)
    repeat = head.Repeat(
        penalty=g.empty(1, dtype=F32),
        last=at[:1],
        seen=seen,
        tokens=board.tokens,
        positions=board.positions,
    )
    sampled = (at[:1], g.empty(1, dtype=F32))
    for (seed, temperature), penalty in itertools.product(((None, None), sampled), (None, repeat)):
        head.draw(
            state,
            gain if seed is None else None,
            embedding,
            eps=1e-6,
            positions=at,
            seed=seed,
            temperature=temperature,
            with_logits=seed is None,
            parts=g.empty(5, g.rows, block_count(vocab, g.hidden), dtype=F32),
            cuts=None if seed is None else g.empty(3, dtype=torch.float64),
            repeat=penalty,
        )


def run_pages(g: Geometry) -> None:
    """Choose, move and read pages, and attend the drafter's window."""
    pages, listed, tail, planes = 4096, 50, tail_pages(g.page), 2 * g.kv_heads
    at, table = g.empty(g.rows, dtype=I64), g.empty(pages, dtype=I32)
    q = g.empty(g.rows, g.kv_heads, g.group, g.head_dim)
    bounds = g.empty(2, g.kv_heads, pages, 2 * g.head_dim, dtype=F32)
    chosen = select.select_pages(q, bounds[0], at, count=listed, tail=tail)
    cells = g.empty(2, g.rows, 2, g.kv_heads, g.head_dim)
    select.widen_bounds(bounds, cells, at, at[:1], page_cells=g.page)
    pool = g.empty(8 * planes, g.page, g.head_dim)
    own = pool.view(8, planes, g.page, g.head_dim)
    select.bound_pages(bounds[0], own, first_page=0, cells=range(5, 7 * g.page))
    for victims in ("clock", "lrfu"):
        owner = g.empty(2, g.slots, dtype=I32)
        state = ResolveState.over(table.expand(2, -1).contiguous(), owner, victims)
        out = Admitted.empty(1, g.rows * listed, META)
        resolve.resolve(state, chosen, out, layer=1, keep_from=at)
        newborn.bear_pages(
            state, at, rows=g.rows, page_cells=g.page, tail=tail, replace=victims == "clock"
        )
        pending, wanted = Pending.empty(2, 8, META), g.empty(2, 8, dtype=I32)
        scores = g.empty(2, pages, dtype=F32)
        prefetch.forecast_pages(scores, at[:1], state.table, wanted, tail=tail)
        prefetch.reserve(state, wanted, pending, base=0, own=at[:1], tail=tail)
    rows = g.empty(g.rows * planes, dtype=I64)
    append.append_cells(cells[0], pool, rows, pool, rows)
    if supports(head_dim=g.head_dim, dtype=torch.bfloat16, group=g.group):
        paged.attend_dense(q, pool, pool, table, at, max_pages=pages)
        paged.attend_selected(q, pool, pool, table, at, chosen)
        shape = window_shape(g.heads, g.head_dim, 999)
        sums, stats = g.empty(*shape, dtype=F32), g.empty(2, *shape[:2], dtype=F32)
        ring = g.empty(1008, 2, g.kv_heads, g.head_dim)
        window_attention.attend_window(q, ring, at[:1], 999, (sums, stats), row=at[:1])


def run_prompt(g: Geometry) -> None:
    """Take a prompt's rows through a layer."""
    rows, planes = 1000, 2 * g.kv_heads
    x, gain = g.empty(rows, g.hidden), g.empty(g.hidden)
    project.norm_rows(x, gain, 1e-6, out=x, index=g.empty(rows, dtype=I64))
    turns = g.empty(rows, 2, g.head_dim // 2)
    project.write_turns(g.empty(g.head_dim // 2, dtype=F32), 0, turns)
    q = g.empty(rows, g.heads, g.head_dim)
    pages = g.empty(-(-rows // g.page), planes, g.page, g.head_dim)
    outputs = g.heads + planes
    project.project_heads(
        x,
        gain,
        g.empty(outputs * g.head_dim, g.hidden),
        g.empty(outputs, g.head_dim),
        turns,
        1e-6,
        q=q,
        pages=pages,
        heads=range(outputs),
        offset=0,
    )
    sums, stats = (g.empty(rows, g.heads, n, dtype=F32) for n in (g.head_dim, 2))
    for cells in (range(64), range(64, 999)):
        attention.attend_prompt(
            q,
            pages,
            first_position=0,
            first_cell=0,
            cells=cells,
            sums=sums,
            stats=stats,
            last=cells.stop == 999,
            out=q,
        )
    project.write_product(q.flatten(1), g.empty(g.hidden, g.heads * g.head_dim), x, add=True)
    ids, weights = g.empty(rows, g.chosen, dtype=I32), g.empty(rows, g.chosen)
    router = g.empty(g.experts, g.hidden)
    grouped.norm_and_route(
        x, gain, router, 1e-6, normalise=True, normed=x, ids=ids, weights=weights
    )
    pairs = rows * g.chosen
    order, starts = g.empty(pairs, dtype=I32), g.empty(g.experts + 1, dtype=I32)
    grouped.sort_pairs(ids, order=order, starts=starts)
    grouped.add_experts(
        x,
        g.empty(g.experts, 3 * g.width, g.hidden),
        weights,
        order=order,
        starts=starts,
        inner=g.empty(pairs, g.width),
        parts=g.empty(pairs, g.hidden),
        x=x,
    )


class Target:
    """A driver that names a GPU and has none."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


_known: dict[str, dict[str, Any]] = {}
Seen = Callable[[str, dict[str, Any]], None]


def compile_instead(seen: Seen) -> None:
    """Have every launch of this process compile its kernel for TARGET, and tell `seen` of it."""
    driver.set_active(Target())

    def shared_of(
        self: Any, key: str, signature: Any, device: Any, constants: Any, options: Any, attrs: Any,
        warmup: Any,
    ) -> None:  # fmt: skip
        name = self.fn.__name__
        if name + key not in _known:
            backend, context = make_backend(TARGET), ir.context()
            source, stages = ASTSource(self, signature, constants, attrs), {}
            backend.add_stages(stages, options, source.language)
            ir.load_dialects(context)
            backend.load_dialects(context)
            metadata: dict[str, Any] = {"target": TARGET, **options.__dict__}
            generated = backend.get_codegen_implementation(options)
            module = source.make_ir(TARGET, options, generated, backend.get_module_map(), context)
            for stage in ("ttir", "ttgir", "llir"):
                module = stages[stage](module, metadata)
            named = {self.params[at[0]].name: value for at, value in constants.items()}
            sizes = {name: v for name, v in named.items() if name.isupper()}
            warps = {"warps": options.num_warps, "stages": options.num_stages}
            _known[name + key] = {"shared": metadata["shared"], **warps, "sizes": sizes}
        seen(name, _known[name + key])

    JITFunction._do_compile = shared_of
    # LLVM's own passes come after shared memory is settled, and take a quarter of the time.
    llvm.optimize_module = lambda *_, **__: None


def main() -> None:
    """Print what each kernel of each geometry takes."""
    for geometry in every_geometry() if "--every" in sys.argv else CHOSEN:
        of = asdict(geometry)

        def show(name: str, found: dict[str, Any], of: dict[str, Any] = of) -> None:
            print(json.dumps({"kernel": name, "geometry": of, **found}), flush=True)

        compile_instead(show)
        for run in (run_rows, run_pages, run_prompt):
            run(geometry)


if __name__ == "__main__":
    assert triton.knobs.runtime.interpret is False, "unset TRITON_INTERPRET"
    main()
