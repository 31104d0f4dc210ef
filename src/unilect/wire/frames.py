"""
The protocol between the gateway and a process that holds an engine: frames, over a unix socket with one call per connection, or passed on
to another machine.

A frame is four bytes of length and a msgpack message. The caller sends one Call; the other side answers with Replies: batches of events
and an end, or one value, or an error. Who closes the connection no longer wants the answer. Nothing is pickled: the other side is
taken at its word for types that are written down here, and for nothing else.

Source: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from itertools import chain, repeat
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from unilect.core import errors, events
from unilect.core.errors import BackendError, UnilectError
from unilect.core.events import Event, Extra

#: writes the replies to a call, of which it gets the body of the frame
Answer: TypeAlias = Callable[[bytes, asyncio.StreamWriter], Coroutine[Any, Any, None]]
#: what the failure of a call is to its caller
Meaning: TypeAlias = Callable[[Exception], UnilectError]
MAX_FRAME_BYTES = 64 * 1024 * 1024
_HEAD_BYTES = 4
_BACKLOG = 2048  # calls that may come at once
_KINDS: dict[str, Any] = {
    kind.__name__: msgspec.msgpack.Decoder(kind).decode
    for kind in (
        events.TextDelta,
        events.ReasoningDelta,
        events.RefusalDelta,
        events.ToolCallDelta,
        events.Opaque,
        events.Finish,
        events.Usage,
        events.Progress,
    )
}
#: The errors that may be told of a request; anything else is a flaw of the other side.
_ERRORS = {
    kind.__name__: kind
    for kind in (
        errors.InvalidRequest,
        errors.ContextLengthExceeded,
        errors.UnsupportedParameter,
        errors.UnsupportedOperation,
        errors.BackendUnavailable,
        errors.BackendTimeout,
        errors.BackendError,
        errors.EngineDied,
        errors.MemoryExhausted,
        errors.OutOfMemory,
        errors.QueueFull,
        errors.RequestKilledEngine,
    )
}


class Call(Struct):
    """A call: the name of an operation, its body, the LoRA blend to apply, whose cached prompts to reuse, and the request's id."""

    operation: str
    body: Raw
    adapter: str | None = None
    owner: str = ""
    request_id: str = ""


class Vectors(Struct):
    """
    Some of the vectors that were asked for: the places of their inputs, how many tokens these have, and which were cut. The vector of
    a document that is ranked is its logit.
    """

    places: list[int]
    vectors: list[list[float]]
    tokens: int
    cut: list[int] = []


class ErrorReply(Struct):
    """An error of ours, by the name of its class."""

    kind: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    prompt_tokens: int | None = None  # of a prompt that is too long, as is the next
    context: int | None = None
    logged: str | None = None


class Reply(Struct, omit_defaults=True):
    """One answer to a call: events, each with the name of its class; or a value; or an error; `last` where none follows."""

    events: list[tuple[str, Raw]] = []
    value: Raw = Raw()
    error: ErrorReply | None = None
    last: bool = False


Replies: TypeAlias = AsyncGenerator[Reply, None]
#: The call in the body of a frame; a msgspec.DecodeError where it is none.
call_of = msgspec.msgpack.Decoder(Call).decode
_replies = msgspec.msgpack.Decoder(Reply).decode


def pack(message: Any) -> bytes:
    """Return a frame."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_HEAD_BYTES, "big") + body


def raw(value: Any) -> Raw:
    """
    Return a value inside of a frame.

    Raises:
        InvalidRequest: It holds a number that no frame can hold.
    """
    try:
        return Raw(msgspec.msgpack.encode(value))
    except OverflowError as error:
        raise _too_large(value) from error


def of_events(batch: list[Event], last: bool = False) -> bytes:
    """Return a frame of events."""
    named = [(type(event).__name__, raw(_plain(event))) for event in batch]
    return pack(Reply(events=named, last=last))


def _plain(event: Event) -> Event:
    """Return an event whose further fields are values: those that came as JSON and were not read are JSON still."""
    extra: Extra | None = getattr(event, "extra", None)
    if extra is None:
        return event
    fields = {name: getattr(extra, name) for name in extra.__struct_fields__}
    read = {name: _values(of) if isinstance(of, dict) else of for name, of in fields.items()}
    return replace(event, extra=Extra(**read))


def _values(of: dict[str, Any]) -> dict[str, Any]:
    return {
        name: msgspec.json.decode(one) if isinstance(one, Raw) else one for name, one in of.items()
    }


def of_error(error: UnilectError) -> bytes:
    """Return a frame of an error."""
    reply = ErrorReply(
        type(error).__name__, error.message, error.param, error.retry_after_s, logged=error.logged
    )
    if isinstance(error, errors.ContextLengthExceeded):
        reply.prompt_tokens, reply.context = error.prompt_tokens, error.context
    return pack(Reply(error=reply, last=True))


def reply_of(body: bytes) -> Reply:
    """
    Return the reply in a frame.

    Raises:
        BackendError: It is none.
        UnilectError: It is an error.
    """
    try:
        reply = _replies(body)
    except msgspec.DecodeError as error:
        raise BackendError(
            "The engine process sent an invalid frame. Send the request again."
        ) from error
    if (failed := reply.error) is not None:
        raise _error_of(failed)
    return reply


def reply_in(frame: bytes) -> Reply:
    """
    Return the reply in a whole frame; see `reply_of`.

    Raises:
        UnilectError: As `reply_of`.
    """
    return reply_of(frame[_HEAD_BYTES:])


def _error_of(failed: ErrorReply) -> UnilectError:
    """Turn a child's error reply into an error."""
    kind = _ERRORS.get(failed.kind, BackendError)
    error = kind(
        failed.message, param=failed.param, retry_after_s=failed.retry_after_s, logged=failed.logged
    )
    if isinstance(error, errors.ContextLengthExceeded):
        error.with_counts(failed.prompt_tokens, failed.context)
    return error


