"""
The JSON Schema keywords that each library enforces, named as in `schema.Use`.

The tests verify both tables with the libraries: for each keyword with a text that violates only that keyword.
"""

from unilect.constraints.schema import Use, names

_OF_TEXTS = names("minLength:pattern maxLength:pattern format:date:pattern format:date-time:pattern format:time:pattern format:uuid:pattern")  # fmt: skip
_BOTH = names(
    "$ref additionalItems additionalProperties allOf anyOf const enum exclusiveMaximum:integer exclusiveMinimum:integer "
    "format:date format:date-time format:time format:uuid items items:list maxItems maxLength maximum:integer minItems "
    "minLength minimum:integer oneOf pattern prefixItems properties required type"
)


def _anywhere(keywords: frozenset[str]) -> frozenset[str]:
    return keywords | {f"{keyword}:beside" for keyword in keywords}


#: The keywords that the grammar of `schema_grammar` enforces for llama.cpp, also beside others; `oneOf` is `anyOf`.
LLAMACPP = _anywhere(_BOTH)
#: What llguidance enforces, also beside others.
LLGUIDANCE = _anywhere(
    _BOTH
    | _OF_TEXTS
    | names(
        "exclusiveMaximum exclusiveMinimum format:duration format:email format:hostname format:ipv4 format:ipv6 format:uri "
        "maxProperties maximum minProperties minimum multipleOf pattern:foreign patternProperties"
    )
)
#: The formats that a finished answer can be held against.
FORMATS = names(
    "date date-time duration email hostname idn-email idn-hostname ipv4 ipv6 iri iri-reference json-pointer regex "
    "relative-json-pointer time uri uri-reference uri-template uuid"
)


def can_be_validated(use: Use) -> bool:
    """Return True if a finished answer can be validated against a keyword: all except unknown formats."""
    keyword = use.keyword.removesuffix(":beside").removesuffix(":pattern")
    return not keyword.startswith("format:") or keyword.removeprefix("format:") in FORMATS


def in_words(use: Use) -> str:
    """
    Return a use as an error names it.

    >>> in_words(Use("minimum:beside", "$.properties.a"))
    '`minimum` (at $.properties.a, beside a `$ref` or a union)'
    """
    keyword, *qualifiers = use.keyword.split(":")
    if keyword == "format":
        keyword = ": ".join(["format", *qualifiers[:1]])
    beside = ", beside a `$ref` or a union" if "beside" in qualifiers else ""
    return f"`{keyword}` (at {use.path}{beside})"
