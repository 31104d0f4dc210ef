"""The group of all commands, and what is said of flags and commands that it does not have."""

import shlex
from typing import Any

import click

from unilect.cli._options import Group


class Commands(Group):
    """The commands; for a command of another server the error names the one to use here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the flags before the command."""
        own = {"--version", *ctx.help_option_names}
        first = args[0].partition("=")[0] if args else ""
        if first.startswith("-") and first not in own and not ctx.resilient_parsing:
            from unilect.cli._foreign_flags import hint_for_flag

            serve = self.commands["serve"]
            flags = {name for parameter in serve.params for name in parameter.opts}
            if first in flags:
                ctx.fail(f"Name a command before {first}: `unilect serve {shlex.join(args)}`.")
            if hint := hint_for_flag(first, "", flags):
                ctx.fail(f"No such option {first!r}. {hint}")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command of these arguments."""
        if args and args[0] not in self.commands:
            from unilect.cli._foreign_flags import hint_for_command

            if hint := hint_for_command(args[0]):
                ctx.fail(f"No such command '{args[0]}'. {hint}")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, and where the documentation is."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Documentation"):
            formatter.write_text(
                "`unilect docs` lists its pages, `unilect docs quickstart` shows the first."
            )
            formatter.write_text("A running server lists its endpoints at /docs.")
