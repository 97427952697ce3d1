"""A plan: what a sweep measures and how it will be judged, written down before the first trial.

A plan is a TOML file. Every key has a meaning here and an unknown one is refused with its place;
the SHA-256 of the canonical plan is part of the study's key, so a changed plan is a new study.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from strata.config import DEFAULT_MAX_NEW, MAX_DRAFTS, PAGE_CELLS, Selection
from strata.errors import StrataError, UsageError
from strata.policy.request import minimum_ring_cells
from strata.tuner.axis_words import axis_word
from strata.tuner.fields import Name
from strata.tuner.plan_errors import explain
from strata.units import MAX_CELLS, parse_bytes, parse_cells

BUILT_IN = Path(__file__).parent.parent / "data" / "plans"
WARM_UP_TOKENS = 8

Mode = Literal["off", "on"]
MODES: tuple[str, ...] = get_args(Mode)
Sampler = Literal["grid", "random", "tpe", "gp", "cost-model"]
SAMPLERS: tuple[str, ...] = get_args(Sampler)
Purpose = Literal["decode", "break-even", "prefill"]


def _cells(value: object) -> object:
    """Let a plan write cells as 4096 or "4K"; leave anything else for the type check."""
    if not isinstance(value, str):
        return value
    try:
        return parse_cells(value, name="value")
    except StrataError as error:
        raise ValueError(str(error).removeprefix("value: ")) from None


def _cells_or_word(*words: str) -> BeforeValidator:
    return BeforeValidator(lambda value: value if value in words else _cells(value))


def _budget(value: object) -> object:
    if value == "none":
        return None
    try:
        return parse_bytes(value, name="value") if isinstance(value, str) else value
    except StrataError as error:
        raise ValueError(str(error).removeprefix("value: ")) from None


def _context(value: object) -> object:
    return SHARED_CONTEXT_CELLS if value == "shared" else value if value == "own" else _cells(value)


def _selection(value: object) -> str:
    try:
        return str(Selection.parse(str(value)))
    except StrataError as error:
        raise ValueError(str(error)) from None


SHARED_CONTEXT_CELLS = 132_096
"""What ``shared`` reserves: 128K, a tier's slack and the answer, as the original experiment did."""

Cells = Annotated[int, BeforeValidator(_cells), Field(gt=0, le=MAX_CELLS, strict=True)]
Seeds = tuple[Annotated[int, Field(ge=0, strict=True)], ...]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Grid(_Section):
    """The arms: every ring that differs at a tier, for each drafter mode."""

    tiers: tuple[Cells, ...] = Field(min_length=1)
    rings: Literal["auto"] | tuple[Cells, ...] | dict[str, tuple[Cells, ...]] = "auto"
    modes: tuple[Mode, ...] = Field(default=("off", "on"), min_length=1)
    default_ring: Annotated[Literal["auto"] | Cells, _cells_or_word("auto")] = "auto"

    @model_validator(mode="after")
    def _check(self) -> Grid:
        if list(self.tiers) != sorted(set(self.tiers)):
            raise ValueError("tiers must rise and not repeat")
        if len(set(self.modes)) != len(self.modes):
            raise ValueError("modes must not repeat")
        if isinstance(self.rings, dict):
            named = {parse_cells(name, name="rings") for name in self.rings}
            if named != set(self.tiers):
                raise ValueError("rings, given by tier, must name exactly the plan's tiers")
        return self


Drafts = Annotated[int, Field(ge=1, le=MAX_DRAFTS, strict=True)]
Window = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=0, strict=True)], _cells_or_word("auto")
]
Select = Annotated[str, BeforeValidator(_selection)]
Budget = Annotated[Annotated[int, Field(gt=0, strict=True)] | None, BeforeValidator(_budget)]
Context = Annotated[Literal["own"] | Cells, BeforeValidator(_context)]
Evict = Literal["clock", "lrfu"]


class Session(_Section):
    """What is held fixed over the whole sweep."""

    drafts: Drafts = 1
    mtp_window: Window = "auto"
    select: Select = "0"
    page: int = Field(default=PAGE_CELLS, gt=0, strict=True)
    victims: Evict = "clock"
    vram_budget: Budget = None
    context: Context = "own"


