"""
Analysis of clients' JSON Schemas, without recursion: schemas that are too large or too deep are refused, and the used keywords are listed.

The names of uses distinguish what engines support separately: `format:uuid`; `pattern:foreign` for a pattern that has no grammar of ours,
and `pattern:irregular` for one that no automaton follows; `minLength:pattern` for a keyword next to a pattern; `minimum` and
`minimum:integer`; `properties:beside` for a keyword next to a `$ref` or a union.

Source: https://json-schema.org/draft/2020-12/json-schema-core, https://json-schema.org/draft/2020-12/json-schema-validation
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from unilect.constraints import ConstraintError
from unilect.constraints.regex import string_of

MAX_NODES = 10_000
MAX_DEPTH = 64
MAX_UNIONS = 16
MAX_REFS = 128
MAX_VALUES = 10_000
MAX_PATTERN = 2000
MAX_PATTERNS = 20_000
MAX_REPEAT = 2000
_SHOWN = 60


def names(text: str) -> frozenset[str]:
    """Return the names that stand in a text, with blanks between."""
    return frozenset(text.split())


DEFINITIONS = ("$defs", "definitions")
_MAPS = names("properties patternProperties dependentSchemas") | set(DEFINITIONS)
_LISTS = names("allOf anyOf oneOf prefixItems")
_SINGLE = names(
    "additionalItems additionalProperties contains contentSchema else if items not propertyNames then unevaluatedItems "
    "unevaluatedProperties"
)
_UNIONS = ("anyOf", "oneOf")
_INTEGER = names("minimum maximum exclusiveMinimum exclusiveMaximum")
_OTHERS = names(
    "$dynamicRef $recursiveRef $ref const dependencies dependentRequired enum format maxContains maxItems maxLength "
    "maxProperties minContains minItems minLength minProperties multipleOf pattern required type uniqueItems"
)
_REMARKS = names("$defs definitions contentSchema")
_OF_TEXTS = names("minLength maxLength format")
#: Parts of a pattern that no automaton follows: looks ahead or behind, and references back.
_IRREGULAR = re.compile(r"\(\?<?[=!]|\\[bBkGAzZ1-9]|\(\?>|[*+?]\+")
#: Two bounds, of which the first must not be above the second.
_ORDERED = (("minimum", "maximum"), ("exclusiveMinimum", "maximum"), ("minimum", "exclusiveMaximum"), ("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))  # fmt: skip
#: Keywords that say something about an answer; all others are remarks.
ASSERTIONS = (_MAPS | _LISTS | _SINGLE | _INTEGER | _OTHERS) - _REMARKS
_OPEN = names("additionalItems additionalProperties items unevaluatedItems unevaluatedProperties")
#: Values at which a keyword asks for nothing.
_IDLE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(names("minItems minLength minProperties"), (0,)),
    **dict.fromkeys(_OPEN, (True, {})),
    **dict.fromkeys(names("dependentRequired patternProperties"), ({},)),
    "required": ([],),
    "uniqueItems": (False,),
}
_COUNTED = re.compile(r"\{([0-9]{1,9})[0-9]*(?:,([0-9]{0,9})[0-9]*)?\}")
_ALL_TYPES = 7


class Use(NamedTuple):
    """A keyword that a schema uses, and where: `$.properties.name`."""

    keyword: str
    path: str


def analyse(schema: Any) -> list[Use]:
    """
    Return the keywords that a schema uses, one entry per use.

    Raises:
        ConstraintError: The schema is too large, too deep, or has an invalid reference.
    """
    uses: list[Use] = []
    patterns = values = nodes = 0
    waiting: list[tuple[Any, str, int, int]] = [(schema, "$", 0, 0)]
    while waiting:
        node, path, depth, unions = waiting.pop()
        nodes += 1
        if nodes > MAX_NODES:
            raise ConstraintError(f"it has more than {MAX_NODES} parts; make it smaller.")
        if depth > MAX_DEPTH:
            raise ConstraintError(
                f"at {shorten_path(path)}: it is nested more than {MAX_DEPTH} levels deep; flatten it."
            )
        if unions > MAX_UNIONS:
            raise ConstraintError(
                f"at {shorten_path(path)}: more than {MAX_UNIONS} `anyOf` or `oneOf` are nested; flatten them."
            )
        if isinstance(node, bool):
            continue
        if not isinstance(node, Mapping):
            raise ConstraintError(f"at {shorten_path(path)}: expected an object, true or false.")
        _check_bounds(node, path)
        uses += _uses(node, path)
        values += sum(_size(node[name]) for name in ("enum", "const") if name in node)
        patterns += _check_patterns(node, path)
        if values > MAX_VALUES or patterns > MAX_PATTERNS:
            what = "values in `enum`" if values > MAX_VALUES else "characters of patterns"
            most = MAX_VALUES if values > MAX_VALUES else MAX_PATTERNS
            raise ConstraintError(f"it has more than {most} {what}; use fewer.")
        for child, where, keyword in _children(node):
            union = keyword in _UNIONS
            waiting.append((child, path + where, depth + 1, unions + union))
    _check_refs(schema)
    return uses


def patterns(schema: Any) -> list[str]:
    """Return the distinct patterns of an analysed schema."""
    found: dict[str, None] = {}
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            if isinstance(node.get("pattern"), str):
                found[node["pattern"]] = None
            waiting += [child for child, _, _ in _children(node)]
    return list(found)


def find_unenforced(uses: list[Use], enforced: Collection[str]) -> list[Use]:
    """Find the uses of a schema that a backend does not enforce while it generates."""
    return [use for use in uses if use.keyword not in enforced]


def _uses(node: Mapping[str, Any], path: str) -> Iterator[Use]:
    beside = "$ref" in node or any(isinstance(node.get(name), list) for name in _UNIONS)
    for name, value in node.items():
        if name not in ASSERTIONS or _is_idle(name, value):
            continue
        if name in ("then", "else") and "if" not in node:
            continue
        if name in _INTEGER and _is_integer(node.get("type")):
            name += ":integer"
        elif name == "format":
            name += f":{str(value)[:_SHOWN]}"
        elif name == "pattern":
            name += _kind(value)
        elif name == "items" and isinstance(value, list):
            name += ":list"
        if "pattern" in node and name.partition(":")[0] in _OF_TEXTS:
            name += ":pattern"
        if beside and name not in ("$ref", "type", *_UNIONS):
            name += ":beside"
        yield Use(name, path)


def _is_integer(kind: Any) -> bool:
    return kind == "integer" or (
        isinstance(kind, list) and "integer" in kind and "number" not in kind
    )


def _is_idle(name: str, value: Any) -> bool:
    idle = _IDLE.get(name, ())
    if name == "type" and isinstance(value, list) and len(value) >= _ALL_TYPES:
        return True
    return any(value == one and type(value) is type(one) for one in idle)


def is_irregular(pattern: Any) -> bool:
    """Return True if no automaton follows a pattern."""
    return _kind(pattern) == ":irregular"


def _kind(pattern: Any) -> str:
    """Return a qualifier that says who can follow a pattern; none where everybody can."""
    try:
        string_of(pattern)
    except (ValueError, TypeError):
        return ":irregular" if _IRREGULAR.search(str(pattern)) else ":foreign"
    return ""


def children_of(node: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the subschemas of a schema: the keyword, the key below it (None where the keyword has one alone), and what stands there."""
    for name, value in node.items():
        if (name in _MAPS or name == "dependencies") and isinstance(value, Mapping):
            for key, child in value.items():
                if name != "dependencies" or not isinstance(child, list):
                    yield name, key, child
        elif (name in _LISTS or name == "items") and isinstance(value, list):
            for number, child in enumerate(value):
                yield name, number, child
        elif name in _SINGLE:
            yield name, None, value
        elif name in _MAPS or name in _LISTS:
            yield name, None, None  # which is no schema, and is told so


