"""Page gather in Triton: programs share out blocks of pages and copy them as 32-bit words."""

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous

BLOCK_WORDS = 1024
"""Words a program copies at a time: 16 bytes a thread of 8 warps, the fastest measured."""
MAX_PROGRAMS = 256
"""Programs of a launch at most: 1 MiB in flight hides the latency of any bus."""


@triton.jit
def copy_block(
    host_ptr,
    pool_ptr,
    pages_ptr,
    slots_ptr,
    block,
    PAGE_WORDS: tl.constexpr,
    PAGE_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Copy block `block` of the listed pages one behind another; nothing where there is no slot."""
    entry = block // PAGE_BLOCKS
    page = tl.load(pages_ptr + entry).to(tl.int64)
    slot = tl.load(slots_ptr + entry).to(tl.int64)
    at = (block % PAGE_BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    mask = at < tl.where(slot >= 0, PAGE_WORDS, 0)
    data = tl.load(host_ptr + page * PAGE_WORDS + at, mask=mask)
    tl.store(pool_ptr + slot * PAGE_WORDS + at, data, mask=mask)


@triton.jit(do_not_specialize=["listed"])
def _gather(
    host_ptr,
    pool_ptr,
    pages_ptr,
    slots_ptr,
    count_ptr,
    listed,
    COUNTED: tl.constexpr,
    PAGE_WORDS: tl.constexpr,
    PAGE_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    count = listed
    if COUNTED:
        count = tl.minimum(tl.load(count_ptr).to(tl.int32), listed)
    for block in range(tl.program_id(0), count * PAGE_BLOCKS, tl.num_programs(0)):
        copy_block(host_ptr, pool_ptr, pages_ptr, slots_ptr, block, PAGE_WORDS, PAGE_BLOCKS, BLOCK)


def gather_pages(
    host: torch.Tensor,
    pool: torch.Tensor,
    pages: torch.Tensor,
    slots: torch.Tensor,
    count: torch.Tensor | None = None,
    *,
    planes: int,
) -> None:
    """Copy in one launch whose grid depends on N alone; `count` is read by the kernel."""
    if len(pages) == 0:
        return
    page_bytes = planes * pool.shape[1] * pool.shape[2] * pool.element_size()
    assert page_bytes % 4 == 0, f"a page of {page_bytes} bytes is no whole number of words"
    page_blocks = triton.cdiv(page_bytes // 4, BLOCK_WORDS)
    with on_device_of(pool):
        _gather[(min(len(pages) * page_blocks, MAX_PROGRAMS),)](
            host.view(-1).view(torch.int32),
            pool.view(-1).view(torch.int32),
            pages,
            slots,
            pages if count is None else count,
            len(pages),
            COUNTED=count is not None,
            PAGE_WORDS=page_bytes // 4,
            PAGE_BLOCKS=page_blocks,
            BLOCK=BLOCK_WORDS,
            num_warps=8,
            **overlapped(pool),
        )
