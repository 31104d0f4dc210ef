"""Tests of unilect.core.requests."""

from typing import Any

import msgspec
import pytest

from unilect.core.requests import (
    RAW_FIELDS,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Message,
    Prompt,
    one_by_one,
)

HI = [Message("user", "Hi")]


def chat(**fields: Any) -> ChatRequest:
    """A chat request as a body gives it."""
    body = {"messages": [{"role": "user", "content": "Hi"}]} | fields
    return msgspec.json.decode(msgspec.json.encode(body), type=ChatRequest)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a"], ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[]], [[]]),
        ([], [[]]),
    ],
)
def test_one_by_one(given: Any, expected: list[Prompt]) -> None:
    """A list of ids is one prompt; a list of texts or of lists is many."""
    assert expected == one_by_one(given)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        ("", [""]),
        (None, [""]),
        (["a", "b"], ["a", "b"]),
        ([7], [[7]]),
        ([[7], [8]], [[7], [8]]),
        ([], [""]),
    ],
)
def test_prompts(prompt: Any, expected: list[Prompt]) -> None:
    """Every form of `prompt` is a list of prompts."""
    assert expected == CompletionRequest(prompt=prompt).prompts


@pytest.mark.parametrize(
    ("given", "expected"), [("a", ["a"]), (["a", "b"], ["a", "b"]), ([7, 8], [[7, 8]])]
)
def test_inputs(given: Any, expected: list[Prompt]) -> None:
    """Every form of `input` is a list of inputs."""
    assert expected == EmbeddingRequest(input=given).inputs


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 0}, 0),
    ],
)
def test_token_limit(fields: dict[str, Any], expected: int | None) -> None:
    """`max_completion_tokens` is stronger than its older name, also at 0."""
    assert expected == chat(**fields).token_limit


@pytest.mark.parametrize(
    ("stop", "expected"), [(None, []), ("a", ["a"]), (["a", "b"], ["a", "b"]), ([], [])]
)
def test_stop_words(stop: Any, expected: list[str]) -> None:
    """One stop word or many are a list."""
    assert expected == chat(stop=stop).stop_words


def test_changed() -> None:
    """A changed field is changed on the wire too, and a removed one is gone from it."""
    raw_fields = {"n": msgspec.Raw(b"2"), "seed": msgspec.Raw(b"7"), "x": msgspec.Raw(b"1.50")}
    request = ChatRequest(messages=HI, n=2, seed=7, raw_fields=raw_fields).changed(
        n=None, seed=8, top_p=0.5
    )

    assert (None, 8, 0.5) == (request.n, request.seed, request.top_p)
    actual = {name: bytes(raw) for name, raw in request.raw_fields.items()}
    assert {"seed": b"8", "x": b"1.50", "top_p": b"0.5"} == actual
    assert bytes(raw_fields["n"]) == b"2"


def test_a_client_cannot_write_the_wire() -> None:
    """A field of a body that is named `raw_fields` is an unknown field; nobody can send the real one."""
    assert {} == chat(raw_fields={"n": 1}).raw_fields
    assert RAW_FIELDS not in ChatRequest.__struct_fields__


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "king", "content": "x"}]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
        {"messages": [{"role": "user", "content": "x"}] * 2049},
        {"n": 0},
        {"n": 17},
        {"n": 1.5},
        {"n": "1"},
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": True},
        {"top_p": 1.1},
        {"max_tokens": -2},
        {"max_tokens": 2**31},
        {"seed": 2**63},
        {"stop": ""},
        {"stop": ["x"] * 17},
        {"stop": "x" * 257},
        {"logit_bias": {"1": 101}},
        {"top_logprobs": 21},
        {"presence_penalty": 2.5},
        {"response_format": {"type": "xml"}},
        {"tools": [{"type": "function", "function": {"name": "with blank"}}]},
        {"tools": [{"type": "retrieval"}]},
        {"tool_choice": "maybe"},
        {"stream": 1},
        {"grammar": "x" * (64 * 1024 + 1)},
        {"mirostat": 3},
        {"repeat_penalty": 0},
        {"repetition_penalty": 0},
    ],
)
def test_values_that_are_refused(fields: dict[str, Any]) -> None:
    """A value beyond a field's bounds, or of another type, is refused."""
    with pytest.raises(msgspec.ValidationError):
        chat(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 16},
        {"temperature": 0},
        {"temperature": 2},
        {"seed": -(2**63)},
        {"stop": ["x"] * 16},
        {"unknown": {"a": [1]}},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": []}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_values_that_are_taken(fields: dict[str, Any]) -> None:
    """The bounds themselves, and every form that OpenAI documents, are taken."""
    assert isinstance(chat(**fields), ChatRequest)
