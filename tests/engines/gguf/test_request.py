"""Tests of unilect.engines.gguf._request."""

import json
from typing import Any

import msgspec
import pytest

from unilect.api.parameters.support import TOOL_PARAMETERS
from unilect.core.errors import InvalidRequest, UnsupportedParameter
from unilect.core.requests import ChatRequest, CompletionRequest, Message
from unilect.engines.gguf._request import (
    PARAMETERS,
    chat_body,
    completion_body,
    conversation,
    messages,
    template_body,
)
from unilect.tools.forced import compact
from unilect.wire.llamacpp_request import MAX_IMAGES

TOOL = {"type": "function", "function": {"name": "f"}}
PNG = "data:image/gif;base64,R0lGODlhAQABAAAAACw="


def chat(**fields: Any) -> ChatRequest:
    """A chat request as a body gives it."""
    body = {"messages": [{"role": "user", "content": "Hi"}]} | fields
    return msgspec.json.decode(msgspec.json.encode(body), type=ChatRequest)


def told(*given: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages as the engine gets them."""
    return messages(msgspec.convert(list(given), list[Message]))


def test_what_every_body_has() -> None:
    """Every body asks for a stream, its usage and progress, and names every adapter."""
    lora = {"lora": [{"id": 0, "scale": 0.5}]}
    for body in (chat_body(chat(), lora), completion_body(CompletionRequest(prompt="a"), lora)):
        assert {
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_progress": True,
            **lora,
        }.items() <= body.items()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 40}, {"top_k": 40}),
        ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
        ({"repeat_penalty": 1.2, "repetition_penalty": 1.1}, {"repeat_penalty": 1.2}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 6}),
        ({"stop": "x"}, {"stop": ["x"]}),
        ({"seed": 7}, {"seed": 7}),
        ({"seed": -1}, {"seed": 2**32 - 1}),
        ({"seed": 2**32 + 7}, {"seed": 7}),
        ({"seed": 2**63 - 1}, {"seed": 0}),
        ({"logit_bias": {"15": -100}}, {"logit_bias": [(15, -100)]}),
        ({"logit_bias": {" the": False}}, {"logit_bias": [(" the", False)]}),
        ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"reasoning_effort": "low"}, {"chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": True}}),
        ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"reasoning_effort": "none", "enable_thinking": False}}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"tools": [TOOL]}, {"tool_choice": "auto", "parallel_tool_calls": True}),
        ({"tools": [TOOL], "parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    ],
)  # fmt: skip
def test_parameters(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each parameter is told in the engine's words."""
    body = chat_body(chat(**fields), {})

    assert expected == {name: body.get(name) for name in expected}


@pytest.mark.parametrize(
    ("fields", "absent"),
    [
        ({}, "max_tokens"),
        ({}, "seed"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"tools": [TOOL], "tool_choice": "none"}, "tools"),
        ({"tools": []}, "tools"),
        ({"n": 2}, "n"),
        ({"user": "u"}, "user"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ],
)
def test_what_the_engine_is_not_told(fields: dict[str, Any], absent: str) -> None:
    """What was not asked for, or is not the engine's, is not told."""
    assert absent not in chat_body(chat(**fields), {})


@pytest.mark.parametrize(
    ("given", "name", "schema"),
    [
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": 1}}}, "x", {"a": 1}),
        ({"type": "json_object"}, "object", {"type": "object"}),
        ({"type": "json_object", "schema": {"a": 1}}, "object", {"a": 1}),
    ],
)
def test_a_schema(given: dict[str, Any], name: str, schema: dict[str, Any]) -> None:
    """JSON is bound by a schema, also where any object will do."""
    body = chat_body(chat(response_format=given), {})

    expected = {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
    assert expected == body["response_format"]
    assert compact(schema)["x-guidance"]["whitespace_flexible"] is False


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"logprobs": True, "tools": [TOOL]}, "logprobs", UnsupportedParameter),
        ({"grammar": "root ::= x", "tools": [TOOL]}, "grammar", UnsupportedParameter),
        ({"grammar": "root ::= x", "response_format": {"type": "json_object"}}, "grammar", InvalidRequest),
        ({"logit_bias": {"": 1}}, "logit_bias", InvalidRequest),
        ({"logit_bias": {"x" * 65: 1}}, "logit_bias", InvalidRequest),
        ({"logit_bias": {"x": True}}, "logit_bias", InvalidRequest),
        ({"logit_bias": {"-1": 1}}, "logit_bias", InvalidRequest),
        ({"logit_bias": {"99999999999": 1}}, "logit_bias", InvalidRequest),
        ({"continue_final_message": True}, "continue_final_message", InvalidRequest),
    ],
)  # fmt: skip
def test_what_is_refused(fields: dict[str, Any], param: str, kind: type[InvalidRequest]) -> None:
    """What the engine cannot be given is refused by name."""
    with pytest.raises(kind) as raised:
        chat_body(chat(**fields), {})

    assert param == raised.value.param


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a"}),
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "function", "name": "f", "content": "a"}, {"role": "tool", "name": "f", "content": "a"}),
        ({"role": "assistant"}, {"role": "assistant", "content": ""}),
        ({"role": "assistant", "content": "a", "refusal": "b"}, {"role": "assistant", "content": "a"}),
        ({"role": "assistant", "content": "a", "reasoning": "b"}, {"role": "assistant", "content": "a"}),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "user", "content": "a\nb"}),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "a"}]}, {"role": "assistant", "content": "a"}),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PNG}}]}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PNG}}]}),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]}, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}),
        ({"role": "tool", "content": "a", "tool_call_id": "c"}, {"role": "tool", "content": "a", "tool_call_id": "c"}),
    ],
)  # fmt: skip
def test_messages(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """Messages become such as every chat template knows."""
    assert [expected] == told(given)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ("[1]", '{"value":"[1]"}'),
        ('{"a', '{"value":"{\\"a"}'),
        ("[" * 100_000, '{"value":"%s"}' % ("[" * 100_000)),
        ("\ud83d", '{"value":"?"}'),
    ],
)
def test_earlier_calls(arguments: str, expected: str) -> None:
    """An earlier call keeps its arguments as they were written; those that are no object are the only argument."""
    function = {"name": "f", "arguments": arguments}
    newer = {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}
    older = {"role": "assistant", "function_call": function}

    for given, id in ((newer, "c"), (older, "call_0")):
        (message,) = told(given)
        call = {"id": id, "type": "function", "function": {"name": "f", "arguments": expected}}
        assert [call] == message["tool_calls"]
        assert "function_call" not in message


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "image_url", "image_url": {"url": "data:text/html,x"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
    ],
)
def test_parts_that_are_refused(part: dict[str, Any]) -> None:
    """Images by URL are never fetched, and parts that the engine cannot read are refused by name."""
    with pytest.raises(InvalidRequest) as raised:
        told({"role": "user", "content": [part]})

    assert raised.value.param == "messages[0].content"


