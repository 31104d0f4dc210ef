"""The beginning of an answer that may be a call without any mark: it is held back for as long as it may, and no longer."""

import re
from collections.abc import Collection

_FENCE = "```"
_LANGUAGES = ("json", "tool_call", "tool_code", "python")
_WORD = re.compile(r"[\w.-]+", re.ASCII)
_KEYS = ("name", "tool_name", "type", "function", "arguments", "parameters", "tool_call_id")


class _Open(Exception):
    """More of the text is needed to decide."""


def begins_call(text: str, names: Collection[str]) -> bool | None:
    """
    Return True if a text begins a call of a tool: JSON that names it, a list of calls as Python writes it, or its name before JSON or a block of
    code; in a block of code of its own, too. None while that is open.

    >>> [begins_call(text, ["now"]) for text in ('{"na', '{"name": "now"', '{"answer', "[1]", "now\\n{", "nowhere")]
    [None, True, False, False, True, False]
    """
    try:
        return _begins("".join(text.split()), names)
    except _Open:
        return None


def _begins(text: str, names: Collection[str]) -> bool:
    fenced, text = _after(text, (_FENCE,))
    if fenced:
        _, text = _after(text, _LANGUAGES)
    listed, text = _after(text, ("[",))
    if not text:
        raise _Open
    if text[0] == "{":
        return _is_json(text[1:], names)
    word = _WORD.match(text)
    if word is None:
        return False
    if word.end() == len(text):
        if any(name.startswith(text) for name in names):
            raise _Open
        return False
    heads = ("(",) if fenced or listed else ("{", "[ARGS]{", "[CALL_ID]", _FENCE)
    return word[0] in names and _after(text[word.end() :], heads)[0]


def _is_json(text: str, names: Collection[str]) -> bool:
    """Return True if an object's first member is one of a call."""
    key, rest = _string(text)
    if rest is None:
        if any(one.startswith(key) for one in _KEYS):
            raise _Open
        return False
    colon, rest = _after(rest, (":",))
    if key not in _KEYS or not colon:
        return False
    if key == "function":
        return _after(rest, ("{", '"'))[0]
    if key not in ("name", "tool_name", "type"):
        return True
    value, rest = _string(rest)
    known = ("function",) if key == "type" else names
    if rest is None and any(name.startswith(value) for name in known):
        raise _Open
    return rest is not None and value in known


def _string(text: str) -> tuple[str, str | None]:
    """Return the text between the quotes that a text begins with, and behind them; None where they are not closed. A value that is none is told as closed and as no name."""
    quoted, text = _after(text, ('"',))
    if not quoted:
        return "", ""
    value, closed, rest = text.partition('"')
    return value, rest if closed else None


def _after(text: str, words: tuple[str, ...]) -> tuple[bool, str]:
    """
    Return True if a text begins with one of some words, and the text behind it.

    Raises:
        _Open: It may still do so.
    """
    for word in words:
        if text.startswith(word):
            return True, text[len(word) :]
    if any(word.startswith(text) for word in words):
        raise _Open
    return False, text
