"""Fixtures shared by all tests: the stand-in checkpoint and sessions over it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
from hypothesis import HealthCheck, settings

from strata.openmp import calm

# What runs tests side by side says how wide its own lines are; tables ask for it, too.
os.environ.pop("COLUMNS", None)

calm()  # before torch is imported: prompts take every core, and a busy machine has none to spin on

import torch  # noqa: E402

from strata.cli import tables  # noqa: E402
from strata.config import SamplingParams, SessionConfig  # noqa: E402
from strata.generation import Generation  # noqa: E402
from strata.lm import LanguageModel, bundled_model_path, load_model  # noqa: E402
from strata.lm.tokenizer import Tokenizer  # noqa: E402
from strata.session import Session, create_session  # noqa: E402
from tests.table_words import watch  # noqa: E402

# Two OpenMP threads that spin on two busy cores are slower than one by far.
torch.set_num_threads(1)

# A run that was started in the background ignores Ctrl-C, and so would the commands it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing about whether it passes.
settings.register_profile("strata", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("strata")

TINY = Path(__file__).parent / "data" / "tiny"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and there is none"))


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what imports left, and look less often at the rest."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # lest a library calls what is still there at the end a leak


@pytest.fixture(autouse=True, scope="session")
def _no_table_is_cut() -> Iterator[None]:
    """Hold every table that any command prints in any test against terminals of five widths."""
    inner, tables.lay_out = tables.lay_out, watch(tables.lay_out)
    yield
    tables.lay_out = inner


@pytest.fixture(scope="session")
def tiny() -> LanguageModel:
    """Return the stand-in model on the CPU."""
    return load_model(TINY, "cpu")


@pytest.fixture(scope="session")
def bundled() -> LanguageModel:
    """Return the bundled model on the CPU."""
    return load_model(bundled_model_path(), "cpu")


_encoded: WeakKeyDictionary[Tokenizer, dict[Path, list[int]]] = WeakKeyDictionary()
"""What each source is for a tokenizer: hundreds of sessions start with the same one."""


def prompt_of(model: LanguageModel, cells: int, seed: int = 0) -> list[int]:
    """Return `cells` ids of natural text: the standard library's own sources."""
    sources = sorted(Path(torch.__file__).parent.glob("nn/modules/*.py"))
    known = _encoded.setdefault(model.tokenizer, {})
    ids: list[int] = []
    for source in sources[seed:]:
        if source not in known:
            known[source] = model.tokenizer.encode(source.read_text(encoding="utf-8"))
        ids += known[source]
        if len(ids) >= cells:
            return ids[:cells]
    raise AssertionError("not enough text")


DEFAULTS = SessionConfig()
Run = Callable[..., tuple[Session, Generation]]


@pytest.fixture
def run(tiny: LanguageModel) -> Run:
    """Return a function that prefills and generates in a fresh session."""

    def go(
        config: SessionConfig = DEFAULTS,
        *,
        prompt: list[int] | None = None,
        model: LanguageModel = tiny,
        **params: object,
    ) -> tuple[Session, Generation]:
        ids = prompt if prompt is not None else prompt_of(model, 300)
        sampling = SamplingParams(**{"max_new": 64, "ignore_eos": True, **params})  # type: ignore[arg-type]
        session = create_session(
            model, config, prompt_cells=len(ids), max_new=sampling.max_new, environ={}
        )
        session.engine.track_gap = True
        session.prefill(ids)
        return session, session.generate(sampling)

    return go
