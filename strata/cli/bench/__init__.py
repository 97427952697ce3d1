"""`strata bench`: what a part of the engine takes on this device; one file a command."""

from __future__ import annotations

import typer

import strata.cli.bench.decode as decode
import strata.cli.bench.evict as evict
import strata.cli.bench.experts as experts
import strata.cli.bench.gather as gather
import strata.cli.bench.peers as peers
import strata.cli.bench.prefill as prefill

app = typer.Typer(
    name="bench",
    help="Measure a part of the engine on this machine.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    pass


for _module in (decode, prefill, peers, gather, experts, evict):
    app.command(_module.NAME, epilog=_module.EPILOG)(_module.command)
