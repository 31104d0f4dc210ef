"""
What several commands of the command line have in common: options, and how a group lists its commands and ends.

Source: https://click.palletsprojects.com/en/stable/api/
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import click

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

#: A file that whoever uses it opens, and complains of.
FILE = click.Path(path_type=Path)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Group(click.Group):
    """A group whose help has the commands in the order of their definition; Ctrl-C ends it with the code that shells have for that."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of its commands."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command of these arguments."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(130)


def config_file(used: str = "flags override it") -> Decorator:
    """The option `--config`, with what is done with the file."""
    return click.option("--config", type=FILE, help=f"TOML configuration file; {used}.")
