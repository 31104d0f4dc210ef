"""Tests of unilect.wire.chunks."""

from typing import Any

import msgspec
import pytest

from support.backends.scripted import delta
from unilect.core.errors import (
    BackendError,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    RateLimited,
    UnilectError,
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
from unilect.wire.chunks import ChunkDecoder


def decode(*chunks: Any, joined: bool = False, done: bool = True) -> list[Event]:
    """The events of a whole answer; bytes are taken as they are."""
    decoder, events = ChunkDecoder(joined), []
    datas = [item if isinstance(item, bytes) else msgspec.json.encode(item) for item in chunks]
    decoder.decode(datas + [b"[DONE]"] * done, events)
    return events + decoder.end()


def decode_into(events: list[Event], *chunks: Any) -> None:
    """Append the events of chunks that come in one read each."""
    decoder = ChunkDecoder()
    for chunk in chunks:
        decoder.decode([msgspec.json.encode(chunk)], events)


def text(piece: str, **choice: Any) -> dict[str, Any]:
    """A chunk of a plain completion."""
    return {"object": "text_completion", "choices": [{"index": 0, "text": piece, **choice}]}


def call(number: int, **function: Any) -> dict[str, Any]:
    """An entry of a delta's `tool_calls`; `id` goes beside the function."""
    entry: dict[str, Any] = {"index": number, "type": "function"}
    if "id" in function:
        entry["id"] = function.pop("id")
    return entry | {"function": function}


END = delta(finish="stop")
NONE = Usage(0, 0)
CASES: list[tuple[str, list[Any], list[Event]]] = [
    ("text", [delta(content="a"), delta(content="b"), END], [TextDelta("a"), TextDelta("b")]),
    ("empty", [delta(role="assistant", content=""), END], []),
    ("null", [delta(role="assistant", content=None), delta(content="a"), END], [TextDelta("a")]),
    ("null delta", [{"choices": [{"index": 0, "delta": None}]}, END], []),
    ("null choices", [{"choices": None}, END], []),
    ("no index", [{"choices": [{"delta": {"content": "a"}}]}, END], [TextDelta("a")]),
    ("completion", [text("a"), text("b"), text("", finish_reason="stop")], [TextDelta("a"), TextDelta("b")]),
    ("reasoning_content", [delta(reasoning_content="h"), END], [ReasoningDelta("h")]),
    ("reasoning", [delta(reasoning="h"), END], [ReasoningDelta("h")]),
    ("both reasonings", [delta(reasoning="h", reasoning_content="h"), END], [ReasoningDelta("h")]),
    ("refusal", [delta(refusal="no"), END], [RefusalDelta("no")]),
    ("progress", [delta() | {"prompt_progress": {"total": 9, "processed": 3}}, END], [Progress(3, 9)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "chunks", "expected"), CASES)
def test_chunks(name: str, chunks: list[Any], expected: list[Event]) -> None:
    """Chunks give their events, one finish and one usage."""
    assert [*expected, Finish("stop"), NONE] == decode(*chunks)


@pytest.mark.parametrize(("name", "chunks", "expected"), CASES)
def test_chunks_one_at_a_time(name: str, chunks: list[Any], expected: list[Event]) -> None:
    """Chunks that come one read at a time give the same events as in one read."""
    decoder, events = ChunkDecoder(), []
    for chunk in chunks:
        decoder.decode([msgspec.json.encode(chunk)], events)
        assert not decoder.done
    decoder.decode([b"[DONE]"], events)

    assert decoder.done
    assert decode(*chunks) == events + decoder.end()


@pytest.mark.parametrize(("name", "chunks", "expected"), CASES)
def test_chunks_beside_an_unknown_field(
    name: str, chunks: list[Any], expected: list[Event]
) -> None:
    """The slow way, which an unknown field calls for, gives the same events beside that field's own."""
    chunks = [chunk | {"x": 1} for chunk in chunks]

    actual = [
        msgspec.structs.replace(event, extra=None) if hasattr(event, "extra") else event
        for event in decode(*chunks)
        if not isinstance(event, Opaque) and getattr(event, "text", "x")
    ]
    assert [*expected, Finish("stop"), NONE] == actual


def test_joined() -> None:
    """The many pieces of one read that are alike are joined where nobody sees them before the end."""
    chunks = [delta(content=piece) for piece in "abcdefghij"]

    texts = [*map(TextDelta, "abc"), TextDelta("defghij", tokens=7)]
    assert [*texts, Finish("stop"), NONE] == decode(*chunks, END, joined=True)


@pytest.mark.parametrize(
    ("name", "value", "stop"),
    [("stop_reason", "###", "###"), ("matched_stop", "###", "###"), ("stop_reason", 7, None), ("matched_stop", None, None)],
)  # fmt: skip
def test_the_stop_word(name: str, value: Any, stop: str | None) -> None:
    """The stop word that ended an answer is known of vLLM and SGLang, whose fields are passed on; a number there is a token's id."""
    end = {"choices": [END["choices"][0] | {name: value}]}
    (finish,) = [event for event in decode(delta(content="a"), end) if isinstance(event, Finish)]

    assert stop == finish.stop
    assert value == (finish.extra or Extra()).choice.get(name)


def test_choices_of_one_chunk() -> None:
    """Each choice of a chunk gives its own events."""
    choices = [{"index": i, "delta": {"content": t}} for i, t in enumerate("ab")]
    ends = [{"index": i, "delta": {}, "finish_reason": r} for i, r in enumerate(("stop", "length"))]

    assert [
        TextDelta("a", 0),
        TextDelta("b", 1),
        Finish("stop", 0),
        Finish("length", 1),
        NONE,
    ] == decode({"choices": choices}, {"choices": ends})


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("content_filter", "content_filter"),
        ("function_call", "tool_calls"),
        ("eos", "stop"),
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("model_length", "length"),
        ("tool_call", "tool_calls"),
        ("sensitive", "content_filter"),
    ],
)
def test_finish_reasons(theirs: str, ours: Any) -> None:
    """A finish reason that OpenAI does not know becomes the one that it means."""
    assert [TextDelta("a"), Finish(ours), NONE] == decode(delta(content="a"), delta(finish=theirs))


