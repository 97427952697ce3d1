"""Read token ids as a caller gives them: lists, arrays, tensors."""

from __future__ import annotations

from typing import Any

from strata.errors import UsageError


def token_ids(ids: Any, vocab: int) -> list[int]:
    """Return `ids` as plain numbers.

    Takes any sequence of whole numbers, also an array or a tensor of one dimension. Raises
    UsageError where it is empty, or where an entry names no token.
    """
    values = ids.tolist() if hasattr(ids, "tolist") else ids
    try:
        found = [one.item() if hasattr(one, "item") else one for one in values]
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(
            f"a prompt of type {type(ids).__name__} is no sequence of token ids; give a list"
        ) from None
    if not found:
        raise UsageError("the prompt is empty; give at least one token")
    for place, one in enumerate(found):
        if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < vocab:
            raise UsageError(
                f"id {one!r:.80} at place {place} of the prompt is no token of this model; ids are "
                f"whole numbers from 0 to {vocab - 1}"
            )
    return found
