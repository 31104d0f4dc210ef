"""Tests of unilect.frames: what is packed is read again, and what is no frame is told."""

import asyncio
from typing import Any

import msgspec
import pytest

from unilect import frames
from unilect.errors import (
    BackendError,
    BackendUnavailable,
    ContextLengthExceeded,
    InternalError,
    InvalidRequest,
    UnilectError,
)
from unilect.events import (
    Event,
    Finish,
    Progress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from unilect.requests import ChatRequest, FunctionDefinition, Tool

EVENTS: list[Event] = [
    Progress(3, 9),
    ReasoningDelta("Hm."),
    TextDelta("中🙂", 0, [TokenLogprob("中", -0.5, [1, 2], [TokenLogprob("x", -1.0)])]),
    ToolCallDelta(0, "{}", "call_1", "f"),
    Finish("tool_calls"),
    Usage(3, 4, 1),
]
HUGE = FunctionDefinition("f", parameters={"type": "string", "maxLength": 2**64})


async def body_of(data: bytes) -> bytes:
    """The body of the first frame of a stream."""
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await frames.read(reader)


async def test_events_there_and_back() -> None:
    """Every kind of event that an engine tells arrives as it was."""
    reply = frames.reply_of(await body_of(frames.of_events(EVENTS, last=True)))

    assert reply.last
    assert EVENTS == frames.events_of(reply)


async def test_calls_and_values() -> None:
    """A call arrives with its operation, its body and its adapter, and a value as it was."""
    call = frames.Call("embed", frames.raw({"input": "x"}), "pirate")
    again = frames.call_of(await body_of(frames.packed(call)))
    value = frames.reply_of(await body_of(frames.packed(frames.Reply(value=frames.raw([1, 2])))))

    assert ("embed", "pirate") == (again.operation, again.adapter)
    assert {"input": "x"} == msgspec.msgpack.decode(again.body)
    assert [1, 2] == msgspec.msgpack.decode(value.value)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (ChatRequest(messages=[], tools=[Tool(HUGE)]), "tools"),
        ([2**64], None),
    ],
)
def test_numbers_that_are_too_large(request_: Any, param: str | None) -> None:
    """A number beyond 64 bits, as a schema may hold, is the request's fault."""
    with pytest.raises(InvalidRequest, match="exceeds 64 bits") as caught:
        frames.raw(request_)
    assert param == caught.value.param


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidRequest("No.", param="stop"), InvalidRequest),
        (BackendUnavailable("Later.", retry_after_s=5), BackendUnavailable),
        (InternalError("Oh."), BackendError),
    ],
)
async def test_errors(error: UnilectError, expected: type[UnilectError]) -> None:
    """An error of the request, or of the moment, is raised again as such; any other is the backend's."""
    with pytest.raises(expected) as caught:
        frames.reply_of(await body_of(frames.of_error(error)))

    assert (error.message, error.param) == (caught.value.message, caught.value.param)
    assert error.retry_after_s == caught.value.retry_after_s


async def test_too_long_a_prompt_keeps_its_numbers() -> None:
    """An error of too long a prompt arrives with the prompt's tokens and the context."""
    error = ContextLengthExceeded("Long.").counted(9, 8)

    with pytest.raises(ContextLengthExceeded) as caught:
        frames.reply_of(await body_of(frames.of_error(error)))

    assert (9, 8) == (caught.value.prompt_tokens, caught.value.context)


async def test_what_is_no_frame() -> None:
    """Nonsense, too much and too little are errors, and none of them is read on."""
    with pytest.raises(BackendError, match="invalid frame"):
        frames.reply_of(b"\xc1")
    with pytest.raises(BackendError, match="too long"):
        await body_of(b"\xff\xff\xff\xff")
    with pytest.raises(asyncio.IncompleteReadError):
        await body_of(b"\x00\x00\x00\x09abc")
