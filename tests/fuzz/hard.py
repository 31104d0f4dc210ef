"""Grammars, schemas and patterns that are known to be hard for llama.cpp or llguidance, or to be neither's language."""

import json
from typing import Any

Schema = dict[str, Any]


def _chain(count: int) -> str:
    """Rules, each of which is the next one."""
    rules = "\n".join(f"r{i} ::= r{i + 1}" for i in range(count))
    return f'root ::= r0\n{rules}\nr{count} ::= "a"'


def _nested_any_of(levels: int) -> Schema:
    schema: Schema = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [schema, {"type": "object", "properties": {"a": schema}}]}
    return schema


def _references(count: int) -> Schema:
    """Definitions, each of which is the next one."""
    definitions: Schema = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{count}": {"type": "null"}}}


GRAMMARS: dict[str, str] = {
    "a repetition backwards": 'root ::= "a"{5,2}',
    "a repetition of a million": 'root ::= "a"{1000000}',
    "repetitions of repetitions": 'root ::= ((("a"{100}){100}){100}){100}',
    "left recursion": 'root ::= root "a" | "b"',
    "hidden left recursion": 'root ::= e root "a" | "b"\ne ::= "x"?',
    "left recursion by two": 'root ::= a "x"\na ::= root "y" | "z"',
    "nullable doubling": 'root ::= a a a a a a a a\na ::= b b b b b b b b\nb ::= c c c c c c c c\nc ::= "x"?',
    "an endless nothing": "root ::= ((()*)*)*",
    "classes that never close": "[" * 16_000,
    "groups behind a comment": "root ::= # x\r" + "(" * 32_000 + '"a"' + ")" * 32_000,
    "groups": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000,
    "a chain of rules": _chain(4_000),
    "a class backwards": "root ::= [z-a]",
    "no code point": 'root ::= "\\UFFFFFFFF"',
    "a token": "root ::= <[1]>",
    "a far token": "root ::= <[4000000000]>",
    "no rule": "root ::= gone",
    "no root": 'other ::= "a"',
    "nothing": " ",
    "an open text": 'root ::= "a',
    "an open group": "root ::= (",
    "a NUL": 'root ::= "\x00"',
    "many ways": "root ::= ([a-z]* [a-z]*){0,200}",
    "many ways for some texts": "root ::= ([a-df-z]* [a-df-z]*){0,8}",
    "many alternatives": "root ::= " + " | ".join(f'"{i}"' for i in range(9_000)),
    "a hard pattern": "%llguidance {}\nstart: /(a?){2000}a{2000}/",
    "a pattern of a million": "%llguidance {}\nstart: /a{1000000}/",
    "a deep pattern": "%llguidance {}\nstart: /" + "(" * 20_000 + "a" + ")" * 20_000 + "/",
    "no llguidance": "%llguidance {}\nstart: (",
    "a stopped matcher": '%llguidance {}\nstart: "a" start | "b" start "c"',
}

PATTERNS: dict[str, str] = {
    "doubling": "^(a?){2000}a{2000}$",
    "nested stars": "^(((a*)*)*)*$",
    "many ways": "^([a-df-z]*[a-df-z]*){0,8}$",
    "many": "^a{1000000}$",
    "without anchors": "a+",
    "deep": "^" + "(" * 5_000 + "a" + ")" * 5_000 + "$",
    "none": "^(",
    "look behind": "^(?<!a)b$",
    "a reference": r"^(a)\1$",
    "classes": "^" + "[a-z]" * 5_000 + "$",
    "all of Unicode": r"^\p{L}{100}$",
}

SCHEMAS: dict[str, Schema] = {
    "a type that is none": {"type": "hiccup"},
    "itself": {"$ref": "#"},
    "elsewhere": {"$ref": "http://127.0.0.1:9/schema.json"},
    "forty alternatives deep": _nested_any_of(12),
    "a chain of definitions": _references(1_100),
    "a billion items": {"type": "array", "items": {}, "minItems": 10**9},
    "a billion letters": {"type": "string", "minLength": 10**9},
    "large bounds": {"type": "integer", "minimum": -(10**18), "maximum": 10**18},
    "an empty enum": {"enum": []},
    "a long enum": {"enum": [f"value {i}" for i in range(3_000)]},
    "many properties": {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(1_500)},
    },
    "many at will": {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer"} for i in range(60)},
        "required": [],
    },
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 3}},
    "multiples": {"type": "integer", "multipleOf": 7},
    "unique": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "maxItems": 2},
    "named by a pattern": {"type": "object", "patternProperties": {"^x": {"type": "integer"}}},
    "a format of nobody": {"type": "string", "format": "smell"},
    "properties of a number": {"type": "integer", "properties": 3},
    "a list for a schema": {"properties": []},
    **{
        f"a pattern: {name}": {"type": "string", "pattern": text} for name, text in PATTERNS.items()
    },
}

DEEP_JSON = "[" * 100_000 + "]" * 100_000


def tool(schema: Schema, strict: bool = False) -> Schema:
    """A tool whose arguments are bound by a schema."""
    return {
        "type": "function",
        "function": {"name": "f", "parameters": schema} | ({"strict": True} if strict else {}),
    }


def response_format(schema: Schema) -> Schema:
    """The `response_format` of a schema."""
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def size(value: Any) -> int:
    """The bytes of a value in a body."""
    return len(json.dumps(value))
