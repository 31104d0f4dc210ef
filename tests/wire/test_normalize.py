"""Tests of unilect.wire.normalize: what real servers write, byte for byte, and what is made of it."""

import itertools
from contextlib import aclosing
from typing import Any

import pytest

from support.backends.scripted import DONE, delta, frames, says, scripted, stream_of
from unilect.core.errors import BackendError, UnilectError
from unilect.core.events import (
    Event,
    Extra,
    Finish,
    Opaque,
    Progress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from unilect.core.requests import ChatRequest, Message
from unilect.http.client import HttpServer
from unilect.http.sse import FrameReader
from unilect.upstreams.openai.backend import OpenAIUpstream
from unilect.wire.chunks import ChunkDecoder
from unilect.wire.normalize import plain_json

CHAT = ChatRequest(messages=[Message("user", "Hi")], stream=True)
A, NONE = TextDelta("a"), Usage(0, 0)
STOP, CALLED = Finish("stop"), Finish("tool_calls")
END = frames(delta(finish="stop"), DONE)
F = '"function":{"name":"f","arguments":"{}"}'


async def told(body: bytes) -> list[Event]:
    """The events that a server's stream tells."""
    async with scripted(says(stream_of(body))) as server:
        upstream = OpenAIUpstream(HttpServer(server.url), "m")
        async with aclosing(upstream.generate(CHAT)) as batches:
            return [event async for batch in batches for event in batch]


def chunk(choice: str, more: str = "") -> bytes:
    """A frame with one choice, as written."""
    choice = choice.replace("<F>", F)
    return b'data: {"choices":[{"index":0,%s}]%s}\n\n' % (choice.encode(), more.encode())


def calls(*entries: str) -> bytes:
    """A frame with tool calls, as written."""
    return chunk(f'"delta":{{"tool_calls":[{",".join(entries)}]}}')


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("no index", b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', [A]),
        ("null index", b'data: {"choices":[{"index":null,"delta":{"content":"a"}}]}\n\n', [A]),
        ("index as text", b'data: {"choices":[{"index":"0","delta":{"content":"a"}}]}\n\n', [A]),
        ("strange ids", chunk('"delta":{"content":"a"}', ',"id":7,"created":"today","model":["m"],"object":1'), [A]),
        ("no blank", chunk('"delta":{"content":"a"}').replace(b"data: ", b"data:"), [A]),
        ("empty reason", chunk('"delta":{"content":"a"},"finish_reason":""'), [A]),
        ("reason null as text", chunk('"delta":{"content":"a"},"finish_reason":"null"'), [A]),
        ("role only", chunk('"delta":{"role":"assistant"}') + chunk('"delta":{"content":"a"}'), [A]),
        ("nothing in it", chunk('"delta":{}') + chunk('"delta":""') + chunk('"delta":{"content":"a"}'), [A]),
        ("null content", chunk('"delta":{"role":"assistant","content":null}') + chunk('"delta":{"content":"a"}'), [A]),
        ("parts", chunk('"delta":{"content":[{"type":"text","text":"a"}]}'), [A]),
        ("thinking part", chunk('"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"h"}]},"a"]}'), [ReasoningDelta("h"), A]),
        ("reasoning", chunk('"delta":{"reasoning":"h"}'), [ReasoningDelta("h")]),
        ("reasoning_content", chunk('"delta":{"reasoning_content":"h","content":null}'), [ReasoningDelta("h")]),
        ("message", chunk('"message":{"role":"assistant","content":"a"}'), [A]),
        ("ping", b": ping\n\nevent: ping\ndata: {}\n\n" + chunk('"delta":{"content":"a"}'), [A]),
        ("BOM", b"\xef\xbb\xbf" + chunk('"delta":{"content":"a"}'), [A]),
        ("usage null", chunk('"delta":{"content":"a"}', ',"usage":null'), [A]),
    ],
)  # fmt: skip
async def test_text(name: str, body: bytes, expected: list[Event]) -> None:
    """Text is read whatever stands around it."""
    assert [*expected, STOP, NONE] == await told(body + END)


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("no id", calls('{"index":0,<F>}'), [ToolCallDelta(0, "{}", "call_0", "f")]),
        ("number as id", calls('{"index":0,"id":7,<F>}'), [ToolCallDelta(0, "{}", "7", "f")]),
        ("no index", calls('{"id":"c",<F>}'), [ToolCallDelta(0, "{}", "c", "f")]),
        ("no list", chunk('"delta":{"tool_calls":{"id":"c",<F>}}'), [ToolCallDelta(0, "{}", "c", "f")]),
        ("arguments as object", calls('{"index":0,"id":"c","function":{"name":"f","arguments":{"a":1}}}'), [ToolCallDelta(0, '{"a":1}', "c", "f")]),
        ("no function", calls('{"index":0,"id":"c","name":"f","arguments":{}}'), [ToolCallDelta(0, "{}", "c", "f")]),
        ("null arguments", calls('{"index":0,"id":"c","function":{"name":"f","arguments":null}}'), [ToolCallDelta(0, "", "c", "f"), ToolCallDelta(0, "{}")]),
        ("two at once without index", calls('{"id":"c",<F>}', '{"id":"d",<F>}'), [ToolCallDelta(0, "{}", "c", "f"), ToolCallDelta(1, "{}", "d", "f")]),
        ("two at once without anything", calls("{<F>}", "{<F>}"), [ToolCallDelta(0, "{}", "call_0", "f"), ToolCallDelta(1, "{}", "call_1", "f")]),
        ("Ollama: two with index 0", calls('{"index":0,"id":"c",<F>}') + calls('{"index":0,"id":"d",<F>}'), [ToolCallDelta(0, "{}", "c", "f"), ToolCallDelta(1, "{}", "d", "f")]),
        ("from 1", calls('{"index":1,"id":"c",<F>}'), [ToolCallDelta(0, "{}", "c", "f")]),
        ("message", chunk('"message":{"content":null,"tool_calls":[{"id":"c",<F>}]}'), [ToolCallDelta(0, "{}", "c", "f")]),
        ("function_call", chunk('"delta":{"function_call":{"name":"f","arguments":{}}}'), [ToolCallDelta(0, "{}", "call_0", "f")]),
    ],
)  # fmt: skip
async def test_tool_calls(name: str, body: bytes, expected: list[Event]) -> None:
    """Tool calls are read in every form that servers give them, and finish as tool calls where the server says `stop`."""
    assert [*expected, CALLED, NONE] == await told(body + END)


