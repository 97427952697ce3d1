"""Draw the tokens of a phase in the head's launches, or from the logits of a packed head."""

from __future__ import annotations

import torch

from strata.kernels.head import draw, noise
from strata.lm.model import LanguageModel
from strata.round_buffers import Buffers
from strata.sampling import Sampler


class TokenDraw:
    """Draw as one Sampler does, with its seed and temperature in device memory."""

    def __init__(self, model: LanguageModel, sampler: Sampler, buffers: Buffers) -> None:
        params = sampler.params
        self.sampler = sampler
        self._model = model
        self._shares, self._parts = buffers["head.shares"], buffers["head.parts"]
        self._scores = (buffers["head.logits"], buffers["head.values"])
        self._seed = self._temperature = self._cuts = None
        if not sampler.greedy:
            signed = params.seed - 2**64 if params.seed >= 2**63 else params.seed
            self._seed = torch.tensor([signed], device=model.device)
            self._temperature = torch.tensor([params.temperature], device=model.device)
            if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
                cuts = [params.top_k, params.top_p, params.min_p]
                self._cuts = torch.tensor(cuts, dtype=torch.float64, device=model.device)

    def tokens(
        self, hidden: torch.Tensor, positions: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """Write the tokens at `positions` [R] behind `hidden` [R, H] into `out` [R].

        Returns their shares of the softmax [R].
        """
        head, model = self._model.weights.head, self._model
        if head.packed:
            logits = scores = model.logits(hidden)
            if self._seed is not None:
                scores = self.sampler.process(logits)
                scores += noise(positions, logits.shape[-1], self._seed)
            torch.argmax(scores, -1, out=out)
            return logits.softmax(-1).gather(-1, out[:, None])[:, 0]
        rows = len(hidden)
        drawn = draw(
            hidden,
            None,
            head.weight,
            eps=model.config.norm_eps,
            positions=positions,
            seed=self._seed,
            temperature=self._temperature,
            tokens=out,
            shares=self._shares[:rows],
            parts=self._parts[:, :rows],
            cuts=self._cuts,
            scores=(self._scores[0][:rows], self._scores[1][:rows]),
        )
        return drawn.shares
