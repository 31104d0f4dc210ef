"""Tests of unilect.api.parameters.rules."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.clients.bodies import chat, request_of
from support.common.properties import given
from unilect.api.backend import Capabilities
from unilect.api.parameters.foreign import CHANGES_ANSWER, CHANGES_CHAT
from unilect.api.parameters.rules import (
    ACCEPTED,
    CONSTRAINTS,
    EMULATED,
    collect_fields,
    format_ignored,
    is_neutral,
    list_unhonoured,
    parameters_of,
    resolve_parameters,
    token_biases,
)
from unilect.core.errors import InvalidRequest, UnsupportedParameter
from unilect.core.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Message, Request
from unilect.engines.gguf._request import PARAMETERS

NOTHING = Capabilities()
REFUSES = Capabilities(
    parameters=dict.fromkeys(
        [
            *(set(ChatRequest.__struct_fields__) | set(CompletionRequest.__struct_fields__)),
            *("dimensions",),
        ],
        "refused",
    )
)
PASSES = Capabilities(passes_unknown=True)
NEUTRAL: list[tuple[str, Any]] = [
    ("n", 1),
    ("temperature", 1),
    ("top_p", 1.0),
    ("top_k", 0),
    ("top_k", -1),
    ("min_p", 0),
    ("typical_p", 1),
    ("presence_penalty", 0),
    ("frequency_penalty", 0.0),
    ("repeat_penalty", 1.0),
    ("repetition_penalty", 1),
    ("logit_bias", {}),
    ("stop", []),
    ("tools", []),
    ("tool_choice", "none"),
    ("tool_choice", "auto"),
    ("parallel_tool_calls", True),
    ("response_format", {"type": "text"}),
    ("modalities", ["text"]),
    ("verbosity", "medium"),
    ("logprobs", False),
    ("top_logprobs", 0),
    ("stream_options", {"include_usage": True}),
    ("stream", True),
    ("seed", None),
    ("max_tokens", None),
    ("grammar", ""),
]
MATTER: list[tuple[str, Any]] = [
    ("n", 2),
    ("temperature", 0),
    ("temperature", 0.7),
    ("top_p", 0),
    ("top_k", 40),
    ("presence_penalty", 0.1),
    ("repeat_penalty", 1.1),
    ("logit_bias", {"1": 1}),
    ("stop", "x"),
    ("seed", 0),
    ("max_tokens", 0),
    ("max_completion_tokens", 0),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}),
    ("parallel_tool_calls", False),
    ("response_format", {"type": "json_object"}),
    ("modalities", ["audio"]),
    ("verbosity", "low"),
    ("logprobs", True),
    ("ignore_eos", True),
    ("mirostat", 2),
    ("grammar", "root ::= x"),
]
NEUTRAL += [("adaptive_target", -0.01), ("top_n_sigma", -0.5)]


@pytest.mark.parametrize(("name", "value"), NEUTRAL)
def test_neutral(name: str, value: Any) -> None:
    """A parameter at its neutral value is no request, whatever the backend."""
    request = chat(**{name: value})

    assert (request, ()) == resolve_parameters(request, REFUSES)


@pytest.mark.parametrize(("name", "value"), [pair for pair in MATTER if pair[0] not in EMULATED])
def test_refused(name: str, value: Any) -> None:
    """A parameter that matters and is not honoured is refused by name."""
    with pytest.raises(UnsupportedParameter) as raised:
        resolve_parameters(chat(**{name: value}), REFUSES)

    assert name == raised.value.param
    assert f"`{name}`" in raised.value.message


@pytest.mark.parametrize(("name", "value"), [pair for pair in MATTER if pair[0] in EMULATED])
def test_made_up_for(name: str, value: Any) -> None:
    """What is made up for on every backend goes through in a chat, and in a plain completion it is refused by name."""
    request = chat(**{name: value})

    assert (request, ()) == resolve_parameters(request, REFUSES)
    with pytest.raises(UnsupportedParameter) as raised:
        resolve_parameters(request_of(CompletionRequest, {"prompt": "a", name: value}), REFUSES)
    assert name == raised.value.param


@pytest.mark.parametrize(
    ("name", "value"), [pair for pair in MATTER if pair[0] not in CONSTRAINTS | EMULATED]
)
def test_reported(name: str, value: Any) -> None:
    """Where a model reports instead, the parameter is taken out, on the wire too, and named."""
    request, ignored = resolve_parameters(chat(**{name: value}), REFUSES, "report")

    assert (name,) == ignored
    assert (None, False) == (getattr(request, name), name in request.raw_fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [("grammar", "root ::= x"), ("guided_json", {})],
)
def test_a_constraint_is_never_reported(name: str, value: Any) -> None:
    """An answer that was to be bound to a form is refused where it cannot be, also by a model that reports the rest."""
    with pytest.raises(UnsupportedParameter) as raised:
        resolve_parameters(chat(**{name: value}), REFUSES, "report")

    assert name == raised.value.param


@pytest.mark.parametrize("support", ["native", "emulated"])
def test_honoured(support: Any) -> None:
    """A parameter that is honoured, by the backend or by us, goes through unchanged."""
    for name, value in MATTER:
        request, takes = chat(**{name: value}), Capabilities(parameters={name: support})
        assert (request, ()) == resolve_parameters(request, takes), (name, value)


def test_passed() -> None:
    """A server that we know nothing of is handed every parameter."""
    for name, value in NEUTRAL + MATTER:
        request = chat(**{name: value})
        assert (request, ()) == resolve_parameters(request, PASSES), (name, value)


@pytest.mark.parametrize("unsupported", ["refuse", "report"])
@pytest.mark.parametrize("can", [NOTHING, REFUSES, PASSES])
def test_the_list_of_what_is_not_honoured(can: Capabilities, unsupported: Any) -> None:
    """What is told of a parameter before a request is what becomes of it in one."""
    bodies = {ChatRequest: {"messages": [{"role": "user", "content": "x"}]}, CompletionRequest: {"prompt": "a"}}  # fmt: skip
    for kind, body in bodies.items():
        told = list_unhonoured(kind, can, unsupported)
        for name, value in MATTER:
            if name not in parameters_of(kind) or (
                isinstance(value, bool) and kind is CompletionRequest
            ):
                continue
            try:
                _, ignored = resolve_parameters(request_of(kind, {**body, name: value}), can, unsupported)  # fmt: skip
                outcome = "ignored" if name in ignored else ""
            except UnsupportedParameter as error:
                outcome = "refused"
                assert told[name].partition(": ")[2] in error.message
            assert outcome == told.get(name, "").partition(":")[0].partition(",")[0], name


@pytest.mark.parametrize("name", sorted(ACCEPTED - {"store"}))
def test_accepted(name: str) -> None:
    """What is about the caller changes no answer, and is never refused or reported."""
    value = {"a": "b"} if name == "metadata" else "x"
    request = chat(**{name: value})

    assert (request, ()) == resolve_parameters(request, NOTHING)


def test_accepted_by_the_backend() -> None:
    """What a backend says it accepts goes through unchanged, a field that only it knows too, and is not reported."""
    takes = Capabilities(parameters={"trace_id": "accepted", "seed": "accepted"})
    request = chat(trace_id="t", seed=1)

    assert (request, ()) == resolve_parameters(request, takes)


def test_store() -> None:
    """A wish to store is taken, and reported as not done."""
    assert resolve_parameters(chat(store=True), NOTHING)[1] == ("store",)
    assert resolve_parameters(chat(store=False), NOTHING)[1] == ()


def test_unknown_fields() -> None:
    """A field that nobody knows is passed to a backend that passes it, and else reported."""
    request = chat(x_new={"a": 1}, x_old=None)

    assert (request, ()) == resolve_parameters(request, PASSES)
    judged, ignored = resolve_parameters(request, NOTHING)
    assert ("x_new",) == ignored
    assert ["messages", "x_old"] == list(judged.raw_fields)


KINDS = (ChatRequest, CompletionRequest, EmbeddingRequest)
BODIES: dict[type[Request], dict[str, Any]] = {
    ChatRequest: {"messages": [{"role": "user", "content": "Hi"}]},
    CompletionRequest: {"prompt": "Hi"},
    EmbeddingRequest: {"input": "Hi"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_of_another_endpoint(kind: type[Request]) -> None:
    """A parameter of another endpoint is refused by name, whatever the backend, or has no effect and is named."""
    others = {name for one in KINDS for name in parameters_of(one)} - {*parameters_of(kind), *ACCEPTED}  # fmt: skip
    assert others
    for name in others:
        request = request_of(kind, BODIES[kind] | {name: "something"})
        nothing = request_of(kind, BODIES[kind] | {name: None})
        if name in ("stream_options", "cache_prompt", "timings_per_token", "return_progress"):
            assert (name,) == resolve_parameters(request, PASSES)[1]
        else:
            with raises_unsupported(name, "belongs to /v1/"):
                resolve_parameters(request, PASSES)
        assert (nothing, ()) == resolve_parameters(nothing, NOTHING), name


@contextmanager
def raises_unsupported(name: str, told: str = "") -> Iterator[None]:
    """Fail unless the block refuses this parameter, with these words."""
    try:
        yield
    except UnsupportedParameter as error:
        assert name == error.param
        assert told in error.message, name
    else:
        pytest.fail(f"{name} is not refused")


def test_fields_of_other_servers() -> None:
    """A field of another server's that would change the answer is refused by name, and its neutral values are not."""
    asking = 0.5
    for name in CHANGES_ANSWER:
        with raises_unsupported(name):
            resolve_parameters(chat(**{name: asking}), NOTHING)
        assert resolve_parameters(chat(**{name: None}), NOTHING)[1] == (), name
        for value in CHANGES_CHAT.get(name, CHANGES_ANSWER[name]):
            assert resolve_parameters(chat(**{name: value}), NOTHING)[1] == (), (name, value)
        assert resolve_parameters(chat(**{name: asking}), PASSES)[1] == (), name


