"""
The JSON Schema keywords that each library enforces, named as in `schema.Use`.

The tests verify both tables with the libraries: for each keyword with a text that violates only that keyword.
"""

from unilect.constraints.schema import Use, names

#: What llama.cpp's grammar for a schema enforces. Beside `$ref`, `anyOf` and `oneOf` it looks at nothing; `oneOf` is `anyOf`.
LLAMACPP = names(
    "$ref additionalItems additionalProperties allOf anyOf const enum exclusiveMaximum:integer exclusiveMinimum:integer "
    "format:date format:date-time format:time format:uuid items items:list maxItems maxLength maximum:integer minItems "
    "minLength minimum:integer oneOf pattern:anchored prefixItems properties required type"
)
_LLGUIDANCE = LLAMACPP | names(
    "exclusiveMaximum exclusiveMinimum format:duration format:email format:hostname format:ipv4 format:ipv6 format:uri "
    "maxProperties maximum minProperties minimum multipleOf pattern patternProperties"
)
#: What llguidance enforces, also beside others.
LLGUIDANCE = _LLGUIDANCE | {f"{keyword}:beside" for keyword in _LLGUIDANCE}
#: The formats that a finished answer can be held against.
FORMATS = names(
    "date date-time duration email hostname idn-email idn-hostname ipv4 ipv6 iri iri-reference json-pointer regex "
    "relative-json-pointer time uri uri-reference uri-template uuid"
)


def can_be_validated(use: Use) -> bool:
    """Whether a finished answer can be validated against a keyword: all except unknown formats."""
    keyword = use.keyword.removesuffix(":beside")
    return not keyword.startswith("format:") or keyword.removeprefix("format:") in FORMATS


def in_words(use: Use) -> str:
    """
    A use as an error names it.

    >>> in_words(Use("minimum:beside", "$.properties.a"))
    '`minimum` (at $.properties.a, beside a `$ref` or a union)'
    """
    keyword, *qualifiers = use.keyword.split(":")
    if keyword == "format":
        keyword = ": ".join(["format", *qualifiers[:1]])
    beside = ", beside a `$ref` or a union" if "beside" in qualifiers else ""
    return f"`{keyword}` (at {use.path}{beside})"
