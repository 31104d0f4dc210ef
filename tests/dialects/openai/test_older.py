"""Tests of unilect.dialects.openai._older: what clients of older servers write, beside OpenAI's own words."""

from typing import Any

import msgspec
import pytest

from unilect.core.errors import InvalidRequest
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.dialects.openai import completions as openai_completions
from unilect.dialects.openai.chat import decode
from unilect.web.profile import PROFILES

ALPACA = [{"role": "system", "message": "SYS"}, {"role": "user", "message": "a"}]


def body(**fields: Any) -> bytes:
    """A body with these fields, and a message where they hold none."""
    return msgspec.json.encode({"messages": [{"role": "user", "content": "Hi"}]} | fields)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_completion_tokens": 7, "max_tokens": 3}, 7),
        ({"max_completion_tokens": None, "max_tokens": 3}, 3),
        ({"n_predict": 400}, 400),
        ({"max_new_tokens": 5}, 5),
        ({"max_length": 6}, 6),
        ({"max_length": 2048, "max_new_tokens": 5}, 5),
        ({"n_predict": 400, "max_tokens": 3}, 3),
        ({"n_predict": 400, "max_completion_tokens": 4}, 4),
        ({"n_predict": -1}, None),
        ({"n_predict": None}, None),
    ],
)
def test_other_names_for_max_tokens(fields: dict[str, Any], limit: int | None) -> None:
    """Older names for `max_tokens` count where it is not given, and are gone from what is passed on."""
    asked = decode(body(**fields)).request
    completion = openai_completions.decode(msgspec.json.encode({"prompt": "x"} | fields))

    assert limit == asked.token_limit
    assert limit == completion.token_limit
    assert not {"n_predict", "max_new_tokens", "max_length"} & asked.raw_fields.keys()


def test_no_sampling_is_greedy() -> None:
    """`do_sample: false` sets the temperature to 0, and `true` sets nothing."""
    greedy = decode(body(do_sample=False, temperature=0.7)).request
    sampled = decode(body(do_sample=True, temperature=0.7)).request

    assert (0.0, 0.7) == (greedy.temperature, sampled.temperature)
    assert b"0.0" == bytes(greedy.raw_fields["temperature"])
    assert "do_sample" not in greedy.raw_fields.keys() | sampled.raw_fields.keys()


def test_a_message_in_older_words() -> None:
    """Messages with `message` for `content` are read, and the answer shall repeat them."""
    asked = decode(body(messages=ALPACA))

    assert isinstance(asked.request, ChatRequest)
    assert ["SYS", "a"] == [message.content for message in asked.request.messages]
    assert ["SYS", "a"] == [message.content for message in asked.echoed]
    assert b"message" not in bytes(asked.request.raw_fields["messages"]).replace(b'"messages"', b"")


def test_content_is_stronger_than_message() -> None:
    """Where a message has both keys, its content counts, and it is no older client's."""
    asked = decode(body(messages=[{"role": "user", "content": "c", "message": "m"}]))

    assert isinstance(asked.request, ChatRequest)
    assert "c" == asked.request.messages[0].content
    assert () == asked.echoed


def test_messages_as_a_text() -> None:
    """A text for `messages` is what the user says, and FastChat's clients mean a prompt."""
    user = decode(body(messages="Hello", max_tokens=3)).request
    raw = decode(body(messages="Hello", max_tokens=3), profile=PROFILES["fastchat"]).request

    assert isinstance(user, ChatRequest)
    assert ("user", "Hello", 3) == (
        user.messages[0].role,
        user.messages[0].content,
        user.max_tokens,
    )
    assert isinstance(raw, CompletionRequest)
    assert (["Hello"], 3) == (raw.prompts, raw.max_tokens)
    assert {"prompt", "max_tokens"} == set(raw.raw_fields)


@pytest.mark.parametrize("messages", [1, {}, [1], None, [{"role": "user", "message": 1}]])
def test_messages_as_something_else(messages: Any) -> None:
    """What is neither a list of messages nor a text is an error that names `messages`."""
    with pytest.raises(InvalidRequest) as raised:
        decode(body(messages=messages))
    assert (raised.value.param or "").startswith("messages")


def test_the_conversation_is_repeated_where_the_profile_says_so() -> None:
    """On a listener of the alpaca dialect the answer to a text repeats it, and OpenAI's clients, who write `content`, get OpenAI's answers."""
    assert ["Hi"] == [
        m.content for m in decode(body(messages="Hi"), profile=PROFILES["alpaca"]).echoed
    ]
    assert () == decode(body(), profile=PROFILES["alpaca"]).echoed
    assert () == decode(body()).echoed


def test_a_text_beside_too_many_fields() -> None:
    """A body whose `messages` is one text is bounded as any other, and the text stays as it was written."""
    with pytest.raises(InvalidRequest, match="has 301 fields; the maximum is 256"):
        decode(body(messages="a", **{f"k{i}": 1 for i in range(300)}))

    request = decode('{"messages":"\\u00e9 é","x":1.50}'.encode()).request
    assert isinstance(request, ChatRequest)
    assert ("é é", b'[{"role":"user","content":"\\u00e9 \xc3\xa9"}]') == (
        request.messages[0].content,
        bytes(request.raw_fields["messages"]),
    )
    assert b"1.50" == bytes(request.raw_fields["x"])
