"""
Normalizes the constraints of other servers' clients to `response_format` with a JSON Schema, or `grammar`.

A backend that supports the field gets it unchanged. For any other backend it is converted, or
refused by name: a constraint is never dropped.

Sources: https://docs.vllm.ai/en/latest/features/structured_outputs.html, https://docs.sglang.ai/advanced_features/structured_outputs.html,
https://github.com/ollama/ollama/blob/main/docs/api.md, https://huggingface.co/docs/text-generation-inference/basic_tutorials/using_guidance
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from unilect.api.backend import Capabilities, Support
from unilect.api.parameters.foreign import CHANGES_ANSWER, CONSTRAINTS, SAME_AS
from unilect.api.parameters.rules import parameters_of, refusal
from unilect.constraints import is_llguidance
from unilect.constraints.regex import grammar_of, literal
from unilect.core.bounds import check_free_form
from unilect.core.errors import InvalidRequest, UnilectError, WrongType
from unilect.core.requests import (
    GenerationRequest,
    GrammarFormat,
    JsonFormat,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    RegexFormat,
    StructuralTagFormat,
    TextFormat,
)

GenerationT = TypeVar("GenerationT", bound=GenerationRequest)
#: A constraint in our words: a grammar, or a JSON Schema.
_Found: TypeAlias = str | dict[str, Any]
MAX_CHOICES = 1024
#: A parameter in a text: in backticks, or a part of a list, which servers quote in other ways.
_PARAM = re.compile(
    r"`(\w[\w.\[\]]*)`|\b((?:messages|tools|documents)\[\d{1,6}\](?:\.\w+(?:\[\d{1,6}\])?){0,8})"
)
MAX_BYTES = 64 * 1024
#: What of `structured_outputs` binds the answer, and the field that says the same alone.
_STRUCTURED = {
    "json": "guided_json",
    "regex": "guided_regex",
    "choice": "guided_choice",
    "grammar": "guided_grammar",
    "json_object": "guided_json_object",
    "structural_tag": "structural_tag",
}
#: What else may stand there: how the server of vLLM does it.
_MEANS = frozenset({"disable_fallback", "disable_any_whitespace", "backend"})
_JSON = {"type": "object"}
_USUAL = frozenset({TextFormat, JsonObjectFormat, JsonSchemaFormat})


def normalize_aliases(
    request: GenerationT, capabilities: Capabilities
) -> tuple[GenerationT, dict[str, str]]:
    """
    A request whose constraint the backend can be told of.

    Returns:
        The request, and our name for the constraint -> the client's, for errors.

    Raises:
        InvalidRequest: There are two constraints, or one that cannot be read.
        UnsupportedParameter: One cannot be put into our words.
    """
    form = request.response_format
    usual = form is None or type(form) in _USUAL
    # nearly every request has no other, and pays no more than this
    if (
        usual
        and CONSTRAINTS.isdisjoint(request.raw_fields)
        and (form is None or not request.grammar)
    ):
        return request, {}
    names = _list_constraints(request)
    if len(names) > 1:
        first, second = sorted(names[:2], key=lambda name: name == "response_format")
        raise InvalidRequest(
            f"`{first}` and `{second}` cannot be combined; send one of them.", param=first
        )
    if not names or _takes(capabilities, names[0], request):
        return request, {}
    name = names[0]
    if name == "response_format":
        found = _of_format(request)
    else:
        raw = request.raw_fields[name]
        if len(memoryview(raw)) > 2 * MAX_BYTES:
            raise _wrong(name, f"the maximum is {MAX_BYTES} bytes")
        found = _read(name, _decode(name, raw))
    raw_fields = {field: raw for field, raw in request.raw_fields.items() if field != name}
    known = dict.fromkeys({"response_format", name} & parameters_of(type(request)))
    request = msgspec.structs.replace(request, raw_fields=raw_fields, **known)
    if isinstance(found, str):
        return request.changed(grammar=found), {"grammar": name}
    check_free_form(name, found)
    told = JsonSchemaFormat(JsonSchema("answer", schema=found))
    return request.changed(response_format=told), {"response_format": name}


def becomes(name: str) -> list[str]:
    """Our parameters that another server's constraint may become, for a backend that does not know it."""
    return _READERS[name][1] if name in _READERS else []


def support(capabilities: Capabilities) -> dict[str, Support]:
    """Return the support of each constraint that other servers have."""
    found = dict[str, Support]()
    for name in CONSTRAINTS:
        ours = becomes(name)
        if _is_taken(capabilities, name):
            found[name] = "native"
        else:
            made_of = any(_is_taken(capabilities, one) for one in ours)
            made_of = made_of or (capabilities.chat and "response_format" in ours)
            found[name] = "emulated" if made_of else "refused"
    return found


def rename_param(error: UnilectError, names: Mapping[str, str]) -> UnilectError:
    """An error that names a constraint as the client does."""
    return rename_params(error, lambda name: names.get(name, name))


def rename_params(error: UnilectError, rename: Callable[[str], str]) -> UnilectError:
    """Have an error name parameters as the client does, in `param` and wherever a text has one; returns it."""

    def substitute(found: re.Match[str]) -> str:
        return f"`{rename(found[1])}`" if found[1] else rename(found[2])

    param = error.param and rename(error.param)
    error.reword(lambda text: _PARAM.sub(substitute, text))
    error.param = param
    return error


def _list_constraints(request: GenerationRequest) -> list[str]:
    """The names of the constraints that a client has set."""
    names = []
    if request.response_format is not None and not isinstance(request.response_format, TextFormat):
        names.append("response_format")
    if request.grammar:
        names.append("grammar")
    for name, raw in request.raw_fields.items():
        if name in CONSTRAINTS and not _is_nothing(name, raw) and not _is_said(request, name):
            names.append(name)
    return names


