"""Attention of a few query rows over K/V cells, and of a prompt's rows (references in `ref`).

Shapes of the prompt's op: n rows, Q query heads, K K/V heads, D head dimension, C cells a page, P
pages. `README.md` has the maths, the blocks and the bytes moved.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.attention import ref
from strata.kernels.attention.ref import attend, attend_chunk

__all__ = ["BLOCK_CELLS", "attend", "attend_chunk", "attend_prompt"]

BLOCK_CELLS = 64
"""Cells that a prompt's rows read at a time; a range of cells starts at a multiple of it."""


def attend_prompt(
    q: torch.Tensor,
    pages: torch.Tensor,
    *,
    first_position: int,
    first_cell: int,
    cells: range,
    sums: torch.Tensor,
    stats: torch.Tensor,
    last: bool,
    out: torch.Tensor,
) -> None:
    """Let rows `q` [n, Q, D] at consecutive positions read the `cells` of one layer's `pages`.

    Row r, at position `first_position` + r, reads cells up to its own. `pages` [P, 2K, C, D] begins
    with cell `first_cell` and may hold cells outside of the range, which leave no trace. Ranges
    come in ascending order from cell 0 on; all but the last end at a multiple of BLOCK_CELLS.
    Between them the rows' state rests in `sums` [n, Q, D] and `stats` [n, Q, 2], float32. With the
    `last` one the attention is written to `out` [n, Q, D], which may be `q`. How the past was cut
    leaves no trace in its bits.
    """
    run = ref.attend_prompt
    if device.has_kernels(q):
        from strata.kernels.attention import triton

        run = triton.attend_prompt
    run(
        q,
        pages,
        first_position=first_position,
        first_cell=first_cell,
        cells=cells,
        sums=sums,
        stats=stats,
        last=last,
        out=out,
    )