async def test_unknown_fields_of_a_tool_call() -> None:
    """What nobody here knows in a tool call, and in its function, is kept where it stood."""
    body = calls('{"index":0,"id":"c","extra_content":{"sig":"x"},"function":{"name":"f","arguments":"{","kind":1}}') + calls(
        '{"index":0,"function":{"arguments":"}"}}'
    )  # fmt: skip

    extra = Extra(call={"extra_content": {"sig": "x"}, "function": {"kind": 1}})
    assert [
        ToolCallDelta(0, "{", "c", "f", extra=extra),
        ToolCallDelta(0, "}"),
        CALLED,
        NONE,
    ] == await told(body + END)


@pytest.mark.parametrize(
    ("name", "usage", "expected"),
    [
        ("plain", {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, Usage(3, 2)),
        ("missing", None, Usage(0, 0)),
        ("empty", {}, Usage(0, 0)),
        ("nulls", {"prompt_tokens": 3, "completion_tokens": None, "total_tokens": 5, "x": None}, Usage(3, 2)),
        ("total only", {"prompt_tokens": 3, "total_tokens": 5}, Usage(3, 2)),
        ("fractions", {"prompt_tokens": 3.0, "completion_tokens": 2.0}, Usage(3, 2)),
        ("other names", {"input_tokens": 3, "output_tokens": 2}, Usage(3, 2)),
        ("null details", {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": None}, Usage(3, 2)),
        ("cached", {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}, Usage(3, 2, 1)),
        ("more", {"prompt_tokens": 3, "completion_tokens": 2, "cost": 0.5, "completion_tokens_details": {"audio_tokens": 0}}, Usage(3, 2, counters={"cost": 0.5, "completion_tokens_details": {"audio_tokens": 0}})),
    ],
)  # fmt: skip
@pytest.mark.parametrize("with_finish", [False, True])
async def test_usage(
    name: str, usage: dict[str, Any] | None, expected: Usage, with_finish: bool
) -> None:
    """Usage is read in its own chunk and beside the finish; where a server says none, none is made up."""
    counted = {} if usage is None else {"usage": usage}
    last = [delta(finish="stop") | counted]
    if not with_finish:
        last = [delta(finish="stop"), {"choices": []} | counted]

    assert [A, STOP, expected] == await told(frames(delta(content="a"), *last, DONE))


async def test_usage_of_a_choice() -> None:
    """Moonshot's usage stands inside the choice."""
    body = chunk(
        '"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":3,"completion_tokens":2}'
    )

    assert [A, STOP, Usage(3, 2)] == await told(chunk('"delta":{"content":"a"}') + body)


async def test_a_running_count() -> None:
    """vLLM's `continuous_usage_stats` counts with every chunk; the last count is told."""
    counts = [{"usage": {"prompt_tokens": 3, "completion_tokens": n}} for n in range(3)]
    body = frames(delta(content="a") | counts[0], delta(finish="stop") | counts[1], {"choices": []} | counts[2], DONE)  # fmt: skip

    assert [Progress(3, 3), A, STOP, Usage(3, 2)] == await told(body)


async def test_azure() -> None:
    """Azure's first chunk has no choice, and what it says of the prompt is kept."""
    first = {"choices": [], "id": "", "model": "", "prompt_filter_results": [{"prompt_index": 0}]}

    assert [
        Opaque(Extra({"prompt_filter_results": [{"prompt_index": 0}]}), None),
        A,
        STOP,
        NONE,
    ] == await told(frames(first, delta(content="a")) + END)


@pytest.mark.parametrize(
    ("name", "logprobs", "expected"),
    [
        ("null", "null", None),
        ("empty", "{}", None),
        ("no tops", '{"content":[{"token":"a","logprob":-1,"bytes":null,"top_logprobs":null}]}', [TokenLogprob("a", -1.0)]),
        ("unknown fields", '{"content":[{"id":5,"token":"a","logprob":-1.5,"bytes":[97]}],"x":1}', [TokenLogprob("a", -1.5, [97])]),
        ("null logprob", '{"content":[{"token":"a","logprob":null}]}', [TokenLogprob("a", -9999.0)]),
        ("-Infinity", '{"content":[{"token":"a","logprob":-Infinity}]}', [TokenLogprob("a", -9999.0)]),
    ],
)  # fmt: skip
async def test_logprobs(name: str, logprobs: str, expected: list[TokenLogprob] | None) -> None:
    """Log probabilities are read, with what servers leave out or write beyond JSON."""
    body = chunk(f'"delta":{{"content":"a"}},"logprobs":{logprobs}')

    assert [TextDelta("a", 0, expected), STOP, NONE] == await told(body + END)


async def test_logprobs_of_a_third_form() -> None:
    """Log probabilities that nobody here can read are passed on as they came."""
    theirs = {"tokens": [5], "token_logprobs": [-1.0], "top_logprobs": [{"5": -1.0}]}
    body = frames({"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": theirs}]})

    assert [TextDelta("a", extra=Extra(choice={"logprobs": theirs})), STOP, NONE] == await told(
        body + END
    )


async def test_an_unknown_frame() -> None:
    """A frame without choices that tells no error is kept, and ends nothing."""
    assert [Opaque(Extra({"type": "queued", "place": 3}), None), A, STOP, NONE] == await told(
        frames({"type": "queued", "place": 3}, delta(content="a")) + END
    )


@pytest.mark.parametrize("content", ['{"a":1}', "7", '[{"type":"image"}]', "[7]"])
async def test_content_that_is_no_text(content: str) -> None:
    """Content that is no text and no list of texts is the backend's error."""
    with pytest.raises(BackendError):
        await told(chunk(f'"delta":{{"content":{content}}}') + END)


def test_json_beyond_json() -> None:
    """Python's numbers that are none, which some servers write, are the least log probability."""
    assert {"a": [-9999.0, -9999.0]} == plain_json(b'{"a":[NaN,-Infinity]}')


# Cuts

RICH = [
    b"\xef\xbb\xbf: hello\n\nevent: ping\ndata: {}\n\n",
    chunk('"delta":{"role":"assistant","content":""}', ',"system_fingerprint":"fp"'),
    chunk('"delta":{"reasoning_content":"h\\u00e9 \\ud83d\\ude00"}'),
    chunk('"delta":{"content":"中国 😀"},"logprobs":{"content":[{"token":"中","logprob":-0.5,"bytes":[228,184,173],"top_logprobs":[]}]}'),
    b": ping\n\n",
    chunk('"delta":{"content":"x","mine":[1]},"side":"y"', ',"top":{"z":null}'),
    b'data: {"choices":[{"index":1,"delta":{"content":"second"}}]}\n\n',
    calls('{"index":0,"id":"c","function":{"name":"f","arguments":""}}'),
    calls('{"index":0,"id":"c","function":{"name":"f","arguments":"{\\"a\\":"}}', '{"index":1,"id":"d",<F>,"x":1}'),
    b"id: 7\nretry: 9\nevent: message\n" + calls('{"index":0,"function":{"arguments":"1}"}}'),
    chunk('"delta":{},"finish_reason":"stop"'),
    b'data: {"choices":[{"index":1,"delta":{},"finish_reason":"length"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5},"timings":{}}\n\n',
]  # fmt: skip
ENDS = [
    b"data: [DONE]\n\n",
    b'data: {"error":{"message":"no","code":500}}\n\ndata: [DONE]\n\n',
    b'error: {"code":500,"message":"no"}\n\n',
    b'event: error\ndata: {"message":"no"}\n\n',
    b'data: {"error":"no"}\n\n',
]


def read(*pieces: bytes) -> tuple[list[Event], str]:
    """The events of a stream that comes in these pieces, and the error that ends it."""
    reader, decoder = FrameReader(), ChunkDecoder()
    events: list[Event] = []
    try:
        for piece in pieces:
            decoder.decode(reader.feed(piece), events)
        decoder.decode(reader.end(), events)
        return events + decoder.end(), ""
    except UnilectError as error:
        return events, error.message


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_every_cut(line_end: bytes) -> None:
    """A rich stream that is cut in two at any byte, with any line ends, gives the same events."""
    body = (b"".join(RICH) + ENDS[0]).replace(b"\n", line_end)
    expected = read(body)

    assert (13, "") == (len(expected[0]), expected[1])
    for cut in range(len(body) + 1):
        assert expected == read(body[:cut], body[cut:])


@pytest.mark.parametrize("end", ENDS[1:])
def test_every_cut_of_an_error(end: bytes) -> None:
    """An error in a stream that is cut in two at any byte gives the events before it, and the same error."""
    body = RICH[1] + RICH[2] + end
    expected = read(body)

    assert (2, "The model's server reported an error: no") == (len(expected[0]), expected[1])
    for cut in range(len(body) + 1):
        assert expected == read(body[:cut], body[cut:])


@pytest.mark.parametrize("end", ENDS)
def test_byte_by_byte(end: bytes) -> None:
    """A rich stream in reads of one, two and three bytes gives the same events."""
    body = b"".join(RICH) + end
    expected = read(body)

    for size in (1, 2, 3):
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        assert expected == read(*pieces)


def test_every_frame_alone() -> None:
    """The frames of a rich stream give the same events in any grouping of reads of two neighbours."""
    expected = read(b"".join(RICH) + ENDS[0])
    for at in range(len(RICH)):
        paired = [*RICH[:at], b"".join(RICH[at : at + 2]), *RICH[at + 2 :], ENDS[0]]
        assert expected == read(*paired)
    assert expected == read(*itertools.chain(RICH, ENDS[:1]))
