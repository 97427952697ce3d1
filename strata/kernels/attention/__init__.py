"""Attention of a few query rows over K/V cells (contract and reference in `ref`)."""

from strata.kernels.attention.ref import attend, attend_chunk

__all__ = ["attend", "attend_chunk"]
