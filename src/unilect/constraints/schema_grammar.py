"""
Translates a JSON Schema into GBNF, with at most one blank between two symbols.

The grammar allows nothing that breaks the keywords of `keywords.LLAMACPP`. What it cannot enforce it leaves out, for a finished answer is
held against the whole schema. Where a schema says nothing, it allows less than JSON Schema does: an object has no properties but those
that are named, in their order, and `minimum` alone means a number.

Source: https://json-schema.org/draft/2020-12/json-schema-validation
"""

import json
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

from unilect.constraints import ConstraintError
from unilect.constraints.digits import integers
from unilect.constraints.gbnf import MAX_REPEAT, WORD
from unilect.constraints.regex import CHARACTER, literal, repeat, string_of
from unilect.constraints.schema import ASSERTIONS, names, target
from unilect.constraints.schema_merge import Nothing, merge_all_of, types_of

Schema: TypeAlias = Mapping[str, Any]
MAX_RULES = 4000
_HEX = "[0-9a-fA-F]"
_UNIT = f"([0-9A-Ca-cE-Fe-f] {_HEX}{{3}} | [dD] [0-7] {_HEX}{{2}})"  # no half of a character
_DAYS = (
    '("0" [13578] | "1" [02]) "-" ("0" [1-9] | [1-2] [0-9] | "3" [0-1]) | '
    '("0" [469] | "11") "-" ("0" [1-9] | [1-2] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8])'
)
_PLAIN = {
    "space": '| " "',
    CHARACTER: f'[^"\\\\\\x00-\\x1F\\x7F] | "\\\\" (["\\\\/bfnrt] | "u" {_UNIT})',
    "plain-char": '[^"\\\\\\x00-\\x1F\\x7F]',
    "string": f'"\\"" {CHARACTER}* "\\""',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "integer": '"-"? ("0" | [1-9] [0-9]{0,15})',
    "positive": '("0" | [1-9] [0-9]{0,15}) fraction',
    "number": '"-"? positive',
    "fraction": '("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?',
    "value": "object | array | string | number | boolean | null",
    "object": '"{" space (member ("," space member)*)? space "}"',
    "member": 'string ":" space value',
    "array": '"[" space (value ("," space value)*)? space "]"',
    "date": f'[0-9]{{4}} "-" ({_DAYS})',
    "time": '([0-1] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? ("Z" | [-+] ([0-1] [0-9] | "2" [0-3]) ":" [0-5] [0-9])',
    "date-time": 'date "T" time',
    "uuid": " \"-\" ".join(f"{_HEX}{{{count}}}" for count in (8, 4, 4, 4, 12)),
}  # fmt: skip
_FORMATS = names("date time date-time uuid")
_MOST_SIGNS = 32  # of a name that another must not be


def grammar_of(schema: Any, without: Collection[str] = ()) -> str:
    """
    Return the grammar of an analysed schema in its normal form.

    Args:
        without: Patterns that it leaves out.

    Raises:
        ConstraintError: Nothing satisfies the schema, or it needs too many rules.
    """
    return _Writer(schema, without).write()


