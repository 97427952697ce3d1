"""Words that a shell completes: plans, passages, policies. Answers at once, so imports nothing."""

from __future__ import annotations

from pathlib import Path

PLANS = Path(__file__).parent.parent / "data" / "plans"
CELLS = ("512", "1K", "4K", "16K", "64K", "128K")


def plans(incomplete: str) -> list[str]:
    """Return the built-in plans and the TOML files of the folder that is being typed."""
    built_in = [path.stem for path in sorted(PLANS.glob("*.toml"))]
    folder = Path(incomplete if incomplete.endswith("/") else incomplete or ".")
    folder = folder if incomplete.endswith("/") or not incomplete else folder.parent
    try:
        found = sorted(folder.glob("*.toml"))
        files = [str(path) for path in found if path.name not in ("pyproject.toml", "strata.toml")]
    except OSError:
        files = []
    return [word for word in (*built_in, *files) if word.startswith(incomplete)]


def passages(incomplete: str) -> list[str]:
    """Return sizes, and behind a size the seeds of the documents that ship."""
    cells, colon, _ = incomplete.partition(":")
    if not colon:
        return [word for word in CELLS if word.startswith(incomplete)]
    from strata.passages import documents

    words = (f"{cells}:{seed}" for seed in range(len(documents())))
    return [word for word in words if word.startswith(incomplete)]


def policies(incomplete: str) -> list[str]:
    """Return the ring policies."""
    from strata.policy.request import POLICIES

    return [word for word in POLICIES if word.startswith(incomplete.lower())]
