"""
Values held against the types of options: every mistake by itself, in the words of a TOML file.

msgspec validates; but its errors name one mistake of many, and tell it in words of JSON and Python.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, inspect
from msgspec.structs import FieldInfo

from unilect.config.mistakes import ErrorCollector, OptionPath, join_path

#: What to say of a name that is no option: the path of its table, the options there, the name, its value.
Unknown: TypeAlias = Callable[[OptionPath, Collection[str], str, Any], str]

_SECRET = re.compile(
    r"key|token(?!s)|secret"
)  # in the names of options whose values are never shown
_SHOWN = 60
_NAME = 64  # characters of an unknown name that are compared: the time grows with their square
_STEP = re.compile(r"\[(\d+)\]|\.\w+|\[\.+\]")
_MOST = re.compile(r" <= (\d+)")  # a bound that documentation leaves out, as nobody comes near it
_ARTICLES = re.compile(r"\b(integer|number|list|table)\b")


def convert_table(
    kind: type[Struct],
    values: Mapping[str, Any],
    path: OptionPath,
    unknown: Unknown,
    found: ErrorCollector,
) -> dict[str, Any]:
    """
    Convert the values of a table that its options take.

    Args:
        kind: Whose fields are the options.
        path: The table's.
        unknown: What to say of a name that is no option.
        found: Gets the mistakes.
    """
    good: dict[str, Any] = {}
    fields = _fields(kind)
    for name, value in values.items():
        if found.full:
            return good
        where = (*path, name)
        if name not in fields:
            found.at(where, f"{unknown(path, fields, name, value)}")
            continue
        before = len(found.errors)
        converted = _convert(fields[name].type, value, where, unknown, found)
        if len(found.errors) == before:
            good[name] = converted
    for name, field in fields.items():
        if field.required and name not in values:
            where = (*path, name)
            expected = with_article(in_words(_describe_type(field.type)))
            found.add(f"{join_path(where)}: is missing; expected {expected}.", path)
    return good


@cache
def _fields(kind: type[Struct]) -> dict[str, FieldInfo]:
    """Return the fields of a type by name; finding them takes longer than converting a table of a model."""
    return {field.name: field for field in msgspec.structs.fields(kind)}


#: The description of an option's type; making it takes longer than converting a value.
_describe_type = cache(inspect.type_info)


def convert(
    kind: Any, value: Any, where: OptionPath, found: ErrorCollector, strict: bool = True
) -> Any:
    """
    Convert a value as an option takes it.

    Args:
        kind: The option's type.
        where: Its path.
        found: Gets the mistake.
        strict: Numbers are not read from texts.
    """
    told = _describe_type(kind)
    if isinstance(value, str) and strict and isinstance(without_none(told), inspect.ListType):
        value = [value]
    try:
        converted = msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        secret = _SECRET.search(str(where[-1])) is not None
        steps, what = _wrong(told, value, str(error), secret)
        found.add(f"{join_path((*where, *steps))}: {what}", where)
        return None
    if isinstance(converted, float) and not math.isfinite(converted):
        expected = with_article(in_words(told))
        found.at(where, f"expected {expected}, found {converted}.")
    return converted


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return what a misspelt name most likely means; empty where nothing is like it."""
    found = get_close_matches(name[:_NAME].lower(), list(allowed), n=1, cutoff=0.6)
    return found[0] if found else ""


def describe_value(value: Any, secret: bool = False) -> str:
    """Describe a value in a few words."""
    match value:
        case bool():
            return str(value).lower()
        case str() if not secret:
            text = json.dumps(value[:_SHOWN], ensure_ascii=False)
            return text if len(value) <= _SHOWN else f"{text[:-1]}..."
        case str():
            return "a text"
        case int() | float() if not secret:
            return str(value)[:_SHOWN]
        case int() | float():
            return "a number"
        case list():
            return "a list" if value else "an empty list"
        case dict():
            return "a table"
    return "a date or time"


