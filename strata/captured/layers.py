"""The main model's rows through every layer: four launches a layer, and those of its pages.

Shapes: R rows of a window (W = 8 at most), H hidden, L layers, Q query heads, K K/V heads,
D head dimension, k experts a token.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from strata.captured.experts import PhaseExperts
from strata.captured.pages import Pages
from strata.kernels.accept import Board
from strata.kernels.embed import embed_rows
from strata.kernels.experts import Settled
from strata.kernels.out_proj import Router, project_out
from strata.kernels.qkv import project_cells
from strata.lm.model import LanguageModel
from strata.round_buffers import Buffers, of_part


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What rows hand from one launch to the next; the first R entries are a window's."""

    residual: torch.Tensor  # [W, H]
    normed: torch.Tensor  # [W, H]
    q: torch.Tensor  # [W, Q, D]
    out_parts: torch.Tensor  # [W, ...], float32, of both projections of the attention
    parts: torch.Tensor  # [W, k, ...], float32, of the experts
    counter: torch.Tensor  # [W] or [W, ...], int32

    @classmethod
    def of(cls, buffers: Buffers, part: str) -> Rows:
        """Return the rows of `part`."""
        kept = of_part(buffers, part)
        return cls(**{field.name: kept[field.name] for field in fields(cls)})

    def settled(self, gain: torch.Tensor, eps: float) -> Settled:
        """Return where a product goes that is added to the residual and normed by `gain` [H]."""
        return Settled(
            residual=self.residual,
            gain=gain,
            eps=eps,
            normed=self.normed,
            parts=self.parts,
            counter=self.counter,
        )

    def first(self, rows: int) -> Rows:
        """Return the first `rows` rows."""
        return Rows(
            residual=self.residual[:rows],
            normed=self.normed[:rows],
            q=self.q[:rows],
            out_parts=self.out_parts[:rows],
            parts=self.parts[:rows],
            counter=self.counter[:rows],
        )


class DecodeLayers:
    """Run a window's rows; the tensors between launches are laid out once."""

    def __init__(
        self, model: LanguageModel, pages: Pages, experts: PhaseExperts, buffers: Buffers
    ) -> None:
        self._model, self._pages, self._experts = model, pages, experts
        self._rows = Rows.of(buffers, "main")
        self._cells = buffers["main.cells"]
        self._ids, self._weights = buffers["main.ids"], buffers["main.weights"]
        # What experts are applied to, of even and odd layers: while the next layer's are fetched
        # nobody may write over it. Without that it stands where its norm does.
        self._fed = buffers.get("experts.next.x")  # [2, W, H]

    def run(self, board: Board, rows: int, *, every_page: bool) -> torch.Tensor:
        """Return the hidden states [R, H] of the window's rows after the final norm."""
        model, c, w = self._model, self._model.config, self._model.weights
        assert rows <= len(self._cells[0]), f"a round of {rows} rows in a session of fewer"
        r, eps = self._rows.first(rows), c.norm_eps
        ids, weights = self._ids[:rows], self._weights[:rows]
        gains = [*(layer.norm for layer in w.layers[1:]), w.norm]
        embed_rows(
            board.tokens[:rows],
            w.embedding,
            w.layers[0].norm,
            eps=eps,
            residual=r.residual,
            normed=r.normed,
        )
        for i, (layer, gain) in enumerate(zip(w.layers, gains, strict=True)):
            project_cells(
                r.normed,
                layer,
                model.rotary,
                board.positions[:rows],
                self._pages.store(i),
                eps=eps,
                q=r.q,
                cells=self._cells[i, :rows],
                parts=r.out_parts,
                counter=r.counter,
            )
            splits = self._pages.attend(i, r.q, board, every_page=every_page)
            fed = r.normed if self._fed is None else self._fed[i % 2, :rows]
            project_out(
                splits,
                layer.out,
                layer.post_norm,
                eps=eps,
                residual=r.residual,
                normed=fed,
                parts=r.out_parts,
                counter=r.counter,
                router=Router(
                    weight=w.routers[i],
                    normalise=c.normalise_router,
                    ids=ids,
                    weights=weights,
                ),
            )
            settled = r.settled(gain, eps)
            following = w.routers[i + 1] if i + 1 < c.layers else None
            self._experts.product(fed, ids, weights, i * c.experts, settled, following)
        return r.normed

    def keep(self, board: Board, rows: int) -> None:
        """Let the accepted rows' keys widen the bounds of their pages."""
        self._pages.keep(self._cells[:, :rows], board)
