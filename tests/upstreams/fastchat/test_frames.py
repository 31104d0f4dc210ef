"""Tests of unilect.upstreams.fastchat._frames: the frames of FastChat's workers."""

import math
from typing import Any

import msgspec
import pytest

from support.common.effort import effort_s
from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    OutOfMemory,
    QuotaExceeded,
    UnilectError,
    UnsupportedParameter,
)
from unilect.core.events import Event, Finish, Progress, TextDelta, Usage, fold
from unilect.upstreams.fastchat._frames import (
    ERRORS,
    AnswerDecoder,
    Frame,
    FrameReader,
    embeddings,
    error,
)


def frame(text: str, **fields: Any) -> bytes:
    """A frame as a worker writes it."""
    return msgspec.json.encode({"text": text, "error_code": 0} | fields) + b"\0"


def used(prompt: int, completion: int) -> dict[str, int]:
    """A frame's usage."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def events(*pieces: bytes, limit: int = 100, **how: Any) -> list[Event]:
    """The events of an answer that comes in these pieces."""
    reader, decoder = FrameReader(), AnswerDecoder(limit, **how)
    found = [event for piece in pieces for event in decoder.add(reader.feed(piece))]
    reader.end()
    return [*found, *decoder.end(), decoder.usage or Usage(-1, -1)]


HELLO = (
    frame("Hé", usage=used(3, 0), finish_reason=None)
    + frame("Hé 世\ufffd", usage=used(3, 2), finish_reason=None)
    + frame("Hé 世界!", usage=used(3, 4), finish_reason=None)
    + frame("Hé 世界!", usage=used(3, 4), finish_reason="stop")
)


def test_a_cut_anywhere() -> None:
    """A frame that is cut in two, at whatever byte, tells the same answer."""
    for cut in range(len(HELLO) + 1):
        answer = fold([events(HELLO[:cut], HELLO[cut:])])
        (choice,) = answer.choices
        assert ("Hé 世界!", "stop", Usage(3, 4)) == (choice.text, choice.finish_reason, answer.usage), cut  # fmt: skip


def test_byte_by_byte() -> None:
    """Bytes that come one at a time tell one piece for each frame that brings new text."""
    found = events(*(HELLO[i : i + 1] for i in range(len(HELLO))))

    texts = [event.text for event in found if isinstance(event, TextDelta)]
    assert ["Hé", " 世", "界!"] == texts


def test_whole() -> None:
    """A whole answer is the last text alone, of as many tokens as the worker counts, behind those of the prompt."""
    text = TextDelta("Hé 世界!", tokens=4)
    assert [Progress(3, 3), text, Finish("stop"), Usage(3, 4)] == events(HELLO, whole=True)


def test_tokens_so_far() -> None:
    """The prompt's tokens are told once, before the first text, and of each piece how many tokens it is made of."""
    reader, decoder = FrameReader(), AnswerDecoder(100)
    found = [
        event for data in HELLO.split(b"\0") for event in decoder.add(reader.feed(data + b"\0"))
    ]

    assert [Progress(3, 3), 1, 1, 2] == [found[0], *(event.tokens for event in found[1:])]


def test_the_last_text_comes_twice() -> None:
    """A text that is repeated with its finish reason is told once."""
    found = events(frame("a", finish_reason=None) + frame("a", finish_reason="length"))

    assert [TextDelta("a"), Finish("length"), Usage(-1, -1)] == found


def test_half_a_character_is_held_back() -> None:
    """What is no whole character yet is not told, and one that never becomes whole neither."""
    assert "ab" == fold([events(frame("a\ufffd"), frame("ab\ufffd"))]).choices[0].text


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["I do n", "I don't"], "I do n't"),
        (["Hello ", "Hello.", "Hello. Bye"], "Hello. Bye"),
        (["a b", "a b c", "a b"], "a b c"),
        ([" a", "a b"], " a b"),
    ],
)
def test_text_that_does_not_only_grow(texts: list[str], expected: str) -> None:
    """Blanks that come and go in the text so far, and a text that gets shorter, harm nothing that is new."""
    found = fold([events(*(frame(text) for text in texts))])

    assert expected == found.choices[0].text


def test_a_long_text_with_a_blank_less() -> None:
    """A long answer from which a worker has removed a blank is read as quickly as any other."""
    text = "I don't. " * 4000

    def told() -> str:
        decoder = AnswerDecoder(10_000)
        sent = decoder.add([Frame(text="I do n")])
        for end in [*range(100, len(text), 50), len(text)]:
            sent += decoder.add([Frame(text=text[:end])])
        return fold([[*sent, *decoder.end()]]).choices[0].text or ""

    assert effort_s(told, 0.5) < 0.5
    assert text.replace(" ", "") == told().replace(" ", "")


def test_text_that_is_taken_back() -> None:
    """An answer that becomes another one is an error, since a part of it was sent."""
    with pytest.raises(BackendError, match="changed a part"):
        events(frame("yes"), frame("no, never"))