def _children(node: Mapping[str, Any]) -> Iterator[tuple[Any, str, str]]:
    """Yield the subschemas of a schema, each with its path and the keyword before it."""
    for name, key, child in children_of(node):
        if key is None:
            yield child, f".{name}", name
        else:
            shown = f"[{key}]" if isinstance(key, int) else f".{key[:_SHOWN]}"
            yield child, f".{name}{shown}", name


def _check_bounds(node: Mapping[str, Any], path: str) -> None:
    """
    Raises:
        ConstraintError: No value keeps two bounds.
    """
    for low, high in _ORDERED:
        least, most = node.get(low), node.get(high)
        if not (isinstance(least, int | float) and isinstance(most, int | float)):
            continue
        if least > most and not isinstance(least, bool) and not isinstance(most, bool):
            raise ConstraintError(
                f"at {shorten_path(path)}: `{low}` ({str(least)[:_SHOWN]}) is above `{high}` ({str(most)[:_SHOWN]}), so that no value "
                "satisfies it; lower it."
            )


def _size(value: Any) -> int:
    """Return the number of values inside a value, itself included."""
    count, waiting = 0, [value]
    while waiting and count <= MAX_VALUES:
        one = waiting.pop()
        count += 1
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return count


def _check_patterns(node: Mapping[str, Any], path: str) -> int:
    """Return the number of characters in a node's patterns."""
    patterns = [node["pattern"]] if "pattern" in node else []
    if isinstance(node.get("patternProperties"), Mapping):
        patterns += node["patternProperties"]
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ConstraintError(f"at {shorten_path(path)}: `pattern` is not a string.")
        if len(pattern) > MAX_PATTERN:
            raise ConstraintError(
                f"at {shorten_path(path)}: a pattern has {len(pattern)} characters; the maximum is {MAX_PATTERN}."
            )
        for found in _COUNTED.finditer(pattern):
            if max(int(found[1]), int(found[2] or 0)) > MAX_REPEAT:
                raise ConstraintError(
                    f"at {shorten_path(path)}: a pattern repeats more than {MAX_REPEAT} times; repeat less often."
                )
    return sum(map(len, patterns))


