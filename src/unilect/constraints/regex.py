"""
Converts regular expressions into GBNF: of a text that one matches as a whole, or of a JSON string in whose value one is found.

Constructs without an equivalent in a grammar (lookaround, backreferences) are refused by name. Lazy repeats do not change which
texts match. Where JSON Schema's readers of patterns differ in a class, a string has none but the characters on which they agree.

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
_ASCII: Range = (0, 0x7F)
#: Blanks and ends of lines beyond ASCII, which only some readers take for such.
_FAR_SPACES: list[Range] = [(0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]  # fmt: skip
_CLASSES = {sre.CATEGORY_DIGIT: _DIGITS, sre.CATEGORY_WORD: _WORDS}
_OUTSIDE = {sre.CATEGORY_NOT_DIGIT: _DIGITS, sre.CATEGORY_NOT_WORD: _WORDS}
_LINES: list[Range] = [(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]
#: Characters that JSON always escapes: control characters, quotes and backslashes; beside them halves of characters.
_ESCAPED: list[Range] = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)]
_SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", 0x22: '"', 0x5C: "\\"}
#: One character of a JSON string, as another rule of the grammar has it.
CHARACTER = "char"
#: A group with a name, as JavaScript has it.
_NAMED = re.compile(r"(?<!\\)\(\?<(?![=!])")
#: Signs that are operators to some readers, and plain characters to others.
_DISPUTED = re.compile(r"\[\[|&&|--|~~|\{,|\(\?\w*[aiLmux]")


def grammar_of(pattern: str) -> str:
    """
    Return the grammar of the texts that a pattern matches as a whole.

    Raises:
        ValueError: It is not a regular expression, or has no equivalent grammar.
    """
    tree = _parse(pattern)
    if tree.state.flags & ~(re.UNICODE | re.DOTALL):
        raise ValueError("flags other than `s` have no grammar")
    return f"root ::= {_sequence(tree, _Place(bool(tree.state.flags & re.DOTALL)))}\n"


def string_of(pattern: str) -> str:
    """
    Return the right side of a rule for the characters between a JSON string's quotes, in which a pattern is found.

    It refers to the rule `CHARACTER`.

    Raises:
        ValueError: It is not a regular expression, or has no equivalent grammar.
    """
    if _DISPUTED.search(pattern):
        raise ValueError("it is read differently by different readers")
    return _search(list(_parse(_NAMED.sub("(?P<", pattern))), 0)


def _parse(pattern: str) -> Any:
    """
    Raises:
        ValueError: It is not a regular expression.
    """
    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"it has {len(pattern)} characters; the maximum is {MAX_PATTERN}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what may mean something else in a later Python
            return _parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not a valid regular expression ({str(error)[:100]})") from error


def _search(items: list[Any], depth: int) -> str:
    """Return a JSON string's characters in which these items are found: at its beginning and end where they say so, else anywhere."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
    if len(items) == 1:
        op, value = items[0]
        if op is sre.BRANCH:
            return " | ".join(_search(list(one), depth + 1) for one in value[1])
        if op is sre.SUBPATTERN and not (value[1] or value[2]):
            return _search(list(value[3]), depth + 1)
    begins, ends = bool(items) and items[0] in _BEGINS, bool(items) and items[-1] in _ENDS
    if begins and len(items) == 2 and items[1][0] is sre.BRANCH:  # `^a|^b`, as it is read
        return " | ".join(_search([items[0], *one], depth + 1) for one in items[1][1][1])
    inside = [item for item in items if item not in (*_BEGINS, *_ENDS)]
    if not (begins and ends) and not inside:
        return f"{CHARACTER}*"
    if items[begins : len(items) - ends] != inside:
        raise ValueError("`^` and `$` in the midst of it have no grammar")
    inner = _sequence(inside, _Place(False, False, False, depth, is_json=True))
    anywhere = f"{CHARACTER}*"
    return " ".join(filter(None, ["" if begins else anywhere, inner, "" if ends else anywhere]))


def literal(text: str) -> str:
    """Return a text as a GBNF literal."""
    return '"' + "".join(_sign(ord(sign)) for sign in text) + '"'


def _escape(code: int) -> str:
    """Return a character as JSON writes it in a string."""
    if code in _SHORT:
        return "\\" + _SHORT[code]
    return f"\\u{code:04X}" if _is_in(code, _ESCAPED) else chr(code)


class _Place(NamedTuple):
    """The place of a part of an expression: `first` and `last` in the whole text, where `^` and `$` say nothing, or in a JSON string."""

    dotall: bool
    first: bool = True
    last: bool = True
    depth: int = 0
    is_json: bool = False


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
            written[-1] = written[-1][:-1] + _character(value, place)[1:]
            continue
        inner = place._replace(
            first=place.first and number == 0,
            last=place.last and number == len(items) - 1,
            depth=place.depth + 1,
        )
        written.append(_item(op, value, inner))
    return " ".join(written) or '""'


