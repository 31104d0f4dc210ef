"""
The parts that several commands share: options, and how a group lists its commands and ends.

Source: https://click.palletsprojects.com/en/stable/api/
"""

import errno
import functools
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import click
from click.exceptions import NoSuchCommand
from msgspec import inspect
from msgspec.structs import fields

from unilect.cli import _completion as completion
from unilect.config import paths
from unilect.config.option import Option, Table
from unilect.config.values import without_none

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

#: A file that whoever uses it opens, and complains of.
FILE = click.Path(path_type=Path, readable=False)

_HALF = re.compile(r"[\ud800-\udfff]")  # of a character
LEAST_LIKENESS = 0.75  # of a name that is offered for a misspelt one
#: Other names of commands, which users of other servers type: the counterpart of `load`, as in LM Studio and llama-swap.
_OTHER_NAMES = {"unload": "stop"}
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _WithExamples(click.Command):
    """
    A command or a group with examples in its help.

    Args:
        examples: Command lines.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*args, **more)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, as they are typed."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class Command(_WithExamples):
    """
    A command with the right word for a flag that it does not have.

    Its texts are texts: Python hands bytes that are no UTF-8 over as half a character each, which nobody can write.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse its arguments."""
        # neither where a shell completes them, nor flags that are another server's own
        if not ctx.resilient_parsing and ctx.allow_interspersed_args:
            self._check_flags(ctx, args)
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = close(error.option_name, error.possibilities or ())
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=ctx) from None
        for parameter in self.params:
            given = ctx.params.get(parameter.name or "")
            texts = given if isinstance(given, tuple) else (given,)
            for text in texts if parameter.type is click.STRING else ():
                if text and _HALF.search(text):
                    raise click.BadParameter(f"{text!r} is not UTF-8 text.", ctx, parameter)
        return rest

    def _check_flags(self, ctx: click.Context, args: list[str]) -> None:
        """
        Raises:
            UsageError: A flag is called otherwise here, or stands elsewhere.
        """
        own = {name for parameter in self.params for name in parameter.opts}
        own |= set(ctx.help_option_names)
        args = args[: args.index("--")] if "--" in args else args
        for index, arg in enumerate(args):
            flag, equals, value = arg.partition("=")
            following = "".join(args[index + 1 : index + 2])
            value = value if equals else "" if following.startswith("-") else following
            if flag == "-c" and value.isdecimal() and "--context" in own:
                ctx.fail(
                    f"-c is short for --config here. Use --context {value} (tokens per request)."
                )
            if not flag.strip("-") or not flag.startswith("-") or flag in own:
                continue
            from unilect.cli._foreign_flags import hint_for_flag  # which imports what options are

            if hint := hint_for_flag(flag, value, own):
                ctx.fail(f"No such option {flag!r}. {hint}")


def close(name: str, among: Iterable[str]) -> list[str]:
    """Return what a misspelt name may mean, and nothing that only has some letters of it."""
    plain = name.lstrip("-").replace("_", "-").lower()
    likeness = {one: SequenceMatcher(None, plain, one.lstrip("-")).ratio() for one in among}
    return [one for one, ratio in likeness.items() if ratio >= LEAST_LIKENESS]


class Group(_WithExamples, click.Group):
    """A group whose help has the commands in the order of their definition; Ctrl-C ends it with the code that shells have for that."""

    command_class = Command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command of these arguments."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            near = close(args[0], error.possibilities or ())
            raise NoSuchCommand(args[0], possibilities=near, ctx=ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of its commands."""
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
        if args and args[0] in _OTHER_NAMES:
            args = [_OTHER_NAMES[args[0]], *args[1:]]
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


def runs(module: str, name: str, code: int = 1) -> Decorator:
    """
    Have a command run a function of a module of `unilect.cli`, imported then; it gets the command's parameters by their names.

    The function that is decorated has the command's name and help.

    Args:
        code: The exit code where the function raises a ConfigError, which is printed.
    """

    def decorate(command: Callable[[], None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            from unilect.cli._screen import or_exit

            function = getattr(import_module(f"unilect.cli.{module}"), name)
            or_exit(lambda: function(**given), code)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def config_file(used: str = "flags override it") -> Decorator:
    """Make the option `--config`, with what is done with the file."""
    return click.option("-c", "--config", type=FILE, help=f"TOML configuration file; {used}.")


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