@pytest.mark.parametrize("reason", ["error", "abort", "network_error", "ERROR"])
def test_finish_reasons_of_broken_answers(reason: str) -> None:
    """A finish reason that says that the server gave up is an error, and no finish."""
    events: list[Event] = []
    with pytest.raises(BackendError):
        decode_into(events, delta(content="a"), delta(finish=reason))

    assert [TextDelta("a")] == events


@pytest.mark.parametrize("reasons", [("length", "stop"), ("stop", "length"), ("length", "length")])
def test_a_second_finish_is_not_told(reasons: tuple[str, str]) -> None:
    """A server that tells the finish twice finishes once, with the reason that says more than `stop`."""
    assert [TextDelta("a"), Finish("length"), NONE] == decode(
        delta(content="a"), *(delta(finish=reason) for reason in reasons)
    )


def test_a_finish_with_every_chunk() -> None:
    """A server that says `stop` with every chunk has finished with the last of them only."""
    assert [TextDelta("a"), TextDelta("b"), Finish("stop"), NONE] == decode(
        delta(content="a", finish="stop"), delta(content="b", finish="stop")
    )


@pytest.mark.parametrize(
    "chunk",
    [
        delta(content="a", finish="stop"),
        delta(finish="stop"),
        delta(role="assistant", finish="stop"),
    ],
)
def test_a_finish_with_the_first_words(chunk: Any) -> None:
    """A finish reason that does not come behind words may be one that a server says in every chunk: it is waited for what follows."""
    decoder, events = ChunkDecoder(), list[Event]()
    decoder.decode([msgspec.json.encode(chunk)], events)
    assert not decoder.finished

    decoder.decode([b"[DONE]"], events)
    assert decoder.finished


def test_a_finish_behind_words() -> None:
    """A finish reason behind words ends an answer, also beside the last of them."""
    for last in (delta(finish="stop"), delta(content="b", finish="stop")):
        decoder, events = ChunkDecoder(), list[Event]()
        for chunk in (delta(content="a"), last):
            decoder.decode([msgspec.json.encode(chunk)], events)
        assert decoder.finished


