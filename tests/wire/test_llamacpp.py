"""Tests of unilect.wire.llamacpp: frames in, events out, on conversations of both generations."""

import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.backends.wires import body
from support.common.properties import given
from unilect.core.errors import (
    BackendError,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    RouteNotFound,
    UnilectError,
    UnsupportedOperation,
)
from unilect.core.events import Event, Extra, Finish, Opaque, Progress, TextDelta, Usage, fold
from unilect.http.sse import FrameReader
from unilect.wire.llamacpp import (
    NO_PROBABILITY,
    Busy,
    FrameDecoder,
    raise_for,
    with_prompt_tokens,
)

LAST = {"content": "", "stop": True, "tokens_predicted": 2, "tokens_evaluated": 3}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
NAMES = (
    "content", "stop", "tokens", "completion_probabilities", "prompt_progress", "error", "multimodal",
    "stop_type", "stopped_eos", "truncated", "tokens_predicted", "timings",
)  # fmt: skip


def events_of(pieces: list[bytes], decoder: FrameDecoder | None = None) -> list[Event]:
    """The events of a stream that comes in these pieces."""
    reader, decoder = FrameReader(), decoder or FrameDecoder()
    events: list[Event] = []
    for piece in pieces:
        decoder.decode(reader.feed(piece), events)
    decoder.decode(reader.end(), events)
    decoder.end()
    return events


def frames(*objects: Any) -> list[bytes]:
    """The data of frames."""
    return [msgspec.json.encode(item) for item in objects]


def plain(events: list[Event]) -> list[Event]:
    """Events without what the last frame says beside the answer, and without progress."""
    out: list[Event] = []
    for event in events:
        if isinstance(event, Finish):
            event = Finish(event.reason)
        if not isinstance(event, Progress):
            out.append(event)
    return out


@pytest.mark.heavy(but=3)
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("name", ["powerinfer", "llamacpp-2023", "llamacpp-2025"])
def test_every_cut(name: str, joined: bool) -> None:
    """A stream cut in two at any byte gives the same answer."""
    data = body(name, "POST /completion")
    whole = events_of([data], FrameDecoder(joined, 1))

    for cut in range(len(data) + 1):
        actual = events_of([data[:cut], data[cut:]], FrameDecoder(joined, 1))
        assert msgspec.json.encode(fold([whole])) == msgspec.json.encode(fold([actual]))


@pytest.mark.parametrize("name", ["powerinfer", "llamacpp-2023", "llamacpp-2025"])
def test_byte_by_byte(name: str) -> None:
    """A stream that comes byte by byte gives the same events."""
    data = body(name, "POST /completion")

    actual = events_of([data[at : at + 1] for at in range(len(data))])

    assert plain(events_of([data])) == plain(actual)


@pytest.mark.parametrize("name", ["powerinfer", "llamacpp-2023", "llamacpp-2025"])
def test_every_end(name: str) -> None:
    """A stream that ends before its last frame is whole is broken, or busy where nothing has come."""
    data = body(name, "POST /completion")
    last = data.rindex(b"data: ")

    for end in range(last + 1, len(data) - 2, 7):
        with pytest.raises(BackendError):
            events_of([data[:end]])
    with pytest.raises(Busy) as raised:
        events_of([b""])
    assert 1 == raised.value.retry_after_s
    assert isinstance(raised.value, BackendUnavailable)


def test_powerinfer() -> None:
    """PowerInfer's text has a token more than it says; its cached tokens are those that it did not read."""
    expected = [
        *(TextDelta(text) for text in (",", " there", " was", " a", " little")),
        Finish("length"),
        Usage(5, 4, 0),
    ]

    assert expected == plain(events_of([body("powerinfer", "POST /completion")]))