class Axes(_Section):
    """Further knobs that are varied: each combination is a study, and a table, of its own.

    A ring is chosen under conditions, and these are some of them; so they are never mixed.
    """

    drafts: tuple[Drafts, ...] = ()
    mtp_window: tuple[Window, ...] = ()
    select: tuple[Select, ...] = ()
    victims: tuple[Evict, ...] = ()
    vram_budget: tuple[Budget, ...] = ()
    context: tuple[Context, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Axes:
        for name, values in self:
            if len(set(values)) != len(values):
                raise ValueError(f"{name} must not repeat a value")
        return self

    def points(self) -> list[dict[str, Any]]:
        """Return every combination of the named values; one empty one where nothing is named."""
        named = {name: values for name, values in self if values}
        return [dict(zip(named, values, strict=True)) for values in product(*named.values())]


class Passages(_Section):
    """The samples: seeds of held-out passages, to choose on and to confirm on."""

    search: Seeds = (0,)
    fresh: Seeds = (1, 2)
    confirm: Literal["all", "chosen"] = "all"
    """Which rings run on the fresh passages: each, or the one that was best on the search ones."""

    @model_validator(mode="after")
    def _check(self) -> Passages:
        every = self.search + self.fresh
        if not every:
            raise ValueError("a plan needs at least one passage")
        if len(set(every)) != len(every):
            raise ValueError("a seed may stand once, in search or in fresh")
        if self.confirm == "chosen" and not (self.search and self.fresh):
            raise ValueError("confirm chosen needs search passages to choose on, and fresh ones")
        return self


class Measure(_Section):
    """How one run is timed."""

    max_new: int = Field(default=DEFAULT_MAX_NEW, gt=WARM_UP_TOKENS, strict=True)
    min_decode_s: Literal["auto"] | Annotated[float, Field(ge=0)] = "auto"
    """``auto`` is one second on a GPU, where rounds are short, and a single run on a CPU."""
    timeout_s: float = Field(default=600.0, gt=0)
    purposes: tuple[Purpose, ...] = ("decode",)
    """What pairs are run for; arms are chosen and judged by ``decode`` alone."""

    @model_validator(mode="after")
    def _check(self) -> Measure:
        if "decode" not in self.purposes or len(set(self.purposes)) != len(self.purposes):
            raise ValueError("purposes must hold decode, and none of them twice")
        return self


class Decision(_Section):
    """The rule that turns measurements into verdicts; computed, never typed."""

    rule: Literal["holm-t", "no-regression"] = "holm-t"
    """``no-regression`` judges one ring a tier: all are adopted, or none if a tier may regress."""
    margin: float = Field(default=0.0, ge=0, lt=1)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)


class Search(_Section):
    """The order in which arms are proposed."""

    sampler: Sampler = "grid"
    seed: int = Field(default=0, ge=0, strict=True)


