"""Tests of unilect.dialects.openai.chunks."""

import pytest

from support.backends.engine import chat
from unilect.core.events import TokenLogprob
from unilect.core.requests import StreamOptions
from unilect.dialects.openai.chunks import ChunkEncoder, chat_logprobs, legacy_logprobs


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, False),
        (StreamOptions(), False),
        (StreamOptions(include_usage=False), False),
        (StreamOptions(include_usage=True), True),
    ],
)
def test_usage_is_wanted(options: StreamOptions | None, expected: bool) -> None:
    """A usage chunk is wanted only when `include_usage` says so: then every other chunk has a null."""
    encoder = ChunkEncoder("chatcmpl-", "chunk", "m", chat(stream_options=options), done=True)

    assert expected is (b'"usage":null' in encoder.frame(b""))


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (TokenLogprob("a", -1.0, [97]), "a"),
        (TokenLogprob("a", -1.0), "a"),
        (TokenLogprob("\ufffd", -1.0, [0xC3]), r"bytes:\xc3"),
        (TokenLogprob("", -1.0, [0xF0, 0x9F]), r"bytes:\xf0\x9f"),
        (TokenLogprob("\ufffd", -1.0, [0xC3, 0xA9]), "é"),
        (TokenLogprob("", -1.0, []), ""),
    ],
)
def test_names_of_tokens(token: TokenLogprob, expected: str) -> None:
    """A token that is a part of a character is named by its bytes, in chats and in completions, itself and beside another."""
    beside = TokenLogprob("b", -2.0, [98], [token])

    [own, other] = chat_logprobs([token, beside])["content"]
    older = legacy_logprobs([token, beside], 0)

    assert (expected, expected) == (own["token"], other["top_logprobs"][0]["token"])
    assert ([expected, "b"], [{}, {expected: -1.0}]) == (older["tokens"], older["top_logprobs"])
