"""Tests of unilect.dialects.openai.chat: bodies in, answers out; test_app.py has the routes."""

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
    RefusalDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
    fold,
)
from unilect.core.requests import ChatRequest, Message, NamedFunction, StreamOptions, ToolChoice
from unilect.dialects.openai.chat import ChatEncoder, decode
from unilect.http.sse import FrameReader
from unilect.web.profile import CompatProfile
from unilect.wire.chunks import ChunkDecoder

HI = [Message("user", "Hi")]
FIRST = {"role": "assistant", "content": "", "refusal": None}
NONE = Usage(0, 0)


def body(**fields: Any) -> bytes:
    """A body with these fields beside a message."""
    return msgspec.json.encode({"messages": [{"role": "user", "content": "Hi"}]} | fields)


def stream(*batches: list[Event], usage: bool = False, legacy: bool = False) -> bytes:
    """The stream that these batches become."""
    options = StreamOptions(include_usage=True) if usage else None
    request = ChatRequest(messages=HI, stream=True, stream_options=options)
    encoder = ChatEncoder(request, "m", legacy)
    return b"".join([encoder.encode(batch) for batch in batches]) + encoder.end()


def chunks(data: bytes) -> list[dict[str, Any]]:
    """The chunks of a stream that must end with `[DONE]`."""
    *frames, done = data.removesuffix(b"\n\n").split(b"\n\n")
    assert done == b"data: [DONE]"
    return [msgspec.json.decode(frame.removeprefix(b"data: ")) for frame in frames]


def choices(*batches: list[Event], **options: Any) -> list[dict[str, Any]]:
    """The choices of a stream's chunks."""
    return [choice for chunk in chunks(stream(*batches, **options)) for choice in chunk["choices"]]


def whole(*batches: list[Event], ignored: tuple[str, ...] = (), legacy: bool = False) -> Any:
    """The whole answer that these batches become."""
    encoder = ChatEncoder(ChatRequest(messages=HI), "m", legacy)
    return msgspec.json.decode(encoder.whole(fold(batches), ignored))


def choice(delta: dict[str, Any], index: int = 0, finish: str | None = None) -> dict[str, Any]:
    """A choice of a chunk."""
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}


TEXT: list[Event] = [TextDelta("a"), TextDelta("b"), Finish("stop"), Usage(3, 2)]


def test_a_listener_may_leave_done_out() -> None:
    """Where a listener has no `[DONE]`, a stream ends with its last chunk."""
    request = ChatRequest(messages=HI, stream=True)
    encoder = ChatEncoder(request, "m", profile=CompatProfile(done=False))
    data = encoder.encode(TEXT) + encoder.end()

    assert b"[DONE]" not in data
    assert data.endswith(b'"finish_reason":"stop"}]}\n\n')


def test_a_stream() -> None:
    """A stream has the role in its first delta and only there, and one finish reason."""
    assert [
        choice(FIRST),
        choice({"content": "a"}),
        choice({"content": "b"}),
        choice({}, finish="stop"),
    ] == choices(TEXT)


def test_the_chunks_of_a_stream() -> None:
    """Every chunk has the same id, time and model, and no usage that was not asked for."""
    told = chunks(stream(TEXT))

    assert len({(c["id"], c["created"], c["model"]) for c in told}) == 1
    assert all(c["object"] == "chat.completion.chunk" and "usage" not in c for c in told)
    assert told[0]["id"].startswith("chatcmpl-")


def test_the_usage_chunk() -> None:
    """With `include_usage`, the last chunk has the usage and no choices, and all others a null."""
    *told, last = chunks(stream(TEXT, usage=True))

    assert [None] * 4 == [chunk["usage"] for chunk in told]
    assert ([], 3, 2, 5) == (
        last["choices"],
        last["usage"]["prompt_tokens"],
        last["usage"]["completion_tokens"],
        last["usage"]["total_tokens"],
    )


