"""
OpenAI's non-streaming answers: a body in, events out.

A non-streaming answer is converted into one equivalent chunk, which is decoded like any other. So normalization is in one
place, and streaming and non-streaming answers cannot differ. One without anything unusual is decoded as the chunk that it is.

Source: https://platform.openai.com/docs/api-reference/chat/object
"""

from typing import Any

import msgspec

from unilect.core.errors import BackendError
from unilect.core.events import Event
from unilect.http.sse import FrameReader
from unilect.wire.chunks import DONE, ChunkDecoder
from unilect.wire.errors import invalid
from unilect.wire.normalize import plain_json, without_nulls


def decode_whole(body: bytes, choices: int = 1) -> list[Event]:
    """
    Return the events of a non-streaming answer.

    Args:
        choices: The number of requested choices.

    Raises:
        UnilectError: The body is an error, in spite of its status, or not an answer.
    """
    decoder = ChunkDecoder(True, choices)
    events: list[Event] = []
    if decoder.decode_whole(body, events):
        return events + decoder.end()
    if body.lstrip().startswith(b"data:"):  # some servers know nothing but streams
        reader = FrameReader()
        decoder.decode(reader.feed(body) + reader.end(), events)
        return events + decoder.end()
    try:
        answer = plain_json(body)
    except BackendError as error:
        raise invalid("an answer that is not JSON") from error
    decoder.decode([msgspec.json.encode(_chunk(answer)), DONE], events)
    if not isinstance(answer, dict) or answer.get("choices") is None:  # and no error either
        raise invalid("an answer without choices")
    return events + decoder.end()


def _chunk(answer: Any) -> Any:
    """Return the chunk that is equivalent to an answer; any other value is unchanged, and the decoder refuses it."""
    if not isinstance(answer, dict) or not isinstance(answer.get("choices"), list):
        return answer
    choices = [_with_delta(choice, number) for number, choice in enumerate(answer["choices"])]
    return without_nulls(answer) | {"choices": choices}


def _with_delta(choice: Any, number: int) -> Any:
    """Return a choice with its message as a delta. Choices and calls without an index are numbered in order."""
    if not isinstance(choice, dict):
        return choice
    choice = {"index": number} | without_nulls(choice)
    message = choice.pop("message", None)
    if isinstance(message, dict):
        message = without_nulls(message)
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
