"""Output of commands and their ends: text from a server, a file or a name is shown, and no terminal obeys it."""

import logging
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn

from unilect.config.file import Origin
from unilect.core.errors import ConfigError
from unilect.runtime.logs import escape, sink_of
from unilect.runtime.redact import redact

_PIECE = re.compile(r"[^\n\t]+")


def visible(text: str) -> str:
    """Write control characters, and those that turn or hide what stands around them, as escapes."""
    return _PIECE.sub(lambda found: escape(found[0]), text)


def tell(text: str = "", *, on_stderr: bool = False, flush: bool = False) -> None:
    """Print lines, on stdout by default."""
    print(visible(text), file=sys.stderr if on_stderr else sys.stdout, flush=flush)


def tell_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> None:
    """Print a table; see `table`."""
    for line in table(head, rows, right):
        tell(line)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> Iterator[str]:
    """
    Yield the lines of columns as wide as they need to be.

    Args:
        right: The columns that end alike.
    """
    cells_of = [[escape(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells_of, strict=True)]
    for row in cells_of:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def or_exit(step: Callable[[], Any], code: int = 1, origin: Origin | None = None) -> Any:
    """Return what a step returns; a mistake ends the process with what is wrong on stderr."""
    try:
        return step()
    except ConfigError as error:
        errors = error.each if origin is None else origin.locate(error.each)
        if len(errors) == 1:
            fail(escape(str(errors[0])), code)
        fail(f"{len(errors)} mistakes:\n  " + "\n  ".join(escape(str(one)) for one in errors), code)


def fail(message: str, code: int = 1) -> NoReturn:
    """End with one sentence on stderr, or a line for each of several; without the credentials of a URL in it."""
    say(message, "critical")
    raise SystemExit(code)


def say(message: str, level: str) -> None:
    """Say something on stderr, without the credentials of a URL; as the log does where that is JSON."""
    sink = sink_of(logging.getLogger())
    if sink is not None and sink.form == "json":
        sink.add(redact(message), level)
    else:
        tell(f"unilect: {redact(message)}", on_stderr=True)