@pytest.mark.parametrize("word", ["null", "none", "None"])
@pytest.mark.parametrize("more", [{}, {"x": 1}])
def test_a_finish_reason_that_is_none(word: str, more: dict[str, Any]) -> None:
    """An answer whose chunks say that it goes on has not finished where it is cut."""
    with pytest.raises(BackendError):
        decode(delta(content="a", finish=word) | more, done=False)


@pytest.mark.parametrize(
    ("written", "finish", "expected"),
    [
        ("", "tool_calls", [ToolCallDelta(0, "{}")]),
        ("  ", "stop", [ToolCallDelta(0, "{}")]),
        ("", "length", []),
        ("{}", "tool_calls", []),
    ],
)
def test_a_tool_call_without_arguments(written: str, finish: str, expected: list[Event]) -> None:
    """Its arguments are an object without fields, unless the answer was cut before them."""
    events = decode(
        delta(tool_calls=[call(0, id="c", name="f", arguments=written)]), delta(finish=finish)
    )

    reason = "length" if finish == "length" else "tool_calls"
    assert [ToolCallDelta(0, written, "c", "f"), *expected, Finish(reason), NONE] == events


def test_text_with_the_finish() -> None:
    """A last piece of text that comes with the finish comes before it."""
    assert [TextDelta("a"), Finish("length"), NONE] == decode(delta(content="a", finish="length"))


def test_tool_calls() -> None:
    """A call's id and name are in its first delta, its arguments in all."""
    chunks = [
        delta(tool_calls=[call(0, id="c1", name="f", arguments="")]),
        delta(tool_calls=[call(0, arguments='{"a":')]),
        delta(tool_calls=[call(0, arguments="1}"), call(1, id="c2", name="g", arguments="{}")]),
        delta(finish="tool_calls"),
    ]

    assert [
        ToolCallDelta(0, "", "c1", "f"),
        ToolCallDelta(0, '{"a":'),
        ToolCallDelta(0, "1}"),
        ToolCallDelta(1, "{}", "c2", "g"),
        Finish("tool_calls"),
        NONE,
    ] == decode(*chunks)


def test_repeated_tool_ids_and_names() -> None:
    """A server that repeats id and name in each delta is not let glue them together."""
    one = {"id": "c1", "name": "f"}
    chunks = [
        delta(tool_calls=[call(0, **one, arguments="{")]),
        delta(tool_calls=[call(0, **one, arguments="}")]),
        delta(finish="tool_calls"),
    ]

    assert [
        ToolCallDelta(0, "{", "c1", "f"),
        ToolCallDelta(0, "}"),
        Finish("tool_calls"),
        NONE,
    ] == decode(*chunks)


def test_a_tool_call_without_index_or_id() -> None:
    """A whole call in one delta needs neither an index nor an id."""
    entry = {"function": {"name": "f", "arguments": "{}"}}

    assert [ToolCallDelta(0, "{}", "call_0", "f"), Finish("tool_calls"), NONE] == decode(
        delta(tool_calls=[entry]), delta(finish="tool_calls")
    )


def test_the_older_function_call() -> None:
    """A `function_call` is a tool call."""
    chunks = [
        delta(function_call={"name": "f", "arguments": ""}),
        delta(function_call={"arguments": "{}"}),
        delta(finish="function_call"),
    ]

    assert [
        ToolCallDelta(0, "", "call_0", "f"),
        ToolCallDelta(0, "{}"),
        Finish("tool_calls"),
        NONE,
    ] == decode(*chunks)


def test_usage() -> None:
    """The usage is told once, at the end, with its details."""
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }

    counters = {"prompt_tokens_details": {"audio_tokens": 0}}
    assert [TextDelta("a"), Finish("stop"), Usage(9, 4, 8, 3, counters=counters)] == decode(
        delta(content="a"), END, {"choices": [], "usage": usage}
    )


