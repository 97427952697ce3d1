"""What large shapes have in common: which they are, their tiles, and the room their programs share.

A product of a few rows is as fast as its weights are read, and one program reads little. So a
large shape's weights are cut into tiles of tens of KiB, over outputs and over what is summed, and
each tile is multiplied with all rows of a window at once by tensor cores. Tiles of a sum are added
in their order by whoever finishes last. All of it is fixed by the model's shape, so a row's bits
depend on nothing but the row.
"""

from __future__ import annotations

LEAST_HIDDEN = 1_024
"""From here on launches are cut as this page says; below, a row's few KiB are one program's."""
TILE_ROWS = 16
"""Rows of a tensor core's tile at least, present or not."""
SPLIT = 256
"""Values of a sum that one program multiplies (measured: `experiments/kernels`)."""
BLOCK_OUT = 64
"""Outputs of a projection, or of an expert, that one program computes."""


def is_wide(hidden: int) -> bool:
    """Return whether a model of this size is served by the launches for large shapes."""
    return hidden >= LEAST_HIDDEN


def split_count(summed: int) -> int:
    """Return the programs that share a sum of that many values."""
    return -(-summed // SPLIT)


def block_count(outputs: int) -> int:
    """Return the blocks of so many outputs."""
    return -(-outputs // BLOCK_OUT)


def counter_shape(rows: int, hidden: int, heads: int) -> tuple[int, ...]:
    """Return the shape of the counters that the programs of rows share, zero between launches.

    `heads` are those of queries, keys and values together.
    """
    return (rows, max(heads, 1 + block_count(hidden))) if is_wide(hidden) else (rows,)
