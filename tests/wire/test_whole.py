"""Tests of unilect.wire.whole: a whole answer says what the stream of it says."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.backends.scripted import HELLO
from support.common.properties import given
from unilect.core.errors import BackendError, ContextLengthExceeded, InvalidRequest, UnilectError
from unilect.core.events import (
    Answer,
    Choice,
    Event,
    Extra,
    Finish,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
    fold,
)
from unilect.wire.chunks import DONE, ChunkDecoder
from unilect.wire.whole import decode_whole

NONE = Usage(0, 0)


def whole(*choices: Any, **fields: Any) -> list[Event]:
    """The events of a body with these choices."""
    return decode_whole(msgspec.json.encode({"choices": choices, **fields}))


def streamed(*chunks: Any) -> list[Event]:
    """The events of a stream."""
    decoder, events = ChunkDecoder(), list[Event]()
    decoder.decode([*map(msgspec.json.encode, chunks), DONE], events)
    return events + decoder.end()


def message(index: int = 0, finish: str | None = "stop", **fields: Any) -> dict[str, Any]:
    """A choice of a chat answer."""
    return {"index": index, "message": {"role": "assistant", **fields}, "finish_reason": finish}


_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "content": st.none() | st.text(),
        "reasoning_content": st.none() | st.text(),
        "refusal": st.none() | st.text(),
        "tool_calls": st.none() | st.just([]),
        "audio": st.none(),
    },
)
_TOP = st.fixed_dictionaries(
    {},
    optional={
        "usage": st.none() | st.just({"prompt_tokens": 3, "completion_tokens": 2}),
        "system_fingerprint": st.none() | st.just("fp"),
        "service_tier": st.none() | st.just("default"),
        "created": st.none() | st.integers(0, 2**31),
    },
)


@given(
    fields=_FIELDS,
    top=_TOP,
    finish=st.sampled_from([None, "", "stop", "length", "tool_calls", "eos", "error"]),
    logprobs=st.none() | st.just({"content": [{"token": "a", "logprob": -1.0}]}),
)
def test_a_usual_answer(
    fields: dict[str, Any], top: dict[str, Any], finish: str | None, logprobs: Any
) -> None:
    """An answer that is decoded as it is says what it says where it is converted first, as one with an unknown field is."""
    choice = message(finish=finish, **fields) | {"logprobs": logprobs}

    def said(**more: Any) -> object:
        try:
            return whole(choice, **top, **more)
        except UnilectError as error:
            return error.message

    assert said() == said(unknown=None)


def test_text() -> None:
    """A chat answer with all that servers name and have not."""
    empty = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
    body = {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m", "service_tier": None,
        "system_fingerprint": None, "prompt_logprobs": None,
        "choices": [message(content="Hello", tool_calls=[], **empty) | {"stop_reason": None, "logprobs": None}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13,
                  "prompt_tokens_details": {"cached_tokens": 8}, "completion_tokens_details": {"reasoning_tokens": 3}},
    }  # fmt: skip

    assert [TextDelta("Hello"), Finish("stop"), Usage(9, 4, 8, 3)] == decode_whole(
        msgspec.json.encode(body)
    )


def test_completion() -> None:
    """A plain completion, with the completions' form of log probabilities."""
    logprobs = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"b": -2.0}]}
    choice = {"index": 0, "text": "a", "logprobs": logprobs, "finish_reason": "length"}
    token = TokenLogprob("a", -1.0, [97], [TokenLogprob("b", -2.0, [98])])

    assert [TextDelta("a", 0, [token]), Finish("length"), NONE] == whole(choice)


def test_tool_calls() -> None:
    """Tool calls have no index in a whole answer; they are counted."""
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate("fg")
    ]

    assert [
        ToolCallDelta(0, "{}", "c0", "f"),
        ToolCallDelta(1, "{}", "c1", "g"),
        Finish("tool_calls"),
        NONE,
    ] == whole(message(finish="tool_calls", content=None, tool_calls=calls))


def test_unknown_fields() -> None:
    """Fields that nobody here knows come out again, each at its level."""
    choice = message(content="a", audio_id=1) | {"content_filter_results": {}}

    assert fold([whole(choice, citations=["u"])]) == Answer(
        [Choice(0, "a", finish_reason="stop", extra={"content_filter_results": {}}, message_extra={"audio_id": 1})],
        NONE,
        {"citations": ["u"]},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"message": {"content": "a"}}, [TextDelta("a"), Finish("stop")]),
        ({"message": {"content": "a"}, "index": None, "finish_reason": None}, [TextDelta("a"), Finish("stop")]),
        ({"message": None, "finish_reason": "stop"}, [Finish("stop")]),
        ({"message": {"content": "a"}, "x": None}, [TextDelta("a"), Finish("stop")]),
        ({"message": {"content": "a"}, "x": 1}, [TextDelta("a", extra=Extra({}, {"x": 1})), Finish("stop")]),
    ],
)  # fmt: skip
def test_missing_fields(choice: Any, expected: list[Event]) -> None:
    """What a server leaves out is mended."""
    assert [*expected, NONE] == whole(choice)