@pytest.mark.parametrize(
    ("name", "value", "ours", "other"),
    [
        ("num_predict", 8, {"max_tokens": 8}, {"max_tokens": 9}),
        ("max_output_tokens", 8, {"max_completion_tokens": 8}, {}),
        ("rep_pen", 1.1, {"repeat_penalty": 1.1}, {"repeat_penalty": 1.2}),
        ("rep_pen", 1.1, {"repetition_penalty": 1.1}, {}),
        ("mirostat_mode", 2, {"mirostat": 2}, {"mirostat": 1}),
        ("ban_eos_token", True, {"ignore_eos": True}, {"ignore_eos": False}),
        ("dynamic_temperature", True, {"dynatemp_range": 0.5}, {"dynatemp_range": 0}),
        ("min_tokens", 8, {"ignore_eos": True}, {"ignore_eos": True, "stop": "x"}),
        ("custom_token_bans", "1, 2", {"logit_bias": {"1": False, "2": False}}, {"logit_bias": {"1": False, "2": -1}}),
        ("grammar_string", "root ::= x", {"grammar": "root ::= x"}, {"grammar": "root ::= y"}),
    ],
)  # fmt: skip
def test_said_twice(name: str, value: Any, ours: dict[str, Any], other: dict[str, Any]) -> None:
    """A field of another server's that says what ours says already asks for nothing, and one that says something else is refused."""
    takes = Capabilities(parameters=dict.fromkeys([*ours, *other], "native"))

    assert resolve_parameters(chat(**{name: value}, **ours), takes)[1] == ()
    with pytest.raises(UnsupportedParameter) as raised:
        resolve_parameters(chat(**{name: value}, **other), takes)
    assert name == raised.value.param


