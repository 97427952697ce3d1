"""Train a model of the `mellum` layout with an MTP layer, in wall-clock limited phases.

The loss is the next token's, plus 0.3, 0.2 and 0.1 times that of the drafter's first, second and
third step, plus 0.01 times the routers' load balance. Step 2 and 3 feed the drafter its own output
of the cell before, as an engine does that drafts several tokens with one layer. Half of the cells
that a chained step reads, drawn at random, hold the keys and values of step 1, since an engine
has replaced them by then. In the later phases the drafter learns from the main model's distribution
as well as from the text, since it is the main model that will accept or reject.

    python train.py --preset tiny TOKENS MODEL_DIR
    python train.py --preset bundled TOKENS MODEL_DIR --state S.pt --stop 2
    python train.py --preset bundled TOKENS MODEL_DIR --state S.pt
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from bpe import read_tokens
from checkpoint import export
from network import BUNDLED, TINY, Block, Network, Shape, attend_causal, product_dtype
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

STEPS = 3
STEP_WEIGHTS = (0.3, 0.2, 0.1)
BALANCE_WEIGHT = 0.01
WARM_UP_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Train for `seconds` on `batch` sequences of `cells`; `distil_ratio` weighs the main model."""

    batch: int
    cells: int
    seconds: float
    distil_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Fix a whole training."""

    shape: Shape
    slab: int
    learning_rate: float
    phases: tuple[Phase, ...]


PRESETS = {
    "bundled": Preset(
        shape=BUNDLED,
        slab=66_048,
        learning_rate=2e-3,
        phases=(
            Phase(batch=16, cells=4_128, seconds=300),
            Phase(batch=1, cells=66_048, seconds=170, distil_ratio=0.5),
            Phase(batch=1, cells=132_096, seconds=380, distil_ratio=0.5),
        ),
    ),
    "tiny": Preset(
        shape=TINY,
        slab=1 << 30,
        learning_rate=4e-3,
        phases=(
            Phase(batch=8, cells=256, seconds=240),
            Phase(batch=1, cells=2_048, seconds=80, distil_ratio=0.5),
        ),
    ),
    "smoke": Preset(
        shape=TINY,
        slab=1_024,
        learning_rate=4e-3,
        phases=(
            Phase(batch=4, cells=256, seconds=6),
            Phase(batch=1, cells=1_024, seconds=6, distil_ratio=0.5),
            Phase(batch=1, cells=2_048, seconds=6, distil_ratio=0.5),
        ),
    ),
}


class Windows:
    """Draw training windows that lie inside one document where a document is long enough."""

    def __init__(self, tokens: np.ndarray, device: torch.device, seed: int) -> None:
        self.tokens = torch.from_numpy(tokens.astype(np.int16)).to(device)
        self.ends = np.flatnonzero(tokens == 0)
        self.random = np.random.default_rng(seed)

    def draw(self, batch: int, length: int) -> Tensor:
        """Return [batch, length] token ids."""
        return torch.stack([self.draw_one(length) for _ in range(batch)]).long()

    def draw_one(self, length: int) -> Tensor:
        """Try a few starts and take the first that crosses no document's end."""
        start = 0
        for _ in range(8):
            start = int(self.random.integers(0, len(self.tokens) - length))
            end = self.ends[min(np.searchsorted(self.ends, start), len(self.ends) - 1)]
            if end >= start + length:
                break
        return self.tokens[start : start + length]


