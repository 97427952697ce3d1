"""Draw the tokens of a phase in the head's launches, or from the logits of a packed head."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from strata.kernels.accept import Board, remember
from strata.kernels.head import Repeat, draw, noise, penalise
from strata.lm.model import LanguageModel
from strata.round_buffers import Buffers
from strata.sampling import Sampler


class TokenDraw:
    """Draw as one Sampler does, with its seed, its temperature and what it saw in device memory."""

    def __init__(
        self, model: LanguageModel, sampler: Sampler, buffers: Buffers, board: Board
    ) -> None:
        params = sampler.params
        self.sampler = sampler
        self._model = model
        self._shares, self._parts = buffers["head.shares"], buffers["head.parts"]
        self._scores = (buffers["head.logits"], buffers["head.values"])
        self._board = board
        self._seed = self._temperature = self._cuts = self._repeat = None
        if sampler.repeat is not None:
            penalty, last = sampler.repeat
            self._repeat = Repeat(
                penalty=torch.tensor([penalty], device=model.device),
                last=torch.tensor([last], device=model.device),
                seen=buffers["head.seen"],
                tokens=board.tokens,
                positions=board.positions,
            )
        if not sampler.greedy:
            signed = params.seed - 2**64 if params.seed >= 2**63 else params.seed
            self._seed = torch.tensor([signed], device=model.device)
            self._temperature = torch.tensor([params.temperature], device=model.device)
            if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
                cuts = [params.top_k, params.top_p, params.min_p]
                self._cuts = torch.tensor(cuts, dtype=torch.float64, device=model.device)

    def begin(self, known: Sequence[int]) -> None:
        """Take over the sequence so far; nothing where no penalty asks for it."""
        if self._repeat is not None:
            seen = torch.full(self._repeat.seen.shape, -1, dtype=torch.int32)
            last = {token: at for at, token in enumerate(known)}
            seen[list(last)] = torch.tensor(list(last.values()), dtype=torch.int32)
            self._repeat.seen.copy_(seen)

    def note(self) -> None:
        """Count what the last window gave as seen, behind `accept`."""
        if self._repeat is not None:
            remember(self._board, self._repeat.seen)

    def state(self) -> list[torch.Tensor]:
        """Return what `note` changes."""
        return [] if self._repeat is None else [self._repeat.seen]

    def tokens(
        self, hidden: torch.Tensor, positions: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """Write the tokens at `positions` [R] behind `hidden` [R, H] into `out` [R].

        Returns their shares of the softmax [R].
        """
        head, model = self._model.weights.head, self._model
        if head.packed:
            logits = scores = model.logits(hidden)
            if self._repeat is not None:
                repeated = self._repeat.repeated(positions)
                scores = penalise(logits, repeated, self._repeat.penalty)
            if self._seed is not None:
                scores = self.sampler.process(scores)
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
            repeat=self._repeat,
        )
        return drawn.shares
