"""Start the `strata` command: what must be in place before anything large is imported."""

from __future__ import annotations

import os

from strata.cli import interrupts


def main() -> None:
    """Run the command line; Ctrl-C is answered from here to the end."""
    interrupts.install()
    columns = os.environ.get("COLUMNS")
    if columns is not None and not (columns.isdecimal() and int(columns[:9]) > 0):
        del os.environ["COLUMNS"]  # no width: pages would be laid out in none
    from strata.cli.main import main as run

    try:
        run()
    finally:
        interrupts.ignore()
