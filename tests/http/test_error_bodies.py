"""Tests of unilect.http.error_bodies."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.errors import BackendError, ContextLengthExceeded, InvalidRequest
from unilect.http.error_bodies import clean, missing, parse_error, parse_refusal, too_long


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({"detail": "empty messages"}, "empty messages", None),
        (
            {"detail": [{"loc": ["body", "n"], "msg": "not a number", "type": "x"}]},
            "n: not a number",
            None,
        ),
        ({"error": {"message": "no", "type": "BadRequestError", "code": 400}}, "no", None),
        ({"error": "bad", "error_type": "validation"}, "bad", None),
        ({"error": {"message": "bad n", "param": "n"}}, "bad n", "n"),
        ({"error": {"message": "bad", "param": 7, "code": 400}}, "bad", None),
        ({"object": "error", "message": "bad", "code": 40001}, "bad", None),
        ({"error": "bad"}, "bad", None),
        ({"error": {}}, "no reason given", None),
        ({"error": {"message": ["x"]}}, "no reason given", None),
    ],
)
def test_refused_request(body: Any, message: str, param: str | None) -> None:
    """A refused request is told in the upstream's words, whichever form its error has."""
    error = parse_refusal(msgspec.json.encode(body))

    assert (InvalidRequest, param) == (type(error), error.param)
    assert error.message == f"The model's server refused the request: {message}"


@pytest.mark.parametrize(
    "raw",
    [
        {"error": {"type": {"a": 1}, "message": "x"}},
        {"detail": [{"loc": 5, "msg": "m"}]},
        {"detail": [{"loc": {"a": 1}, "msg": "m"}]},
        {"detail": [[]]},
        {"error": [[1]]},
        {"error": {"code": [1], "type": [2], "message": {"a": 1}, "param": {}}},
        {"error": {"code": "9" * 5000}},
        {"error": {"code": "٣", "message": "x"}},
        {"error": {"code": True, "message": "x"}},
        {"error": 7},
        {"message": [1]},
    ],
)
def test_odd_shapes(raw: Any) -> None:
    """An error of any shape is the server's error or the request's, and no flaw of ours."""
    assert isinstance(parse_error(raw), BackendError | InvalidRequest)
    assert isinstance(parse_refusal(msgspec.json.encode(raw)), InvalidRequest)
    assert isinstance(missing(msgspec.json.encode(raw)), BackendError | InvalidRequest)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"\xff", b"[]", b"7", b"[" * 100_000, rb'"\ud83d"', b"null"]
)
def test_refused_without_a_reason(body: bytes) -> None:
    """Whatever stands in the body of a refusal, it is a refusal."""
    assert type(parse_refusal(body)) is InvalidRequest


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"x","code":"context_length_exceeded"}}',
        b'{"error":{"message":"This model\'s maximum context length is 8 tokens."}}',
        b'{"error":{"message":"x","type":"exceed_context_size_error","n_ctx":8,"n_prompt_tokens":9}}',
    ],
)
def test_context_length(body: bytes) -> None:
    """A prompt that is too long is told as such, in every form that servers give it."""
    assert type(parse_refusal(body)) is ContextLengthExceeded


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        (
            "This model's maximum context length is 4096 tokens. However, you requested 4100 tokens (100 in the messages, 4000 "
            "in the completion).",
            (100, 4096),
        ),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 32768 tokens and "
            "your request has 1000 input tokens (32000 > 32768 - 1000).",
            (1000, 32768),
        ),
        (
            "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of 5000 tokens: "
            "4000 tokens from the input messages and 1000 tokens for the completion.",
            (4000, 4096),
        ),
        (
            "This model's maximum context length is 8 tokens. However, your messages resulted in 9 tokens.",
            (9, 8),
        ),
        ("This model's maximum context length is 8 tokens.", (None, None)),
        ("context length exceeded: 9 input tokens", (None, None)),
    ],
)
def test_numbers_of_too_long_a_prompt(
    message: str, numbers: tuple[int, int] | tuple[None, None]
) -> None:
    """The prompt's tokens and the context are read from the words of vLLM, SGLang and OpenAI, where both are there."""
    error = parse_refusal(msgspec.json.encode({"error": {"message": message, "code": 400}}))

    assert isinstance(error, ContextLengthExceeded)
    assert numbers == (error.prompt_tokens, error.context)


def test_words_of_too_long_a_prompt() -> None:
    """The words are there by which clients know the error: LangChain and Claude Code, and those that match OpenAI's own."""
    message = too_long(9000, 2048).message

    assert "prompt is too long" in message
    assert message.startswith("This model's maximum context length is 2048 tokens")
    assert (9000, 2048) == (too_long(9000, 2048).prompt_tokens, too_long(9000, 2048).context)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("two\nlines\x00\x1b[31m", "two lines [31m"),
        ("in /home/user/model.gguf now", "in [path] now"),
        ('"/var/lib/x"', '"[path]"'),
        (r"C:\Users\x\y.bin failed", "[path] failed"),
        ("/v1/chat", "/v1/chat"),
        ("/v1/chatter/a", "[path]"),
        ("Use `GET /v1/models/{model}/x`", "Use `GET /v1/models/{model}/x`"),
        ("/api/main.py, /api/app/main", "[path], [path]"),
        ("at /models/a.gguf, GET /models/{model}", "at [path], GET /models/{model}"),
        ("see https://host/a/b", "see https://host/a/b"),
        ("and/or, 1/2", "and/or, 1/2"),
        ("error at #/properties/a", "error at #/properties/a"),
        ("x" * 3000, "x" * 500),
        (None, "no reason given"),
        (7, "no reason given"),
    ],
)
def test_clean(text: Any, expected: str) -> None:
    """A foreign text is shown as one short line without the server's paths."""
    assert expected == clean(text)


@given(st.text())
def test_clean_of_any_text(text: str) -> None:
    """Any text becomes one line of at most 500 characters."""
    assert len(clean(text)) <= 500
    assert len(clean(text).splitlines()) <= 1
