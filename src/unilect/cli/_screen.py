"""Output of commands: text from a server, a file or a name is shown, and no terminal obeys it."""

import re
import sys
from collections.abc import Collection, Sequence

from unilect.runtime.logs import escape

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
    """
    Print columns as wide as they need to be.

    Args:
        right: The columns that end alike.
    """
    table = [[escape(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        tell("  ".join(cells).rstrip())
