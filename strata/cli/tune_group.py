"""The `strata tune` group: without a command it sweeps, and its help says how."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

from typer.core import TyperGroup


class SweepByDefault(TyperGroup):
    """Takes `strata tune quick --resume` for `strata tune sweep quick --resume`."""

    default_command = "sweep"
    _shows_default = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command before what names none; refuse a word that is nothing."""
        if not args and ctx.resilient_parsing:  # a shell asks what may follow
            return args
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            if args and not ctx.resilient_parsing:
                self._refuse_unknown(ctx, args[0])
            args = [self.default_command, *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands, and what the default one takes: plans and switches."""
        found: list[Any] = super().shell_complete(ctx, incomplete)
        sweep = self.commands[self.default_command]
        for parameter in sweep.params:
            if parameter.param_type_name == "argument":
                found += parameter.shell_complete(ctx, incomplete)
        return found + (sweep.shell_complete(ctx, incomplete) if incomplete[:1] == "-" else [])

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the group's own parameters, in its help with those of the default command."""
        own: list[Any] = super().get_params(ctx)
        return [*self.commands[self.default_command].params, *own] if self._shows_default else own

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the two ways of calling it."""
        return ["[PLAN] [OPTIONS] | COMMAND [ARGS]..."]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, which is the default command's, too."""
        self._shows_default = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._shows_default = False

    def _refuse_unknown(self, ctx: Any, word: str) -> None:
        """End where a plain word is neither a command nor a plan; a file may not be there yet."""
        if not re.fullmatch(r"[\w-]*[^\W\d_-][\w-]*", word) or word.startswith("-"):
            return
        from strata.tuner.plan import BUILT_IN

        plans = [one.stem for one in BUILT_IN.glob("*.toml")]
        if word in plans or Path(word).exists():
            return
        close = difflib.get_close_matches(word, [*self.commands, *plans], n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There is the plan {plans[0]!r}."
        ctx.fail(f"No such command or plan {word!r}. {hint}")
