"""Every keyword of JSON Schema with a text that satisfies it and one that breaks it alone."""

from typing import Any


def _object(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}} | keywords  # fmt: skip


INTEGERS = {"type": "array", "items": {"type": "integer"}}

#: keyword -> (a schema that uses it, what satisfies it, what breaks it)
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "type": ({"type": "integer"}, "3", '"x"'),
    "enum": ({"enum": ["a", 2]}, '"a"', '"b"'),
    "const": ({"const": "a"}, '"a"', '"b"'),
    "properties": (_object(), '{"a": 1}', '{"a": "x"}'),
    "required": (_object(required=["a"]), '{"a": 1}', "{}"),
    "additionalProperties": ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"c": 1}', '{"c": "x"}'),
    "patternProperties": ({"type": "object", "patternProperties": {"^c": {"type": "integer"}}}, '{"c": 1}', '{"c": "x"}'),
    "minProperties": ({"type": "object", "minProperties": 2}, '{"a": 1, "b": 2}', '{"a": 1}'),
    "maxProperties": ({"type": "object", "maxProperties": 1}, '{"a": 1}', '{"a": 1, "b": 2}'),
    "propertyNames": ({"type": "object", "propertyNames": {"maxLength": 1}}, '{"a": 1}', '{"ab": 1}'),
    "dependentRequired": (_object(dependentRequired={"a": ["b"]}), '{"a": 1, "b": 2}', '{"a": 1}'),
    "dependentSchemas": (_object(dependentSchemas={"a": {"required": ["b"]}}), '{"a": 1, "b": 2}', '{"a": 1}'),
    "dependencies": (_object(dependencies={"a": ["b"]}) | {"$schema": "http://json-schema.org/draft-07/schema#"}, '{"a": 1, "b": 2}', '{"a": 1}'),
    "unevaluatedProperties": ({"type": "object", "unevaluatedProperties": False}, "{}", '{"c": 1}'),
    "items": (INTEGERS, "[1]", '["x"]'),
    "items:list": ({"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "$schema": "http://json-schema.org/draft-07/schema#"}, '[1, "x"]', '["x", 1]'),
    "additionalItems": ({"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "string"}, "$schema": "http://json-schema.org/draft-07/schema#"}, '[1, "x"]', "[1, 2]"),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, '[1, "x"]', '["x", 1]'),
    "minItems": (INTEGERS | {"minItems": 2}, "[1, 2]", "[1]"),
    "maxItems": (INTEGERS | {"maxItems": 2}, "[1, 2]", "[1, 2, 3]"),
    "uniqueItems": (INTEGERS | {"uniqueItems": True}, "[1, 2]", "[1, 1]"),
    "contains": ({"type": "array", "contains": {"type": "integer"}}, '["x", 1]', '["x"]'),
    "minContains": ({"type": "array", "contains": {"type": "integer"}, "minContains": 2}, "[1, 2]", "[1]"),
    "maxContains": ({"type": "array", "contains": {"type": "integer"}, "maxContains": 1}, "[1]", "[1, 2]"),
    "unevaluatedItems": ({"type": "array", "allOf": [{"prefixItems": [{"type": "integer"}]}], "unevaluatedItems": False}, "[1]", "[1, 2]"),
    "minLength": ({"type": "string", "minLength": 2}, '"ab"', '"a"'),
    "maxLength": ({"type": "string", "maxLength": 2}, '"ab"', '"abc"'),
    "pattern": ({"type": "string", "pattern": "a.b"}, '"xaxbx"', '"ab"'),
    "pattern:anchored": ({"type": "string", "pattern": "^[a-c]+$"}, '"abc"', '"abd"'),
    "format:date": ({"type": "string", "format": "date"}, '"2024-01-31"', '"31.1.2024"'),
    "format:time": ({"type": "string", "format": "time"}, '"10:20:30Z"', '"10.20"'),
    "format:date-time": ({"type": "string", "format": "date-time"}, '"2024-01-31T10:20:30Z"', '"yesterday"'),
    "format:uuid": ({"type": "string", "format": "uuid"}, '"123e4567-e89b-12d3-a456-426614174000"', '"123"'),
    "format:email": ({"type": "string", "format": "email"}, '"a@example.com"', '"a"'),
    "format:hostname": ({"type": "string", "format": "hostname"}, '"a.example"', '"a b"'),
    "format:ipv4": ({"type": "string", "format": "ipv4"}, '"127.0.0.1"', '"127.0.0"'),
    "format:ipv6": ({"type": "string", "format": "ipv6"}, '"::1"', '"1"'),
    "format:uri": ({"type": "string", "format": "uri"}, '"http://a.example/"', '"a b"'),
    "format:duration": ({"type": "string", "format": "duration"}, '"P3D"', '"3 days"'),
    "minimum": ({"type": "number", "minimum": 2}, "2.5", "1.5"),
    "maximum": ({"type": "number", "maximum": 2}, "1.5", "2.5"),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 2}, "2.5", "2"),
    "exclusiveMaximum": ({"type": "number", "exclusiveMaximum": 2}, "1.5", "2"),
    "minimum:integer": ({"type": "integer", "minimum": 12}, "12", "11"),
    "maximum:integer": ({"type": "integer", "maximum": 12}, "12", "13"),
    "exclusiveMinimum:integer": ({"type": "integer", "exclusiveMinimum": 12}, "13", "12"),
    "exclusiveMaximum:integer": ({"type": "integer", "exclusiveMaximum": 12}, "11", "12"),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, "9", "10"),
    "allOf": ({"allOf": [_object(required=["a"]), _object(required=["b"])]}, '{"a": 1, "b": 2}', '{"a": 1}'),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "1", "true"),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, "1", "true"),
    "not": ({"type": "integer", "not": {"const": 3}}, "4", "3"),
    "if": (_object() | {"if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{"a": 1, "b": 2}', '{"a": 1}'),
    "else": (_object() | {"if": {"required": ["a"]}, "else": {"required": ["b"]}}, '{"a": 1}', "{}"),
    "$ref": ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "integer"}}}, "3", '"x"'),
    "maxLength:beside": ({"$ref": "#/$defs/x", "maxLength": 1, "$defs": {"x": {"type": "string"}}}, '"a"', '"ab"'),
    "required:beside": ({"anyOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"type": "string"}}}], "type": "object", "required": ["a"]}, '{"a": 1}', "{}"),
}  # fmt: skip
