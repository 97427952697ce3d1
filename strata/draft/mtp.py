"""Draft with the model's multi-token-prediction layer, chained on its own output.

The first draft of a round comes from the main model's hidden state, as in DeepSeek-V3 (2024,
section 2.2); further drafts feed the layer its own normed output.
"""

from __future__ import annotations

import torch

from strata.draft.base import Pick
from strata.draft.ring import DrafterRing
from strata.kernels.attention import attend
from strata.lm.layers import dense_mlp, project_qkv, rms_norm
from strata.lm.model import LanguageModel
from strata.lm.weights import MtpWeights

MAX_PENDING = 512
"""Verified tokens kept unwritten at most, so that a session that never drafts stays small."""


class MtpDrafter:
    """One MTP layer, dense over a window of its own cells."""

    def __init__(self, model: LanguageModel, ring: DrafterRing) -> None:
        assert model.weights.mtp is not None
        self._model = model
        self._w: MtpWeights = model.weights.mtp
        self.ring = ring
        self._next_cell = 1
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def observe(self, tokens: torch.Tensor, hidden: torch.Tensor) -> None:
        """Keep verified tokens until the next proposal rewrites their cells in one pass."""
        if sum(len(t) for t, _ in self._pending) >= MAX_PENDING:
            self.write_pending()
        self._pending.append((tokens, hidden))

    def propose(self, count: int, pick: Pick, min_p: float) -> list[int]:
        """Return at most `count` chained drafts."""
        if count == 0:
            return []
        q, residual = self.write_pending()
        position = self._next_cell - 1
        drafts: list[int] = []
        while True:
            hidden = self.output(q, residual, position)
            logits = self._model.logits(hidden)
            token = pick(logits, position + 1)
            if min_p > 0 and float(logits.softmax(-1)[0, token]) < min_p:
                break
            drafts.append(int(token))
            if len(drafts) == count:
                break
            position += 1
            at = torch.tensor([position], device=token.device)
            q, residual = self.write_rows(token, hidden, at, committed=False)
        return drafts

    def park(self) -> torch.Tensor | None:
        """Return the cells behind the prompt; pending ones are written first."""
        if self._pending:
            self.write_pending()
        return self.ring.committed(self._next_cell)

    def restore(self, cells: torch.Tensor | None) -> None:
        """Take over parked `cells` and fill the ring."""
        if cells is None:
            raise RuntimeError("the parked session did not draft, so its drafter has no cells")
        self._next_cell = len(cells)
        self.ring.load(cells)

    def truncate(self, cells: int) -> None:
        """Forget every cell from `cells` on; pending ones before it reach the host store."""
        if self._pending:
            self.write_pending()
        self._next_cell = min(self._next_cell, cells)
        self.ring.refill(self._next_cell)

    def write_pending(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the cells of all pending tokens; return the last one's query and residual.

        Where nothing is pending the last committed cell is not at hand, so a proposal always
        follows an observation.
        """
        assert self._pending, "propose needs a verified token since the last proposal"
        tokens = torch.cat([t for t, _ in self._pending])
        hidden = torch.cat([h for _, h in self._pending])
        end = self._next_cell + len(tokens)
        positions = torch.arange(self._next_cell, end, device=tokens.device)
        q, residual = self.write_rows(tokens, hidden, positions, committed=True)
        # Not before: what Ctrl-C keeps from being written is a prompt's, and a rewind needs it.
        self._next_cell = end
        self._pending.clear()
        return q[-1:], residual[-1:]

    def advance(self, cells: int) -> None:
        """Count `cells` verified cells that `write_rows` has written already."""
        self._next_cell += cells

    def write_rows(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        *,
        committed: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the K/V of cells `positions` [n]; return queries [n, Q, D] and residuals [n, H]."""
        w, eps = self._w, self._model.config.norm_eps
        inputs = [
            rms_norm(self._model.embed(tokens), w.norm_embedding, eps),
            rms_norm(hidden, w.norm_hidden, eps),
        ]
        x = w.fc(torch.cat(inputs, -1))
        angles = self._model.rotary.angles(positions, x.dtype)
        q, cells = project_qkv(rms_norm(x, w.attention.norm, eps), w.attention, eps, angles)
        self.ring.write(positions, cells, committed=committed)
        return q, x

    def output(self, q: torch.Tensor, x: torch.Tensor, position: int) -> torch.Tensor:
        """Return the layer's normed output [1, H] for the row whose cell is `position`."""
        w, c = self._w, self._model.config
        kv = self.ring.read(position)
        grouped = q.view(1, 1, c.kv_heads, c.group, c.head_dim)
        x = x + w.attention.out(attend(grouped, kv[None, 0], kv[None, 1], None))
        x = x + dense_mlp(rms_norm(x, w.attention.post_norm, c.norm_eps), w.gate_up, w.down)
        return rms_norm(x, w.norm, c.norm_eps)