def test_many_images() -> None:
    """More images than are read are refused, counted over all messages."""
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG}}] * MAX_IMAGES}  # fmt: skip

    assert len(told(message)) == 1
    with pytest.raises(InvalidRequest):
        told(message, message)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "a"}, {"prompt": "a"}),
        ({"prompt": [1, 2]}, {"prompt": [1, 2]}),
        ({"prompt": None}, {"prompt": ""}),
        ({"prompt": "a", "logprobs": 0}, {"n_probs": 1}),
        ({"prompt": "a", "logprobs": 5}, {"n_probs": 5}),
        ({"prompt": "a", "n_probs": 50}, {"n_probs": 50}),
        ({"prompt": "a", "logprobs": 5, "n_probs": 2}, {"n_probs": 5}),
        ({"prompt": "a", "max_tokens": 5}, {"n_predict": 5}),
    ],
)
def test_completions(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """A completion has one prompt, and at least one alternative where it has logprobs."""
    body = completion_body(msgspec.convert(fields, CompletionRequest), {})

    assert expected == {name: body.get(name) for name in expected}


def test_the_template_is_given_what_the_chat_is() -> None:
    """Counting tokens renders the same messages, tools and flags as answering, and has no grammar made of the tools."""
    request = chat(tools=[TOOL], reasoning_effort="low")
    body = chat_body(request, {}) | {"tool_choice": "none"}

    for name, value in template_body(request).items():
        assert body[name] == value


def test_every_body_is_json() -> None:
    """What the engine is told can be encoded, whatever was asked for."""
    request = chat(tools=[TOOL], stop=["a"], logit_bias={"1": 0.5}, seed=1)

    assert json.loads(msgspec.json.encode(chat_body(request, {})))["stop"] == ["a"]


def test_tool_parameters_are_parameters() -> None:
    """What a model without tools refuses is in the table."""
    assert set(TOOL_PARAMETERS) <= set(PARAMETERS)


def test_next_turn_begins_like_the_last() -> None:
    """What is read of a conversation is the beginning of what is read of its next turn; tools stand before it."""
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    first = conversation(chat(messages=turns, tools=[TOOL]))
    other = conversation(chat(messages=turns))

    assert conversation(chat(messages=[*turns, turns[0]], tools=[TOOL])).startswith(first[:-2])
    assert other[:8] != first[:8]
    assert b'"Once"' == conversation(CompletionRequest(prompt="Once"))
    assert b"[1,2,3]" == conversation(CompletionRequest(prompt=[1, 2, 3]))