def events_of(reply: Reply) -> list[Event]:
    """Return the events of a reply."""
    return [_KINDS[name](event) for name, event in reply.events]


def _too_large(request: Any) -> errors.InvalidRequest:
    """Make the error that names the parameter in which a whole number is beyond 64 bits."""
    for name in getattr(request, "__struct_fields__", ()):
        try:
            msgspec.msgpack.encode(getattr(request, name))
        except OverflowError:
            return errors.InvalidRequest(
                f"`{name}` has an integer that exceeds 64 bits; use a smaller one.", param=name
            )
    return errors.InvalidRequest(
        "The request has an integer that exceeds 64 bits. Use a smaller one."
    )


async def read(reader: asyncio.StreamReader) -> bytes:
    """
    Return the body of the next frame.

    Raises:
        asyncio.IncompleteReadError: The other side is gone.
        BackendError: It is too long.
    """
    length = int.from_bytes(await reader.readexactly(_HEAD_BYTES), "big")
    if length > MAX_FRAME_BYTES:
        raise BackendError(
            "The engine process sent a frame that is too long. Send the request again."
        )
    return await reader.readexactly(length)


async def exchange(
    socket_path: str, call: Any, meaning: Meaning, *waits_s: float | None
) -> Replies:
    """
    Send a call to a process, and yield its replies. Closing the generator tells the process that nobody waits any longer.

    Args:
        call: What the process takes.
        meaning: Makes the error for a process that does not listen (ConnectionRefusedError), is silent (TimeoutError), or is gone.
        waits_s: The longest time until the first reply, the second one and so on; the last is also for all that follow. None for no limit.

    Raises:
        UnilectError: As is answered, or as `meaning` returns.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(socket_path)
    except OSError as error:
        raise meaning(ConnectionRefusedError(*error.args)) from error
    try:
        writer.write(pack(call))
        for wait_s in chain(waits_s, repeat(waits_s[-1])):
            async with asyncio.timeout(wait_s):
                body = await read(reader)
            reply = reply_of(body)
            yield reply
            if reply.last:
                return
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
        raise meaning(error) from error
    finally:
        writer.close()


async def value_of(replies: Replies, sender: str) -> bytes:
    """
    Return the value among replies, as msgpack.

    Raises:
        BackendError: There is none.
        UnilectError: As the replies.
    """
    async with aclosing(replies):
        async for reply in replies:
            if value := bytes(reply.value):
                return value
    raise BackendError(f"The {sender} sent an empty answer. Send the request again.")


def listen(
    loop: asyncio.AbstractEventLoop, socket_path: str, answer: Answer, meaning: Meaning
) -> None:
    """Serve calls on a socket, on a loop that runs in a thread of its own from now on."""
    on_call = partial(serve, answer=answer, meaning=meaning)
    loop.run_until_complete(asyncio.start_unix_server(on_call, socket_path, backlog=_BACKLOG))
    threading.Thread(target=loop.run_forever, daemon=True).start()


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer, meaning: Meaning
) -> None:
    """Serve a connection's one call, until it is answered or its caller has left; `answer` is cancelled then."""
    work = left = None
    try:
        work = asyncio.create_task(answer(await read(reader), writer))
        left = asyncio.create_task(reader.read(1))
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    except Exception as error:  # noqa: BLE001 - a flaw of one call is not the process's end
        writer.write(of_error(meaning(error)))
    finally:
        for task in (work, left):
            if task is not None:
                task.cancel()
        writer.close()
