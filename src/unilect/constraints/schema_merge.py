"""
Puts the keywords of schemas that hold together (`allOf`, a reference and what stands beside it) into one schema, as far as a grammar needs them.

Where two keywords cannot be put together, the first counts, and a finished answer is held against both.
"""

from collections.abc import Callable, Mapping
from typing import Any

from unilect.constraints.schema import names

_MOST = 256
_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_HIGHER = names("minimum exclusiveMinimum minLength minItems minProperties")
_LOWER = names("maximum exclusiveMaximum maxLength maxItems maxProperties")
#: Keywords that tell of which type a value is where `type` does not.
_TELLING = {
    "object": names("properties required additionalProperties patternProperties minProperties maxProperties propertyNames"),
    "array": names("items prefixItems minItems maxItems uniqueItems contains"),
    "string": names("pattern minLength maxLength format"),
    "number": names("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"),
}  # fmt: skip


class Nothing(Exception):
    """No value satisfies a schema."""


def types_of(schema: Mapping[str, Any]) -> list[str]:
    """
    Return the types of a schema's values; those that its other keywords tell where it has no `type`.

    Raises:
        Nothing: There is none.
    """
    told = schema.get("type")
    if isinstance(told, str):
        return [told]
    if isinstance(told, list):
        kinds = [kind for kind in _TYPES if kind in told]
        if not kinds:
            raise Nothing("it has no type")
        return [kind for kind in kinds if kind != "integer" or "number" not in kinds]
    telling = [kind for kind, words in _TELLING.items() if not words.isdisjoint(schema)]
    return telling or [kind for kind in _TYPES if kind != "integer"]


def merge_all_of(
    schema: Mapping[str, Any], resolve: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
    """
    Merge the parts of a schema's `allOf` into one schema without it.

    Args:
        resolve: Finds what a schema's `$ref` refers to.

    Raises:
        Nothing: Its parts contradict each other.
    """
    whole: dict[str, Any] = {}
    waiting: list[Any] = [schema]
    for _ in range(_MOST):
        if not waiting:
            break
        part = waiting.pop(0)
        if part is False:
            raise Nothing("false allows nothing")
        if not isinstance(part, Mapping):
            continue
        if "$ref" in part:
            waiting.insert(0, resolve(part))
        if isinstance(part.get("allOf"), list):
            waiting[:0] = part["allOf"]
        for name, value in part.items():
            if name not in ("allOf", "$ref"):
                _add(whole, name, value)
    return whole


def _add(whole: dict[str, Any], name: str, value: Any) -> None:
    if name not in whole:
        whole[name] = value
        return
    own = whole[name]
    if name == "properties" and isinstance(own, Mapping) and isinstance(value, Mapping):
        both = {key: {"allOf": [own[key], value[key]]} for key in own.keys() & value.keys() if own[key] != value[key]}  # fmt: skip
        whole[name] = {**value, **own, **both}
    elif name == "required" and isinstance(own, list) and isinstance(value, list):
        whole[name] = [*own, *(one for one in value if one not in own)]
    elif name == "type":
        whole[name] = _common(_as_list(own), _as_list(value))
    elif name == "enum" and isinstance(own, list) and isinstance(value, list):
        whole[name] = [one for one in own if one in value]
    elif name in _HIGHER and isinstance(own, int | float) and isinstance(value, int | float):
        whole[name] = max(own, value)
    elif name in _LOWER and isinstance(own, int | float) and isinstance(value, int | float):
        whole[name] = min(own, value)
    elif name == "additionalProperties" and own in (True, {}):
        whole[name] = value
    elif name in ("items", "additionalProperties") and isinstance(own, Mapping):
        whole[name] = {"allOf": [own, value]} if own != value else own
    elif name in ("anyOf", "oneOf"):
        choices = [{"allOf": [one, other]} for one in own for other in value]
        whole[name] = choices if len(choices) <= _MOST else own


def _as_list(kinds: Any) -> list[Any]:
    return kinds if isinstance(kinds, list) else [kinds]


def _common(own: list[Any], value: list[Any]) -> list[Any]:
    """Return the types that two have in common; an integer is a number."""
    kinds = [kind for kind in own if kind in value or (kind == "integer" and "number" in value)]
    return kinds + [kind for kind in value if kind == "integer" and "number" in own and kind not in kinds]  # fmt: skip
