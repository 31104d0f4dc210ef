"""Tests of unilect.dialects.openai.completions: bodies in, answers out; test_app.py has the routes."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.errors import BackendError, InvalidRequest
from unilect.core.events import (
    Event,
    Extra,
    Finish,
    Opaque,
    Progress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    Usage,
    fold,
)
from unilect.core.requests import CompletionRequest, StreamOptions
from unilect.dialects.openai.completions import CompletionEncoder, decode
from unilect.dialects.prompts import MAX_CHOICES
from unilect.http.sse import FrameReader
from unilect.wire.chunks import ChunkDecoder

NONE = Usage(0, 0)
TEXT: list[Event] = [TextDelta("a"), TextDelta("b"), Finish("stop"), Usage(3, 2)]


def stream(*batches: list[Event], usage: bool = False) -> bytes:
    """The stream that these batches become."""
    options = StreamOptions(include_usage=True) if usage else None
    encoder = CompletionEncoder(
        CompletionRequest(prompt="", stream=True, stream_options=options), "m"
    )
    return b"".join([encoder.encode(batch) for batch in batches]) + encoder.end()


def chunks(data: bytes) -> list[dict[str, Any]]:
    """The chunks of a stream that must end with `[DONE]`."""
    *frames, done = data.removesuffix(b"\n\n").split(b"\n\n")
    assert done == b"data: [DONE]"
    return [msgspec.json.decode(frame.removeprefix(b"data: ")) for frame in frames]


def whole(*batches: list[Event], ignored: tuple[str, ...] = ()) -> Any:
    """The whole answer that these batches become."""
    encoder = CompletionEncoder(CompletionRequest(prompt=""), "m")
    return msgspec.json.decode(encoder.whole(fold(batches), ignored))


def choice(text: str, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    """A choice of a chunk, or of an answer."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def test_a_stream() -> None:
    """A stream has the pieces of text and one finish reason."""
    told = chunks(stream(TEXT))

    assert [[choice("a")], [choice("b")], [choice("", finish="stop")]] == [
        chunk["choices"] for chunk in told
    ]
    assert all(c["object"] == "text_completion" and "usage" not in c for c in told)
    assert len({(c["id"], c["created"], c["model"]) for c in told}) == 1


def test_the_usage_chunk() -> None:
    """With `include_usage`, the last chunk has the usage and no choices."""
    *told, last = chunks(stream(TEXT, usage=True))

    assert [None] * 3 == [chunk["usage"] for chunk in told]
    assert ([], 5) == (last["choices"], last["usage"]["total_tokens"])


def test_a_whole_answer() -> None:
    """A whole answer has every field that the specification requires."""
    answer = whole(TEXT)

    assert ("text_completion", "m", [choice("ab", finish="stop")]) == (
        answer["object"],
        answer["model"],
        answer["choices"],
    )
    assert answer["id"].startswith("cmpl-")
    assert answer["usage"]["total_tokens"] == 5


def test_reasoning_is_text() -> None:
    """What a model thinks is a part of a plain completion's text, streamed and whole."""
    batch: list[Event] = [ReasoningDelta("h"), TextDelta("a"), Finish("stop"), NONE]

    assert ["h", "a", ""] == [c["choices"][0]["text"] for c in chunks(stream(batch))]
    assert whole(batch)["choices"][0]["text"] == "ha"


def test_logprobs() -> None:
    """Log probabilities count their offsets through the pieces of a choice, streamed and whole."""
    top = [TokenLogprob("x", -2.0)]
    batch: list[Event] = [
        TextDelta("ab", 0, [TokenLogprob("a", -0.5, None, top), TokenLogprob("b", -1.0)]),
        TextDelta("é", 0, [TokenLogprob("é", -3.0)]),
        Finish("stop"),
        NONE,
    ]
    first, second = (c["choices"][0]["logprobs"] for c in chunks(stream(batch))[:2])

    assert ([0, 1], [2]) == (first["text_offset"], second["text_offset"])
    assert whole(batch)["choices"][0]["logprobs"] == {
        "tokens": ["a", "b", "é"],
        "token_logprobs": [-0.5, -1.0, -3.0],
        "top_logprobs": [{"x": -2.0}, {}, {}],
        "text_offset": [0, 1, 2],
    }