class Plan(_Section):
    """A whole plan, with every default filled in."""

    name: Name
    model: str = "bundled"
    grid: Grid
    session: Session = Session()
    axes: Axes = Axes()
    passages: Passages = Passages()
    measure: Measure = Measure()
    decision: Decision = Decision()
    search: Search = Search()

    @model_validator(mode="after")
    def _check(self) -> Plan:
        named = {name for name, values in self.axes if values}
        if twice := sorted(named & self.session.model_fields_set):
            raise ValueError(f"{twice[0]} stands in session and in axes; leave it out of one")
        if named:
            self.expand()  # raises for a combination that cannot be
            return self
        return self._check_rings()

    def _check_rings(self) -> Plan:
        page = self.session.page
        rings = self.grid.rings
        named = {} if rings == "auto" else rings if isinstance(rings, dict) else {"": rings}
        lists = list(named.values())
        default = self.grid.default_ring
        for ring in chain(*lists, () if default == "auto" else (default,)):
            if ring % page:
                raise ValueError(f"ring {ring} is not a whole number of pages of {page} cells")
            self._check_minimum(ring)
        if self.decision.rule == "no-regression" and (
            rings == "auto" or any(len(one) > 1 for one in lists)
        ):
            raise ValueError("decision.rule no-regression judges one ring a tier; name it in rings")
        if "break-even" in self.measure.purposes and "on" not in self.grid.modes:
            raise ValueError("purpose break-even is about drafts; modes must hold on")
        longest = self.need_cells(self.grid.tiers[-1])
        if self.session.context != "own" and self.session.context < longest:
            raise ValueError(f"context {self.session.context} is below the need of {longest} cells")
        return self

    def _check_minimum(self, ring: int) -> None:
        selection = Selection.parse(self.session.select)
        need, page = self.need_cells(self.grid.tiers[0]), self.session.page
        minimum = minimum_ring_cells(selection, need_cells=need, page_cells=page)
        if ring < minimum:
            raise ValueError(f"ring {ring} is below the minimum of {minimum} cells")

    def expand(self) -> tuple[Plan, ...]:
        """Return the plan of each combination of axes, named after it; itself without axes."""
        return tuple(self._at(point) for point in self.axes.points()) if self.has_axes else (self,)

    @property
    def has_axes(self) -> bool:
        """Return whether the plan varies more than tier, ring and mode."""
        return any(values for _, values in self.axes)

    def _at(self, point: dict[str, Any]) -> Plan:
        words = [
            "context-shared"
            if (name, value) == ("context", SHARED_CONTEXT_CELLS)
            else axis_word(name, value)
            for name, value in point.items()
        ]
        table = self.model_dump()
        table["name"] = ".".join([self.name, *words])
        table["session"] |= point
        table["axes"] = {}
        return _from_table(table)

    def need_cells(self, tier_cells: int) -> int:
        """Return prompt + max new + one page, rounded up to a page."""
        page = self.session.page
        return -(-(tier_cells + self.measure.max_new + page) // page) * page

    def context_cells(self, tier_cells: int) -> int:
        """Return the most cells a session of this tier may reach under the plan's scenario."""
        if self.session.context == "own":
            return self.need_cells(tier_cells)
        page = self.session.page
        return -(-self.session.context // page) * page

    def passage_names(self) -> tuple[str, ...]:
        """Return every passage that the plan reads, as ``CELLS:SEED``."""
        seeds = self.passages.search + self.passages.fresh
        return tuple(f"{tier}:{seed}" for tier in self.grid.tiers for seed in seeds)

    def canonical(self) -> str:
        """Return the plan as sorted, compact JSON: the text that is hashed."""
        table = self.model_dump(mode="json")
        if not self.has_axes:
            del table["axes"]  # what is measured is the same without the word
        return json.dumps(table, sort_keys=True, separators=(",", ":"))

    def with_sampler(self, name: str, *, seed: int | None = None) -> Plan:
        """Return the plan with another order of its arms; raise UsageError for an unknown one."""
        if name not in SAMPLERS:
            raise UsageError(f"sampler {name!r} is none of {', '.join(SAMPLERS)}")
        seed = self.search.seed if seed is None else seed
        search = Search(sampler=cast(Sampler, name), seed=seed)
        return self.model_copy(update={"search": search})

    def with_modes(self, words: str) -> Plan:
        """Return the plan with other drafter modes, ``off``, ``on`` or both with a comma."""
        modes = tuple(word.strip() for word in words.split(","))
        if not set(modes) <= set(MODES) or len(set(modes)) != len(modes):
            raise UsageError(f"--modes: {words!r} is none of off, on and off,on")
        if "break-even" in self.measure.purposes and "on" not in modes:
            raise UsageError(f"--modes: plan {self.name} asks what drafts cost, so it needs on")
        return self.model_copy(update={"grid": self.grid.model_copy(update={"modes": modes})})

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the canonical plan."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


def parse_plan(text: str, *, origin: str) -> Plan:
    """Read a plan; raise UsageError that names `origin`, the key and its line."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"plan {origin} is not TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"plan {origin} nests deeper than any plan does") from None
    except ValueError:  # Python's own limit on the digits of a number
        raise UsageError(f"plan {origin} has a number of thousands of digits") from None
    try:
        return Plan.model_validate(table)
    except ValidationError as error:
        raise UsageError(f"plan {origin}: {explain(error, text, Plan)}") from None


def plan_from_json(text: str) -> Plan:
    """Rebuild a plan from its canonical JSON, as a store keeps it."""
    return _from_table(json.loads(text))


def _from_table(table: dict[str, Any]) -> Plan:
    """Return the plan of a dumped one, whose budget of none has no word."""
    if table["session"]["vram_budget"] is None:
        table["session"]["vram_budget"] = "none"
    return Plan.model_validate(table)


def load_plan(name: str) -> Plan:
    """Read a built-in plan by name (``quick``) or a TOML file by path."""
    built_in = BUILT_IN / f"{name}.toml"
    path = built_in if re.fullmatch(r"[\w-]+", name) and built_in.is_file() else Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(sorted(one.stem for one in BUILT_IN.glob("*.toml")))
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(
            f"plan {name!r} cannot be read ({reason}); give a TOML file or one of: {known}"
        ) from None
    return parse_plan(text, origin=name)