class _Writer:
    """Writes the rules of one schema: one for each part that is referred to, so that a part may contain itself."""

    def __init__(self, schema: Any, without: Collection[str]) -> None:
        self._schema = schema
        self._without = without
        self._rules: dict[str, str] = {}
        self._by_key: dict[str, str] = {}
        self._made = 0

    def write(self) -> str:
        """Write the whole grammar."""
        self._rules["root"] = ""
        try:
            self._rules["root"] = self._value(self._schema)
        except Nothing as error:
            raise ConstraintError(f"at $: {error}; no value satisfies it.") from error
        return write_rules(self._rules)  # a choice that nothing satisfies has left others behind

    def _plain(self, name: str) -> str:
        """Return the name of a rule that is the same in every grammar, with those that it refers to."""
        if name not in self._rules:
            self._rules[name] = _PLAIN[name]
            for below in _find_references(_PLAIN[name]):
                self._plain(below)
        return name

    def _rule(self, rule: str) -> str:
        """Return the name of a new rule."""
        if self._made >= MAX_RULES:
            raise ConstraintError(f"its grammar has more than {MAX_RULES} rules; make it smaller.")
        self._made += 1
        name = f"part-{self._made}"
        self._rules[name] = rule
        return name

    def _part(self, schema: Any) -> str:
        """
        Return the name of the rule of a part.

        Raises:
            Nothing: No value satisfies it.
        """
        if not isinstance(schema, Mapping) or not _says_something(schema):
            if schema is False:
                raise Nothing("false allows nothing")
            return self._plain("value")
        key = json.dumps(schema, sort_keys=True)
        if key in self._by_key:
            return self._by_key[key]
        name = self._by_key[key] = self._rule("")
        try:
            self._rules[name] = self._value(schema)
        except Nothing:
            del self._by_key[key], self._rules[name]
            raise
        return name

    def _value(self, schema: Any) -> str:
        """
        Return the right side of a rule for the values of a schema.

        Raises:
            Nothing: There are none.
        """
        if isinstance(schema, Mapping) and "$ref" in schema:
            found = target(self._schema, schema["$ref"], "$")
            rest = {name: value for name, value in schema.items() if name != "$ref"}
            return self._part(found if not _says_something(rest) else {"allOf": [found, rest]})
        if not isinstance(schema, Mapping):
            return self._part(schema)
        schema = merge_all_of(schema, self._resolve)
        if "$ref" in schema:
            return self._value(schema)
        for union in ("anyOf", "oneOf"):
            if isinstance(schema.get(union), list):
                rest = {name: value for name, value in schema.items() if name != union}
                return self._any_of(schema[union], rest)
        if "const" in schema or "enum" in schema:
            return self._constants(schema)
        return self._choices((self._write_type, kind, schema) for kind in types_of(schema))

    def _resolve(self, schema: Schema) -> Any:
        return target(self._schema, schema["$ref"], "$")

    def _any_of(self, choices: list[Any], rest: dict[str, Any]) -> str:
        if _says_something(rest):
            choices = [{"allOf": [choice, rest]} for choice in choices]
        return self._choices((self._part, choice) for choice in choices)

    def _choices(self, made: Iterable[tuple[Any, ...]]) -> str:
        """Return those of these choices that some value satisfies."""
        written, why = list[str](), "there is no choice"
        for make, *arguments in made:
            try:
                written.append(make(*arguments))
            except Nothing as error:
                why = str(error)
        if not written:
            raise Nothing(why)
        return " | ".join(dict.fromkeys(written))

    def _constants(self, schema: Schema) -> str:
        values = [schema.get("const")]
        if "const" not in schema and isinstance(schema["enum"], list):
            values = schema["enum"]
        kinds = types_of(schema) if "type" in schema else None
        fitting = [value for value in values if kinds is None or _kind_of(value) & set(kinds)]
        if not fitting:
            raise Nothing("none of its constants has its type")
        return " | ".join(dict.fromkeys(literal(_to_json(value)) for value in fitting))

    def _write_type(self, kind: str, schema: Schema) -> str:
        match kind:
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
            case "string":
                return self._string(schema)
            case "integer":
                return self._integer(schema)
            case "number":
                least = [schema.get(name) for name in ("minimum", "exclusiveMinimum")]
                above = any(isinstance(one, int | float) and one >= 0 for one in least)
                return self._plain("positive" if above else "number")
        return self._plain(kind)

    def _integer(self, schema: Schema) -> str:
        least = [math.ceil(schema["minimum"])] if _bounds(schema, "minimum") else []
        if _bounds(schema, "exclusiveMinimum"):
            least.append(math.floor(schema["exclusiveMinimum"]) + 1)
        most = [math.floor(schema["maximum"])] if _bounds(schema, "maximum") else []
        if _bounds(schema, "exclusiveMaximum"):
            most.append(math.ceil(schema["exclusiveMaximum"]) - 1)
        if not least and not most:
            return self._plain("integer")
        try:
            rule = integers(max(least, default=None), min(most, default=None))
        except ValueError as error:
            raise Nothing(str(error)) from error
        return f"({rule})"

    def _string(self, schema: Schema) -> str:
        self._plain(CHARACTER)
        if isinstance(pattern := schema.get("pattern"), str) and pattern not in self._without:
            try:
                return f'"\\"" ({string_of(pattern)}) "\\""'
            except ValueError:
                pass  # the answer is held against it
        if (form := schema.get("format")) in _FORMATS:
            return f'"\\"" {self._plain(str(form))} "\\""'
        least, most = _counts(schema, "minLength", "maxLength")
        if (least, most) == (0, None):
            return self._plain("string")
        return f'"\\"" {repeat(CHARACTER, least, most)} "\\""'

    def _array(self, schema: Schema) -> str:
        first, rest = schema.get("prefixItems"), schema.get("items")
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems")
        first = first if isinstance(first, list) else []
        least, most = _counts(schema, "minItems", "maxItems")
        space = self._plain("space")
        heads = [self._part(one) for one in first[: len(first) if most is None else most]]
        try:
            more = None if rest is False else self._part({} if rest is None else rest)
        except Nothing:
            more = None
        if more is None and least > len(heads):
            raise Nothing("an array would need more items than it may have")
        inside = ""
        if more is not None and (most is None or most > len(heads)):
            room = None if most is None else most - len(heads)
            inside = self._items(more, max(0, least - len(heads)), room, not heads)
        for place in range(len(heads) - 1, -1, -1):
            if inside and place + 1 < len(heads) and place + 1 >= least:
                inside = f"({inside})?"
            inside = ("" if place == 0 else f'"," {space} ') + f"{heads[place]} {inside}".strip()
        if not inside:
            return f'"[" {space} "]"'
        return f'"[" {space} {inside} {space} "]"' + ("" if least else f' | "[" {space} "]"')

    def _items(self, item: str, least: int, most: int | None, first: bool) -> str:
        """Write items behind others, or from the first on; there is one at least, where they are the first."""
        space = self._plain("space")
        if not first:
            return repeat(f'("," {space} {item})', least, most)
        more = None if most is None else most - 1
        behind = repeat(f'("," {space} {item})', max(0, least - 1), more)
        return f"{item} {behind}".strip()

    def _object(self, schema: Schema) -> str:
        properties = schema.get("properties")
        properties = dict(properties) if isinstance(properties, Mapping) else {}
        required = [name for name in schema.get("required") or () if isinstance(name, str)]
        others = schema.get("additionalProperties")
        if others is None and (not properties or "patternProperties" in schema):
            others = {}
        for name in required:
            properties.setdefault(name, {} if others is None else others)
        space = self._plain("space")
        members = list[tuple[str, bool]]()
        for name, part in properties.items():
            try:
                rule = self._part(part)
            except Nothing:
                if name in required:
                    raise
                continue
            head = literal(json.dumps(name, ensure_ascii=False) + ":")
            members.append((f"{head} {space} {rule}", name in required))
        more = ""
        if others is not None and others is not False:
            more = self._other_members(list(properties), others)
        whole, empty = self._members(members, more), f'"{{" {space} "}}"'
        if not whole:
            return empty
        must = any(required for _, required in members)
        return f'"{{" {space} ({whole}) {space} "}}"' + ("" if must else f" | {empty}")

    def _other_members(self, known: list[str], others: Any) -> str:
        """Return a rule for any property but those that are known; empty where there can be none."""
        try:
            part = self._part(others)
        except Nothing:
            return ""
        self._plain("plain-char")
        key = self._beside(_tree(known)) if known else "plain-char*"
        return self._rule(f'"\\"" {key} "\\":" {self._plain("space")} {part}')

    def _beside(self, node: dict[str, Any]) -> str:
        """Return the rule of the texts that lead out of a tree of texts; one that is too long lets nothing out that begins like it."""
        signs = [sign for sign in node if len(sign) == 1]
        apart = "".join(literal(sign)[1:-1] for sign in signs)
        choices = [f'[^"\\\\\\x00-\\x1F\\x7F{apart}] plain-char*']
        for sign in signs:
            if "long" not in node[sign]:
                choices.append(f"{literal(sign)} {self._beside(node[sign])}")
        if "" not in node:
            choices.append('""')
        return self._rule(" | ".join(choices))

    def _members(self, members: list[tuple[str, bool]], more: str) -> str:
        """Write properties in their order, those that are not required or not, but one at least."""
        space = self._plain("space")
        tail = f'("," {space} {more})*' if more else ""
        starts = [f"{more} {tail}"] if more else []
        for member, required in reversed(members):
            start = f"{member} {tail}".strip()
            starts = [start] if required else [start, *starts]
            behind = f'"," {space} {member}'
            tail = self._rule(f"{behind} {tail}" if required else f"({behind})? {tail}")
        return " | ".join(starts)


