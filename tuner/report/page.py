"""Write the report: one HTML file that needs nothing else, with its figures as JSON inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strata.errors import StoreError
from strata.files import write_whole
from strata.tuner.report.figures import draw_all, ledger_colours
from strata.units import format_bytes, format_cells

TEMPLATE = Path(__file__).parent.parent.parent / "data" / "templates" / "tune-report.html.j2"

VERDICT_WORDS = {
    "better": "faster by more than the margin, with its lower bound: the table takes it",
    "equivalent": "within the margin: the default stays",
    "worse": "every other ring is slower by more than the margin: the default stays",
    "undecided": "not sure in either way: the default stays",
    "no evidence": "no other ring could be judged: the default stays",
    "invalid": "the evidence contradicts itself: nothing is concluded",
}
PURPOSE_WORDS = {
    "decode": "decode",
    "break-even": "price the drafter",
    "prefill": "time the prompt",
}


def write_report(summary: dict[str, Any], path: Path) -> None:
    """Write the page beside `path` and rename it there; raise StoreError where that fails."""
    text = render(summary)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise StoreError(f"report {path} cannot be written: {error.strerror}") from None


def render(summary: dict[str, Any]) -> str:
    """Return the page of a summary."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "cells": format_cells,
        "percent": _percent,
        "number": _number,
        "bytes": format_bytes,
        "interval": _interval,
        "decision": _decision,
    }
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        s=summary,
        figures=draw_all(summary),
        ledger_colours=ledger_colours(summary),
        purpose_words=PURPOSE_WORDS,
        verdict_words=VERDICT_WORDS,
        data=json.dumps(summary, allow_nan=False).replace("</", "<\\/"),
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _interval(gain: dict[str, Any] | None) -> str:
    if gain is None or gain["lower"] is None or gain["upper"] is None:
        return ""
    return f"[{100 * gain['lower']:+.1f}, {100 * gain['upper']:+.1f}]"


def _decision(entry: dict[str, Any]) -> str:
    """Return the interval that a verdict rests on; past a factor of ten it says nothing."""
    lower, upper = entry["lower"], entry["upper"]
    if lower is None or upper is None:
        return "-"
    return f"{_percent(lower)} to " + (_percent(upper) if upper < 9 else "more than +900 %")