def _character(code: int, place: _Place) -> str:
    return literal(_escape(code)) if place.is_json else literal(chr(code))


def _item(op: Any, value: Any, place: _Place) -> str:
    match op:
        case sre.LITERAL:
            return _character(value, place)
        case sre.NOT_LITERAL:
            return _class(_without([(value, value)]), place)
        case sre.ANY:
            if place.is_json:
                return _class(_without(_LINES), place)
            return _class([(0, _LAST)] if place.dotall else _without([(0x0A, 0x0A)]), place)
        case sre.IN:
            return _class(_members(value, place), place)
        case sre.BRANCH:
            return f"({' | '.join(_sequence(one, place) for one in value[1])})"
        case sre.SUBPATTERN:
            _, on, off, inner = value
            if (on | off) & ~(0 if place.is_json else re.DOTALL):
                raise ValueError("flags other than `s` have no grammar")
            dotall = (place.dotall or bool(on)) and not off
            return f"({_sequence(inner, place._replace(dotall=dotall))})"
        case sre.MAX_REPEAT | sre.MIN_REPEAT:
            least, most, inner = value
            if most == 0:
                return '""'
            repeated = f"({_sequence(inner, place._replace(first=False, last=False))})"
            if (least, most) == (0, 1):
                return f"{repeated}?"
            return repeat(repeated, least, None if most == sre.MAXREPEAT else most)
    raise ValueError(f"`{str(op).lower().replace('_', ' ')}` has no grammar")


def repeat(symbol: str, least: int, most: int | None) -> str:
    """Return a symbol so many times; nothing for none, which is no number of repetitions to some."""
    if most is None:
        return symbol + {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    if most == 0:
        return ""
    return f"{symbol}{{{least}}}" if least == most else f"{symbol}{{{least},{most}}}"


def _members(items: list[Any], place: _Place) -> list[Range]:
    """Return the characters of a class."""
    negated, wide, ranges = False, False, list[Range]()
    for op, value in items:
        match op:
            case sre.NEGATE:
                negated = True
            case sre.LITERAL:
                ranges.append((value, value))
            case sre.RANGE:
                ranges.append(value)
            case sre.CATEGORY:
                wide = wide or value in _CLASSES
                ranges += _category(value, place, negated)
            case _:
                raise ValueError(f"{str(op).lower()} in a class has no grammar")
    if not negated:
        return ranges
    left = _without(ranges)
    return _within(left, *_ASCII) if wide and place.is_json else left


def _category(value: Any, place: _Place, negated: bool) -> list[Range]:
    if value in _CLASSES:
        return _CLASSES[value]
    if value in _OUTSIDE:  # digits and letters beyond ASCII are such to some readers
        left = _without(_OUTSIDE[value])
        return _within(left, *_ASCII) if place.is_json and not negated else left
    is_space = value == sre.CATEGORY_SPACE
    spaces = _SPACES + _FAR_SPACES if place.is_json and negated == is_space else _SPACES
    return spaces if is_space else _without(spaces)


def _without(ranges: list[Range]) -> list[Range]:
    """Return all characters but these."""
    left, begin = list[Range](), 0
    for low, high in sorted(ranges):
        if low > begin:
            left.append((begin, low - 1))
        begin = max(begin, high + 1)
    return [*left, (begin, _LAST)] if begin <= _LAST else left


def _within(ranges: list[Range], low: int, high: int) -> list[Range]:
    """Return the characters of these that lie between two."""
    return [(max(a, low), min(b, high)) for a, b in ranges if a <= high and b >= low]


def _is_in(code: int, ranges: list[Range]) -> bool:
    return any(low <= code <= high for low, high in ranges)


def _class(ranges: list[Range], place: _Place) -> str:
    """Return one of these characters; in a JSON string those that have to be escaped, each written out."""
    if not ranges:
        raise ValueError("an empty character class matches nothing")
    if not place.is_json:
        return _plain_class(ranges)
    codes = [code for low, high in _ESCAPED[:-1] for code in range(low, high + 1)]
    escaped = [code for code in codes if _is_in(code, ranges)]
    plain = [part for a, b in ranges for part in _between(a, b)]
    # other control characters are wanted by nobody, unless there is no other choice
    chosen = [code for code in escaped if code in _SHORT] or ([] if plain else escaped)
    choices = [_plain_class(plain)] * bool(plain) + [literal(_escape(code)) for code in chosen]
    if not choices:
        raise ValueError("a single surrogate is not a character")
    return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"


def _between(low: int, high: int) -> list[Range]:
    """Return a range without what JSON never has as it is."""
    return _within(_without(_ESCAPED), low, high)


def _plain_class(ranges: list[Range]) -> str:
    return "[" + "".join(_sign(a) if a == b else f"{_sign(a)}-{_sign(b)}" for a, b in ranges) + "]"


def _sign(code: int) -> str:
    """Return one character, written so that it means itself in a text and in a class."""
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