def test_usage_with_the_last_choice_and_with_each() -> None:
    """Usage with the last choice, or as a running count with each, is told once, with the last numbers."""
    count = [{"usage": {"prompt_tokens": 9, "completion_tokens": n}} for n in range(3)]

    found = decode(delta(content="a") | count[0], delta(content="b") | count[1], END | count[2])
    assert [TextDelta("a"), TextDelta("b"), Finish("stop"), Usage(9, 2)] == found[1:]
    assert [Progress(9, 9)] == found[:1]  # known before the first text
    assert Progress(9, 9) not in decode(delta(content="a"), END | count[2])


def test_logprobs_of_chat() -> None:
    """Log probabilities of a chat go with the text that they belong to."""
    token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    chunk = delta(content="a")
    chunk["choices"][0]["logprobs"] = {"content": [token], "refusal": None}

    assert [TextDelta("a", 0, [TokenLogprob("a", -0.5, [97])]), Finish("stop"), NONE] == decode(
        chunk, END
    )


def test_logprobs_of_completions() -> None:
    """The completions' form of log probabilities becomes the same tokens."""
    logprobs = {
        "tokens": ["a", "é"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"b": -2.0}],
        "text_offset": [0, 1],
    }
    expected = [
        TokenLogprob("a", 0.0, [97]),
        TokenLogprob("é", -1.0, [195, 169], [TokenLogprob("b", -2.0, [98])]),
    ]

    assert [TextDelta("aé", 0, expected), Finish("stop"), NONE] == decode(
        text("aé", logprobs=logprobs), text("", finish_reason="stop")
    )


@pytest.mark.parametrize("beside", [
    {"timings": {"cache_n": 1}}, {"timings": {}}, {"__verbose": {"stopping_word": "x"}}, {"__verbose": {"truncated": True, "stopping_word": ""}},
    {"timings": {"cache_n": 1}, "__verbose": {"truncated": False, "stopping_word": "x"}}, {"__verbose": {}}, {"__verbose": {"truncated": True}}, {"timings": "x", "__verbose": {"a": 1}},
])  # fmt: skip
@pytest.mark.parametrize(
    "chunk", [END, delta(content="a", finish="stop"), {"choices": []}, delta(content="a")]
)
def test_fields_of_llama_server(chunk: dict[str, Any], beside: dict[str, Any]) -> None:
    """What llama-server says beside OpenAI's fields is the same read quickly and, beside a field that nobody knows, slowly."""
    first = delta(content="b")
    expected = decode(first, chunk | beside | {"unknown": None}, END)
    assert expected == decode(first, chunk | beside, END)
    assert ("timings" in beside) == any(
        "timings" in e.extra.chunk for e in expected if getattr(e, "extra", None)
    )


def test_unknown_fields() -> None:
    """Fields that nobody here knows are kept, each at its level."""
    chunk: dict[str, Any] = {
        "top": {"a": [1]},
        "choices": [{"index": 0, "delta": {"content": "a", "deep": True}, "side": "x"}],
    }
    extra = Extra({"top": {"a": [1]}}, {"side": "x"}, {"deep": True})

    assert [TextDelta("a", extra=extra), Finish("stop"), NONE] == decode(chunk, END)


def test_unknown_fields_of_the_finish() -> None:
    """A field beside the finish reason stays beside it."""
    end = delta(finish="stop")
    end["choices"][0]["stop_reason"] = 7

    assert [
        TextDelta("a"),
        Finish("stop", extra=Extra({}, {"stop_reason": 7})),
        NONE,
    ] == decode(delta(content="a"), end)


def test_unknown_fields_without_a_choice() -> None:
    """A chunk that carries only what is unknown, with or without a choice, is opaque."""
    assert [
        Opaque(Extra({"citations": ["u"]}), None),
        Opaque(Extra({}, {}, {"audio": 1}), 0),
        Finish("stop"),
        NONE,
    ] == decode({"choices": [], "citations": ["u"]}, delta(audio=1), END)


def test_the_fingerprint_is_told_once() -> None:
    """`system_fingerprint` and `service_tier`, which every chunk carries, are told once."""
    more = {"system_fingerprint": "fp", "service_tier": "default"}

    assert [Opaque(Extra(more)), TextDelta("a"), TextDelta("b"), Finish("stop"), NONE] == decode(
        delta(content="a") | more, delta(content="b") | more, END | more
    )