def score(
    embedding: Tensor, targets: Tensor, distil: Tensor, hidden: Tensor, drafts: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum the losses of the main model and of each drafter step over some rows.

    `hidden` [N, H] and `drafts` [S, N, H] belong to the same cells, numbered `cell` [N] in their
    sequence; step s has no result for the first s cells. Returns losses [1 + S], agreements [S].
    """
    dtype = product_dtype(hidden)
    weight = embedding.to(dtype)
    logits = F.linear(hidden.to(dtype), weight).float()
    log_probs = logits.log_softmax(-1)
    probs, choice = log_probs.detach().exp(), logits.argmax(-1)
    losses = [-log_probs.gather(-1, targets[:, None]).sum()]
    agreements = []
    for step, draft in enumerate(drafts, 1):
        guess = F.linear(draft.to(dtype), weight).float().log_softmax(-1)
        truth = -guess.gather(-1, targets[:, None])[:, 0]
        taught = -(probs * guess).sum(-1)
        exists = (cell >= step).float()
        losses.append((torch.lerp(truth, taught, distil) * exists).sum())
        agreements.append(((guess.argmax(-1) == choice) * exists).sum())
    return torch.stack(losses), torch.stack(agreements)


def later(rows: Tensor, batch: int, step: int) -> Tensor:
    """Move rows [B * T, H] of a step to the index of the cell that they belong to."""
    grid = rows.view(batch, -1, rows.shape[-1])
    return F.pad(grid[:, : grid.shape[1] - step], (0, 0, step, 0)).flatten(0, 1)


class Objective:
    """Compute the loss of a window; holds the functions that are compiled on a GPU."""

    def __init__(self, net: Network, *, compiled: bool) -> None:
        self.net = net
        self.score = score
        if compiled:
            Block.enter = torch.compile(Block.enter, dynamic=False)  # type: ignore[method-assign]
            Block.leave = torch.compile(Block.leave, dynamic=False)  # type: ignore[method-assign]
            self.score = torch.compile(score, dynamic=False)

    def __call__(self, window: Tensor, distil: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and the figures [1 + 2 S + 1] to print of a window [B, T + S]."""
        net, batch, count = self.net, len(window), window.shape[1] - STEPS
        hidden, balance = net.trunk(window[:, :count])
        drafts = self.chain(window, hidden, count)
        targets = window[:, 1 : count + 1].flatten()
        cell = torch.arange(count, device=window.device).repeat(batch)
        slab = net.slab
        parts = [
            self.score(
                net.embedding,
                targets[at : at + slab],
                distil,
                hidden[at : at + slab],
                drafts[:, at : at + slab],
                cell[at : at + slab],
            )
            for at in range(0, len(targets), slab)
        ]
        losses = sum(part[0] for part in parts) / len(targets)
        agreements = sum(part[1] for part in parts) / len(targets)
        loss = losses[0] + BALANCE_WEIGHT * balance
        for weight, term in zip(STEP_WEIGHTS, losses[1:], strict=True):
            loss = loss + weight * term
        return loss, torch.cat((losses, agreements, balance[None])).detach()

    def chain(self, window: Tensor, hidden: Tensor, count: int) -> Tensor:
        """Run the drafter's steps; returns [S, B * T, H], each at the index of its cell."""
        batch = len(window)
        previous, committed = self.net.draft(window[:, 1 : 1 + count], hidden, 1)
        drafts = [later(previous, batch, 1)]
        for step in range(2, STEPS + 1):
            pick = torch.rand(batch, count, 1, 1, device=window.device) < 0.5

            def keys(k: Tensor, v: Tensor, pick: Tensor = pick, lag: int = step - 1):
                first_k, first_v = (
                    torch.cat((first[:, lag:], own[:, count - lag :]), 1)
                    for first, own in zip(committed, (k, v), strict=True)
                )
                return torch.where(pick, first_k, k), torch.where(pick, first_v, v)

            previous, _ = self.net.draft(window[:, step : step + count], previous, step, keys)
            drafts.append(later(previous, batch, step))
        return torch.stack(drafts)


def fastest_attention(phase: Phase, shape: Shape) -> SDPBackend:
    """Time forward and backward of each attention kernel at a phase's size and name the best."""
    sizes = (phase.batch, phase.cells)
    best, best_seconds = SDPBackend.FLASH_ATTENTION, float("inf")
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        q, k, v = (
            torch.randn(*sizes, heads, shape.head_dim, device="cuda", dtype=torch.bfloat16)
            for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        )
        for part in (q, k, v):
            part.requires_grad_()
        try:
            with sdpa_kernel(backend):
                attend_causal(q, k, v).sum().backward()
                torch.cuda.synchronize()
                start = time.perf_counter()
                attend_causal(q, k, v).sum().backward()
                torch.cuda.synchronize()
        except RuntimeError as error:
            print(f"attention {backend.name}: {str(error)[:90]}")
            continue
        seconds = time.perf_counter() - start
        print(f"attention {backend.name} at {sizes}: {1e3 * seconds:.1f} ms")
        if seconds < best_seconds:
            best, best_seconds = backend, seconds
    return best


def rate(preset: Preset, progress: float, step: int) -> float:
    """Return the learning rate: warm-up, constant for 30 %, then linear down to 2 %."""
    fall = 1 - 0.98 * max(0.0, (min(progress, 1.0) - 0.3) / 0.7)
    return preset.learning_rate * min(1.0, (step + 1) / WARM_UP_STEPS) * fall


class Trainer:
    """Run phases, keep the state on disk between calls."""

    def __init__(self, preset: Preset, tokens: np.ndarray, state: Path | None) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(0)
        self.preset, self.state_path = preset, state
        self.net = Network(preset.shape, slab=preset.slab).to(self.device)
        on_gpu = self.device.type == "cuda"
        groups = [
            {"params": [p for p in self.net.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in self.net.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=on_gpu)
        self.objective = Objective(self.net, compiled=on_gpu)
        self.phase, self.step, self.seconds, self.seen = 0, 0, 0.0, 0
        self.log: list[dict[str, float]] = []
        if state is not None and state.exists():
            self.load(state)
        self.windows = Windows(tokens, self.device, seed=self.phase)

    def load(self, path: Path) -> None:
        """Take up a training where `save` left it."""
        saved = torch.load(path, map_location=self.device)
        self.net.load_state_dict(saved["net"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.phase, self.step, self.seconds, self.seen, self.log = saved["at"]

    def save(self) -> None:
        """Write the state, first beside its place."""
        if self.state_path is None:
            return
        at = (self.phase, self.step, self.seconds, self.seen, self.log)
        saved = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "at": at}
        torch.save(saved, self.state_path.with_suffix(".part"))
        self.state_path.with_suffix(".part").replace(self.state_path)

    def run(self, stop: int, deadline: float) -> None:
        """Run phases up to number `stop`, or until `deadline` (a `time.monotonic` value)."""
        while self.phase < min(stop, len(self.preset.phases)) and time.monotonic() < deadline:
            phase = self.preset.phases[self.phase]
            if self.device.type == "cuda":
                with sdpa_kernel(fastest_attention(phase, self.preset.shape)):
                    self.run_phase(phase, deadline)
            else:
                self.run_phase(phase, deadline)
            self.phase += 1
            self.save()

    def run_phase(self, phase: Phase, deadline: float) -> None:
        """Train one phase; its clock starts after the first step, which may compile."""
        before, total = self.seconds, sum(entry.seconds for entry in self.preset.phases)
        distil = torch.tensor(phase.distil_ratio, device=self.device)
        start = printed = time.monotonic()
        sums, count, first = torch.zeros(2 * STEPS + 2, device=self.device), 0, True
        while True:
            for group in self.optimizer.param_groups:
                group["lr"] = rate(self.preset, self.seconds / total, self.step)
            loss, figures = self.objective(
                self.windows.draw(phase.batch, phase.cells + STEPS), distil
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.step += 1
            self.seen += phase.batch * phase.cells
            sums, count = sums + figures, count + 1
            now = time.monotonic()
            if first:
                print(f"phase {self.phase}: first step after {now - start:.1f} s, {sums.tolist()}")
                start, first = time.monotonic(), False
            self.seconds = before + now - start if now > start else before
            over = now - start > phase.seconds or now > deadline
            if now - printed > 5 or over:
                self.report(sums / count, count * phase.batch * phase.cells / (now - printed))
                sums, count, printed = torch.zeros_like(sums), 0, time.monotonic()
            if over:
                return

    def report(self, figures: Tensor, speed: float) -> None:
        """Print and keep one line of progress."""
        values = [round(value, 4) for value in figures.tolist()]
        print(
            f"phase {self.phase} step {self.step} {self.seconds:.0f} s {speed:,.0f} tok/s "
            f"loss {values[0]:.3f} drafts {values[1 : 1 + STEPS]} "
            f"agree {values[1 + STEPS : 1 + 2 * STEPS]} balance {values[-1]:.2f}"
        )
        self.log.append(
            {"phase": self.phase, "seconds": round(self.seconds, 1), "tokens": self.seen}
            | {"loss": values[0], "agree_1": values[1 + STEPS], "agree_2": values[2 + STEPS]}
        )


def main() -> None:
    """Parse the command line, train, write the checkpoint and the log."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tokens", type=Path, help="what `bpe.py encode` wrote")
    parser.add_argument("model", type=Path, help="folder for the checkpoint")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--state", type=Path, help="resume from and save to this file")
    parser.add_argument("--stop", type=int, default=99, help="stop before this phase")
    parser.add_argument("--deadline", type=float, default=1e9, help="stop after these seconds")
    parser.add_argument("--log", type=Path, help="write the progress lines as JSON")
    args = parser.parse_args()
    deadline = time.monotonic() + args.deadline
    if args.state is not None:
        args.state.parent.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(PRESETS[args.preset], read_tokens(args.tokens), args.state)
    trainer.run(args.stop, deadline)
    export(trainer.net, args.model)
    if args.log is not None:
        args.log.write_text(json.dumps(trainer.log) + "\n")


if __name__ == "__main__":
    main()
