"""
Converts a regular expression into a GBNF grammar for the texts that it matches as a whole.

Constructs without an equivalent in a grammar (lookaround, backreferences) are refused by name. Lazy and possessive repeats do not
change which texts match as a whole.

Source: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
"""

import re
import warnings
from collections.abc import Iterable
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple, TypeAlias

_LAST = 0x10FFFF
MAX_PATTERN = 4096
_MAX_DEPTH = 64
Range: TypeAlias = tuple[int, int]
_BEGINS = ((sre.AT, sre.AT_BEGINNING), (sre.AT, sre.AT_BEGINNING_STRING))
_ENDS = ((sre.AT, sre.AT_END), (sre.AT, sre.AT_END_STRING))
_DIGITS: list[Range] = [(0x30, 0x39)]
_WORDS: list[Range] = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACES: list[Range] = [(0x09, 0x0D), (0x20, 0x20)]


def grammar_of(pattern: str) -> str:
    """
    The grammar.

    Raises:
        ValueError: It is not a regular expression, or has no equivalent grammar.
    """
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"it has {len(pattern)} characters; the maximum is {MAX_PATTERN}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what may mean something else in a later Python
            tree = _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not a valid regular expression ({str(error)[:100]})") from error
    if tree.state.flags & ~(re.UNICODE | re.DOTALL):
        raise ValueError("flags other than `s` have no grammar")
    place = _Place(bool(tree.state.flags & re.DOTALL))
    return f"root ::= {_sequence(tree, place)}\n"


def literal(text: str) -> str:
    """A text as a GBNF literal."""
    return '"' + "".join(_sign(ord(sign)) for sign in text) + '"'


class _Place(NamedTuple):
    """Where a part of an expression stands: `first` and `last` in the whole text, where `^` and `$` say nothing."""

    dotall: bool
    first: bool = True
    last: bool = True
    depth: int = 0


def _sequence(items: Iterable[Any], place: _Place) -> str:
    if place.depth > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
    items = list(items)
    while place.first and items and items[0] in _BEGINS:
        del items[0]
    while place.last and items and items[-1] in _ENDS:
        del items[-1]
    written = list[str]()
    for number, (op, value) in enumerate(items):
        if op is sre.LITERAL and number and items[number - 1][0] is sre.LITERAL:
            written[-1] = written[-1][:-1] + literal(chr(value))[1:]
            continue
        inner = _Place(
            place.dotall,
            place.first and number == 0,
            place.last and number == len(items) - 1,
            place.depth + 1,
        )
        written.append(_item(op, value, inner))
    return " ".join(written) or '""'


def _item(op: Any, value: Any, place: _Place) -> str:
    match op:
        case sre.LITERAL:
            return literal(chr(value))
        case sre.NOT_LITERAL:
            return _class(_without([(value, value)]))
        case sre.ANY:
            return _class([(0, _LAST)] if place.dotall else _without([(0x0A, 0x0A)]))
        case sre.IN:
            return _class(_members(value))
        case sre.BRANCH:
            return f"({' | '.join(_sequence(one, place) for one in value[1])})"
        case sre.SUBPATTERN:
            _, on, off, inner = value
            if (on | off) & ~re.DOTALL:
                raise ValueError("flags other than `s` have no grammar")
            dotall = (place.dotall or bool(on)) and not off
            return f"({_sequence(inner, place._replace(dotall=dotall))})"
        case sre.MAX_REPEAT | sre.MIN_REPEAT:
            least, most, inner = value
            repeated = place._replace(first=False, last=False)
            return f"({_sequence(inner, repeated)}){_times(least, most)}"
    raise ValueError(f"`{str(op).lower().replace('_', ' ')}` has no grammar")


def _times(least: int, most: Any) -> str:
    if most is sre.MAXREPEAT or most == sre.MAXREPEAT:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    if (least, most) == (0, 1):
        return "?"
    return f"{{{least}}}" if least == most else f"{{{least},{most}}}"


def _members(items: list[Any]) -> list[Range]:
    """The characters of a class."""
    negated, ranges = False, list[Range]()
    for op, value in items:
        match op:
            case sre.NEGATE:
                negated = True
            case sre.LITERAL:
                ranges.append((value, value))
            case sre.RANGE:
                ranges.append(value)
            case sre.CATEGORY:
                ranges += _category(value)
            case _:
                raise ValueError(f"{str(op).lower()} in a class has no grammar")
    return _without(ranges) if negated else ranges


def _category(value: Any) -> list[Range]:
    match value:
        case sre.CATEGORY_DIGIT:
            return _DIGITS
        case sre.CATEGORY_NOT_DIGIT:
            return _without(_DIGITS)
        case sre.CATEGORY_WORD:
            return _WORDS
        case sre.CATEGORY_NOT_WORD:
            return _without(_WORDS)
        case sre.CATEGORY_SPACE:
            return _SPACES
    return _without(_SPACES)


def _without(ranges: list[Range]) -> list[Range]:
    """All characters but these."""
    left, begin = list[Range](), 0
    for low, high in sorted(ranges):
        if low > begin:
            left.append((begin, low - 1))
        begin = max(begin, high + 1)
    return [*left, (begin, _LAST)] if begin <= _LAST else left


def _class(ranges: list[Range]) -> str:
    if not ranges:
        raise ValueError("an empty character class matches nothing")
    return "[" + "".join(_sign(a) if a == b else f"{_sign(a)}-{_sign(b)}" for a, b in ranges) + "]"


def _sign(code: int) -> str:
    """One character, written so that it means itself in a text and in a class."""
    sign = chr(code)
    if (sign.isascii() and sign.isalnum()) or sign == " ":
        return sign
    if code < 0xA0:
        return f"\\x{code:02X}"
    if code in (0x2028, 0x2029):  # they end a line for some
        return f"\\u{code:04X}"
    if 0xD800 <= code <= 0xDFFF:
        raise ValueError("a single surrogate is not a character")
    return sign
