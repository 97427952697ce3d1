"""The same checkpoint under `transformers`, beside strata in one run.

Arms take turns, strata's and the peer's, so that a drift of the machine falls on both. A rate is
that of decoding alone: new tokens behind the first over the time since the first, in every arm.
`transformers` is imported here and only when a peer is made; nothing else of strata needs it.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Protocol

import torch

from strata.bench.decode import Drafts, count_agreeing
from strata.bench.spread import Spread
from strata.config import KvConfig, SamplingParams, SessionConfig, SpecConfig
from strata.device import every_core
from strata.errors import UsageError
from strata.lm.model import LanguageModel
from strata.session import create_session


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way to generate with `transformers`."""

    options: dict[str, Any]
    gpu_only: bool = False
    warm_ups: int = 1
    """Generations before the timed ones; what compiles needs two."""


PEERS = {
    "dynamic": Peer(options={}),
    "mtp": Peer(options={"use_mtp": True}),
    "static": Peer(options={"cache_implementation": "static"}, gpu_only=True, warm_ups=2),
    "offloaded": Peer(options={"cache_implementation": "offloaded"}, gpu_only=True),
}
"""Dynamic cache; the same with the checkpoint's MTP layer; static cache, whose decoding
`transformers` compiles on a GPU; K/V in host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFigure:
    """What one arm reached in the run."""

    arm: str
    tok_s: Spread | None
    """None where the arm failed."""
    ratios: dict[str, Spread]
    """For each arm of strata its rate over this one's: the quotient of the medians, and the
    least and most of the repeats'."""
    agreeing: int
    """Leading tokens that are those of strata's first arm."""
    tokens: list[int]
    error: str = ""


class Arm(Protocol):
    """Something that continues the prompt."""

    name: str
    warm_ups: int

    def run(self) -> tuple[list[int], float]:
        """Return the new tokens and their rate."""

    def close(self) -> None:
        """Give memory back."""


class StrataArm:
    """A session that is rewound to the state behind the prompt each time."""

    warm_ups = 1

    def __init__(
        self, model: LanguageModel, ids: list[int], drafts: Drafts, ring: int | None, new: int
    ) -> None:
        self.name = f"strata, drafts {drafts}"
        config = SessionConfig(kv=KvConfig(resident_cells=ring), spec=SpecConfig(drafts=drafts))
        self._params = SamplingParams(max_new=new, ignore_eos=True)
        self._session = create_session(
            model, config, prompt_cells=len(ids), max_new=new, environ={}
        )
        with every_core():
            self._session.prefill(ids)

    def run(self) -> tuple[list[int], float]:
        """Rewind and continue."""
        self._session.rewind()
        done = self._session.generate(self._params).whole()
        return done.tokens, done.decode_tok_s or 0.0

    def close(self) -> None:
        """Close the session."""
        self._session.close()


class PeerArm:
    """`transformers`, which runs the prompt again each time; its time is not counted."""

    def __init__(self, name: str, peer: Any, ids: list[int], new: int) -> None:
        self.name = f"transformers, {name}"
        self.warm_ups = PEERS[name].warm_ups
        self._options = PEERS[name].options
        self._peer = peer
        self._ids = torch.tensor([ids], device=peer.device)
        self._new = new

    def run(self) -> tuple[list[int], float]:
        """Generate from the prompt."""
        clock = _Clock()
        with torch.inference_mode():
            out = self._peer.generate(
                self._ids,
                attention_mask=torch.ones_like(self._ids),
                max_new_tokens=self._new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                streamer=clock,
                **self._options,
            )
        return out[0, self._ids.shape[1] :].tolist(), clock.rate()

    def close(self) -> None:
        """Have nothing: the model is shared."""


class _Clock:
    """A streamer that keeps when tokens came; the first call brings the prompt."""

    def __init__(self) -> None:
        self._arrivals: list[tuple[float, int]] = []

    def put(self, value: torch.Tensor) -> None:
        """Note an arrival; `value` is on the CPU, so the device has computed it."""
        self._arrivals.append((time.perf_counter(), value.numel()))

    def end(self) -> None:
        """Have nothing to do."""

    def rate(self) -> float:
        """Return tokens a second behind the first arrival of new ones."""
        (start, _), *later = self._arrivals[1:]
        return sum(tokens for _, tokens in later) / (later[-1][0] - start)


