"""Tests of unilect.engines.text_bounds."""

from typing import Any

import pytest

from support.backends.engine import chat, completion
from unilect.core.errors import ContextLengthExceeded, InvalidRequest
from unilect.core.requests import EmbeddingRequest
from unilect.engines.text_bounds import check_request, check_tokenize, most_bytes

CONTEXT = 4096
MOST = most_bytes(CONTEXT)


def called(arguments: str) -> Any:
    """A chat whose assistant called a tool so."""
    function = {"name": "f", "arguments": arguments}
    return chat(messages=[{"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}])


@pytest.mark.parametrize(("context", "most"), [(16, 65536), (2048, 65536), (131072, 4194304)])
def test_the_bound(context: int, most: int) -> None:
    """A short context takes 64 KiB, a long one 32 bytes for each token."""
    assert most == most_bytes(context)


@pytest.mark.parametrize("unit", ["a", "\u00e9", "\u6f22", "\U0001f600"])
@pytest.mark.parametrize(
    ("make", "param"),
    [
        (lambda text: chat(text), "messages"),
        (lambda text: chat(messages=[{"role": "user", "content": [{"type": "text", "text": text}]}]), "messages"),
        (lambda text: chat(messages=[{"role": "user", "content": text[: len(text) // 2 + 1]}] * 2), "messages"),
        (lambda text: chat(messages=[{"role": "user", "reasoning_content": text}]), "messages"),
        (called, "messages"),
        (lambda text: completion(text), "prompt"),
        (lambda text: completion(["a", text]), "prompt"),
        (lambda text: EmbeddingRequest(input=["a", text]), "input"),
        (lambda text: text, "prompt"),
    ],
)  # fmt: skip
def test_texts(make: Any, param: str, unit: str) -> None:
    """A text is measured in bytes, wherever it stands, and its parameter is named with the numbers."""
    count = MOST // len(unit.encode())
    fits, too_long = make(unit * (count - 100)), make(unit * (count + 100))
    check_request(fits, CONTEXT)
    with pytest.raises(
        ContextLengthExceeded, match=rf"4096 tokens, .* bytes, more than the {MOST}"
    ) as caught:
        check_request(too_long, CONTEXT)
    assert param == caught.value.param


def test_half_a_pair() -> None:
    """A text that no UTF-8 can hold has a size all the same."""
    check_request("\ud800" * 100, CONTEXT)
    with pytest.raises(ContextLengthExceeded):
        check_request("\ud800" * MOST, CONTEXT)


def test_tools_count() -> None:
    """The descriptions of tools are part of the prompt."""
    function = {"name": "f", "description": "x" * MOST, "parameters": {}}
    with pytest.raises(ContextLengthExceeded):
        check_request(chat(tools=[{"type": "function", "function": function}]), CONTEXT)


def test_images_do_not() -> None:
    """An image is no text."""
    url = {"url": "data:image/png;base64," + "A" * 2 * MOST}
    check_request(
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]),
        CONTEXT,
    )


def test_token_ids() -> None:
    """Token ids are counted: as many as the context may come, and one more is too many."""
    check_request(completion([5] * CONTEXT), CONTEXT)
    with pytest.raises(ContextLengthExceeded, match="`prompt` has 4097"):
        check_request(completion([5] * (CONTEXT + 1)), CONTEXT)


@pytest.mark.parametrize(
    ("text", "what"), [("a" * (MOST + 1), "bytes"), ([5] * (MOST + 1), "token ids")]
)
def test_tokenizing(text: str | list[int], what: str) -> None:
    """A text may be tokenized that is longer than the context, but not one that is far longer; so with ids."""
    check_tokenize(text[:-1], CONTEXT)
    with pytest.raises(InvalidRequest, match=rf"{MOST + 1} {what}, .* {MOST} at a time.*in pieces"):
        check_tokenize(text, CONTEXT)