def test_offsets_of_several_choices() -> None:
    """Each choice counts its own offsets."""
    batch: list[Event] = [
        TextDelta("abc", 0, [TokenLogprob("abc", -1.0)]),
        TextDelta("d", 1, [TokenLogprob("d", -1.0)]),
        TextDelta("e", 0, [TokenLogprob("e", -1.0)]),
    ]

    offsets = [c["choices"][0]["logprobs"]["text_offset"] for c in chunks(stream(batch))]
    assert [[0], [0], [3]] == offsets


def test_unknown_fields() -> None:
    """Unknown fields come out at the level on which they came in."""
    extra = Extra({"top": 1}, {"side": 2})
    batch: list[Event] = [TextDelta("a", 0, None, extra), Finish("stop"), NONE]

    told = chunks(stream(batch))[0]
    assert (1, 2) == (told["top"], told["choices"][0]["side"])
    answer = whole(batch)
    assert (1, 2) == (answer["top"], answer["choices"][0]["side"])


def test_silent_events() -> None:
    """Progress, and what a completion has no place for, says nothing."""
    batch: list[Event] = [
        Progress(1, 2),
        Opaque(Extra(delta={"x": 1}), 0),
        Opaque(Extra({"y": 1})),
    ]

    assert stream(batch) == b"data: [DONE]\n\n"


def test_a_broken_stream() -> None:
    """The error frame has the error with its four fields."""
    frame = CompletionEncoder(CompletionRequest(prompt=""), "m").error(BackendError("No."))

    assert BackendError("No.").detail() == msgspec.json.decode(frame[6:])["error"]


def test_ignored_parameters() -> None:
    """What was ignored is named in a whole answer."""
    assert whole(TEXT, ignored=("x",))["unilect"] == {"ignored": ["x"]}


pieces = st.builds(
    TextDelta,
    st.text(min_size=1, max_size=8),
    st.integers(0, 2),
    st.none()
    | st.lists(
        st.builds(TokenLogprob, st.text(max_size=3), st.floats(-9, 0)), min_size=1, max_size=2
    ),
    st.none() | st.builds(Extra, st.just({"x": 1}), st.just({"y": 2})),
)


@given(batches=st.lists(st.lists(pieces, max_size=5), max_size=5))
def test_a_stream_folds_to_the_whole(batches: list[list[Any]]) -> None:
    """What a client puts together from a stream is what it would have got as a whole answer."""
    used = sorted({event.index for batch in batches for event in batch}) or [0]
    batches.append([*(Finish("length", index) for index in used), Usage(3, 2, 0, 0)])

    decoder, events = ChunkDecoder(), list[Event]()
    decoder.decode(FrameReader().feed(stream(*batches, usage=True)), events)
    actual = whole([*events, *decoder.end()])
    expected = whole(*batches)

    for name in ("choices", "usage"):
        assert expected[name] == actual[name]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [[-1]]}, "prompt[0][0]"),
        ({"prompt": 7}, "prompt"),
        ({}, "prompt"),
        ({"prompt": ["a"] * (MAX_CHOICES + 1)}, "prompt"),
        ({"prompt": ["a"] * 9, "n": 16}, "prompt"),
        ({"prompt": ["a"] * 9, "best_of": 16}, "prompt"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
        ({"prompt": "a", "n": 17}, "n"),
    ],
)
def test_bodies_that_are_refused(fields: dict[str, Any], param: str) -> None:
    """A body that is wrong is refused by the name of its field."""
    with pytest.raises(InvalidRequest) as raised:
        decode(msgspec.json.encode(fields))

    assert param == raised.value.param


@pytest.mark.parametrize(
    "prompt", ["a", "", None, [], ["a", "b"], [1, 2], [[1], [2]], ["a"] * MAX_CHOICES, [""]]
)
def test_prompts_that_are_taken(prompt: Any) -> None:
    """Every form of a prompt is taken, the empty one too."""
    assert decode(msgspec.json.encode({"prompt": prompt})).prompts
