"""
The values in a call: one may hold anything, also the marks that calls are written with, which are a part of it then.

Where a form has no quotes, the end of a value shows by what follows it, and a mark that begins one within another has an end of its own.
"""

import re
from typing import NamedTuple


class Tag(NamedTuple):
    """
    How a form writes a value.

    Attributes:
        begin: What one begins with.
        marks: Finds the next of three things in one: its end (`last`), an end that is none unless it is of a value within (`end`), and
            the beginning of such a value (`begin`).
    """

    begin: str
    marks: re.Pattern[str]


def _tag(begin: str, end: str, follows: str) -> tuple[Tag, Tag]:
    """A value that ends with a mark, if one of some things follows; and one that no other stands in."""
    last = rf"(?P<last>{end}(?=\s*(?:{follows})))"
    return Tag(begin, re.compile(f"{last}|(?P<end>{end})|(?P<begin>{begin})")), Tag(begin, re.compile(last))  # fmt: skip


_CALL_ENDS = r"\s*(?:</?tool_call>|<function=|\Z)"
#: Qwen Coder.
PARAMETER, FLAT_PARAMETER = _tag(
    "<parameter=[^<>]+>", "</parameter>", f"<parameter=|</function>{_CALL_ENDS}"
)
#: GLM 4.5.
ARGUMENT, _ = _tag("<arg_value>", "</arg_value>", r"<arg_key>|</?tool_call>|\Z")
#: Values that no other one stands in: those of DeepSeek V3.2, Kimi K3 and Gemma 4, and the texts of JSON.
_FLAT = (
    Tag('<｜DSML｜parameter name="[^"<>]*" string="(?:true|false)">', re.compile("(?P<last></｜DSML｜parameter>)")),
    Tag(r'<\|open\|>argument(?: [a-z]+="[^"<>]*")*<\|sep\|>', re.compile(r"(?P<last><\|close\|>argument<\|sep\|>)")),
    Tag(r'<\|"\|>', re.compile(r'(?P<last><\|"\|>)')),
    Tag('"', re.compile(r'\\.|(?P<last>")', re.S)),
)  # fmt: skip
_TAGS = (PARAMETER, ARGUMENT, *_FLAT)
_BEGINS = re.compile("|".join(f"({tag.begin})" for tag in _TAGS))


class Place:
    """
    A place in a call that is read from its beginning on, once.

    Args:
        at: Where the reading begins.
        tag: How the value is written that it begins in; None for one outside of all values.

    Attributes:
        at: How far it has come.
    """

    def __init__(self, at: int = 0, tag: Tag | None = None) -> None:
        self.begin(at, tag)

    def begin(self, at: int = 0, tag: Tag | None = None) -> None:
        """Begin to read another call."""
        self.at = at
        self._tag = tag
        self._depth = 1

    def is_within(self, text: str, end: int) -> bool:
        """Go on to `end`, which is where the call would end; whether that is within a value."""
        while self._tag is not None or self._enter(text, end):
            if not self.leave(text, end):
                return True
        return False

    def _enter(self, text: str, end: int) -> bool:
        """Go on to the beginning of a value."""
        found = _BEGINS.search(text, self.at, end)
        self.at = end if found is None else found.end()
        self._tag = None if found is None else _TAGS[(found.lastindex or 1) - 1]
        return found is not None

    def leave(self, text: str, end: int) -> int:
        """Go on behind the end of the value; the length of the mark there, 0 where no such is seen."""
        assert self._tag is not None
        for found in self._tag.marks.finditer(text, self.at, end):
            match found.lastgroup:
                case "begin":
                    self._depth += 1
                case "end" | "last" if self._depth > 1:
                    self._depth -= 1
                case "last":
                    self.at, self._tag = found.end(), None
                    return len(found[0])
        self.at = end
        return 0


_QUOTED = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.S)


class Quotes:
    """
    The texts in JSON that comes in pieces.

    Attributes:
        are_open: Whether one has begun and not ended.
    """

    def __init__(self) -> None:
        self.are_open = False
        self._escapes = False  # the last character, the next one

    def add(self, piece: str) -> None:
        """Go on with a piece."""
        at = int(self._escapes and bool(piece))
        self._escapes = self._escapes and not piece
        while at < len(piece):
            if not self.are_open:
                at = piece.find('"', at) + 1
                if not at:
                    return
                self.are_open = True
            found = _QUOTED.match(piece, at)
            at = (found.end() if found is not None else at) + 1
            self.are_open = piece[at - 1 : at] != '"'
            self._escapes = piece[at - 1 : at] == "\\"