@pytest.mark.parametrize(
    ("events", "deltas"),
    [
        ([ReasoningDelta("h")], [{"reasoning_content": "h", "reasoning": "h"}]),
        ([RefusalDelta("no")], [{"refusal": "no"}]),
        ([TextDelta("")], []),
        ([Progress(1, 2)], []),
        (
            [ToolCallDelta(0, "", "c", "f"), ToolCallDelta(0, "{}")],
            [
                {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}]},
                {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
            ],
        ),
        ([TextDelta("a", extra=Extra(delta={"x": 1}))], [{"content": "a", "x": 1}]),
        ([Opaque(Extra(delta={"x": 1}), 0)], [{"x": 1}]),
        ([TextDelta('"\\\n</script>\u2028😀')], [{"content": '"\\\n</script>\u2028😀'}]),
    ],
)  # fmt: skip
def test_deltas(events: list[Event], deltas: list[dict[str, Any]]) -> None:
    """Each event has its delta, after the role."""
    actual = choices([*events, Finish("stop"), NONE])

    assert [choice(FIRST), *map(choice, deltas), choice({}, finish="stop")] == actual


def test_several_choices() -> None:
    """Each choice has a role of its own and its index everywhere."""
    batch: list[Event] = [TextDelta("b", 1), TextDelta("a"), Finish("stop", 1), Finish("length")]

    assert [
        choice(FIRST, 1),
        choice({"content": "b"}, 1),
        choice(FIRST),
        choice({"content": "a"}),
        choice({}, 1, "stop"),
        choice({}, 0, "length"),
    ] == choices(batch, [NONE])


def test_an_empty_answer() -> None:
    """An answer without text has a role and a finish reason."""
    assert [choice(FIRST), choice({}, finish="stop")] == choices([Finish("stop"), NONE])


def test_legacy_functions() -> None:
    """A client that sent `functions` is told a `function_call`, streamed and whole."""
    batch: list[Event] = [ToolCallDelta(0, "{}", "c", "f"), Finish("tool_calls"), NONE]
    called = {"function_call": {"name": "f", "arguments": "{}"}}

    assert [choice(FIRST), choice(called), choice({}, finish="function_call")] == choices(
        batch, legacy=True
    )
    (told,) = whole(batch, legacy=True)["choices"]
    assert "tool_calls" not in told["message"]
    assert (called["function_call"], "function_call") == (
        told["message"]["function_call"],
        told["finish_reason"],
    )


def test_logprobs() -> None:
    """Log probabilities have the token's bytes and its alternatives, streamed and whole."""
    token = TokenLogprob("é", -0.5, None, [TokenLogprob("a", -1.0, [97])])
    batch: list[Event] = [TextDelta("é", 0, [token]), Finish("stop"), NONE]
    top = {"token": "a", "logprob": -1.0, "bytes": [97]}
    expected = {
        "content": [{"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [top]}],
        "refusal": None,
    }

    assert expected == choices(batch)[1]["logprobs"]
    assert expected == whole(batch)["choices"][0]["logprobs"]


def test_unknown_fields_of_a_stream() -> None:
    """Unknown fields come out at the level on which they came in."""
    extra = Extra({"top": 1}, {"side": 2}, {"deep": 3})
    told = chunks(stream([TextDelta("a", 0, None, extra), Finish("stop"), NONE]))[1]

    assert (1, 2, 3) == (
        told["top"],
        told["choices"][0]["side"],
        told["choices"][0]["delta"]["deep"],
    )


def test_unknown_fields_without_a_choice() -> None:
    """Unknown fields that came without a choice wait for the usage chunk: no chunk else is without choices."""
    batch: list[Event] = [TextDelta("a"), Opaque(Extra({"citations": [1]})), Finish("stop"), NONE]

    *told, last = chunks(stream(batch, usage=True))
    assert all(chunk["choices"] and "citations" not in chunk for chunk in told)
    assert [1] == last["citations"]
    assert all(chunk["choices"] for chunk in chunks(stream(batch)))


def test_the_fingerprint() -> None:
    """The fingerprint, once told, is in every chunk after it."""
    batch: list[Event] = [Opaque(Extra({"system_fingerprint": "fp"})), *TEXT]

    assert ["fp"] * 4 == [chunk["system_fingerprint"] for chunk in chunks(stream(batch))]


def test_a_broken_stream() -> None:
    """The error frame has the error with its four fields, and no finish reason."""
    encoder = ChatEncoder(ChatRequest(messages=HI, stream=True), "m")
    frame = encoder.error(BackendError("No."))

    told = msgspec.json.decode(frame.removeprefix(b"data: "))
    assert frame.endswith(b"\n\n")
    assert BackendError("No.").detail() == told["error"]
    assert "choices" not in told


def test_a_whole_answer() -> None:
    """A whole answer has every field that the specification requires."""
    answer = whole(TEXT)

    assert ("chat.completion", "m") == (answer["object"], answer["model"])
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "ab", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([Finish("stop")], {"content": ""}),
        ([ToolCallDelta(0, "{}", "c", "f")], {"content": None}),
        ([RefusalDelta("no")], {"content": None, "refusal": "no"}),
        ([ReasoningDelta("h"), TextDelta("a")], {"content": "a", "reasoning_content": "h", "reasoning": "h"}),
        ([TextDelta("a", extra=Extra(delta={"x": [1]}))], {"content": "a", "x": [1]}),
    ],
)  # fmt: skip
def test_messages(events: list[Event], expected: dict[str, Any]) -> None:
    """A message's content is null only where something stands in its place."""
    (told,) = whole(events)["choices"]
    actual = {name: told["message"][name] for name in expected}

    assert expected == actual