def test_numbers_as_text() -> None:
    """Beside an unknown field, numbers that a server sends as texts are read."""
    chunk = {"x": 1, "choices": [{"index": "1", "delta": {"content": "a"}}]}

    assert [TextDelta("a", 1, extra=Extra({"x": 1})), Finish("stop", 1), NONE] == decode(chunk)


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("high", rb'"a\ud83d"'),
        ("low", rb'"a\ude00"'),
        ("wrong order", rb'"a\ude00\ud83d"'),
        ("high, then text", rb'"a\ud83d b"'),
        ("capitals", rb'"a\uD83D"'),
        ("bytes", b'"a\xff"'),
        ("half a character", b'"a\xf0\x9f"'),
        ("bytes of a surrogate", b'"a\xed\xa0\xbd"'),
    ],
)
def test_broken_unicode(name: str, piece: bytes) -> None:
    """Lone surrogates and broken UTF-8 become U+FFFD, and nothing beside them is lost."""
    broken = b'{"choices":[{"index":0,"delta":{"content":' + piece + b"}}]}"
    events = decode(delta(content="before"), broken, delta(content="after"), END)
    texts = [event.text for event in events if isinstance(event, TextDelta)]

    assert ["before", "after"] == [texts[0], texts[-1]]
    assert texts[1].startswith("a�")
    assert "".join(texts) == "".join(texts).encode().decode()
    assert [Finish("stop"), NONE] == events[-2:]


def test_whole_surrogate_pairs() -> None:
    """An escaped pair of surrogates is the character that it means, also beside a lone one."""
    pair = rb'{"choices":[{"index":0,"delta":{"content":"\ud83d\ude00 \ud83d"}}]}'

    assert [TextDelta("😀 �"), Finish("stop"), NONE] == decode(pair, END)


def test_a_lone_surrogate_in_an_unknown_field() -> None:
    """Broken Unicode in a field that is passed on is mended too, its name included."""
    chunk = rb'{"choices":[{"index":0,"delta":{"content":"a"}}],"x\ud83d":["\ud83d"]}'

    assert [TextDelta("a", extra=Extra({"x�": ["�"]})), Finish("stop"), NONE] == decode(chunk, END)


@pytest.mark.parametrize(
    "frame",
    [
        b"<html></html>",
        b"{",
        b"1",
        b'"text"',
        b"[]",
        b'{"choices":1}',
        b'{"choices":[1]}',
        b'{"choices":[{"index":0,"delta":7}]}',
        b'{"choices":[{"index":0,"delta":{"content":7}}]}',
        b'{"choices":[],"usage":7}',
        b"[" * 100_000,
        b'{"choices":' * 5000,
        b'{"choices":NaN}',
        b'{"choices":[]},{"choices":[]}',
    ],
)
def test_no_chunk(frame: bytes) -> None:
    """A frame that is no chunk is the backend's error, and what came before it is kept."""
    events: list[Event] = []
    with pytest.raises(BackendError):
        ChunkDecoder().decode([msgspec.json.encode(delta(content="a")), frame], events)

    assert [TextDelta("a")] == events


@pytest.mark.parametrize("chunks", [[b""], [delta(content="a"), b"", b" "]])
def test_an_empty_frame(chunks: list[Any]) -> None:
    """A frame without data, alone or beside others, says nothing."""
    frames = [one if isinstance(one, bytes) else msgspec.json.encode(one) for one in chunks]
    events: list[Event] = []
    ChunkDecoder().decode(frames, events)

    assert [TextDelta("a")] * (len(frames) > 1) == events


def test_a_chunk_in_two_frames() -> None:
    """A chunk that is torn into two frames is the backend's error, though the two would be one with a comma between them."""
    with pytest.raises(BackendError):
        ChunkDecoder().decode([b'{"choices":[]', b'"usage":null}'], [])


