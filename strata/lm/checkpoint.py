"""Read a checkpoint folder: safetensors shards, their index, and a hash of it all."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path, PurePosixPath

import torch
from safetensors import SafetensorError, safe_open

from strata.errors import CheckpointError
from strata.lm.json_object import read_object, say

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_LARGEST = torch.finfo(torch.bfloat16).max


class Checkpoint:
    """Give out the tensors of a checkpoint folder by their Hugging Face names, each once.

    Raises CheckpointError where a shard is missing, truncated or does not hold what the index
    says, where a tensor is in two shards, and where one is asked for that is not there, has
    another shape, or numbers that are no finite floating-point ones.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tensors: dict[str, torch.Tensor] = {}
        for shard, promised in _shards(folder).items():
            self._read(shard, promised)

    def _read(self, shard: Path, promised: set[str]) -> None:
        if not shard.is_file():
            raise CheckpointError(
                f"{shard} is missing though the index names it; fetch the checkpoint again"
            )
        try:
            with safe_open(shard, framework="pt") as reader:
                names = set(reader.keys())
                if twice := sorted(names & self._tensors.keys()):
                    raise CheckpointError(
                        f"{shard} has the tensor {twice[0]}, which another shard has too; "
                        "fetch the checkpoint again"
                    )
                if lacking := sorted(promised - names):
                    raise CheckpointError(
                        f"{shard} has no tensor {lacking[0]}, which the index says it has; "
                        "fetch the checkpoint again"
                    )
                self._tensors.update((name, reader.get_tensor(name)) for name in names)
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(
                f"{shard} is truncated or damaged ({error}); fetch the checkpoint again"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def require(self, name: str, *shape: int) -> None:
        """Raise where there is no tensor `name` of `shape`, before room is made for its like."""
        if name not in self._tensors:
            raise CheckpointError(f"{self.folder} has no tensor {name}")
        found = tuple(self._tensors[name].shape)
        if found != shape:
            raise CheckpointError(f"{self.folder}: {name} has shape {found}, expected {shape}")

    def same(self, one: str, other: str) -> bool:
        """Return whether two tensors hold the same numbers."""
        a, b = self._tensors[one], self._tensors[other]
        return a.dtype == b.dtype and torch.equal(a, b)

    def drop(self, name: str) -> None:
        """Forget tensor `name`."""
        del self._tensors[name]

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """Return tensor `name` and forget it; its shape must be `shape`, its numbers finite."""
        self.require(name, *shape)
        tensor = self._tensors.pop(name)
        if tensor.dtype not in DTYPES:
            kinds = ", ".join(_kind(dtype) for dtype in DTYPES)
            raise CheckpointError(
                f"{self.folder}: {name} is {_kind(tensor.dtype)}; strata reads {kinds}"
            )
        # Not a number is neither; the largest bounds what any of these types becomes.
        low, high = (float(bound) for bound in tensor.aminmax())
        if not -_LARGEST <= low <= high <= _LARGEST:
            what = "numbers past float32's" if math.isfinite(low + high) else "NaN or infinite ones"
            raise CheckpointError(
                f"{self.folder}: {name} has {what} among its numbers; fetch the checkpoint again"
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


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shards(folder: Path) -> dict[Path, set[str]]:
    """Return each shard's path and the tensors that the index says it has."""
    index = folder / INDEX_NAME
    if not index.is_file():
        if (folder / SINGLE_NAME).is_file():
            return {folder / SINGLE_NAME: set()}
        raise CheckpointError(f"{folder} has neither {INDEX_NAME} nor {SINGLE_NAME}")
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{index} has no weight_map that names a shard for each tensor")
    shards: dict[Path, set[str]] = {}
    for tensor, name in sorted(places.items(), key=lambda item: (str(item[1]), item[0])):
        shards.setdefault(folder / _inside(name, index), set()).add(tensor)
    return shards


def _inside(name: object, index: Path) -> str:
    """Return `name` where it is a safetensors file inside the folder of `index`."""
    path = PurePosixPath(name) if isinstance(name, str) else PurePosixPath("/")
    if path.is_absolute() or ".." in path.parts or path.suffix != ".safetensors":
        raise CheckpointError(
            f"{index} names the shard {say(name)}; a shard is a .safetensors file in the folder"
        )
    return str(path)


def hash_checkpoint(folder: Path) -> str:
    """Return the SHA-256 over names and bytes of the config and every safetensors file.

    Files in the folder itself count whether the index names them or not, those in folders
    below it where it does.
    """
    digest = hashlib.sha256()
    beside = filter(Path.is_file, folder.glob("*.safetensors"))
    for path in sorted({folder / "config.json", *beside, *_shards(folder)}):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
