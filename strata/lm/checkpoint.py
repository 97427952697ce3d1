"""Read a checkpoint folder: safetensors shards, their index, and a hash of it all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from strata.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class Checkpoint:
    """Give out the tensors of a checkpoint folder by their Hugging Face names, each once.

    Raises CheckpointError where a shard is missing, truncated or does not hold what the index
    says, and where a tensor is asked for that is not there or has another shape.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tensors: dict[str, torch.Tensor] = {}
        for shard in self._shards():
            try:
                with safe_open(shard, framework="pt") as reader:
                    self._tensors.update((name, reader.get_tensor(name)) for name in reader.keys())  # noqa: SIM118
            except FileNotFoundError:
                raise CheckpointError(
                    f"{shard} is missing though the index names it; fetch the checkpoint again"
                ) from None
            except (SafetensorError, OSError, ValueError) as error:
                raise CheckpointError(
                    f"{shard} is truncated or damaged ({error}); fetch the checkpoint again"
                ) from None

    def _shards(self) -> Iterator[Path]:
        index = self.folder / INDEX_NAME
        if index.is_file():
            try:
                names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
                yield from (self.folder / name for name in sorted(set(names)))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise CheckpointError(f"{index} is damaged: {error!r}") from None
        elif (self.folder / SINGLE_NAME).is_file():
            yield self.folder / SINGLE_NAME
        else:
            raise CheckpointError(f"{self.folder} has neither {INDEX_NAME} nor {SINGLE_NAME}")

    def require(self, name: str) -> None:
        """Raise where there is no tensor `name`, before room is made for it and its like."""
        if name not in self._tensors:
            raise CheckpointError(f"{self.folder} has no tensor {name}")

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Return tensor `name` and forget it; its shape must be `shape`."""
        self.require(name)
        tensor = self._tensors.pop(name)
        if tensor.shape != shape:
            raise CheckpointError(
                f"{self.folder}: {name} has shape {tuple(tensor.shape)}, expected {shape}"
            )
        return tensor

    def refuse_rest(self, *ignored: str) -> None:
        """Raise where a tensor is left whose name begins with none of `ignored`.

        A bias or a layer that nobody asked for would be missed silently, in every token.
        """
        rest = sorted(name for name in self._tensors if not name.startswith(ignored))
        if rest:
            raise CheckpointError(
                f"{self.folder} has tensors that its config.json does not account for: {rest[0]}"
                + (f" and {len(rest) - 1} more" if len(rest) > 1 else "")
            )


def hash_checkpoint(folder: Path) -> str:
    """Return the SHA-256 over names and bytes of the config and every safetensors file."""
    digest = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