def test_an_empty_chunk() -> None:
    """A chunk without choices or anything else says nothing."""
    assert [TextDelta("a"), Finish("stop"), NONE] == decode(
        {}, delta(content="a"), {"object": "x"}, b"null", END
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"error": {"message": "no", "code": 500}}, BackendError),
        ({"error": {"message": "no", "code": "500", "type": "server_error"}}, BackendError),
        ({"error": {"message": None}}, BackendError),
        ({"error": "no"}, BackendError),
        ({"message": "no"}, BackendError),
        ({"object": "error", "message": "no", "code": 50002}, BackendError),
        ({"text": "no", "error_code": 50002}, BackendError),
        ({"error": {"message": "no", "code": 400}}, InvalidRequest),
        ({"error": {"message": "no", "code": "400"}}, InvalidRequest),
        ({"error": {"message": "no", "code": 422}}, InvalidRequest),
        ({"error": {"message": "no", "code": 429}}, RateLimited),
        ({"error": {"message": "no", "code": "429"}}, RateLimited),
        ({"error": {"message": "no", "code": 503}}, BackendUnavailable),
        ({"error": {"type": "overloaded_error", "message": "no"}}, BackendUnavailable),
        ({"type": "error", "error": {"type": "x", "message": "no"}}, BackendError),
        ({"error": ["no"]}, BackendError),
        ({"error": True}, BackendError),
        ({"detail": "no"}, BackendError),
        ({"object": "error", "message": "no", "code": 40301}, InvalidRequest),
        ({"object": "error", "message": "no", "code": 42901}, RateLimited),
        ({"text": "no", "error_code": 50002, "choices": None, "error": "x"}, BackendError),
        (
            delta(content="", finish="error") | {"error": {"code": "x", "message": "no"}},
            BackendError,
        ),
        ({"error": {"message": "no", "code": "context_length_exceeded"}}, ContextLengthExceeded),
        (
            {"error": {"message": "This model's maximum context length is 8 tokens"}},
            ContextLengthExceeded,
        ),
        ({"error": {"message": "no", "type": "invalid_request_error"}}, InvalidRequest),
        (
            {"error": {"message": "x", "type": "exceed_context_size_error", "n_ctx": 8}},
            ContextLengthExceeded,
        ),
    ],
)
def test_errors_in_a_stream(error: dict[str, Any], expected: type[UnilectError]) -> None:
    """An error told inside a stream ends it as an error of its kind, whatever its form."""
    events: list[Event] = []
    with pytest.raises(expected) as raised:
        ChunkDecoder().decode([msgspec.json.encode(delta(content="a")), msgspec.json.encode(error)], events)  # fmt: skip

    assert expected is type(raised.value)
    assert [TextDelta("a")] == events


@pytest.mark.parametrize(
    ("chunks", "done"),
    [
        ([], False),
        ([delta(content="a")], False),
        ([delta(content="a"), {"choices": [], "usage": {"prompt_tokens": 1}}], False),
        ([delta(0, content="a"), delta(1, content="b"), delta(0, finish="stop")], False),
    ],
)
def test_cut(chunks: list[Any], done: bool) -> None:
    """An answer without all its finish reasons and without `[DONE]` was cut, and is an error."""
    with pytest.raises(BackendError):
        decode(*chunks, done=done)


def test_a_missing_done() -> None:
    """An answer that said why it finished is whole without `[DONE]`."""
    assert [TextDelta("a"), Finish("stop"), NONE] == decode(delta(content="a"), END, done=False)


@pytest.mark.parametrize("chunks", [[], [{"choices": []}], [{"id": "x", "model": "m"}]])
def test_an_end_without_a_beginning(chunks: list[Any]) -> None:
    """`[DONE]` without a choice before it is no answer, and is an error."""
    with pytest.raises(BackendError):
        decode(*chunks, done=True)


def test_a_missing_finish() -> None:
    """An answer that ended with `[DONE]` is finished, and says so for each of its choices."""
    assert [
        TextDelta("a"),
        TextDelta("b", 1),
        Finish("stop", 0),
        Finish("stop", 1),
        NONE,
    ] == decode(delta(content="a"), delta(1, content="b"))
