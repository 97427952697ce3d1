"""Read JSON that others wrote: whatever is in it ends as a value or as one sentence."""

from __future__ import annotations

import json

from strata.errors import StoreError


def read_json(text: str | bytes, *, origin: str) -> object:
    """Return the value of a JSON text; raise StoreError, naming `origin`, where it is none.

    Lists in lists and integers without end are no fault of JSON, and Python refuses them.
    """
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise StoreError(f"{origin} has lists or objects that lie too deep in each other") from None
    except ValueError as error:
        if "digits" in str(error):
            raise StoreError(f"{origin} has an integer of too many digits") from None
        raise StoreError(f"{origin} is not JSON") from None
    return value
