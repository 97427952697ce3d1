"""Parked prompts on a shelf that all trial processes of one server share.

A long prompt costs far more than a run behind it, and each pair runs in a process of its own. So
the server opens a few files without a name before it forks; a process that has run a prompt writes
its parked state into one, and a later one maps it. The system frees them with the last process,
however that ends. One process writes at a time, because a server runs one pair at a time.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from strata.parked import Parked

PLACES = 128
SHARE = 8
"""The shelf takes at most one part in so many of the machine's memory."""
HEAD_BYTES = 4_096
"""The head of a file: JSON, padded; written after what it speaks of, emptied before."""
_CHUNK = 1 << 28
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class _Head:
    """What the head of a file says: whose prompt, how new, and its tensors in order."""

    key: str
    number: int
    bytes: int
    model_hash: str
    tensors: dict[str, Any]


class Shelf:
    """Keeps the parked states of the last prompts, as many as fit in `limit_bytes`."""

    def __init__(self, limit_bytes: int, *, places: int = PLACES) -> None:
        self._limit = limit_bytes
        self._files = [_nameless_file() for _ in range(places)]

    def get(self, key: str) -> Parked | None:
        """Return the state that was put under `key`, None where it is not there.

        Its larger tensors are mapped, not read: restore it before anything else is put.
        """
        for file, head in self._heads():
            if head is not None and head.key == key:
                return _read(file, head)
        return None

    def put(self, key: str, parked: Parked) -> None:
        """Keep a state under `key`, in the place of the oldest ones where there is no room."""
        tensors = _tensors(parked)
        size = sum(one.numel() * one.element_size() for one in tensors.values())
        for file, head in self._heads():
            if head is not None and head.key == key:
                os.ftruncate(file, 0)
        heads = list(self._heads())
        number = 1 + max((head.number for _, head in heads if head is not None), default=0)
        kept = sorted(
            ((head, file) for file, head in heads if head is not None),
            key=lambda item: item[0].number,
        )
        total = sum(head.bytes for head, _ in kept)
        free = [file for file, head in heads if head is None]
        while kept and (total + size > self._limit or not free):
            head, file = kept.pop(0)
            os.ftruncate(file, 0)
            total -= head.bytes
            free.append(file)
        if size > self._limit:
            return
        _write(free[0], _Head(key, number, size, parked.model_hash, _shapes(tensors)), tensors)

    def close(self) -> None:
        """Let go of the files; what is mapped stays until it is dropped."""
        for file in self._files:
            os.close(file)
        self._files = []

    def _heads(self) -> Iterator[tuple[int, _Head | None]]:
        for file in self._files:
            text = os.pread(file, HEAD_BYTES, 0).rstrip(b"\0 ")
            yield file, _Head(**json.loads(text)) if text else None


def memory_bytes() -> int:
    """Return the memory that this process may fill: the machine's, or its container's if less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return machine
    return min(machine, int(text) if text.isdecimal() else _UNLIMITED)


def _nameless_file() -> int:
    """Return a descriptor of an empty file that has no name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("strata-prompt")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _tensors(parked: Parked) -> dict[str, torch.Tensor]:
    values = {field.name: getattr(parked, field.name) for field in fields(Parked)}
    return {name: value.contiguous() for name, value in values.items() if torch.is_tensor(value)}


def _shapes(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {
        name: [str(one.dtype).removeprefix("torch."), list(one.shape)]
        for name, one in tensors.items()
    }


def _write(file: int, head: _Head, tensors: dict[str, torch.Tensor]) -> None:
    os.ftruncate(file, 0)
    os.ftruncate(file, HEAD_BYTES + head.bytes)
    at = HEAD_BYTES
    for one in tensors.values():
        content = memoryview(one.flatten().view(torch.uint8).numpy().data)
        for start in range(0, len(content), _CHUNK):
            part = content[start : start + _CHUNK]
            while part:
                written = os.pwrite(file, part, at)
                at, part = at + written, part[written:]
    text = json.dumps({field.name: getattr(head, field.name) for field in fields(_Head)}).encode()
    assert len(text) <= HEAD_BYTES
    os.pwrite(file, text.ljust(HEAD_BYTES), 0)


def _read(file: int, head: _Head) -> Parked:
    # Private: torch wants memory that it may write to, and no write reaches the file.
    mapped = mmap.mmap(file, HEAD_BYTES + head.bytes, flags=mmap.MAP_PRIVATE,
                       prot=mmap.PROT_READ | mmap.PROT_WRITE)  # fmt: skip
    at, found = HEAD_BYTES, dict[str, Any]()
    for name, (dtype, shape) in head.tensors.items():
        kind = getattr(torch, dtype)
        count = math.prod(shape)
        if count:
            one = torch.frombuffer(mapped, dtype=kind, count=count, offset=at).view(shape)
        else:
            one = torch.empty(shape, dtype=kind)
        at += one.numel() * one.element_size()
        found[name] = one
    # A session keeps these two for its own parking, also after the file was given to another.
    kept = {name: found[name].clone() for name in ("queries", "hidden")}
    return Parked(model_hash=head.model_hash, **{"drafter_cells": None, **found, **kept})