def test_tool_calls_of_a_whole_answer() -> None:
    """Several tool calls are listed in their order."""
    (told,) = whole([ToolCallDelta(1, "2", "d", "g"), ToolCallDelta(0, "1", "c", "f")])["choices"]

    assert told["message"]["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "1"}},
        {"id": "d", "type": "function", "function": {"name": "g", "arguments": "2"}},
    ]


def test_ignored_parameters() -> None:
    """What was ignored is named in a whole answer, and only then."""
    assert whole(TEXT, ignored=("x",))["unilect"] == {"ignored": ["x"]}
    assert "unilect" not in whole(TEXT)


# Streamed and whole agree, and our own decoder reads what our encoder writes

texts = st.text(max_size=8)
indices = st.integers(0, 2)
extras = st.none() | st.builds(
    Extra,
    st.dictionaries(st.sampled_from(["x1", "x2"]), st.integers(), max_size=1),
    st.dictionaries(st.sampled_from(["y1", "y2"]), st.integers(), max_size=1),
    st.dictionaries(st.sampled_from(["z1", "z2"]), texts, max_size=1),
)
call_extras = st.none() | st.builds(
    Extra, call=st.dictionaries(st.sampled_from(["w1", "w2"]), st.integers(), min_size=1)
)
logprobs = st.none() | st.lists(
    texts.flatmap(
        lambda text: st.builds(
            TokenLogprob, st.just(text), st.floats(-9, 0), st.just(list(text.encode()))
        )
    ),
    min_size=1,
    max_size=2,
)
pieces = st.one_of(
    st.builds(TextDelta, st.text(min_size=1, max_size=8), indices, logprobs, extras),
    st.builds(ReasoningDelta, st.text(min_size=1, max_size=8), indices),
    st.builds(RefusalDelta, st.text(min_size=1, max_size=8), indices),
    st.builds(ToolCallDelta, st.integers(0, 1), texts, index=indices, extra=call_extras),
)


@given(batches=st.lists(st.lists(pieces, max_size=5), max_size=5), usage=st.booleans())
def test_a_stream_folds_to_the_whole(batches: list[list[Any]], usage: bool) -> None:
    """What a client puts together from a stream is what it would have got as a whole answer."""
    begun: dict[int, list[int]] = {}
    for batch in batches:
        for place, event in enumerate(batch):
            if isinstance(event, ToolCallDelta):
                calls = begun.setdefault(event.index, [])
                first = {} if event.call in calls else {"id": f"c{event.call}", "name": "f"}
                calls += [event.call] if first else []
                number = calls.index(event.call)
                batch[place] = msgspec.structs.replace(event, call=number, **first)
    used = sorted({event.index for batch in batches for event in batch})
    reasons = ["tool_calls" if index in begun else "stop" for index in used or [0]]
    finishes = [Finish(*pair) for pair in zip(reasons, used or [0], strict=True)]
    batches.append([*finishes, Usage(3, 2, 0, 0)])

    data, events = stream(*batches, usage=usage), list[Event]()
    decoder = ChunkDecoder()
    decoder.decode(FrameReader().feed(data), events)
    actual, expected = fold([events, decoder.end()]), fold(batches)

    def plain(answer: Any) -> Any:
        body = msgspec.to_builtins(answer)
        if not usage:
            body.pop("usage")
        for call in [one for choice in body["choices"] for one in choice["tool_calls"]]:
            call["arguments"] = call["arguments"] or "{}"  # clients parse what they get
        return body

    assert plain(expected) == plain(actual)