def write_rules(rules: Mapping[str, str]) -> str:
    """Write a grammar of those of some rules that its root needs."""
    wanted, waiting = {"root"}, ["root"]
    while waiting:
        named = _find_references(rules.get(waiting.pop(), "")) - wanted
        wanted |= named
        waiting += named
    return "".join(f"{name} ::= {rule}\n" for name, rule in rules.items() if name in wanted)


def _tree(texts: list[str]) -> dict[str, Any]:
    """Return texts by their characters, each with "" at its end; of one that is too long the beginning, with "long"."""
    tree: dict[str, Any] = {}
    for text in texts:
        if json.dumps(text, ensure_ascii=False) != f'"{text}"':
            continue  # it has to be escaped, and no other name is
        node = tree
        for sign in text[:_MOST_SIGNS]:
            node = node.setdefault(sign, {})
        node["" if len(text) <= _MOST_SIGNS else "long"] = {}
    return tree


def _find_references(rule: str) -> set[str]:
    """Find the rules that a rule refers to."""
    return {found["name"] for found in WORD.finditer(rule) if found["name"]}


def _says_something(schema: Schema) -> bool:
    return not ASSERTIONS.isdisjoint(schema)


def _kind_of(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return {"integer", "number"}
    kinds = {float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return {kinds[type(value)]}


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bounds(schema: Schema, name: str) -> bool:
    value = schema.get(name)
    if isinstance(value, float):
        return math.isfinite(value)  # an integer always is, and may be too large for a float
    return isinstance(value, int) and not isinstance(value, bool)


def _counts(schema: Schema, least: str, most: str) -> tuple[int, int | None]:
    """
    Raises:
        Nothing: The least is more than the most.
    """
    low = int(schema[least]) if _bounds(schema, least) else 0
    high = int(schema[most]) if _bounds(schema, most) else None
    if high is not None and low > high:
        raise Nothing(f"`{least}` ({low}) is more than `{most}` ({high})")
    return min(low, MAX_REPEAT), None if high is None or high > MAX_REPEAT else high
