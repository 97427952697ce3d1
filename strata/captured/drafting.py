"""The drafter's layer as launches of a phase: join, project, attend, add, feed, draw.

Shapes: R rows, H hidden, Q query heads, K K/V heads, D head dimension.
"""

from __future__ import annotations

import torch

from strata.captured.layers import Rows
from strata.draft.mtp import MtpDrafter
from strata.kernels.embed import join_rows
from strata.kernels.experts import slot_product
from strata.kernels.out_proj import project_out
from strata.kernels.paged_attention import Splits
from strata.kernels.qkv import CellStore, project_cells
from strata.kernels.window_attention import attend_window
from strata.lm.model import LanguageModel
from strata.round_buffers import Buffers


class DraftLayer:
    """Write cells of the drafter and chain its output; what it holds is laid out once."""

    def __init__(self, model: LanguageModel, drafter: MtpDrafter, buffers: Buffers) -> None:
        assert model.weights.mtp is not None
        self._model, self._w, self._drafter = model, model.weights.mtp, drafter
        self._rows = Rows.of(buffers, "draft")
        self._cells = buffers["draft.cells"]
        self._sums, self._stats = buffers["draft.sums"], buffers["draft.stats"]
        self._only, self._whole = buffers["draft.ids"], buffers["draft.weights"].fill_(1)

    def write(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        *,
        committed: bool,
    ) -> None:
        """Write the cells `positions` [R] of `tokens` [R] behind `hidden` [R, H].

        Queries and residuals stay for `output`; committed cells also reach the host store.
        """
        w, eps = self._w, self._model.config.norm_eps
        r = self._rows.first(len(tokens))
        join_rows(
            tokens,
            hidden,
            self._model.weights.embedding,
            (w.norm_embedding, w.norm_hidden, w.attention.norm),
            w.fc,
            eps=eps,
            residual=r.residual,
            normed=r.normed,
            counter=r.counter,
        )
        ring = self._drafter.ring
        project_cells(
            r.normed,
            w.attention,
            self._model.rotary,
            positions,
            CellStore(
                pool=ring.cells.view(-1, 1, ring.cells.shape[-1]),
                host=ring.host.view(-1, 1, ring.cells.shape[-1]) if committed else None,
                table=None,
            ),
            eps=eps,
            q=r.q,
            cells=self._cells[: len(tokens)],
            parts=r.out_parts,
            counter=r.counter,
        )

    def output(self, position: torch.Tensor, row: torch.Tensor | None) -> torch.Tensor:
        """Return the layer's normed output [1, H] for row `row` [1] of the last `write`.

        Its cell is `position` [1]; without a row it is row 0.
        """
        w, c = self._w, self._model.config
        one = self._rows.first(1)
        attended = self._attend(position, row)
        project_out(
            attended,
            w.attention.out,
            w.attention.post_norm,
            eps=c.norm_eps,
            residual=self._rows.residual,
            normed=one.normed,
            parts=one.out_parts,
            counter=one.counter,
            row=row,
        )
        settled = one.settled(w.norm, c.norm_eps)
        return slot_product(one.normed, self._only, self._whole, w.mlp[None], settled=settled)

    def take(self, q: torch.Tensor, residual: torch.Tensor) -> None:
        """Go on from a row that was written elsewhere: `q` [1, Q, D] and `residual` [1, H]."""
        self._rows.q[:1] = q
        self._rows.residual[:1] = residual

    def state(self) -> list[torch.Tensor]:
        """Return what a warm-up must put back: rows that the next phase goes on from."""
        return [self._rows.q, self._rows.residual]

    def _attend(self, position: torch.Tensor, row: torch.Tensor | None) -> Splits:
        c, ring = self._model.config, self._drafter.ring
        q = self._rows.q.view(-1, c.kv_heads, c.group, c.head_dim)
        return attend_window(
            q, ring.cells, position, ring.window, (self._sums, self._stats), row=row
        )
