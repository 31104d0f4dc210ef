"""
The text of a TOML file, its statements, and bounds on what it may hold: `tomllib` takes the square of a key's parts for their time, and Python reads
no number of thousands of digits.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

MAX_BYTES = 1024 * 1024
MAX_OPTIONS = 10_000  # and tables
MAX_DEPTH = 32  # of lists and tables in one another, and parts of a key
_MAX_WORD = 1000  # characters of a name or a number
_SHOWN = 20
_TOKEN = re.compile(
    r"""
      (?P<comment> \#[^\n]* )
    | (?P<text> \"{3}(?:[^"\\]|\\.|"{1,2}(?!"))*+"{3,5} | '{3}(?:[^']|'{1,2}(?!'))*+'{3,5}
              | "(?:[^"\\\n]|\\[^\n])*+" | '[^'\n]*+' )
    | (?P<unclosed> \"{3} | '{3} )
    | (?P<word> [A-Za-z0-9_+-]+ )
    | (?P<dot> \. )
    | (?P<bracket> [\[\]{}] )
    | (?P<equals> = )
    | (?P<line> \n )
    | (?P<blank> [ \t]+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_KEY_GOES_ON, _HEADER = re.compile(r"[ \t]*[.=]"), re.compile(r"[ \t]*\[")


class OutOfBounds(ValueError):
    """
    A document that is not read.

    Attributes:
        line: Where.
    """

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def statements(text: str) -> Iterator[tuple[int, str]]:
    """
    Yield the statements of a document, each with its first line's number: a header, an option, a comment or nothing. Of a document
    that is no TOML they are anything, and end early.

    Raises:
        OutOfBounds: It is nested too deeply, has too many options, or a name or a number that is too long.
    """
    line = began = 1
    start = depth = dots = options = 0
    for token in _TOKEN.finditer(text):
        kind, piece = token.lastgroup, token[0]
        if kind in ("word", "text"):
            _check_length(text, start, token, line)
            line += piece.count("\n")
        elif kind == "dot":
            dots += 1
        elif kind != "blank":
            dots = 0
        if kind == "equals" or (piece == "[" and not text[start : token.start()].strip()):
            options += 1
            if options > MAX_OPTIONS:
                raise OutOfBounds(line, f"it has more than {MAX_OPTIONS} options and tables")
        if kind == "bracket":
            depth = max(0, depth + (1 if piece in "[{" else -1))
        if dots >= MAX_DEPTH or depth > MAX_DEPTH:
            raise OutOfBounds(line, f"it is nested too deeply; {MAX_DEPTH} levels are read")
        if kind == "line":
            line += 1
            if not depth:
                yield began, text[start : token.start()]
                began, start = line, token.end()
        elif kind == "unclosed":
            return
    yield began, text[start:]


def _check_length(text: str, start: int, token: re.Match[str], line: int) -> None:
    piece = token[0]
    if len(piece) <= _MAX_WORD:
        return
    if token.lastgroup == "word":
        what = "number" if piece.lstrip("+-")[:1].isdigit() else "name"
    elif _KEY_GOES_ON.match(text, token.end()) or _HEADER.match(text, start):
        what = "name"
    else:
        return
    raise OutOfBounds(
        line, f"the {what} {piece[:_SHOWN]}... has {len(piece)} characters; {_MAX_WORD} are read"
    )


def write_key(name: str) -> str:
    """Write the name of an option or a table."""
    return name if _BARE.fullmatch(name) else write_value(name)


def write_value(value: Any) -> str:
    """Write a value on one line: a text, a number, a truth value, or a list or a table of such."""
    if isinstance(value, dict):
        inner = ", ".join(f"{write_key(name)} = {write_value(one)}" for name, one in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(write_value, value))}]"
    if isinstance(value, str):
        return f'"{"".join(map(_write_character, value))}"'
    return repr(value) if isinstance(value, float) else json.dumps(value)  # as JSON, but for `nan`


def _write_character(character: str) -> str:
    """Write one character of a text; of what is not seen its number, so that a terminal or an editor shows it as it is."""
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    if "\ud800" <= character <= "\udfff":  # half of one, which no file can hold
        return "\ufffd"
    return _SHORT.get(character) or (f"\\u{ord(character):04x}" if character <= "\uffff" else f"\\U{ord(character):08x}")  # fmt: skip
