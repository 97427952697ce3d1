"""Attention that is not reduced yet: what each split of the cells gave its queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """Partial attention of R * Q queries over N splits of `cells` cells each.

    `stats` are the largest score of a split, in powers of two, and the sum of its weights over
    that; `sums` the weighted values. With `positions` [R] only the splits up to a row's own
    position were written.
    """

    sums: torch.Tensor  # [R * Q, N, D], float32
    stats: torch.Tensor  # [2, R * Q, N], float32
    positions: torch.Tensor | None
    cells: int

    def reduced(self, rows: int) -> torch.Tensor:
        """Return the attention [R, Q * D] of all splits, float32."""
        tops, totals = self.stats
        # A split whose scores are all NaN may have no largest one, but its total tells.
        written = ~(tops == -torch.inf) | totals.isnan()
        if self.positions is not None:
            last = (self.positions // self.cells).repeat_interleave(len(tops) // rows)
            written &= torch.arange(tops.shape[1], device=tops.device) <= last[:, None]
        tops = tops.masked_fill(~written, -torch.inf)
        shares = torch.exp2(tops - tops.amax(1, keepdim=True))
        sums = self.sums.masked_fill(~written[..., None], 0.0) * shares[..., None]
        total = (totals.masked_fill(~written, 0.0) * shares).sum(1, keepdim=True)
        attended: torch.Tensor = sums.sum(1) / total
        return attended.view(rows, -1)

    @classmethod
    def of(cls, attended: torch.Tensor, dim: int) -> Splits:
        """Return attention [R, Q * D] that is whole as one split of everything."""
        sums = attended.float().reshape(-1, 1, dim)
        stats = torch.zeros(2, len(sums), 1, device=attended.device)
        stats[1] = 1.0
        return cls(sums=sums, stats=stats, positions=None, cells=0)
