"""
Puts clients' JSON Schemas into one form, before anything reads them.

Draft 4 and OpenAPI 3.0 write `exclusiveMinimum: true`, some generators put `$defs` beside the reference to them, and others write their own
`$id` before it: each means one thing only, and is valid for whoever wrote it.

Source: https://json-schema.org/draft-06/json-schema-release-notes, https://spec.openapis.org/oas/v3.0.3#schema-object
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from unilect.constraints.schema import DEFINITIONS, MAX_DEPTH, children_of, is_irregular

_OLD = re.compile(r"https?://json-schema\.org/draft-0[34]/schema#?")
_DAYS = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])"
_LEAP = "[0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00"
_DATE = f"([0-9]{{4}}-({_DAYS})|({_LEAP})-02-29)"
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])"
)
#: Formats that an engine takes more of than there is: the 29th of any February.
_DATES = {"date": f"^{_DATE}$", "date-time": f"^{_DATE}T{_TIME}$"}
_BOUNDS = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


def normal(schema: Any) -> Any:
    """Return a schema in today's form; as it is where it is in that form already."""
    if not isinstance(schema, Mapping):
        return schema
    own = schema.get("$id")
    before = own.rstrip("#") + "#" if isinstance(own, str) and own else "#"
    beside: dict[str, dict[str, Any]] = {}

    def change(node: dict[str, Any]) -> dict[str, Any]:
        for name, bound in _BOUNDS:
            if isinstance(node.get(name), bool) and node.pop(name) and bound in node:
                node[name] = node.pop(bound)
        if isinstance(node.get("$ref"), str):
            if node["$ref"].startswith(before):
                node["$ref"] = "#" + node["$ref"].removeprefix(before)
            _note_definitions(node, beside)
        return node

    whole: dict[str, Any] = map_subschemas(schema, change)
    for name, definitions in beside.items():
        if isinstance(known := whole.get(name, {}), Mapping):
            whole[name] = {**definitions, **known}
    if isinstance(whole.get("$schema"), str) and _OLD.fullmatch(whole["$schema"]):
        del whole["$schema"]
    return whole


def _note_definitions(node: Mapping[str, Any], beside: dict[str, dict[str, Any]]) -> None:
    """Note the definitions that stand beside a reference to them: it would look for them in the whole schema."""
    for name in DEFINITIONS:
        if isinstance(node.get(name), Mapping) and node["$ref"].startswith(f"#/{name}/"):
            beside.setdefault(name, {}).update(node[name])


def regular(schema: Any) -> Any:
    """Return a schema in today's form, with patterns for dates, and without those that no automaton follows."""

    def change(node: dict[str, Any]) -> dict[str, Any]:
        if "pattern" not in node and (dates := _DATES.get(str(node.get("format")))) is not None:
            node |= {"pattern": dates}
            del node["format"]
        if "pattern" in node and is_irregular(node["pattern"]):
            del node["pattern"]
        return node

    return map_subschemas(normal(schema), change)


def map_subschemas(schema: Any, change: Callable[[dict[str, Any]], Any], depth: int = 0) -> Any:
    """Return a schema in which every subschema that is an object is replaced, from within to without; none deeper than any may be."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return schema
    node = dict(schema)
    for name, key, child in children_of(schema):
        if isinstance(child, Mapping):
            made = map_subschemas(child, change, depth + 1)
            if key is None:
                node[name] = made
            else:
                if node[name] is schema[name]:
                    node[name] = schema[name].copy()
                node[name][key] = made
    return change(node)