def test_the_form_of_2023() -> None:
    """Probabilities become log probabilities, told once; a token that is not among the likeliest has none."""
    decoder = FrameDecoder(top_logprobs=1)
    actual = plain(events_of([body("llamacpp-2023", "POST /completion")], decoder))

    assert [" 中国", "😀"] == [event.text for event in actual if isinstance(event, TextDelta)]
    assert [Finish("stop"), Usage(5, 4, 0)] == actual[-2:]
    told = [token for event in actual[:2] for token in event.logprobs or ()]  # type: ignore[union-attr]
    assert [(" 中国", math.log(0.75)), ("😀", NO_PROBABILITY)] == [
        (token.token, token.logprob) for token in told
    ]
    assert [(" 中国", math.log(0.75))] == [(t.token, t.logprob) for t in told[0].top_logprobs]
    assert decoder.multimodal


def test_the_form_of_2025() -> None:
    """Log probabilities are told as they come, with bytes, and progress before the answer."""
    events = events_of([body("llamacpp-2025", "POST /completion")], FrameDecoder(top_logprobs=0))
    texts = [event for event in events if isinstance(event, TextDelta)]

    assert isinstance(events[0], Progress)
    assert "Hello! How can I help you?" == "".join(event.text for event in texts)
    assert "Hello" == texts[0].logprobs[0].token  # type: ignore[index]
    assert list(b"Hello") == texts[0].logprobs[0].bytes  # type: ignore[index]
    assert [] == texts[0].logprobs[0].top_logprobs  # type: ignore[index]
    assert [Finish("stop"), Usage(10, 11, 0)] == plain(events)[-2:]


def test_probabilities_after_sampling() -> None:
    """The third form, of `post_sampling_probs`, has probabilities under their own name."""
    told = {"token": "a", "bytes": [97], "prob": 0.5, "top_probs": [{"token": "b", "prob": 0.0}]}
    frame = {"content": "a", "completion_probabilities": [told]}
    events: list[Event] = []
    FrameDecoder(top_logprobs=1).decode(frames(frame), events)

    [logprob] = events[0].logprobs or []  # type: ignore[union-attr]
    assert ("a", math.log(0.5), NO_PROBABILITY) == (
        logprob.token,
        logprob.logprob,
        logprob.top_logprobs[0].logprob,
    )


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({"stop_type": "eos"}, "stop"),
        ({"stop_type": "word"}, "stop"),
        ({"stop_type": "limit"}, "length"),
        ({"stop_type": "none"}, "stop"),
        ({"stopped_eos": True}, "stop"),
        ({"stopped_word": True}, "stop"),
        ({"stopped_limit": True}, "length"),
        ({"stopped_eos": False, "stopped_word": False}, "length"),
    ],
)
def test_reasons(last: dict[str, Any], expected: Any) -> None:
    """An answer stops at its end or at a word; else its length ended it."""
    events: list[Event] = []
    FrameDecoder().decode(frames(LAST | last), events)

    assert [Finish(expected), Usage(3, 2)] == plain(events)


def test_what_a_last_frame_says_beside() -> None:
    """A prompt that was cut is told to everybody; slots and settings to clients of this protocol alone."""
    events: list[Event] = []
    FrameDecoder().decode(frames(LAST | {"truncated": True, "id_slot": 7, "model": "/a/b"}), events)

    extra = events[0].extra
    assert extra is not None
    assert {"truncated": True} == extra.chunk
    assert 7 == msgspec.json.decode(extra.native["id_slot"])
    assert "model" not in extra.native