def import_transformers() -> Any:
    """Return the library, silent and offline; raise UsageError where it is not installed."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise UsageError(
            "strata bench peers runs transformers beside strata, and it is not installed: "
            "pip install 'transformers>=5.24'"
        ) from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def load_peer(library: Any, model: LanguageModel) -> Any:
    """Return the checkpoint of `model` as `transformers` loads it, same device and type."""
    peer = library.AutoModelForCausalLM.from_pretrained(model.folder, dtype=model.dtype)
    return peer.to(model.device).eval()


def check_peers(names: list[str], device: torch.device) -> None:
    """Raise UsageError for a name that is none, or that this device cannot run."""
    for name in names:
        if name not in PEERS:
            raise UsageError(f"--peers: {name!r} is none of {', '.join(PEERS)}")
        if PEERS[name].gpu_only and device.type != "cuda":
            raise UsageError(f"--peers: {name} needs a GPU, and this run is on the {device.type}")


def default_peers(device: torch.device) -> list[str]:
    """Return what runs on `device`."""
    return [name for name, peer in PEERS.items() if device.type == "cuda" or not peer.gpu_only]


def measure_peers(
    model: LanguageModel,
    peer: Any,
    ids: list[int],
    *,
    drafts: list[Drafts],
    ring: int | None,
    peers: list[str],
    new: int,
    repeats: int,
    on_step: Callable[[], None],
) -> list[PeerFigure]:
    """Return the figure of every arm, strata's first; `on_step` follows each generation.

    strata's rings have the cap `ring`, None for the default. Arms run in turn, `repeats` times. A
    peer that raises in a generation before the timed ones is a figure with an error; `transformers`
    of some versions cannot draft.
    """
    ours: list[Arm] = [StrataArm(model, ids, n, ring, new) for n in drafts]
    theirs: list[Arm] = [PeerArm(name, peer, ids, new) for name in peers]
    errors: dict[str, str] = {}
    tokens: dict[str, list[int]] = {}
    rates: dict[str, list[float]] = {arm.name: [] for arm in (*ours, *theirs)}
    for arm in _in_turn(ours, theirs):
        for _ in range(arm.warm_ups):
            try:
                tokens[arm.name], _ = arm.run()
            except Exception as error:
                if arm in ours:
                    raise
                errors[arm.name] = " ".join(f"{type(error).__name__}: {error}".split())
                break
            finally:
                on_step()
    for _ in range(repeats):
        for arm in _in_turn(ours, theirs):
            if arm.name not in errors:
                tokens[arm.name], rate = arm.run()
                rates[arm.name].append(rate)
            on_step()
    for arm in ours:
        arm.close()
    return [
        PeerFigure(
            arm=arm.name,
            tok_s=None if arm.name in errors else Spread.of(rates[arm.name]),
            ratios={} if arm.name in errors else _ratios(rates, arm, ours),
            agreeing=count_agreeing(tokens.get(arm.name, []), tokens[ours[0].name]),
            tokens=tokens.get(arm.name, []),
            error=errors.get(arm.name, ""),
        )
        for arm in (*ours, *theirs)
    ]


def count_steps(drafts: list[Drafts], peers: list[str], repeats: int) -> int:
    """Return how often `measure_peers` calls `on_step` at most."""
    warm_ups = len(drafts) + sum(PEERS[name].warm_ups for name in peers)
    return warm_ups + repeats * (len(drafts) + len(peers))


def _in_turn(ours: list[Arm], theirs: list[Arm]) -> Iterator[Arm]:
    for pair in zip_longest(ours, theirs):
        yield from (arm for arm in pair if arm is not None)


def _ratios(rates: dict[str, list[float]], arm: Arm, ours: list[Arm]) -> dict[str, Spread]:
    mine = rates[arm.name]
    ratios = {}
    for other in ours:
        each = Spread.of([a / b for a, b in zip(rates[other.name], mine, strict=True)])
        whole = Spread.of(rates[other.name]).median / Spread.of(mine).median
        ratios[other.name] = Spread(median=whole, min=each.min, max=each.max)
    return ratios
