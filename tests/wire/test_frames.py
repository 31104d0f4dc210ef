"""Tests of unilect.wire.frames: what is packed is read again, and what is no frame is told."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    EngineDied,
    InternalError,
    InvalidRequest,
    OutOfMemory,
    QueueFull,
    RequestKilledEngine,
    UnilectError,
    UnsupportedOperation,
    UnsupportedParameter,
)
from unilect.core.events import (
    Event,
    Extra,
    Finish,
    Opaque,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from unilect.core.requests import ChatRequest, FunctionDefinition, Tool
from unilect.wire import frames

EVENTS: list[Event] = [
    Progress(3, 9),
    ReasoningDelta("Hm."),
    TextDelta("中🙂", 0, [TokenLogprob("中", -0.5, [1, 2], [TokenLogprob("x", -1.0)])]),
    ToolCallDelta(0, "{}", "call_1", "f"),
    Finish("tool_calls"),
    Usage(3, 4, 1),
    RefusalDelta("No.", 1),
    Finish("stop", 1, stop="\n"),
    Usage(3, 4, 1, 2, counters={"draft": 1.5}),
    Opaque(Extra(chunk={"a": [1, None]}, native={"b": "中"}), 0),
    TextDelta("x", extra=Extra(choice={"c": {"d": True}}, delta={"e": ""}), tokens=3),
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
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


async def test_fields_that_were_not_read() -> None:
    """Further fields of an upstream that are JSON still arrive as the values that they are; those of other kinds as they were."""
    extra = Extra(
        chunk={"a": Raw(b'{"b": [1, 2.5, null]}'), "c": 3},
        choice={"d": Raw('"中🙂"'.encode())},
        delta={"e": Raw(b"true")},
        call={"f": Raw(b"[]")},
        native={"g": Raw(b"18446744073709551615")},
    )
    read = Extra(
        chunk={"a": {"b": [1, 2.5, None]}, "c": 3},
        choice={"d": "中🙂"},
        delta={"e": True},
        call={"f": []},
        native={"g": 2**64 - 1},
    )
    events: list[Event] = [
        TextDelta("x", extra=extra),
        ToolCallDelta(0, "{", extra=extra),
        Opaque(extra),
        Usage(1, 2, extra=extra),
    ]

    told = frames.events_of(frames.reply_of(await body_of(frames.of_events(events))))

    assert [replace(event, extra=read) for event in events] == told  # type: ignore[type-var]


@given(JSON)
async def test_any_field_that_was_not_read(value: Any) -> None:
    """Any JSON value of a further field arrives as it was."""
    event = Opaque(Extra(chunk={"a": Raw(msgspec.json.encode(value))}))

    (told,) = frames.events_of(frames.reply_of(await body_of(frames.of_events([event]))))

    assert isinstance(told, Opaque)
    assert {"a": value} == told.extra.chunk


def test_every_event_has_a_place() -> None:
    """No kind of event is without a test of its way."""
    assert {*get_args(Event)} == {type(event) for event in EVENTS}


async def test_calls_and_values() -> None:
    """A call arrives with its operation, its body and its adapter, and a value as it was."""
    call = frames.Call("embed", frames.raw({"input": "x"}), "pirate")
    again = frames.call_of(await body_of(frames.pack(call)))
    value = frames.reply_of(await body_of(frames.pack(frames.Reply(value=frames.raw([1, 2])))))

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
        (UnsupportedParameter("No.", param="top_k"), UnsupportedParameter),
        (UnsupportedOperation("No."), UnsupportedOperation),
        (BackendTimeout("Late."), BackendTimeout),
        (EngineDied("Oh."), EngineDied),
        (OutOfMemory("Full."), OutOfMemory),
        (QueueFull("Full.", retry_after_s=2.5), QueueFull),
        (RequestKilledEngine("Oh."), RequestKilledEngine),
        (InternalError("Oh."), BackendError),
    ],
)
async def test_errors(error: UnilectError, expected: type[UnilectError]) -> None:
    """An error of the request, or of the moment, is raised again as such; any other is the backend's."""
    with pytest.raises(expected) as caught:
        frames.reply_of(await body_of(frames.of_error(error)))

    assert (error.message, error.param) == (caught.value.message, caught.value.param)
    assert error.retry_after_s == caught.value.retry_after_s
    assert expected is type(caught.value)


async def test_too_long_a_prompt_keeps_its_numbers() -> None:
    """An error of too long a prompt arrives with the prompt's tokens and the context."""
    error = ContextLengthExceeded("Long.").with_counts(9, 8)

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


async def test_serving_calls(tmp_path: Path) -> None:
    """A call is answered, its failure is told as what it means, and who leaves has it cancelled."""
    cancelled, path = asyncio.Event(), str(tmp_path / "s")

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        asked = frames.call_of(body).operation
        if asked == "wait":
            writer.write(frames.pack(frames.Reply()))
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        if asked == "fail":
            raise LookupError("nothing there")
        writer.write(frames.pack(frames.Reply(value=frames.raw(asked), last=True)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frames.serve(reader, writer, answer, lambda error: QueueFull(str(error)))

    async def told(operation: str) -> frames.Reply:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(frames.pack(frames.Call(operation, frames.raw(None))))
            return frames.reply_of(await frames.read(reader))
        finally:
            writer.close()

    async with await asyncio.start_unix_server(serve, path):
        assert frames.Reply(value=frames.raw("hello"), last=True) == await told("hello")
        with pytest.raises(QueueFull, match="nothing there"):
            await told("fail")
        assert not cancelled.is_set()
        assert not (await told("wait")).last
        await cancelled.wait()


async def test_a_process_that_does_not_answer(tmp_path: Path) -> None:
    """Who does not listen, is silent or is gone before the last reply is told apart; what came before is read."""

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(frames.of_events([TextDelta("a")]))
        if "silent" == frames.call_of(body).operation:
            await asyncio.sleep(60)

    async def failure(path: Path, operation: str) -> tuple[int, UnilectError]:
        count, call = 0, frames.Call(operation, frames.raw(None))
        meaning = lambda error: BackendError(type(error).__name__)  # noqa: E731
        with pytest.raises(BackendError) as told:
            async for _ in frames.exchange(str(path), call, meaning, 60.0, 0.01):
                count += 1
        return count, told.value

    path = tmp_path / "s"
    server = await asyncio.start_unix_server(
        partial(frames.serve, answer=answer, meaning=lambda error: BackendError("x")), path
    )
    async with server:
        found = [await failure(*one) for one in ((path, "silent"), (path, "cut"), (tmp_path / "none", ""))]  # fmt: skip

    expected = [(1, "TimeoutError"), (1, "IncompleteReadError"), (0, "ConnectionRefusedError")]
    assert expected == [(count, error.message) for count, error in found]
