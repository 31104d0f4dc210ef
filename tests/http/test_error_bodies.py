"""Tests of unilect.http.error_bodies."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from properties import given
from unilect.errors import BackendError, ContextLengthExceeded, InvalidRequest
from unilect.http.error_bodies import clean, missing, parse_error, refused_request


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
    error = refused_request(msgspec.json.encode(body))

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
    assert isinstance(refused_request(msgspec.json.encode(raw)), InvalidRequest)
    assert isinstance(missing(msgspec.json.encode(raw)), BackendError | InvalidRequest)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"\xff", b"[]", b"7", b"[" * 100_000, rb'"\ud83d"', b"null"]
)
def test_refused_without_a_reason(body: bytes) -> None:
    """Whatever stands in the body of a refusal, it is a refusal."""
    assert type(refused_request(body)) is InvalidRequest


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
    assert type(refused_request(body)) is ContextLengthExceeded


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("two\nlines\x00\x1b[31m", "two lines [31m"),
        ("in /home/user/model.gguf now", "in [path] now"),
        ('"/var/lib/x"', '"[path]"'),
        (r"C:\Users\x\y.bin failed", "[path] failed"),
        ("/v1/chat", "[path]"),
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
