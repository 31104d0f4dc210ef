"""
OpenAI's whole answers: a body in, events out.

A whole answer is made into the one chunk that would say the same, and that chunk is read as any other: so what servers get
wrong is mended in one place, and a whole answer cannot differ from the stream of it.

Source: https://platform.openai.com/docs/api-reference/chat/object
"""

from typing import Any

import msgspec

from unilect.errors import BackendError
from unilect.events import Event
from unilect.upstreams._openai_wire import DONE, ChunkDecoder, plain_json
from unilect.upstreams._sse import FrameReader


def decode_whole(body: bytes) -> list[Event]:
    """
    The events of a whole answer.

    Raises:
        UnilectError: It is an error, in spite of its status, or no answer at all.
    """
    decoder, events = ChunkDecoder(joined=True), list[Event]()
    if body.lstrip().startswith(b"data:"):  # some servers know nothing but streams
        reader = FrameReader()
        done = decoder.decode(reader.feed(body) + reader.end(), events)
    else:
        done = decoder.decode([_chunk(body), DONE], events)
    return events + decoder.end(done)


def _chunk(body: bytes) -> bytes:
    """The chunk that says the same as a body; what is no answer stays as it is, and the decoder says so."""
    try:
        answer = plain_json(body)
    except BackendError as error:
        raise BackendError("The model's server answered with something that is not JSON.") from error
    if isinstance(answer, dict) and isinstance(answer.get("choices"), list):
        choices = [_with_delta(choice, number) for number, choice in enumerate(answer["choices"])]
        answer = _told(answer) | {"choices": choices}
    return msgspec.json.encode(answer)


def _with_delta(choice: Any, number: int) -> Any:
    """A choice with its message as a delta. Choices and calls that have no index are counted, since none is the first."""
    if not isinstance(choice, dict):
        return choice
    choice = {"index": number} | _told(choice)
    message = choice.pop("message", None)
    if isinstance(message, dict):
        message = _told(message)
        if isinstance(calls := message.get("tool_calls"), list):
            message["tool_calls"] = [
                {"index": n} | call if isinstance(call, dict) else call
                for n, call in enumerate(calls)
            ]
        choice["delta"] = message
    return choice


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields that say something: servers name all that they have not, and a `null` needs no look."""
    return {name: value for name, value in fields.items() if value is not None}