def test_choices_without_an_index() -> None:
    """Choices that have no index are counted."""
    choices = [{"message": {"content": text}} for text in "ab"]

    assert [
        TextDelta("a", 0),
        TextDelta("b", 1),
        Finish("stop", 0),
        Finish("stop", 1),
        NONE,
    ] == whole(*choices)


def test_half_a_character() -> None:
    """Half a character becomes U+FFFD, as in a stream."""
    body = rb'{"choices":[{"message":{"content":"a\ud83d"}}]}'

    assert [TextDelta("a\ufffd"), Finish("stop"), NONE] == decode_whole(body)


def test_a_stream_all_the_same() -> None:
    """A server that knows nothing but streams is understood."""
    assert fold([[TextDelta("Hello"), Finish("stop"), Usage(3, 2)]]) == fold([decode_whole(HELLO)])


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", BackendError),
        (b"<html><h1>It works!", BackendError),
        (b"{", BackendError),
        (b"[]", BackendError),
        (b"null", BackendError),
        (b"{}", BackendError),
        (b'{"choices": {}}', BackendError),
        (b'{"choices": [1]}', BackendError),
        (b'{"choices": [{"message": 1}]}', BackendError),
        (b'{"choices": [{"message": {"content": [1]}}]}', BackendError),
        (b'{"choices": [{"message": {"tool_calls": [1]}}]}', BackendError),
        (b'{"error": {"message": "x", "code": 500}}', BackendError),
        (b'{"error": "x"}', BackendError),
        (b'{"error": {"message": "x", "code": 400}}', InvalidRequest),
        (b'{"error": {"message": "x", "type": "exceed_context_size_error"}}', ContextLengthExceeded),
        (b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n', BackendError),
    ],
)  # fmt: skip
def test_no_answer(body: bytes, error: type[UnilectError]) -> None:
    """An error in spite of status 200, a page, a cut stream: none is taken for an answer."""
    with pytest.raises(error):
        decode_whole(body)


@given(st.one_of(st.binary(max_size=40), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["choices", "message", "content", "index", "tool_calls", "usage", "error", "text"]), inner, max_size=4
    ),
).map(msgspec.json.encode)))  # fmt: skip
def test_any_body(body: bytes) -> None:
    """Any bytes, and any JSON, are an answer or an error of ours."""
    try:
        events = decode_whole(body)
    except UnilectError:
        return
    assert isinstance(events[-1], Usage)


pieces = st.lists(st.text(max_size=3), max_size=4)
tokens = st.lists(
    st.builds(lambda t: {"token": t, "logprob": -1.0, "bytes": None, "top_logprobs": []}, st.text(max_size=2)),
    min_size=1,
    max_size=2,
)  # fmt: skip
extras = st.dictionaries(
    st.sampled_from(["x", "y"]), st.integers() | st.lists(st.booleans(), max_size=2)
)
finishes = st.sampled_from(["stop", "length", "tool_calls", "content_filter", "eos"])


@st.composite
def told_twice(draw: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An answer, as a body and as the chunks of a stream."""
    choices: list[dict[str, Any]] = []
    chunks: list[dict[str, Any]] = []

    def chunk(index: int, delta: dict[str, Any], **fields: Any) -> None:
        chunks.append({"choices": [{"index": index, "delta": delta, **fields}]})

    for index in range(draw(st.integers(1, 3))):
        said: dict[str, Any] = {}
        for name in ("reasoning_content", "content", "refusal"):
            texts = draw(pieces)
            for text in texts:
                chunk(index, {name: text})
            if texts:
                said[name] = "".join(texts)
        choice: dict[str, Any] = {"index": index, "message": said, "finish_reason": draw(finishes)}
        for number, arguments in enumerate(draw(st.lists(pieces, max_size=2))):
            function = {"name": "f", "arguments": "".join(arguments)}
            said.setdefault("tool_calls", []).append({"id": f"c{number}", "function": function})
            start = {"index": number, "id": f"c{number}", "function": {"name": "f"}}
            chunk(index, {"tool_calls": [start]})
            for piece in arguments:
                more = {"index": number, "function": {"arguments": piece}}
                chunk(index, {"tool_calls": [more]})
        if draw(st.booleans()):
            choice["logprobs"] = {"content": draw(tokens)}
            said.setdefault("content", "")
            chunk(index, {"content": ""}, logprobs=choice["logprobs"])
        of_choice, of_message = draw(extras), draw(extras)
        chunk(index, of_message, finish_reason=choice["finish_reason"], **of_choice)
        choices.append(choice | of_choice | {"message": said | of_message})
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    top = draw(extras)
    chunks.append({"choices": [], "usage": usage, **top})
    return {"choices": choices, "usage": usage, **top}, chunks


@given(told_twice())
def test_whole_and_streamed_agree(answer: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    """An answer that is asked for whole is the answer that its stream would have told."""
    body, chunks = answer

    assert fold([streamed(*chunks)]) == fold([decode_whole(msgspec.json.encode(body))])
