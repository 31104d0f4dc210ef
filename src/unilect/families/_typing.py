"""Values in calls: JSON as models write it, and arguments without quotes, of which a tool's schema tells the type."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, NoReturn, TypeAlias

from unilect.families._python import NONE, python_value

#: The JSON Schema of each tool's parameters, by its name.
Tools: TypeAlias = Mapping[str, Mapping[str, Any] | None]
#: The name and the arguments, as JSON text, of each call.
Calls: TypeAlias = list[tuple[str, str]]
_BEGIN_JSON = frozenset('{["-0123456789tfn')
_OR_NONE = {"string", "null"}


def parse_arguments(name: str, pairs: list[tuple[str, str]], tools: Tools) -> str:
    """Read arguments that were written without quotes: texts where the schema says so, else JSON where they are some."""
    known = properties(name, tools)
    return dump_json({key.strip(): parse_value(raw, known.get(key.strip())) for key, raw in pairs})


def parse_value(raw: str, schema: Any) -> Any:
    """Read a value that was written without quotes: a text where its schema says so, else JSON, or what Python writes for it, where it is some."""
    types = kinds(schema)
    if types == {"string"} or (types == _OR_NONE and raw.strip() != "null"):
        return raw
    text = raw.strip()
    value, rest = json_value(text)
    if value is not NONE and not rest.strip():
        return value
    value = NONE if None in types or "string" in types else python_value(raw)
    return raw if value is NONE else value


def properties(name: str, tools: Tools) -> Mapping[str, Any]:
    """Return the schemas of a tool's arguments, by their names."""
    found = (tools[name] or {}).get("properties")
    return found if isinstance(found, dict) else {}


def kinds(schema: Any) -> set[Any]:
    """Return the types that a schema names, also one by one in `anyOf`, as an optional text is often written."""
    given = schema.get("type", schema.get("anyOf")) if isinstance(schema, dict) else None
    each = given if isinstance(given, list) else [given]
    named = (one.get("type") if isinstance(one, dict) else one for one in each)
    return {kind if isinstance(kind, str) else None for kind in named}


def json_value(text: str) -> tuple[Any, str]:
    """Return the JSON value that a text begins with and the rest; `NONE` where it begins with none."""
    if text[:1] not in _BEGIN_JSON:  # an exception costs several times as much
        return NONE, text
    try:
        value, end = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return NONE, text
    return value, text[end:]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} cannot be written as JSON")


def _number(written: str) -> float:
    value = float(written)
    return value if isfinite(value) else _refuse(written)


# made once: a model may write many calls
_encode = json.JSONEncoder(ensure_ascii=False).encode
_decoder = json.JSONDecoder(strict=False, parse_constant=_refuse, parse_float=_number)


def dump_json(value: Any) -> str:
    """Write a value as JSON text that UTF-8 can hold."""
    text = _encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair can be written in JSON, and not in UTF-8
        return json.dumps(value)
    return text