def test_long_names() -> None:
    """A field of a name that is too long to be told is refused with its length."""
    with pytest.raises(InvalidRequest, match="300 characters") as raised:
        resolve_parameters(chat(**{"x" * 300: 1}), NOTHING)

    assert len(raised.value.message) < 200


def test_large_values_are_not_read() -> None:
    """Whether a large value asks for nothing is seen by its size."""
    with pytest.raises(UnsupportedParameter):
        resolve_parameters(chat(min_tokens=[0] * 5_000), NOTHING)


names = st.text(max_size=12) | st.sampled_from(sorted(CHANGES_ANSWER))


@given(st.dictionaries(names, st.none() | st.integers(-1, 2) | st.text(max_size=3), max_size=12))
def test_judge_of_any_fields(fields: dict[str, Any]) -> None:
    """Whatever fields stand in a body, each is the backend's, ours, neutral, named as ignored, or refused by name."""
    try:
        request = chat(**fields)
        judged, ignored = resolve_parameters(request, NOTHING)
    except msgspec.ValidationError:
        return
    except InvalidRequest as error:
        assert error.param in fields
        return
    gone = request.raw_fields.keys() - judged.raw_fields.keys()
    assert gone == set(ignored)
    for name in judged.raw_fields.keys() - {"messages"}:
        assert name in request.gateway_fields or name in ACCEPTED or is_neutral(request, name)


@pytest.mark.parametrize(
    "name", ["raw_fields", "token_limit", "changed", "gateway_fields", "__class__", "prompts"]
)
def test_unknown_fields_with_names_of_ours(name: str) -> None:
    """A field that is named as something of ours is an unknown field like any other."""
    assert (name,) == resolve_parameters(chat(**{name: 1}), NOTHING)[1]


