"""Refuse what a plan should not be measured as; what is stored is read whatever it asks for."""

from __future__ import annotations

from strata.errors import UsageError
from strata.passages import documents
from strata.tuner.passages import same_texts
from strata.tuner.plan import Plan


def plans_to_measure(plan: Plan) -> tuple[Plan, ...]:
    """Return the plan of each study that a plan comes to; raise UsageError for one to refuse.

    An empty list asks for nothing, and a text that stands under two seeds would count twice.
    """
    if empty := _empty_key(plan):
        raise UsageError(f"plan {plan.name}: {empty} is an empty list; give it a value, or leave "
                         "the key out")  # fmt: skip
    if not plan.passages.search and _has_choice(plan):
        raise UsageError(
            f"plan {plan.name}: passages.search is empty, and there are several rings to choose "
            "from; name the passages to choose on"
        )
    if groups := same_texts(plan.passage_names()):
        last = len(documents()) - 1
        raise UsageError(
            f"plan {plan.name}: passages {', '.join(groups[0])} are one text, which would count "
            f"{len(groups[0])} times; seeds 0 to {last} name a document each, and wrap around"
        )
    return plan.expand()


def _empty_key(plan: Plan) -> str:
    """Return the first key that was given an empty list and cannot mean one, or nothing."""
    rings = plan.grid.rings
    if rings == () or (isinstance(rings, dict) and () in rings.values()):
        return "grid.rings"
    for name, values in plan.axes:
        if name in plan.axes.model_fields_set and not values:
            return f"axes.{name}"
    return ""


def _has_choice(plan: Plan) -> bool:
    """Return whether some tier has more than one ring beside the default one."""
    rings = plan.grid.rings
    if rings == "auto":
        return True
    lists = rings.values() if isinstance(rings, dict) else [rings]
    return any(len(set(one) - {plan.grid.default_ring}) > 1 for one in lists)
