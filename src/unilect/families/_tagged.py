"""
Calls in tags: Qwen Coder's, GLM 4.5's, elements with names (MiniMax, DeepSeek V3.2 and others), Kimi K3's, and Gemma 4's.

Each function returns the calls that a text begins with and the text behind them, or None; see `_calls`.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from unilect.families._python import NONE
from unilect.families._typing import (
    Calls,
    Tools,
    dump_json,
    json_value,
    kinds,
    parse_arguments,
    parse_value,
    properties,
)
from unilect.families._values import ARGUMENT, BEHIND, ELEMENT, PARAMETER, SPACE, Tag, end_of

_FUNCTION, _FUNCTION_END = re.compile(r"<function=([\w.-]+)>\s*"), re.compile(r"\s*</function>")
_BEGINS_PARAMETER = re.compile(r"\s*<parameter=([^<>]+)>")
# names without `<`: whatever is written, nothing is looked through twice
_NAMED_PARAMETER = re.compile("<parameter=([^<>]+)>")
_LISTING = re.compile(rf"([\w.-]{{1,128}})\s*(?:(<tool_sep{BEHIND}>)\s*|(?=<arg_key>))")
_BEGINS_ARGUMENT = re.compile(rf"\s*<arg_key{BEHIND}>([^<]*)</arg_key{BEHIND}>\s*<arg_value{BEHIND}>")  # fmt: skip
_TAGGED = re.compile(r"<function=([\w.-]+)>\s*(.*?)(?:</function>|$)", re.S)
_LISTED = re.compile(
    r"([\w.-]+)\s*((?:<arg_key>[^<]*</arg_key>\s*<arg_value>.*?</arg_value>\s*)+)", re.S
)
_PAIR = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.S)
_OPENED = re.compile(r'<\|open\|>call((?: [a-z]+="[^"<>]*")*)<\|sep\|>')
CLOSED = "<|close|>call<|sep|>"
_ATTRIBUTE = re.compile(r' ([a-z]+)="([^"]*)"')
_GIVEN = re.compile(
    r'<\|open\|>(argument|json)((?: [a-z]+="[^"]*")*)<\|sep\|>(.*?)'
    r"(?:<\|close\|>\1<\|sep\|>|(?=<\|open\|>argument )|$)",
    re.S,
)
#: MiniMax M3 writes it before each tag.
SIGN = "]<]minimax[>["
_INVOKES = re.compile(re.escape(SIGN) + r'<invoke name="([\w.-]{1,128})">')
_SIGNED = re.compile(re.escape(SIGN) + "<(/?)([^<>]{1,256})>")
_MOST_DEEP = 64
GEMMA = re.compile(r"call:([\w.-]{1,128})\s*(?=\{)")
GEMMA_TEXT = '<|"|>'
# what does not end goes on to the end: no mark in it is looked at by itself
_GEMMA_PART = re.compile(r'<\|"\|>.*?(?:<\|"\|>|\Z)|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[{}]', re.S)
_CDATA = re.compile(r"\A<!\[CDATA\[(.*)\]\]>\Z", re.S)
_KINDS: dict[str, Any] = {"true": {"type": "string"}, "false": {}}
_DEPTHS = {"{": 1, "}": -1}
_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]*)\s*:")
_INVOKED = re.compile(rf'<{SPACE}(?:invoke|function) name="([\w.-]{{1,128}})">\s*')
_INVOKED_END = re.compile(rf"\s*</{SPACE}(?:invoke|function)>\s*")
_BEGINS_ELEMENT = re.compile(
    rf'\s*<{SPACE}param(?:eter)? name="([^"<>]*)"(?: string="(true|false)")?>'
)
_UNENDED = re.compile(
    rf'<({SPACE}(?:invoke|function)) name="([\w.-]{{1,128}})">\s*(.*?)(?:</\1>|$)', re.S
)
_UNENDED_WITH = re.compile(
    rf'<({SPACE}param(?:eter)?) name="([^"<>]*)"(?: string="(true|false)")?>(.*?)'
    rf"(?:</\1>|(?=<{SPACE}param(?:eter)? name=)|$)",
    re.S,
)


def read_function(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read Qwen Coder's: `<function=name><parameter=city>Paris</parameter></function>`; Llama 3's: JSON between the tags."""
    found = _FUNCTION.match(text)
    if found is None or found[1] not in tools:
        return None
    name, at = found[1], found.end()
    if text.startswith("{", at):
        value, rest = json_value(text[at:])
        end = _FUNCTION_END.match(rest) if isinstance(value, dict) else None
        return None if end is None else ([(name, dump_json(value))], rest[end.end() :])
    pairs, at = _values(text, at, _BEGINS_PARAMETER, PARAMETER)
    end = _FUNCTION_END.match(text, at)
    given = None if end is None else _exactly(name, _without_breaks(pairs), tools, PARAMETER)
    return None if given is None or end is None else ([(name, given)], text[end.end() :])


