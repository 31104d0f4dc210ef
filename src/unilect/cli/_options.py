"""
What several commands of the command line have in common: options, and how a group lists its commands and ends.

Source: https://click.palletsprojects.com/en/stable/api/
"""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import click

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

#: A file that whoever uses it opens, and complains of.
FILE = click.Path(path_type=Path, readable=False)

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Command(click.Command):
    """A command whose texts are texts: Python hands bytes that are no UTF-8 over as half a character each, which nobody can write."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse its arguments."""
        rest = super().parse_args(ctx, args)
        for parameter in self.params:
            given = ctx.params.get(parameter.name or "")
            texts = given if isinstance(given, tuple) else (given,)
            for text in texts if parameter.type is click.STRING else ():
                if text and _is_broken(text):
                    raise click.BadParameter(f"{text!r} is not UTF-8 text.", ctx, parameter)
        return rest


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class Group(click.Group):
    """A group whose help has the commands in the order of their definition; Ctrl-C ends it with the code that shells have for that."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of its commands."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command of these arguments."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                _flush()
        except KeyboardInterrupt:
            ctx.exit(130)
        except OSError as error:
            if error.errno != errno.ENOSPC or error.filename is not None:
                raise
            _unwritten(error)  # nothing is held back before it is written


def flush() -> None:
    """
    Write what was printed; what cannot be written is dropped, since the interpreter would complain of it at its end.

    Raises:
        OSError: It cannot be written.
    """
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise


def _flush() -> None:
    """Write what a command has printed; it ends with a sentence where it cannot."""
    try:
        flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _unwritten(error)


def _unwritten(error: OSError) -> NoReturn:
    print(f"unilect: stdout cannot be written ({error.strerror}).", file=sys.stderr)
    raise SystemExit(1) from error


def config_file(used: str = "flags override it") -> Decorator:
    """The option `--config`, with what is done with the file."""
    return click.option("--config", type=FILE, help=f"TOML configuration file; {used}.")
