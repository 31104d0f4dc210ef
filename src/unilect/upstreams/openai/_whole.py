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
from unilect.http.sse import FrameReader
from unilect.upstreams.openai._normalize import plain_json
from unilect.upstreams.openai.chunks import DONE, ChunkDecoder


def decode_whole(body: bytes, choices: int = 1) -> list[Event]:
    """
    The events of a whole answer.

    Args:
        choices: How many were asked for.

    Raises:
        UnilectError: It is an error, in spite of its status, or no answer at all.
    """
    decoder, events = ChunkDecoder(True, choices), list[Event]()
    if body.lstrip().startswith(b"data:"):  # some servers know nothing but streams
        reader = FrameReader()
        decoder.decode(reader.feed(body) + reader.end(), events)
        return events + decoder.end()
    try:
        answer = plain_json(body)
    except BackendError as error:
        raise BackendError(
            "The model's server answered with something that is not JSON."
        ) from error
    decoder.decode([msgspec.json.encode(_chunk(answer)), DONE], events)
    if not isinstance(answer, dict) or answer.get("choices") is None:  # and no error either
        raise BackendError("The model's server answered with no choices.")
    return events + decoder.end()


def _chunk(answer: Any) -> Any:
    """The chunk that says the same as an answer; what is no answer stays as it is, and the decoder says so."""
    if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list):
        return answer
    choices = [_with_delta(choice, number) for number, choice in enumerate(answer["choices"])]
    return _told(answer) | {"choices": choices}


def _with_delta(choice: Any, number: int) -> Any:
    """A choice with its message as a delta. Choices and calls that have no index are counted, since none is the first."""
    if not isinstance(choice, dict):
        return choice
    choice = {"index": number} | _told(choice)
    message = choice.pop("message", None)
    if isinstance(message, dict):
        message = _told(message)
        if message.get("content") == "":  # in a stream it would not have come at all
            del message["content"]
        if isinstance(calls := message.get("tool_calls"), list):
            message["tool_calls"] = [
                {"index": n} | call if isinstance(call, dict) else call
                for n, call in enumerate(calls)
            ]
    if message is not None:
        choice["delta"] = message
    return choice


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields that say something: servers name all that they have not, and a `null` needs no look."""
    return {name: value for name, value in fields.items() if value is not None}