def test_a_request_without_wire() -> None:
    """A request that another dialect built is judged by its fields."""
    request = ChatRequest(messages=[Message("user", "Hi")], n=2, temperature=1.0)

    with pytest.raises(UnsupportedParameter):
        resolve_parameters(request, REFUSES)
    assert (("n",), None) == (
        resolve_parameters(request, REFUSES, "report")[1],
        resolve_parameters(request, REFUSES, "report")[0].n,
    )


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
        (CompletionRequest, {"model": "m", "prompt": "Hi"}),
        (EmbeddingRequest, {"model": "m", "input": "Hi", "encoding_format": "base64"}),
    ],
)
def test_what_is_ours(kind: type[Request], body: dict[str, Any]) -> None:
    """What unilect itself answers for is asked of no backend."""
    assert resolve_parameters(request_of(kind, body), REFUSES)[1] == ()


def test_every_parameter_is_in_the_engines_table() -> None:
    """Our engine says of every parameter that a request can have how it is honoured."""
    fields = {
        name
        for kind in (ChatRequest, CompletionRequest, EmbeddingRequest)
        for name in kind.__struct_fields__
        if name not in kind.gateway_fields
    }

    assert fields - ACCEPTED - {"raw_fields"} - set(PARAMETERS) == set()


def test_the_header() -> None:
    """Ignored names are a list in a header."""
    assert format_ignored(("a", "b_c")) == "a, b_c"


@given(st.lists(st.text(max_size=80), max_size=40))
def test_the_header_of_any_names(names: list[str]) -> None:
    """Whatever names a client sends, the header is short printable ASCII."""
    header = format_ignored(names)

    assert header.isascii()
    assert header.isprintable()
    assert len(header) < 40_000
    assert len(header.split(", ")) <= 33


values = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(-2, 2), st.text(max_size=3)
)


@given(
    name=st.sampled_from(sorted(set(ChatRequest.__struct_fields__) - {"raw_fields", "messages"})),
    value=values,
)
def test_judge_of_any_value(name: str, value: Any) -> None:
    """Whatever the value, a parameter that is not honoured is neutral, refused, or ours."""
    try:
        request = chat(**{name: value})
    except msgspec.ValidationError:
        return
    ours = name in ChatRequest.gateway_fields or name in ACCEPTED
    if not ours and not is_neutral(request, name):
        with pytest.raises(UnsupportedParameter) as raised:
            resolve_parameters(request, REFUSES)
        assert name == raised.value.param
        return
    judged, ignored = resolve_parameters(request, REFUSES)
    assert ignored == (("store",) if name == "store" and value else ())
    assert bool(ignored) == (judged is not request)


def test_token_biases() -> None:
    """Biases are told by token ids; false stays what it is, and true and other keys are refused by name."""
    assert {7: -1.5, 12: False} == token_biases({"7": -1.5, "12": False})
    for wrong in ({"a": 1.0}, {"-1": 1.0}, {"12345678901": 1.0}, {"7": True}):
        with pytest.raises(InvalidRequest) as raised:
            token_biases(wrong)
        assert "logit_bias" == raised.value.param
    assert {7: 1.0} == token_biases({"7": 1.0}, tokens=8)
    with pytest.raises(InvalidRequest, match="has 7"):
        token_biases({"7": 1.0}, tokens=7)


def test_names_of_a_template() -> None:
    """What a chat template asks for goes through, the rest is named and taken out, on the wire too."""
    given = {"date_string": "x", "other": 1}
    can = Capabilities(template_names=frozenset({"date_string"}), parameters={"chat_template_kwargs": "native"})  # fmt: skip
    request, ignored = resolve_parameters(chat(chat_template_kwargs=given, n_keep=1), can, "report")

    assert ("n_keep", "chat_template_kwargs.other") == ignored
    assert {"date_string": "x"} == request.chat_template_kwargs
    assert b'{"date_string":"x"}' == bytes(request.raw_fields["chat_template_kwargs"])


def test_names_that_a_template_may_not_be_told() -> None:
    """What would replace the conversation is refused; where the template is not known, all goes through."""
    can = Capabilities(template_names=frozenset({"messages"}), parameters={"chat_template_kwargs": "native"})  # fmt: skip
    request = chat(chat_template_kwargs={"messages": []})
    with pytest.raises(InvalidRequest) as raised:
        resolve_parameters(request, can)
    assert "chat_template_kwargs" == raised.value.param

    assert (request, ()) == resolve_parameters(request, PASSES)


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0}, {"top_k": 0, "user": ""}, {"stream": False, "stop": []}]
)
def test_fields_that_are_set(fields: dict[str, Any]) -> None:
    """What another dialect has set is found, also where it is false, and nothing else is."""
    own = {"messages": [Message("user", "Hi")], "max_tokens": 5}
    assert own | fields == collect_fields(ChatRequest(**own, **fields))
