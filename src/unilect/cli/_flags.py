"""Flags of the command line that are options of a configuration: they are made of what is declared of these."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import click
from msgspec import inspect
from msgspec.structs import fields

from unilect.cli import _completion as completion
from unilect.cli._options import Decorator
from unilect.config import paths
from unilect.config.option import Option, Table
from unilect.config.values import without_none


def flags(table: type[Table], names: Iterable[str], into: str) -> Decorator:
    """
    Give a command the flags of options.

    Args:
        table: Whose options they are.
        names: The options.
        into: The argument of the command that gets the values of those that are given, by option.
    """

    names = list(names)
    types = {
        field.name: field.type for field in fields(table)
    }  # which takes longer than all the rest
    options = [_flag(table.declared[name], name, types[name]) for name in reversed(names)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in names}
            kept = {
                name: list(one) if isinstance(one, tuple) else one
                for name, one in values.items()
                if one is not None and one is not False and one != ()
            }
            command(**given, **{into: kept})

        flagged: Callable[..., None] = functools.wraps(command)(run)
        for add in options:
            flagged = add(flagged)
        return flagged

    return decorate


def _flag(option: Option, name: str, type_: Any) -> Decorator:
    """Make the flag of an option of a type."""
    assert option.flag is not None
    kind = without_none(inspect.type_info(type_))
    return click.option(
        option.flag.name,
        name,
        type=int if isinstance(kind, inspect.IntType) else None,
        is_flag=isinstance(kind, inspect.BoolType),
        multiple=isinstance(kind, inspect.ListType),
        metavar=option.flag.metavar,
        help=option.flag.help,
        shell_complete=_completion(option, kind),
    )


def _completion(option: Option, kind: inspect.Type) -> completion.Completer | None:
    if option.path is paths.template:
        return completion.templates
    if isinstance(kind, inspect.LiteralType):
        return completion.words([str(value) for value in kind.values])
    return None if option.path is None else completion.files
