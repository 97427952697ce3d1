"""The switches that shape a session, shared by every verb that creates one."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar, get_args

import typer

from strata.cli.completion import policies
from strata.config import (
    AUTO_WINDOW,
    DEFAULT_DRAFTS,
    DEFAULT_PREFETCH,
    DEFAULT_RING_CELLS,
    DEFAULT_VICTIMS,
    MAX_DRAFTS,
    PAGE_CELLS,
    KvConfig,
    Prefetch,
    Selection,
    SessionConfig,
    SpecConfig,
    Victims,
)
from strata.errors import UsageError
from strata.policy import parse_resident
from strata.units import parse_bytes, parse_cells

_RING, _DRAFTER = "K/V ring", "Drafter"

Word = TypeVar("Word", bound=str)

AUTO = "auto"
TABLE = "that of an obeyed table"
VICTIMS: tuple[Victims, ...] = get_args(Victims)
PREFETCH: tuple[Prefetch, ...] = get_args(Prefetch)
DEFAULT_SELECT = str(KvConfig().selection)
DEFAULT_MIN_P = SpecConfig().min_p

KvResident = Annotated[
    str | None,
    typer.Option(
        metavar="CELLS|auto",
        help="The cap of the ring; 0 keeps the whole context resident.",
        show_default="auto",
        rich_help_panel=_RING,
    ),
]
KvRingDefault = Annotated[
    str | None,
    typer.Option(
        metavar="CELLS",
        help="The default ring.",
        show_default=TABLE + ", else {cuda} on a GPU, {cpu} on a CPU".format(**DEFAULT_RING_CELLS),
        rich_help_panel=_RING,
    ),
]
KvRingPolicy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=policies,
        help="fixed, depth, adapt or learned.",
        show_default="STRATA_KV_RING_POLICY, else fixed",
        rich_help_panel=_RING,
    ),
]
KvRingTable = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Policy table for `learned`.",
        show_default="STRATA_KV_RING_TABLE, else an exported or shipped one that applies",
        rich_help_panel=_RING,
    ),
]
KvEvict = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(VICTIMS),
        help="Whose slot a missing page takes.",
        show_default=f"{TABLE}, else {DEFAULT_VICTIMS}",
        rich_help_panel=_RING,
    ),
]
KvSelect = Annotated[
    str,
    typer.Option(
        metavar="CELLS|depth/N",
        help="Cells that a query row reads; 0 reads all (exact).",
        rich_help_panel=_RING,
    ),
]
KvPage = Annotated[
    int, typer.Option(metavar="CELLS", help="Cells of a page.", rich_help_panel=_RING)
]
VramBudget = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Device memory for weights, ring and experts, like 64MiB.",
        show_default="no limit",
        rich_help_panel="Memory",
    ),
]
MaxContext = Annotated[
    str | None,
    typer.Option(
        metavar="CELLS",
        help="The most cells the session may reach.",
        show_default="what this prompt needs",
        rich_help_panel="Memory",
    ),
]
NoGraphs = Annotated[
    bool,
    typer.Option(
        "--no-graphs", help="Do not capture rounds as CUDA graphs.", rich_help_panel="Memory"
    ),
]
PrefetchWhat = Annotated[
    str | None,
    typer.Option(
        "--prefetch",
        metavar="|".join(PREFETCH),
        help="Fetch pages of the next round, experts of the next layer, before they are asked for.",
        show_default=DEFAULT_PREFETCH,
        rich_help_panel="Memory",
    ),
]
Spec = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        help=f"Tokens drafted a round, at most {MAX_DRAFTS}; 0 is off, auto follows acceptance.",
        show_default=f"{TABLE}, else {DEFAULT_DRAFTS}; 0 without an MTP layer",
        rich_help_panel=_DRAFTER,
    ),
]
NoMtp = Annotated[
    bool, typer.Option("--no-mtp", help="The same as --spec 0.", rich_help_panel=_DRAFTER)
]
SpecMinP = Annotated[
    float,
    typer.Option(
        metavar="P",
        help="Stop drafting when the drafter gives its token less than P.",
        rich_help_panel=_DRAFTER,
    ),
]
MtpWindow = Annotated[
    str,
    typer.Option(
        metavar="CELLS|auto",
        help=f"Cells the drafter reads; 0 is all, auto an obeyed table's, else {AUTO_WINDOW.word}.",
        rich_help_panel=_DRAFTER,
    ),
]


def session_config(
    *,
    kv_resident: str | None = None,
    kv_ring_default: str | None = None,
    kv_ring_policy: str | None = None,
    kv_ring_table: str | None = None,
    kv_evict: str | None = None,
    kv_select: str = DEFAULT_SELECT,
    kv_page: int = PAGE_CELLS,
    vram_budget: str | None = None,
    max_context: str | None = None,
    no_graphs: bool = False,
    prefetch: str | None = None,
    spec: str | None = None,
    no_mtp: bool = False,
    spec_min_p: float = DEFAULT_MIN_P,
    mtp_window: str = AUTO,
) -> SessionConfig:
    """Return the configuration that the switches spell; raise UsageError for a bad spelling."""
    return SessionConfig(
        kv=KvConfig(
            resident_cells=parse_resident(kv_resident),
            ring_default_cells=_cells("--kv-ring-default", kv_ring_default),
            victims=None if kv_evict is None else one_of(VICTIMS, kv_evict, name="--kv-evict"),
            selection=Selection.parse(kv_select),
            page_cells=kv_page,
        ),
        spec=SpecConfig(
            drafts=_drafts(spec, no_mtp=no_mtp),
            min_p=spec_min_p,
            window_cells=None if mtp_window == AUTO else _cells("--mtp-window", mtp_window),
        ),
        policy=kv_ring_policy,
        table=kv_ring_table,
        vram_budget_bytes=(
            None if vram_budget is None else parse_bytes(vram_budget, name="--vram-budget")
        ),
        rounds="launched" if no_graphs else "captured",
        prefetch=None if prefetch is None else one_of(PREFETCH, prefetch, name="--prefetch"),
        max_context_cells=_cells("--max-context", max_context),
    )


def idle_drafter_switches(spec: SpecConfig) -> list[str]:
    """Return a warning where switches of the drafter are given to a session without one."""
    given = [
        name
        for name, is_given in (
            ("--spec-min-p", spec.min_p != DEFAULT_MIN_P),
            ("--mtp-window", spec.window_cells is not None),
        )
        if is_given
    ]
    if not given:
        return []
    return [f"{' and '.join(given)} {'do' if len(given) > 1 else 'does'} nothing: no drafter runs"]


def one_of(words: tuple[Word, ...], text: str, *, name: str) -> Word:
    """Return the word that `text` is, in any case; raise UsageError, naming `name`, for others.

    The parser's own choices would answer with the words of the library that checks them.
    """
    word = text.strip().lower()
    if word not in words:
        raise UsageError(f"{name}: {text!r} is not one of {', '.join(words)}")
    return word


def _cells(name: str, text: str | None) -> int | None:
    return None if text is None else parse_cells(text, name=name)


def _drafts(spec: str | None, *, no_mtp: bool) -> int | Literal["auto"] | None:
    if no_mtp:
        if spec not in (None, "0"):
            raise UsageError(f"--no-mtp and --spec {spec} contradict each other; drop one")
        return 0
    if spec is None:
        return None
    if spec.strip().lower() == "auto":
        return "auto"
    try:
        return int(spec)
    except ValueError:
        raise UsageError(f"--spec: {spec!r} is neither a number of drafts nor auto") from None