# Bodies


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "tool"}]}, "messages[1].content"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": [{"name": "f"}], "tools": [{"function": {"name": "f"}}]}, "functions"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "tool_choice"),
    ],
)  # fmt: skip
def test_fields_that_contradict(fields: dict[str, Any], param: str) -> None:
    """Fields that make no sense together are refused by name."""
    with pytest.raises(InvalidRequest) as raised:
        decode(body(**fields))

    assert param == raised.value.param


def test_deep_schemas() -> None:
    """A schema or a tool's parameters that are nested too deep are refused by name."""
    deep: Any = {}
    for _ in range(40):
        deep = {"a": deep}
    for fields, param in (
        ({"tools": [{"function": {"name": "f", "parameters": deep}}]}, "tools[0].function.parameters"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": deep}}}, "response_format"),
        ({"functions": [{"name": "f", "parameters": deep}]}, "tools[0].function.parameters"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest) as raised:
            decode(body(**fields))
        assert param == raised.value.param


def test_functions_become_tools() -> None:
    """The older `functions` and `function_call` become `tools` and `tool_choice`, on the wire too."""
    asked = decode(body(functions=[{"name": "f", "parameters": {}}], function_call={"name": "f"}))

    request = asked.request
    assert asked.legacy
    assert isinstance(request, ChatRequest)
    assert ("f", ToolChoice(NamedFunction("f"))) == (
        (request.tools or [])[0].function.name,
        request.tool_choice,
    )
    assert ["messages", "tool_choice", "tools"] == sorted(request.raw_fields)


_SAID = st.sampled_from(
    [
        TextDelta("a"),
        TextDelta("\n\u2028é"),
        TextDelta(""),
        TextDelta("other", 1),
        TextDelta("sure", logprobs=[TokenLogprob("sure", -0.1, [115])]),
        TextDelta("more", extra=Extra(delta={"x": 1})),
        ReasoningDelta("t"),
        Opaque(Extra({"system_fingerprint": "f"})),
        Progress(1, 2),
        Finish("stop"),
        Finish("stop", 1),
        NONE,
    ]
)


@given(st.lists(_SAID, min_size=1, max_size=12))
def test_a_batch_is_its_events(batch: list[Event]) -> None:
    """The frames of a batch are those of its events, however many come at once."""
    request = ChatRequest(messages=HI, stream=True)
    at_once, apart = ChatEncoder(request, "m"), ChatEncoder(request, "m")
    frames = (apart.encode([event]) for event in batch)

    def told(data: bytes) -> list[Any]:
        return [
            msgspec.json.decode(one) | {"id": "", "created": 0} for one in FrameReader().feed(data)
        ]

    assert told(b"".join(frames)) == told(at_once.encode(batch))


def test_tools_are_not_legacy() -> None:
    """A request with `tools`, or with an empty `functions`, is answered with tool calls."""
    assert not decode(body(tools=[{"type": "function", "function": {"name": "f"}}])).legacy
    assert not decode(body(functions=[])).legacy


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": True, "top_logprobs": 3},
        {"top_logprobs": 0},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"messages": [{"role": "assistant"}, {"role": "user", "content": ""}]},
    ],
)
def test_fields_that_agree(fields: dict[str, Any]) -> None:
    """Fields that make sense together are taken."""
    assert isinstance(decode(body(**fields)).request, ChatRequest)
