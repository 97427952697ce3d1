"""A copy of the stand-in checkpoint that a test may damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from strata.config import SamplingParams, SessionConfig
from strata.errors import CheckpointError
from strata.lm import LanguageModel, load_model
from strata.session import create_session
from tests.conftest import TINY, prompt_of

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def tokens_of(model: LanguageModel) -> list[int]:
    """Return 12 greedy tokens behind a prompt of 40."""
    session = create_session(model, SessionConfig(), prompt_cells=40, max_new=12, environ={})
    session.prefill(prompt_of(model, 40))
    return session.generate(SamplingParams(max_new=12, ignore_eos=True)).tokens


class Folder:
    """A checkpoint folder and the ways to change it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copytree(TINY, path)

    def edit(self, name: str, **changes: Any) -> None:
        """Set keys of the JSON file `name`."""
        raw = json.loads((self.path / name).read_text())
        (self.path / name).write_text(json.dumps(raw | changes))

    def config(self, **changes: Any) -> None:
        self.edit("config.json", **changes)

    def tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.path / "model.safetensors")

    def save(self, **tensors: torch.Tensor) -> None:
        """Write the weights with `tensors`, by name, in place of those that there are."""
        save_file({**self.tensors(), **tensors}, self.path / "model.safetensors")

    def shard(self, *names: str) -> dict[str, str]:
        """Spread the weights over the files `names` with an index; return its map."""
        parts: dict[str, dict[str, torch.Tensor]] = {name: {} for name in names}
        places = {}
        for i, (tensor, numbers) in enumerate(self.tensors().items()):
            places[tensor] = names[i % len(names)]
            parts[places[tensor]][tensor] = numbers
        (self.path / "model.safetensors").unlink()
        for name, part in parts.items():
            (self.path / name).parent.mkdir(exist_ok=True)
            save_file(part, self.path / name)
        self.index(places)
        return places

    def index(self, places: Any) -> None:
        text = json.dumps({"metadata": {}, "weight_map": places})
        (self.path / "model.safetensors.index.json").write_text(text)

    def refused(self) -> str:
        """Return the one sentence with which the checkpoint is refused."""
        with pytest.raises(CheckpointError) as refusal:
            load_model(self.path, "cpu")
        sentence = str(refusal.value)
        assert str(self.path) in sentence
        assert "\n" not in sentence
        return sentence
