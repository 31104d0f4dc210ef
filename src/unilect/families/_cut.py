"""
Calls that a limit has cut: whole ones, and of the last its name, and its arguments as far as they were written.

Those are the beginning of a JSON text, so that nobody takes them for all; they are whole where only the end of the call is missing.
"""

import json
import re

from unilect.families._calls import MarkedTools, calls_of, head_of, skip_between
from unilect.families._python import python_calls
from unilect.families._tagged import (
    GEMMA,
    GEMMA_TEXT,
    read_function_slip,
    read_invoke_slip,
    read_kimi,
    read_listing_slip,
    read_minimax,
)
from unilect.families._typing import Calls, Tools, json_value

_NAMED = re.compile(
    r'\{(?:\s*"\w{1,32}"\s*:\s*(?:"[^"]{0,128}"\s*,|(?=\{)))?\s*\{?\s*"(?:name|tool_name)"\s*:\s*"([\w.-]{1,128})"\s*'
    r'(?:,\s*"(?:arguments|parameters)"\s*:\s*)?'
)
_KEYED = re.compile(r'\{\s*"([\w.-]{1,128})"\s*:\s*(?=\{)')
_PYTHON = re.compile(r"\[?\s*([A-Za-z_]\w{0,127})(?:\.call)?\(")
#: What may yet become a call, and has no name so far.
_NAMELESS = re.compile(r"[\[{<`\]]|[\w.:-]{0,128}\s*+(?:[\[<`(].{0,40})?\Z", re.S)
_LISTED = re.compile(r"([\w.-]{1,128})\s*<(?:arg_key|tool_sep)")
_OPEN_TAG = re.compile(r"<[^<>\n]{0,40}\Z")
#: How often the arguments of a call in Python are tried, and how long they may be.
_MOST_COMMAS, _MOST_CODE = 3, 4096
_TAGS = (read_kimi, read_function_slip, read_invoke_slip, read_minimax, read_listing_slip)


def read_cut_calls(text: str, tools: Tools, begin: str = "") -> Calls | None:
    """
    Read the calls that a text begins with, which has more to come; None where it begins with none.

    Args:
        begin: The mark before them; behind one there may be calls of tools that there are not.
    """
    known = MarkedTools(tools) if begin else tools
    rest = text.strip()
    rest = rest[skip_between(rest) :] if begin else rest
    found, rest = calls_of(rest.removeprefix("["), tools, begin, is_cut=True)
    rest = rest.strip()[skip_between(rest.strip()) :].removeprefix("[")
    last = _last(rest, known, tools)
    if last is not None:
        return [*found, (last[0], last[1] or "{")]  # nobody takes that for none
    return found if found or (begin and _NAMELESS.match(rest) is not None) else None


def _last(text: str, known: Tools, tools: Tools) -> tuple[str, str] | None:
    """Return the name of a call that has begun, and its arguments."""
    if (head := head_of(text)) is not None and head[1] in known:
        return head[1], _json(text[head.end() :])
    if (head := GEMMA.match(text)) is not None and head[1] in known:
        pieces = text[head.end() :].split(GEMMA_TEXT)
        pieces[1::2] = (json.dumps(piece, ensure_ascii=False) for piece in pieces[1::2])
        whole = "".join(pieces)
        return head[1], whole if len(pieces) % 2 else whole[:-1]
    if (head := _NAMED.match(text)) is not None and head[1] in known:
        return head[1], _json(text[head.end() :]) if text[head.end() - 1] != '"' else ""
    if (head := _KEYED.match(text)) is not None and head[1] in tools:
        return head[1], _json(text[head.end() :])
    if (head := _PYTHON.match(text)) is not None and head[1] in known:
        return head[1], _of_python(head[1], text[head.end() :])
    return _of_tags(text, known)


def _json(text: str) -> str:
    """Return arguments that are JSON: as they are, or without what stands behind them."""
    value, rest = json_value(text)
    return text[: len(text) - len(rest)] if isinstance(value, dict) else text


def _of_tags(text: str, tools: Tools) -> tuple[str, str] | None:
    found = _OPEN_TAG.search(text)
    whole = text if found is None else text[: found.start()].rstrip()
    for form in _TAGS:
        if (read := form(whole, tools)) is not None and "<" in text:
            name, given = read[0][0]
            return name, given[:-1].removesuffix('"')
    found = _LISTED.match(text)
    return (found[1], "{") if found is not None and found[1] in tools else None


def _of_python(name: str, text: str) -> str:
    """Return the arguments that a call as Python writes it has up to one of its last commas."""
    for _ in range(_MOST_COMMAS if len(text) <= _MOST_CODE else 0):
        text = text.rpartition(",")[0]
        if text and (calls := python_calls(f"{name}({text})")):
            return calls[0][1][:-1]
    return "{"