def read_listing(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read GLM 4.5's: `name`, and `<arg_key>city</arg_key><arg_value>Paris</arg_value>` for each argument."""
    found = _LISTING.match(text)
    if found is None or found[1] not in tools:
        return None
    pairs, at = _values(text, found.end(), _BEGINS_ARGUMENT, ARGUMENT)
    rest = text[at:].lstrip()
    given = None if not (pairs or found[2]) or rest.startswith("<arg_") else _exactly(found[1], pairs, tools, ARGUMENT)  # fmt: skip
    return None if given is None else ([(found[1], given)], rest)


def _values(text: str, at: int, begin: re.Pattern[str], tag: Tag) -> tuple[list[Any], int]:
    """Return the values without quotes from a place on, each behind its name, up to the first that has no end; and where that is."""
    values: list[Any] = []
    while (found := begin.match(text, at)) is not None:
        end = end_of(tag, text, found.end())
        if end is None:
            break
        values.append((*found.groups(), text[found.end() : end.start()]))
        at = end.end()
    return values, at


def _without_breaks(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return values without the line break that Qwen Coder writes before and behind each; Seed writes none."""
    return [(key, value[1:].removesuffix("\n") if value[:1] == "\n" != value else value) for key, value in pairs]  # fmt: skip


def _exactly(name: str, pairs: list[tuple[str, str]], tools: Tools, tag: Tag) -> str | None:
    """Return the arguments, as JSON text; None where a value that is no text holds an end mark, which is twice there then."""
    known = properties(name, tools)
    marked = (key for key, value in pairs if tag.end.search(value))
    if any((types := kinds(known.get(key.strip()))) != {None} and "string" not in types for key in marked):  # fmt: skip
        return None
    return parse_arguments(name, pairs, tools)


def read_function_slip(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read the form of `read_function`, of a model that has forgotten an end, or that writes of the beginning of a value."""
    found = _TAGGED.match(text)
    if found is None or found[1] not in tools:
        return None
    name, body, rest = found[1], found[2], text[found.end() :]
    value, behind = json_value(body)
    if isinstance(value, dict) and not behind.strip():
        return [(name, dump_json(value))], rest
    pairs = _split(body, properties(name, tools))
    if body.strip() and not pairs:
        return None
    return [(name, parse_arguments(name, pairs, tools))], rest


def _split(body: str, known: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the values of a call, each up to its first end or the next one; where the end is missing, a name that the tool has not begins none."""
    begins: list[re.Match[str]] = []
    end = -1  # of the value before
    for found in _NAMED_PARAMETER.finditer(body):
        is_outside = not begins or 0 <= end < found.start()
        if is_outside or not known or found[1].strip() in known:
            if not begins or end >= 0:  # else there is none behind this one either
                end = body.find("</parameter>", found.end())
            begins.append(found)
    nexts = [*(found.start() for found in begins[1:]), len(body)]
    values = (body[found.end() : next].partition("</parameter>")[0] for found, next in zip(begins, nexts, strict=False))  # fmt: skip
    return _without_breaks([(found[1], value) for found, value in zip(begins, values, strict=True)])


def read_listing_slip(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read the form of `read_listing`, of a model that has forgotten an end; or a name alone."""
    if (found := _LISTED.match(text)) is not None and found[1] in tools:
        return [(found[1], parse_arguments(found[1], _PAIR.findall(found[2]), tools))], text[
            found.end() :
        ]
    # a word alone is a call where it is a tool's name, also behind a mark
    return ([(text, "{}")], "") if "\n" not in text and tools.get(text, NONE) is not NONE else None


def read_invoke(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read an element with a name for the call, and one for each argument; of DeepSeek V3.2 it says whether it is a text, else the schema does."""
    found = _INVOKED.match(text)
    if found is None or found[1] not in tools:
        return None
    given, at = _values(text, found.end(), _BEGINS_ELEMENT, ELEMENT)
    end = _INVOKED_END.match(text, at)
    if end is None:
        return None
    return [(found[1], _of_elements(found[1], given, tools))], text[end.end() :]


def read_invoke_slip(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read the form of `read_invoke`, of a model that has forgotten an end."""
    found = _UNENDED.match(text)
    if found is None or found[2] not in tools:
        return None
    given = [one[1:] for one in _UNENDED_WITH.findall(found[3])]
    if found[3].strip() and not given:
        return None
    return [(found[2], _of_elements(found[2], given, tools))], text[found.end() :].lstrip()


def _of_elements(name: str, given: list[tuple[str, str, str]], tools: Tools) -> str:
    """Return the arguments, as JSON text: of each its name, whether it is a text (empty where that is not told), and its value."""
    told = {key: _KINDS[kind] for key, kind, _ in given if kind}
    pairs = [(key, _CDATA.sub(r"\1", raw)) for key, _, raw in given]
    return parse_arguments(
        name, pairs, {name: {"properties": dict(properties(name, tools)) | told}}
    )


def read_kimi(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read Kimi K3's: a tag for the call, and one for each argument, which says its type; or one tag for all of them as JSON."""
    found = _OPENED.match(text)
    name = dict(_ATTRIBUTE.findall(found[1])).get("tool") if found is not None else None
    if found is None or name is None or name not in tools:
        return None
    body, _, rest = text[found.end() :].partition(CLOSED)
    given = _GIVEN.findall(body)
    if body.strip() and not given:
        return None
    values: dict[str, Any] = {}
    for tag, attributes, raw in given:
        told = dict(_ATTRIBUTE.findall(attributes))
        value, behind = (raw, "") if told.get("type") == "string" else json_value(raw.strip())
        if tag == "json":
            if not isinstance(value, dict) or behind.strip():
                return None
            values |= value
        else:
            key = told.get("key", "").replace("&quot;", '"').replace("&amp;", "&")
            values[key] = raw if behind.strip() or value is NONE else value
    return [(name, dump_json(values))], rest


def read_gemma(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read Gemma 4's: `call:name{city:<|"|>Paris<|"|>}`, JSON with bare keys and marks of its own around texts."""
    found = GEMMA.match(text)
    if found is None or found[1] not in tools:
        return None
    depth, end = 0, 0
    for part in _GEMMA_PART.finditer(text, found.end()):
        depth += _DEPTHS.get(part[0], 0)
        if not depth:
            end = part.end()
            break
    pieces = text[found.end() : end].split(GEMMA_TEXT)
    pieces[::2] = (_BARE_KEY.sub(r'\1"\2":', piece) for piece in pieces[::2])
    pieces[1::2] = map(json.dumps, pieces[1::2])
    value, rest = json_value("".join(pieces))
    if not isinstance(value, dict) or rest:
        return None
    return [(found[1], dump_json(value))], text[end:]


def read_minimax(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read MiniMax M3's: an element for each argument, and within for each member of an object and each `item` of a list; a sign before each tag."""
    found = _INVOKES.match(text)
    if found is None or found[1] not in tools:
        return None
    schema = {"properties": properties(found[1], tools)}
    levels: list[tuple[str, Any, int, list[tuple[str, Any]]]] = [
        ("invoke", schema, found.end(), [])
    ]
    for tag in _SIGNED.finditer(text, found.end()):
        key, known, begin, inside = levels[-1]
        if not tag[1]:
            if len(levels) > _MOST_DEEP:
                return None
            levels.append((tag[2], _schema_of(known, tag[2]), tag.end(), []))
        elif tag[2] != key:
            return None
        elif len(levels) == 1:
            return [(found[1], dump_json(dict(inside)))], text[tag.end() :]
        else:
            levels.pop()
            levels[-1][3].append((key, _grown(text[begin : tag.start()], known, inside)))
    return None


def _schema_of(known: Any, key: str) -> Any:
    """Return the schema of a member, or of an item."""
    given = known if isinstance(known, dict) else {}
    members = given.get("properties")
    return members[key] if isinstance(members, dict) and key in members else given.get("items")


def _grown(raw: str, known: Any, inside: list[tuple[str, Any]]) -> Any:
    """Return the value of an element."""
    types = kinds(known)
    if inside and all(key == "item" for key, _ in inside) and "object" not in types:
        return [value for _, value in inside]
    if inside or (not raw.strip() and types == {"object"}):
        return dict(inside)
    if not raw.strip():
        return [] if types == {"array"} else raw
    return parse_value(raw, known)
