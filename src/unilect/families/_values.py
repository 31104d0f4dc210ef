"""
The values in a call: one may hold anything, also the marks that calls are written with, which are a part of it then.

Where a form has no quotes, the end of a value shows by what follows it, and a mark that begins one within another has an end of its own.
"""

import json
import re
from contextlib import suppress
from typing import NamedTuple


class Tag(NamedTuple):
    """
    The marks of a form that writes values without quotes.

    Attributes:
        end: Finds what a value ends with.
        marks: Finds the next of three things in one: its end (`last`), an end that is none unless it is of a value within (`end`), and
            the beginning of such a value (`begin`).
    """

    end: re.Pattern[str]
    marks: re.Pattern[str]


def _tag(begin: str, end: str, follows: str) -> Tag:
    """Return a value that ends with a mark, if one of some things follows."""
    last = rf"(?P<last>{end}(?=\s*(?:{follows})))"
    return Tag(re.compile(end), re.compile(f"{last}|(?P<end>{end})|(?P<begin>{begin})"))


#: What stands before the names of elements: DeepSeek's, Step-3's and Muse's.
SPACE = "(?:｜DSML｜|steptml:|atem:)?"
#: What stands behind those of Hunyuan 3.
BEHIND = "(?::opensource)?"
#: Qwen Coder.
PARAMETER = _tag("<parameter=[^<>]+>", "</parameter>", "<parameter=|</function>")
#: Elements with names.
ELEMENT = _tag(
    f"<{SPACE}param(?:eter)? name=",
    f"</{SPACE}param(?:eter)?>",
    f"<{SPACE}param(?:eter)? name=|</{SPACE}(?:invoke|function)>",
)
#: GLM 4.5 and Hunyuan 3.
ARGUMENT = _tag(f"<arg_value{BEHIND}>", f"</arg_value{BEHIND}>", rf"<arg_key{BEHIND}>|</?tool_call{BEHIND}>|\Z")  # fmt: skip


def end_of(tag: Tag, text: str, at: int) -> re.Match[str] | None:
    """Return the end of a value that begins at a place; None where it has none."""
    depth = 1
    for found in tag.marks.finditer(text, at):
        match found.lastgroup:
            case "begin":
                depth += 1
            case "end" | "last" if depth > 1:
                depth -= 1
            case "last":
                return found
    return None


_QUOTED = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.S)


class Quotes:
    """
    The texts in JSON that comes in pieces.

    Attributes:
        is_open: One has begun and not ended.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._escapes = False  # the last character, the next one

    def add(self, piece: str) -> None:
        """Go on with a piece."""
        at = int(self._escapes and bool(piece))
        self._escapes = self._escapes and not piece
        while at < len(piece):
            if not self.is_open:
                at = piece.find('"', at) + 1
                if not at:
                    return
                self.is_open = True
            found = _QUOTED.match(piece, at)
            at = (found.end() if found is not None else at) + 1
            self.is_open = piece[at - 1 : at] != '"'
            self._escapes = piece[at - 1 : at] == "\\"


class Element:
    """
    An element that comes in pieces.

    Attributes:
        is_open: It has not ended.
    """

    def __init__(self, end: str) -> None:
        self.is_open = True
        self._end = end
        self._tail = ""

    def add(self, piece: str) -> None:
        """Go on with a piece."""
        text = self._tail + piece
        self.is_open = self.is_open and self._end not in text
        self._tail = text[-len(self._end) :]


_JSON = re.compile(r"\s*(?:[\w.-]{1,128}\s*)?(?=[{\[])")
_FUNCTION = re.compile(r"\s*<function=")
_LISTING = re.compile(rf"\s*[\w.-]{{1,128}}\s*<arg_key{BEHIND}>")
_FORMS = (_FUNCTION, _LISTING, _JSON)
_COUNTED = re.compile("<(/?)(function|parameter|param|arg_value)[ =:>]")
_TAIL = 256
#: What a call in Qwen Coder's form ends with, and what it does where the last mark is missing.
_FUNCTION_ENDS = re.compile(r"(?:^|[\n>])\s*</function>\s*[,;]?\s*\Z")
_PARAMETER_ENDS = re.compile(r"</parameter>[^\S\n]*\n\s*\Z")
_decoder = json.JSONDecoder(strict=False)  # small models write line breaks raw


class Ending:
    """A check of marks that may end a call: each ends it, or stands in one of its values. Marks are checked one after the other."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin another call."""
        self._at = 0

    def _look(self, text: str, place: int) -> None:
        """See what form the call has."""
        self._form = next((form for form in _FORMS if form.match(text, 0, place)), None)
        self._quotes = Quotes()
        self._open = dict[str, int]()  # how many of each tag

    def is_at(self, text: str, place: int, is_part: bool = False) -> bool:
        """Return True if the call that a text begins with ends at a mark there, which may be a part of the call."""
        if is_part and text.find("<param", 0, place) < 0:
            return True
        at, self._at = self._at, place
        if not at:
            self._look(text, place)
        if self._form is None and not is_part:
            return True
        if self._form is _JSON:
            self._quotes.add(text[at:place])
            return not self._quotes.is_open or (not at and _begins_with_json(text[:place]))
        for found in _COUNTED.finditer(text, at, place):
            now = self._open.get(found[2], 0)
            self._open[found[2]] = max(0, now - 1) if found[1] else now + 1
        if is_part:
            return not self._open.get("parameter") and not self._open.get("param")
        if self._form is _LISTING:
            return not self._open.get("arg_value")
        if "parameter" not in self._open:
            return True
        tail = text[max(0, place - _TAIL) : place]
        if _FUNCTION_ENDS.search(tail) is not None:
            return not (self._open["parameter"] and self._open["function"])
        return not self._open["parameter"] and _PARAMETER_ENDS.search(tail) is not None


def _begins_with_json(text: str) -> bool:
    """Return True if a call in JSON is whole, and only what follows it has a quote that does not close."""
    found = _JSON.match(text)
    with suppress(ValueError, RecursionError):
        _decoder.raw_decode(text, found.end() if found is not None else 0)
        return True
    return False
