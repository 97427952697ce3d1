"""What holds each Triton kernel against its torch reference on the device of a run.

A check calls an operation once on small random inputs and returns whether it agrees with the
reference on the CPU. Inputs whose result is a decision (pages, slots, experts, tokens) are such
that no order of a sum can change it.
"""

from __future__ import annotations

from collections.abc import Callable

from strata.bench.checks import ahead, pages, prompt, rows
from strata.bench.checks.inputs import Inputs

__all__ = ["CHECKS", "Inputs"]

CHECKS: dict[str, Callable[[Inputs], bool]] = {
    "accept": rows.check_accept,
    "append": pages.check_append,
    "attention": prompt.check_attention,
    "embed": rows.check_embed,
    "experts": rows.check_experts,
    "gather": pages.check_gather,
    "grouped": prompt.check_grouped,
    "head": rows.check_head,
    "newborn": pages.check_newborn,
    "out_proj": rows.check_out_proj,
    "paged_attention": pages.check_paged_attention,
    "prefetch": ahead.check_prefetch,
    "project": prompt.check_project,
    "qkv": rows.check_qkv,
    "resolve": pages.check_resolve,
    "select": pages.check_select,
    "window_attention": pages.check_window_attention,
}
"""One for each folder of strata/kernels that has a Triton twin."""