def in_words(kind: inspect.Type) -> str:
    """Describe a type and its bounds."""
    match kind:
        case inspect.Metadata():
            examples = (kind.extra_json_schema or {}).get("examples")
            words = in_words(kind.type)
            return f"{words} such as {_quote(examples)}" if examples else words
        case inspect.UnionType():
            return " or ".join(
                dict.fromkeys(
                    in_words(t) for t in kind.types if not isinstance(t, inspect.NoneType)
                )
            )
        case inspect.LiteralType():
            return f"one of {_quote(sorted(kind.values, key=str))}"
        case inspect.StrType():
            return "text" + _at_most(kind.max_length, " characters")
        case inspect.IntType():
            return "integer" + _bounds(kind.ge, kind.gt, kind.le)
        case inspect.FloatType():
            return "number" + _bounds(kind.ge, kind.gt, kind.le)
        case inspect.BoolType():
            return "true or false"
        case inspect.ListType():
            item = re.sub(r" \(at most.*?\)", "", in_words(kind.item_type))
            noun, _, rest = item.partition(" ")
            return f"list of {noun}s {rest}".strip() + _at_most(kind.max_length, "")
        case inspect.DictType():
            return "table"
    return "object"


def with_article(words: str) -> str:
    """Return a type in words as a part of a sentence."""
    words = words.replace("object", "table")
    return _ARTICLES.sub(lambda at: f"{'an' if at[1] == 'integer' else 'a'} {at[1]}", words)


def _convert(
    kind: Any, value: Any, where: OptionPath, unknown: Unknown, found: ErrorCollector
) -> Any:
    """Convert as `convert`; tables with options of their own are held against these, one by one."""
    inner = without_none(inspect.type_info(kind))
    if isinstance(inner, inspect.StructType) and isinstance(value, dict):
        return _table(inner.cls, value, where, unknown, found)
    each = without_none(inner.value_type) if isinstance(inner, inspect.DictType) else None
    if isinstance(each, inspect.StructType) and isinstance(value, dict):
        convert(kind, {name: {} for name in value}, where, found)  # the names alone
        return {
            name: _table(each.cls, one, (*where, name), unknown, found)
            for name, one in value.items()
        }
    item = without_none(inner.item_type) if isinstance(inner, inspect.ListType) else None
    if isinstance(item, inspect.StructType) and isinstance(value, list):
        return [
            _table(item.cls, one, (*where, index), unknown, found)
            for index, one in enumerate(value)
        ]
    return convert(kind, value, where, found)


def _table(
    kind: type[Struct], value: Any, where: OptionPath, unknown: Unknown, found: ErrorCollector
) -> Any:
    if not isinstance(value, dict):
        found.at(where, f"expected a table, found {describe_value(value)}.")
        return None
    before = len(found.errors)
    good = convert_table(kind, value, where, unknown, found)
    return kind(**good) if len(found.errors) == before else None


def without_none(kind: inspect.Type) -> inspect.Type:
    """Return a type without its documentation, and without None."""
    if isinstance(kind, inspect.Metadata):
        return without_none(kind.type)
    if isinstance(kind, inspect.UnionType):
        kinds = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return without_none(kinds[0]) if len(kinds) == 1 else kind
    return kind


def _wrong(place: inspect.Type, value: Any, message: str, secret: bool) -> tuple[OptionPath, str]:
    """Return where in a value msgspec found the mistake, and what it is."""
    _, _, at = message.partition(" - at `$")
    found, steps = value, []
    for index in _STEP.findall(at):
        inner = without_none(place)
        if index and isinstance(inner, inspect.ListType) and isinstance(found, list):
            place, found = inner.item_type, found[int(index)]
            steps.append(int(index))
        else:  # inside something of several types: the whole is told
            break
    expected = with_article(in_words(place))
    if (most := _MOST.search(message)) and most[1] not in expected:
        expected += f" and at most {most[1]}"
    if found == "" or found == []:
        what = "text" if found == "" else "list"
        return tuple(steps), f"expected {expected}, found an empty {what}."
    hint = ""
    if isinstance(found, str) and not secret and re.fullmatch(r"true|false|-?[\d.]+", found):
        hint = " Leave the quotes out."
    elif expected.startswith("text") and isinstance(found, bool | int | float):
        hint = " Put it in quotes."
    return tuple(steps), f"expected {expected}, found {describe_value(found, secret)}.{hint}"


def _quote(values: Iterable[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _bounds(least: Any, above: Any, most: Any) -> str:
    """Write bounds in words; those at the edge of what a machine holds are none."""
    least = None if least is None or abs(least) >= 2**31 else least
    most = None if most is None or most >= 2**31 - 1 else most
    if above is not None:
        return f" above {above:g}" + (f" and at most {most:g}" if most is not None else "")
    if least is not None and most is not None:
        return f" from {least} to {most}"
    return f" of at least {least}" if least is not None else ""


def _at_most(length: int | None, unit: str) -> str:
    """Write the longest length in words; docs/api.md tells of those that only keep bombs out."""
    return f" (at most {length}{unit})" if length is not None and length <= 4096 else ""
