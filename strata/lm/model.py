"""A loaded language model: weights, tokenizer, identity, and the layers in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from strata.device import resolve_device
from strata.errors import CheckpointError
from strata.lm.checkpoint import Checkpoint, hash_checkpoint
from strata.lm.config import LMConfig, load_config
from strata.lm.layers import Rotary, project_qkv, rms_norm
from strata.lm.tokenizer import Tokenizer, load_tokenizer
from strata.lm.weights import Weights, load_weights, settle_head

Attend = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, q [R, Q, D], cells [R, 2, K, D]) -> attention [R, Q * D]."""
Route = Callable[[int, torch.Tensor], torch.Tensor]
"""(layer, normed x [R, H]) -> expert output [R, H]."""


@dataclass(slots=True, kw_only=True)
class LanguageModel:
    """One checkpoint on one device; sessions share it and never change it."""

    config: LMConfig
    weights: Weights
    tokenizer: Tokenizer
    device: torch.device
    dtype: torch.dtype
    model_hash: str
    folder: Path
    rotary: Rotary
    _device_experts: torch.Tensor | None = field(default=None, repr=False)

    @property
    def has_mtp(self) -> bool:
        """Return whether the checkpoint has an MTP layer to draft with."""
        return self.weights.mtp is not None

    def device_experts(self) -> torch.Tensor:
        """Return every expert on the device [L * E, 3I, H], uploaded once (a CPU has them)."""
        if self._device_experts is None:
            self._device_experts = self.weights.experts.to(self.device)
        return self._device_experts

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [R, H] of token `ids` [R]."""
        return self.weights.embedding.index_select(0, ids)

    def run_layers(
        self, x: torch.Tensor, positions: torch.Tensor, attend: Attend, experts: Route
    ) -> torch.Tensor:
        """Return the hidden states [R, H] after the final norm of input embeddings `x` [R, H]."""
        eps = self.config.norm_eps
        angles = self.rotary.angles(positions, x.dtype)
        for i, layer in enumerate(self.weights.layers):
            q, cells = project_qkv(rms_norm(x, layer.norm, eps), layer, eps, angles)
            x = x + layer.out(attend(i, q, cells))
            x = x + experts(i, rms_norm(x, layer.post_norm, eps))
        return rms_norm(x, self.weights.norm, eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [R, V] of normed `hidden` [R, H]."""
        return self.weights.head(hidden).float()


def open_checkpoint(folder: Path) -> tuple[Checkpoint, LMConfig]:
    """Return the tensors in `folder` and the sizes that they have."""
    config = load_config(folder)
    checkpoint = Checkpoint(folder)
    return checkpoint, settle_head(checkpoint, config)


def load_model(path: str | Path, device: str = "auto") -> LanguageModel:
    """Load the checkpoint folder `path`; float32 on a CPU, bfloat16 on a GPU.

    Raises CheckpointError for a folder that is missing, truncated or of a foreign layout, and
    UsageError for a device that is not there.
    """
    folder = Path(path)
    target = resolve_device(device)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; give the folder of a checkpoint")
    checkpoint, config = open_checkpoint(folder)
    dtype = torch.bfloat16 if target.type == "cuda" else torch.float32
    return LanguageModel(
        config=config,
        weights=load_weights(checkpoint, config, device=target, dtype=dtype),
        tokenizer=load_tokenizer(folder, config),
        device=target,
        dtype=dtype,
        model_hash=hash_checkpoint(folder),
        folder=folder,
        rotary=Rotary(config, target),
    )


def bundled_model_path() -> Path:
    """Return the folder of the checkpoint that ships with strata."""
    return Path(__file__).parent.parent / "data" / "models" / "strata-mini"