def test_ids_of_tokens() -> None:
    """The ids of the answer's tokens are told where they are wanted, and nowhere else."""
    events: list[Event] = []
    FrameDecoder(tokens=True).decode(frames({"content": "a", "tokens": [5]}), events)
    FrameDecoder().decode(frames({"content": "a", "tokens": [5]}), events)

    told = {"tokens": [5]}
    assert [TextDelta("a", extra=Extra(choice=told, native=told)), TextDelta("a")] == events


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (b'error: {"code":500,"message":"no"}\n\n', BackendError),
        (b'data: {"error":{"code":500,"message":"no"}}\n\n', BackendError),
        (b'data: {"error":"no"}\n\n', BackendError),
        (b'data: {"error":5}\n\n', BackendError),
        (b'error: {"code":400,"message":"no","type":"invalid_request_error"}\n\n', InvalidRequest),
        (b'error: {"code":503,"message":"Loading model","type":"unavailable_error"}\n\n', Busy),
        (b'error: {"type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":8}\n\n', ContextLengthExceeded),
        (b"data: <html>\n\n", BackendError),
        (b"data: [1]\n\n", BackendError),
        (b'data: {"content":"b"},{"stop":true}\n\n', BackendError),
        (b'data: {"content":"b"\n\ndata: "stop":true}\n\n', BackendError),
        (b'data: {"content":7}\n\n', BackendError),
        (b"data: \xff\n\n", BackendError),
        (b"data: " + b"[" * 100_000 + b"\n\n", BackendError),
    ],
)  # fmt: skip
def test_errors_in_a_stream(frame: bytes, expected: type[UnilectError]) -> None:
    """An error after the first piece gives that piece, and then the error."""
    reader, decoder, events = FrameReader(), FrameDecoder(), []  # type: ignore[var-annotated]
    with pytest.raises(UnilectError) as raised:
        decoder.decode(reader.feed(b'data: {"content":"a"}\n\n' + frame), events)

    assert expected is type(raised.value)
    assert [TextDelta("a")] == events


def test_null_between_answers() -> None:
    """A frame of `null`, as llama.cpp sends it, says nothing, nor does an empty one; nor does what follows the last frame."""
    events: list[Event] = []
    FrameDecoder().decode([b"null", b"", *frames({"content": "a"}, LAST, {"content": "b"})], events)

    assert [TextDelta("a"), Finish("length"), Usage(3, 2)] == plain(events)


@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), JSON) | JSON, max_size=4),
    st.booleans(),
)
def test_any_frames(objects: list[Any], joined: bool) -> None:
    """Whatever JSON a server sends is an answer or an error of ours, and no finish comes without `stop`."""
    events: list[Event] = []
    decoder = FrameDecoder(joined, 1, tokens=True)
    with suppress(UnilectError):
        decoder.decode(frames(*objects), events)

    assert decoder.done == any(isinstance(event, Finish) for event in events)


@pytest.mark.parametrize(
    ("status", "data", "expected"),
    [
        (404, b"slot unavailable", Busy),
        (404, b"internal_error", Busy),
        (404, b"File Not Found", RouteNotFound),
        (404, b'{"error":{"message":"File Not Found","code":404}}', RouteNotFound),
        (404, b'{"error":{"message":"other","code":404}}', InvalidRequest),
        (501, b'{"error":{"message":"no embeddings","code":501}}', UnsupportedOperation),
        (500, b"500 Internal Server Error\n[json.exception.type_error.302] no", InvalidRequest),
        (500, b"500 Internal Server Error\nother", BackendError),
        (503, b'{"error":{"message":"Loading model","code":503}}', BackendUnavailable),
        (400, b"Invalid request", InvalidRequest),
    ],
)
def test_error_answers(status: int, data: bytes, expected: type[UnilectError]) -> None:
    """A status and a text become the error that they mean in this protocol."""
    with pytest.raises(UnilectError) as raised:
        raise_for(status, {}, data)

    assert expected is type(raised.value)


def test_an_answer_that_is_no_error() -> None:
    """Status 200 is no error."""
    raise_for(200, {}, b"slot unavailable")


async def test_prompt_tokens_come_first() -> None:
    """The ids of the prompt come with the first piece of the answer, and progress before them is left out."""

    async def answer() -> Any:
        yield [Progress(1, 2)]
        yield [Progress(2, 2), TextDelta("a")]
        yield [TextDelta("b")]

    actual = [batch async for batch in with_prompt_tokens(answer(), [7])]

    told = Opaque(Extra({"promptToken": [7]}), 0)
    assert [[Progress(1, 2)], [told, TextDelta("a")], [TextDelta("b")]] == actual