def test_text_that_is_taken_back_harms_no_whole_answer() -> None:
    """A whole answer is what the worker says last."""
    assert TextDelta("no") == events(frame("yes"), frame("no"), whole=True)[0]


def test_abort() -> None:
    """`abort` is no end of an answer."""
    with pytest.raises(BackendError, match="aborted the answer"):
        events(frame("a", finish_reason=None), frame("a", finish_reason="abort"))


def test_no_finish_reason_at_all() -> None:
    """A worker that never speaks of a finish reason has finished when its stream ends in order; at its limit by length."""
    assert Finish("stop") == events(frame("a", usage=used(1, 9)), limit=10)[-2]
    assert Finish("length") == events(frame("a", usage=used(1, 10)), limit=10)[-2]


@pytest.mark.parametrize(
    "data",
    [frame("a", finish_reason=None), b"", HELLO[:-9], frame("a")[:-1]],
    ids=["null finish reason", "nothing", "cut frame", "no NUL"],
)
def test_torn(data: bytes) -> None:
    """A stream that ends without what makes it whole is broken."""
    with pytest.raises(BackendError, match="broke off"):
        events(data)


@pytest.mark.parametrize("data", [b"x\0", b'{"text":1}\0', b"[]\0", b'{"text":"\xff"}\0'])
def test_no_frame(data: bytes) -> None:
    """What is no frame is told as the worker's fault."""
    with pytest.raises(BackendError):
        events(data)


def test_length_is_counted_whole() -> None:
    """The transformers' worker counts one token too few where an answer ends by length."""
    assert (
        Usage(3, 10) == events(frame("a", usage=used(3, 9), finish_reason="length"), limit=10)[-1]
    )


@pytest.mark.parametrize("number", [*ERRORS, 40101, 40102, 50001, 50003, 50004])
def test_error_frames(number: int) -> None:
    """Each of FastChat's numbers is an error of ours, with the same number where both have it."""
    with pytest.raises(UnilectError) as caught:
        events(frame("ok"), frame("CUDA at /opt/x/y.py", error_code=number))

    assert ERRORS.get(number, BackendError) is type(caught.value)
    assert "/opt" not in caught.value.message


def test_error_numbers() -> None:
    """The errors that a client must tell apart are told apart."""
    found = {number: type(error(number, "x")) for number in (40303, 42902, 50002, 50005, 50006, 7)}

    assert {
        40303: ContextLengthExceeded,
        42902: QuotaExceeded,
        50002: OutOfMemory,
        50005: BackendUnavailable,
        50006: BackendTimeout,
        7: BackendError,
    } == found


LOGPROBS = {
    "tokens": ["a", "b", "c"],
    "token_logprobs": [None, -0.5, -1.0],
    "top_logprobs": [{}, {"b": -0.5}, None],
    "text_offset": [0, 1, 2],
}


def test_logprobs() -> None:
    """Log probabilities come for all tokens so far, and are told for the new ones; one that is null is told as such."""
    first = {name: values[:2] for name, values in LOGPROBS.items()}
    found = events(
        frame("ab", logprobs=first),
        frame("abc", logprobs=LOGPROBS),
        logprobs=True,
    )
    deltas = [event for event in found if isinstance(event, TextDelta)]

    assert ["ab", "c"] == [delta.text for delta in deltas]
    tokens = [token for delta in deltas for token in delta.logprobs or ()]
    assert ["a", "b", "c"] == [token.token for token in tokens]
    assert math.isnan(tokens[0].logprob)
    assert [-0.5, -1.0] == [token.logprob for token in tokens[1:]]
    assert ["b"] == [top.token for top in tokens[1].top_logprobs]


def test_logprobs_that_do_not_come() -> None:
    """A worker that gives no log probabilities does not honour the parameter, which is told before any text."""
    with pytest.raises(UnsupportedParameter) as caught:
        events(frame("a"), logprobs=True)

    assert "logprobs" == caught.value.param


def test_embeddings() -> None:
    """Vectors, the tokens of the inputs, and errors that come with the status 200."""
    assert ([[1.0, 2.0]], 3) == embeddings(b'{"embedding":[[1,2]],"token_num":3}')
    with pytest.raises(OutOfMemory):
        embeddings(b'{"text":"x","error_code":50002}')
    with pytest.raises(BackendError):
        embeddings(b"<html>")


def test_a_frame_in_many_pieces() -> None:
    """A long frame that comes piece by piece is looked at once, not again with each of them."""
    text, size = "x" * 800_000, 50
    data = msgspec.json.encode({"text": text, "error_code": 0}) + b"\0"

    def work() -> None:
        reader = FrameReader()
        found = [reader.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert [text] == [frame.text for frame in found[-1]]

    assert effort_s(work, 0.3) < 0.3
