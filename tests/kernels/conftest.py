"""Run Triton kernels interpreted where there is no device to compile them for.

The variable must stand before triton is imported: triton reads it when a kernel is defined, its
own library's included.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def patch_once_a_launch() -> None:
    """Have Triton's interpreter put its own functions into `triton.language` once a launch.

    It does so again at each call of one kernel function from another, with the same outcome, and
    looking for what to replace takes a fifth of the time of all.
    """
    from triton import language
    from triton.runtime import interpreter

    patch: Callable[[Any], Any] = interpreter._patch_lang
    launch: Callable[..., None] = interpreter.GridExecutor.__call__
    patched: set[tuple[bool, bool]] = set()

    def patch_once(fn: Any) -> Any:
        values = fn.__globals__.values()
        seen = tuple(any(v is lang for v in values) for lang in (language, language.core))
        if seen in patched:
            return None
        patched.add(seen)
        return patch(fn)

    def begin_launch(*args: Any, **kwargs: Any) -> None:
        patched.clear()
        launch(*args, **kwargs)

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = begin_launch


if os.environ.get("TRITON_INTERPRET") == "1":
    with suppress(ImportError, AttributeError):  # another Triton: slower, and the same
        patch_once_a_launch()
