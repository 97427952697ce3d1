"""What can go wrong, drawn as one tree.

::

    StrataError                 any failure strata foresaw; the CLI prints its sentence, exit code 2
    |-- UsageError              a switch, variable or file given by the user cannot mean anything
    |   `-- OrderError          a call on a session that another one has to precede
    |-- CheckpointError         a model folder is missing, truncated or of a foreign layout
    |-- BudgetError             what was asked for does not fit the memory it was given
    |-- NotFiniteError          the model's logits are NaN or infinite: its weights are damaged
    |-- TableError              a policy table is missing, damaged or of an unknown schema
    |-- StoreError              a trial database is locked, damaged or newer than this version
    `-- SelfCheckError          a part of the engine computes something wrong here; exit code 1

A message says what was got, what is allowed, and what to do.
"""

from __future__ import annotations

EXIT_WRONG_RESULT = 1
EXIT_BAD_INPUT = 2


class StrataError(Exception):
    """Base of every foreseen failure; its text is one sentence for a person."""

    exit_code = EXIT_BAD_INPUT


class UsageError(StrataError):
    """Report a switch, variable or input file that cannot be used as given."""


class OrderError(UsageError, RuntimeError):
    """Report a call on a session that another one has to precede."""


class CheckpointError(StrataError):
    """Report a checkpoint folder that is missing, truncated or of a foreign layout."""


class BudgetError(StrataError):
    """Report memory that cannot hold what was asked for, with the smallest that could."""


class NotFiniteError(StrataError):
    """Report logits of which no token can be drawn."""

    def __init__(self, position: int) -> None:
        super().__init__(
            f"the logits of the token at position {position} are not finite: weights or K/V hold "
            "NaN or infinity; check the checkpoint, or fetch it again"
        )


class TableError(StrataError):
    """Report a policy table that is missing, damaged or of an unknown schema."""


class StoreError(StrataError):
    """Report a trial database that is locked, damaged or from a newer version."""


class SelfCheckError(StrataError):
    """Report a kernel or an engine that does not agree with its reference on this device."""

    exit_code = EXIT_WRONG_RESULT