def _is_said(request: GenerationRequest, name: str) -> bool:
    """True for a constraint that our own parameter says too."""
    same = (getattr(request, ours) for ours in SAME_AS.get(name, ()))
    said = [value for value in same if value]
    return bool(said) and _decode(name, request.raw_fields[name]) in said


def _is_nothing(name: str, raw: Raw) -> bool:
    if len(memoryview(raw)) > 16:
        return False
    value = _decode(name, raw)
    return value is None or value in CHANGES_ANSWER[name]


def _takes(capabilities: Capabilities, name: str, request: GenerationRequest) -> bool:
    """Return True if a backend gets a constraint unchanged."""
    if name == "grammar":
        return True
    if name == "response_format":
        if isinstance(request.response_format, JsonObjectFormat | JsonSchemaFormat):
            return True
        return capabilities.passes_unknown and _is_taken(capabilities, "structured_outputs")
    return _is_taken(capabilities, name)


def _is_taken(capabilities: Capabilities, name: str) -> bool:
    otherwise: Support = "native" if capabilities.passes_unknown else "refused"
    return capabilities.parameters.get(name, otherwise) != "refused"


def _of_format(request: GenerationRequest) -> _Found:
    match request.response_format:
        case JsonFormat(value):
            return value
        case RegexFormat(pattern, value):
            return _regex("response_format", pattern if pattern is not None else value)
        case GrammarFormat(grammar):
            return _grammar("response_format", grammar)
        case StructuralTagFormat():
            raise refusal("response_format", "schemas between tags cannot be compiled")
    raise _wrong("response_format", "expected a form of answers")


def _read_structured(name: str, value: Any) -> _Found:
    """vLLM's field of fields: one of them is a constraint."""
    if not isinstance(value, dict):
        raise _wrong(name, "expected an object", WrongType)
    given = {key: item for key, item in value.items() if item is not None and item is not False}
    forms = [key for key in given if key in _STRUCTURED]
    if len(forms) != 1:
        said = " and ".join(f"`{key}`" for key in forms) or "none"
        raise _wrong(name, f"expected one of {', '.join(_STRUCTURED)}; it has {said}")
    for key in given.keys() - {*forms, *_MEANS}:
        if not key.startswith("_"):
            raise refusal(f"{name}.{key[:64]}", "the engine has no such switch")
    try:
        return _read(_STRUCTURED[forms[0]], given[forms[0]])
    except InvalidRequest as error:
        raise rename_param(error, {_STRUCTURED[forms[0]]: f"{name}.{forms[0]}"}) from error


def _schema(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = _decode(name, value.encode())
    if not isinstance(value, dict):
        raise _wrong(name, "expected a JSON Schema, as an object or a JSON string", WrongType)
    return value


def _regex(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "expected a regular expression, as a string", WrongType)
    try:
        return grammar_of(value)
    except ValueError as error:
        raise InvalidRequest(f"`{name}` cannot be compiled: {error}.", param=name) from error


def _choice(name: str, value: Any) -> str:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(name, "expected a list of strings", WrongType)
    if not 1 <= len(value) <= MAX_CHOICES:
        raise _wrong(name, f"expected 1 to {MAX_CHOICES} strings; it has {len(value)}")
    try:
        choices = " | ".join(dict.fromkeys(map(literal, value)))
    except ValueError as error:
        raise InvalidRequest(f"`{name}` cannot be compiled: {error}.", param=name) from error
    return _make_grammar(name, f"root ::= {choices}\n")


def _grammar(name: str, value: Any) -> str:
    """GBNF, which is SGLang's and xgrammar's EBNF too, or Lark."""
    if not isinstance(value, str) or not value.strip():
        raise _wrong(name, "expected a grammar, as a string", WrongType)
    known = "::=" in value or is_llguidance(value)
    return _make_grammar(name, value if known else f"%llguidance {{}}\n{value}")


def _make_grammar(name: str, grammar: str) -> str:
    if len(grammar) > MAX_BYTES:
        raise _wrong(
            name, f"as a grammar it has {len(grammar)} characters; the maximum is {MAX_BYTES}"
        )
    return grammar


def _json_object(name: str, value: Any) -> dict[str, Any]:
    if value is not True:
        raise _wrong(name, "expected true or false")
    return _JSON


def _format(name: str, value: Any) -> dict[str, Any]:
    """A schema, or the word for any JSON."""
    return _JSON if value == "json" else _schema(name, value)


#: Readers of constraints for a backend that does not know them, and what each may become.
_READERS: dict[str, tuple[Callable[[str, Any], _Found], list[str]]] = {
    **dict.fromkeys(("guided_json", "json_schema"), (_schema, ["response_format"])),
    "guided_json_object": (_json_object, ["response_format"]),
    "format": (_format, ["response_format"]),
    **dict.fromkeys(("guided_regex", "regex"), (_regex, ["grammar"])),
    "guided_choice": (_choice, ["grammar"]),
    **dict.fromkeys(("guided_grammar", "ebnf", "grammar_string"), (_grammar, ["grammar"])),
    "structured_outputs": (_read_structured, ["response_format", "grammar"]),
}


def _read(name: str, value: Any) -> _Found:
    """Parse the schema or the grammar of a field."""
    if name not in _READERS:
        raise refusal(name, "schemas between tags cannot be compiled")
    return _READERS[name][0](name, value)


def _decode(name: str, written: bytes | Raw) -> Any:
    try:
        return msgspec.json.decode(written)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _wrong(name, f"it is not valid JSON ({str(error)[:100]})", WrongType) from error


def _wrong(name: str, why: str, kind: type[InvalidRequest] = InvalidRequest) -> InvalidRequest:
    return kind(f"`{name}`: {why}.", param=name)