def _check_refs(schema: Any) -> None:
    """
    Resolve all references like compilers do: each part once, to any depth.

    Raises:
        ConstraintError: A reference is unresolvable, circular, or chained too long.
    """
    seen: set[int] = set()
    waiting: list[tuple[Any, str, int]] = [(schema, "$", 0)]
    while waiting:
        node, path, refs = waiting.pop()
        if not isinstance(node, Mapping) or id(node) in seen:
            continue
        seen.add(id(node))
        if refs > MAX_REFS:
            raise ConstraintError(
                f"at {shorten_path(path)}: more than {MAX_REFS} `$ref` are chained; use fewer."
            )
        for name in ("$dynamicRef", "$recursiveRef"):
            if name in node:
                target(schema, node[name], path)
        ref = node.get("$ref")
        if ref is not None:
            found = target(schema, ref, path)
            _check_loop(schema, found, path)
        for child, where, name in _children(node):
            if name not in DEFINITIONS:  # those are followed where they are referred to
                waiting.append((child, path + where, refs))
        if ref is not None:
            waiting.append((found, path, refs + 1))


def _check_loop(schema: Any, node: Any, path: str) -> None:
    """
    Raises:
        ConstraintError: The references from here are circular, without another keyword in between.
    """
    for _ in range(MAX_REFS + 1):
        if not isinstance(node, Mapping) or "$ref" not in node:
            return
        node = target(schema, node["$ref"], path)
    raise ConstraintError(
        f"at {shorten_path(path)}: `$ref` is circular, or refers through more than {MAX_REFS} others."
    )


def target(schema: Any, ref: Any, path: str) -> Any:
    """
    Return the target of a reference.

    Raises:
        ConstraintError: It is not in this schema.
    """
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        raise ConstraintError(
            f"at {shorten_path(path)}: `$ref` is {str(ref)[:_SHOWN]!r}; only `#` and `#/...`, references within the schema, "
            "are supported; URLs are not fetched."
        )
    node = schema
    for step in ref[2:].split("/") if ref not in ("#", "#/") else ():
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key[:9]) < len(node):
            node = node[int(key[:9])]
        else:
            raise ConstraintError(
                f"at {shorten_path(path)}: `$ref` refers to {ref[:_SHOWN]!r}, which is not in the schema."
            )
    return node


def shorten_path(path: str) -> str:
    """Return a path shortened for a message: its beginning and its end."""
    return path if len(path) <= 2 * _SHOWN else f"{path[:_SHOWN]}...{path[-_SHOWN:]}"
