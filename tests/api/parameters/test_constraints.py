"""Tests of unilect.api.parameters.constraints."""

from typing import Any

import msgspec
import pytest

from support.clients.bodies import chat, request_of
from unilect.api.backend import Capabilities
from unilect.api.parameters.constraints import normalize_aliases, rename_param
from unilect.api.parameters.foreign import CONSTRAINTS
from unilect.api.parameters.rules import resolve_parameters
from unilect.core.errors import InvalidRequest, UnsupportedParameter
from unilect.core.requests import CompletionRequest
from unilect.engines.gguf import _request as _gguf_request
from unilect.engines.transformers.words import parameters as _hf_parameters
from unilect.upstreams.openai._servers import KINDS, capabilities

ENGINES = {
    "gguf": Capabilities(parameters=_gguf_request.PARAMETERS),
    "transformers": Capabilities(parameters=_hf_parameters.PARAMETERS),
}
GGUF = ENGINES["gguf"]
PASSES = Capabilities(passes_unknown=True)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = msgspec.json.encode(SCHEMA).decode()
AS_SCHEMA: list[tuple[str, Any, Any]] = [
    ("guided_json", SCHEMA, SCHEMA),
    ("guided_json", TEXT, SCHEMA),
    ("guided_json_object", True, {"type": "object"}),
    ("json_schema", SCHEMA, SCHEMA),
    ("format", SCHEMA, SCHEMA),
    ("format", "json", {"type": "object"}),
    ("structured_outputs", {"json": SCHEMA, "disable_any_whitespace": True}, SCHEMA),
    ("structured_outputs", {"json_object": True, "regex": None}, {"type": "object"}),
    ("response_format", {"type": "json", "value": SCHEMA}, SCHEMA),
]
AS_GRAMMAR: list[tuple[str, Any, str]] = [
    ("guided_regex", "a+", 'root ::= ("a")+\n'),
    ("regex", "ab", 'root ::= "ab"\n'),
    ("structured_outputs", {"regex": "ab"}, 'root ::= "ab"\n'),
    ("response_format", {"type": "regex", "pattern": "ab"}, 'root ::= "ab"\n'),
    ("response_format", {"type": "regex", "value": "ab"}, 'root ::= "ab"\n'),
    ("guided_choice", ["a", 'b"\n', "a"], 'root ::= "a" | "b\\x22\\x0A"\n'),
    ("structured_outputs", {"choice": ["a"]}, 'root ::= "a"\n'),
    ("guided_grammar", 'root ::= "a"', 'root ::= "a"'),
    ("guided_grammar", 'start: "a"', '%llguidance {}\nstart: "a"'),
    ("ebnf", 'root ::= "a"', 'root ::= "a"'),
    ("grammar_string", 'root ::= "a"', 'root ::= "a"'),
    ("response_format", {"type": "grammar", "grammar": 'root ::= "a"'}, 'root ::= "a"'),
]
WRONG: list[tuple[str, Any, str]] = [
    ("guided_json", [1], "guided_json"),
    ("guided_json", "{", "guided_json"),
    ("guided_json", {"a": "x" * 70_000}, "guided_json"),
    ("guided_json", {"a": "x" * 200_000}, "guided_json"),
    ("guided_json", {"enum": [1] * 20_000}, "guided_json"),
    ("guided_regex", "(", "guided_regex"),
    ("guided_regex", 5, "guided_regex"),
    ("guided_regex", "(?=a)", "guided_regex"),
    ("guided_choice", [], "guided_choice"),
    ("guided_choice", ["a"] * 1025, "guided_choice"),
    ("guided_choice", "ab", "guided_choice"),
    ("guided_choice", [[]], "guided_choice"),
    ("guided_choice", ["\n" * 30_000], "guided_choice"),
    ("guided_grammar", " ", "guided_grammar"),
    ("guided_json_object", 5, "guided_json_object"),
    ("format", "yaml", "format"),
    ("structural_tag", "{}", "structural_tag"),
    ("structured_outputs", [], "structured_outputs"),
    ("structured_outputs", {}, "structured_outputs"),
    ("structured_outputs", {"json": {}, "regex": "a"}, "structured_outputs"),
    ("structured_outputs", {"regex": "("}, "structured_outputs.regex"),
    ("structured_outputs", {"structural_tag": "x"}, "structured_outputs.structural_tag"),
    ("structured_outputs", {"json": {}, "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern"),
    ("response_format", {"type": "structural_tag", "format": {}}, "response_format"),
    ("response_format", {"type": "regex"}, "response_format"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "schema"), AS_SCHEMA)
def test_schemas(name: str, value: Any, schema: Any) -> None:
    """A schema of another server's field is the request's, and the field is gone from it."""
    for engine, can in ENGINES.items():
        request, names = normalize_aliases(chat(**{name: value}), can)
        assert (schema, {"response_format": name}) == (request.answer_schema, names), engine
        assert {"messages", "response_format"} == request.raw_fields.keys(), engine
        assert (request, ()) == resolve_parameters(request, can), engine


@pytest.mark.parametrize(("name", "value", "grammar"), AS_GRAMMAR)
def test_grammars(name: str, value: Any, grammar: str) -> None:
    """What a schema cannot say is the request's grammar."""
    for engine, can in ENGINES.items():
        request, names = normalize_aliases(chat(**{name: value}), can)
        assert (grammar, {"grammar": name}) == (request.grammar, names), engine
        assert {"messages", "grammar"} == request.raw_fields.keys(), engine
        assert (request, ()) == resolve_parameters(request, can), engine


@pytest.mark.parametrize(("name", "value", "param"), WRONG)
def test_what_cannot_be_followed(name: str, value: Any, param: str) -> None:
    """A constraint that cannot be read or followed is refused by its name."""
    with pytest.raises(InvalidRequest) as raised:
        normalize_aliases(chat(**{name: value}), GGUF)

    assert param == raised.value.param
    assert f"`{param}`" in raised.value.message


@pytest.mark.parametrize("name", sorted(CONSTRAINTS))
def test_no_constraint_is_left_out(name: str) -> None:
    """Whatever stands in a constraint's field, the answer is bound by it or refused."""
    for value in ([], {}, 7, True, "x", [1], {"type": "object"}):
        request = chat(**{name: value})
        try:
            judged, ignored = resolve_parameters(normalize_aliases(request, GGUF)[0], GGUF)
        except InvalidRequest:
            continue
        assert () == ignored, value
        assert judged.answer_schema is not None or judged.grammar, value


@pytest.mark.parametrize("name", sorted(CONSTRAINTS))
def test_null_is_no_constraint(name: str) -> None:
    """A constraint that is null asks for nothing."""
    request = chat(**{name: None})

    assert (request, {}) == normalize_aliases(request, GGUF)
    assert (request, ()) == resolve_parameters(request, GGUF)


@pytest.mark.parametrize(
    "names",
    [
        ("guided_json", "guided_regex"),
        ("guided_regex", "response_format"),
        ("grammar", "response_format"),
        ("grammar", "guided_choice"),
    ],
)
def test_two_constraints(names: tuple[str, str]) -> None:
    """Two constraints cannot stand together, and both are named."""
    values = {
        "guided_json": SCHEMA,
        "guided_regex": "a",
        "guided_choice": ["a"],
        "grammar": "root ::= x",
        "response_format": {"type": "json_object"},
    }
    with pytest.raises(InvalidRequest) as raised:
        normalize_aliases(chat(**{name: values[name] for name in names}), GGUF)

    assert names[0] == raised.value.param
    assert all(f"`{name}`" in raised.value.message for name in names)


@pytest.mark.parametrize(("name", "value"), [(row[0], row[1]) for row in AS_SCHEMA + AS_GRAMMAR])
def test_a_server_that_takes_anything_gets_it_as_it_is(name: str, value: Any) -> None:
    """A server that nobody here knows is handed every constraint as the client wrote it."""
    request = chat(**{name: value})

    assert (request, {}) == normalize_aliases(request, PASSES)
    assert (request, ()) == resolve_parameters(request, PASSES)


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        ("vLLM", "guided_json", SCHEMA, {"guided_json"}),
        ("vLLM", "structured_outputs", {"regex": "a"}, {"structured_outputs"}),
        ("vLLM", "json_schema", SCHEMA, {"response_format"}),
        ("SGLang", "regex", "a", {"regex"}),
        ("SGLang", "guided_json", SCHEMA, {"response_format"}),
        ("llama-server", "guided_json", SCHEMA, {"response_format"}),
        ("llama-server", "guided_regex", "a", {"grammar"}),
        ("Ollama", "guided_json", SCHEMA, {"response_format"}),
        ("Ollama", "guided_regex", "a", None),
        ("FastChat", "guided_json", SCHEMA, {"response_format"}),
        ("FastChat", "guided_regex", "a+", None),
        ("transformers serve", "guided_choice", ["a"], None),
    ],
)
def test_servers(kind: str, name: str, value: Any, expected: set[str] | None) -> None:
    """A server is asked by the name that it knows, and what it would drop is refused by the client's name."""
    can = capabilities(next(known for known in KINDS if known.name == kind), {})
    request, names = normalize_aliases(chat(**{name: value}), can)
    if expected is None:
        with pytest.raises(UnsupportedParameter) as raised:
            resolve_parameters(request, can)
        error = rename_param(raised.value, names)
        assert (name, True) == (error.param, f"`{name}`" in error.message)
        return

    assert {"messages"} | expected == resolve_parameters(request, can)[0].raw_fields.keys()


def test_plain_completions() -> None:
    """A plain completion is bound as a chat is."""
    request = request_of(CompletionRequest, {"prompt": "a", "guided_json": SCHEMA})

    assert SCHEMA == normalize_aliases(request, GGUF)[0].answer_schema
