"""Tests of unilect.dialects.messages._encoder: events in, messages and their streams out."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.errors import BackendError, EngineOverloaded
from unilect.core.events import (
    Event,
    Extra,
    Finish,
    FinishReason,
    Opaque,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    fold,
)
from unilect.dialects.messages._conversation import sign_thought
from unilect.dialects.messages._encoder import MessageEncoder
from unilect.runtime.context import CURRENT_REQUEST, Context

DONE = Usage(3, 2)


def events(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream; each must name its type twice."""
    found = []
    for frame in data.decode().removesuffix("\n\n").split("\n\n"):
        name, _, line = frame.partition("\n")
        event = msgspec.json.decode(line.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def stream(*batches: list[Event], **options: Any) -> list[dict[str, Any]]:
    """The events of a finished stream of these batches."""
    encoder = MessageEncoder("m", **options)
    return events(b"".join(encoder.encode(batch) for batch in batches) + encoder.end())


def blocks(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a stream, put together as the official clients do; none may begin before the last one has ended."""
    found: list[dict[str, Any]] = []
    is_open = False
    for event in told:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(found)
                is_open = True
                found.append(dict(event["content_block"]) | {"json": ""})
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(found) - 1
                delta = event["delta"]
                for name, field in (
                    ("text",) * 2,
                    ("thinking",) * 2,
                    ("signature",) * 2,
                    ("partial_json", "json"),
                ):
                    if name in delta:
                        found[-1][field] += delta[name]
            case "content_block_stop":
                assert event["index"] == len(found) - 1
                is_open = False
    assert not is_open
    for block in found:
        if text := block.pop("json"):
            block["input"] = msgspec.json.decode(text)
    return found


def whole(*batches: list[Event], ignored: tuple[str, ...] = (), **options: Any) -> Any:
    """The whole message of these batches."""
    encoder = MessageEncoder("m", **options)
    return msgspec.json.decode(encoder.whole(fold(batches), ignored))


def tool(id: str, name: str, input: dict[str, Any]) -> dict[str, Any]:
    """A block of a call."""
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def test_text() -> None:
    """A text is one block, with the prompt's tokens in the first event and all tokens in the last but one."""
    told = stream(
        [Progress(5, 9, 2)],
        [TextDelta("Hel")],
        [TextDelta("lo"), TextDelta(""), Finish("stop")],
        [Usage(9, 2, 4)],
    )

    start, delta, stop = told[0], told[-2], told[-1]
    assert [event["type"] for event in told[1:-2]] == [
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
    ]
    assert blocks(told) == [{"type": "text", "text": "Hello"}]
    assert start["message"] | {"id": ""} == {
        "id": "",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "output_tokens": 0,
        },
    }
    assert delta["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert (5, 4, 2) == (
        delta["usage"]["input_tokens"],
        delta["usage"]["cache_read_input_tokens"],
        delta["usage"]["output_tokens"],
    )
    assert stop == {"type": "message_stop"}


def test_an_empty_answer_is_a_message() -> None:
    """An answer without a text has no block, and is complete."""
    assert [event["type"] for event in stream([Finish("stop")], [DONE])] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


def test_progress_says_nothing() -> None:
    """How far the prompt is is not told, so that an error before the answer still has a status."""
    assert MessageEncoder("m").encode([Progress(1, 2)]) == b""


def test_what_only_others_understand_is_left_out() -> None:
    """What an upstream sent for its own clients has no place in a message."""
    assert blocks(
        stream([Opaque(Extra(chunk={"x": 1}))], [TextDelta("a"), Finish("stop"), DONE])
    ) == [{"type": "text", "text": "a"}]


def test_a_ping_may_come_first() -> None:
    """A silence is broken by a ping, which is no part of the message."""
    assert events(MessageEncoder("m").keep_alive()) == [{"type": "ping"}]


def test_thoughts() -> None:
    """What the model thought is a block of its own, signed, before the text."""
    batches: list[list[Event]] = [
        [ReasoningDelta("h"), ReasoningDelta("m")],
        [TextDelta("a"), Finish("stop"), DONE],
    ]
    thought = {"type": "thinking", "thinking": "hm", "signature": "unilect"}

    assert blocks(stream(*batches)) == [thought, {"type": "text", "text": "a"}]
    assert whole(*batches)["content"] == [thought, {"type": "text", "text": "a"}]


def test_omitted_thoughts() -> None:
    """Where the client wants no text of thoughts it is in the signature, and the text is empty."""
    batches: list[list[Event]] = [[ReasoningDelta("h"), ReasoningDelta("m"), Finish("stop"), DONE]]
    thought = {"type": "thinking", "thinking": "", "signature": sign_thought("hm")}

    assert blocks(stream(*batches, omits_thoughts=True)) == [thought]
    assert whole(*batches, omits_thoughts=True)["content"] == [thought]


def test_calls() -> None:
    """Each call is a block that begins with an empty input, and the message ends for its tools."""
    batches: list[list[Event]] = [
        [TextDelta("I look.")],
        [ToolCallDelta(0, "", "c0", "f"), ToolCallDelta(0, '{"x"'), ToolCallDelta(0, ":1}")],
        [ToolCallDelta(1, "{}", "c1", "g")],
        [Finish("tool_calls"), DONE],
    ]
    content = [{"type": "text", "text": "I look."}, tool("c0", "f", {"x": 1}), tool("c1", "g", {})]
    told = stream(*batches)

    assert blocks(told) == content
    assert [e["content_block"].get("input") for e in told if "content_block" in e] == [None, {}, {}]
    assert told[-2]["delta"]["stop_reason"] == "tool_use"
    assert whole(*batches)["content"] == content
    assert whole(*batches)["stop_reason"] == "tool_use"


def test_mixed_calls_do_not_interleave() -> None:
    """Calls and texts whose pieces come in turns are told one block after the other, and nothing of them is lost."""
    told = stream(
        [ToolCallDelta(0, '{"x"', "c0", "f"), ToolCallDelta(1, '{"y', "c1", "g"), TextDelta("and")],
        [
            ToolCallDelta(0, ":1}"),
            ToolCallDelta(1, '":2}'),
            TextDelta(" so"),
            ToolCallDelta(0, " "),
        ],
        [Finish("tool_calls"), DONE],
    )

    assert blocks(told) == [
        tool("c0", "f", {"x": 1}),
        tool("c1", "g", {"y": 2}),
        {"type": "text", "text": "and so"},
    ]


PIECES = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=60)


@given(PIECES)
def test_any_mixture_is_told_block_by_block(order: list[tuple[int, int]]) -> None:
    """However texts, thoughts and calls are mixed, blocks do not interleave, and texts and inputs are those of the whole message."""
    left = [f'{{"call": "{number}", "words": "{"x" * 20 * number}"}}' for number in range(3)]
    told: list[Event] = []
    begun = set[int]()

    def add(call: int, arguments: str) -> None:
        first = call not in begun
        begun.add(call)
        id, name = (f"c{call}", "f") if first else (None, None)
        told.append(ToolCallDelta(call, arguments, id, name))

    for kind, size in order:
        if kind == 3:
            told.append(TextDelta("t" * size))
        elif kind == 4:
            told.append(ReasoningDelta("r" * size))
        elif left[kind]:
            add(kind, left[kind][:size])
            left[kind] = left[kind][size:]
    for call in begun.copy():
        add(call, left[call])
    batches = [[event] for event in told] + [[Finish("stop"), DONE]]

    found, body = blocks(stream(*batches)), whole(*batches)
    calls = {block["id"]: block for block in found if block["type"] == "tool_use"}
    assert calls == {b["id"]: b for b in body["content"] if b["type"] == "tool_use"}
    for field in ("text", "thinking"):
        parts = ["".join(b.get(field, "") for b in content) for content in (found, body["content"])]
        assert parts[0] == parts[1]


def test_incomplete_calls_are_told_at_the_end() -> None:
    """Calls that are no JSON by the end of the answer are told as they are, one after the other."""
    told = stream(
        [ToolCallDelta(0, '{"x"', "c0", "f"), ToolCallDelta(1, '{"y":', "c1", "g")],
        [ToolCallDelta(1, "1}"), ToolCallDelta(0, ":"), Finish("length"), DONE],
    )

    pieces = [
        (event["index"], event["delta"]["partial_json"])
        for event in told
        if event["type"] == "content_block_delta"
    ]
    assert pieces == [(0, '{"x"'), (0, ":"), (1, '{"y":'), (1, "1}")]


def test_a_call_that_goes_on_after_its_end() -> None:
    """A piece of a call that was complete is an error, since its block has ended."""
    encoder = MessageEncoder("m")
    encoder.encode([ToolCallDelta(0, "{}", "c0", "f"), TextDelta("a")])

    with pytest.raises(BackendError):
        encoder.encode([ToolCallDelta(0, "{}")])


def test_a_call_without_an_id_gets_one() -> None:
    """A call of a server that gives no ids has one of its own, by which its result can be told."""
    (block,) = blocks(stream([ToolCallDelta(0, "{}", None, "f"), Finish("stop"), DONE]))

    assert block["id"].startswith("toolu_")


@pytest.mark.parametrize("arguments", ["{", "[]", '"x"'])
def test_whole_calls_need_an_object(arguments: str) -> None:
    """A whole message cannot tell a call whose arguments are no object."""
    with pytest.raises(BackendError):
        whole([ToolCallDelta(0, arguments, "c", "f"), Finish("tool_calls"), DONE])


def test_a_whole_call_that_a_limit_has_cut() -> None:
    """A call that `max_tokens` has cut is left out of a whole message, and the stop reason says so."""
    body = whole(
        [ToolCallDelta(0, "{}", "c0", "f"), ToolCallDelta(1, '{"x', "c1", "g")],
        [Finish("length"), Usage(3, 2)],
        limit=2,
    )

    assert (body["content"], body["stop_reason"]) == ([tool("c0", "f", {})], "max_tokens")


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
@pytest.mark.parametrize("cut", ['{"x', "[1]"])
def test_a_call_that_a_stop_word_has_cut(cut: str, reason: FinishReason) -> None:
    """A call that the client's stop word has cut is no reason to run a tool: the stop reason names the word, and a whole message has no such call."""
    calls: list[Event] = [ToolCallDelta(0, "{}", "c0", "f"), ToolCallDelta(1, cut, "c1", "g")]
    ending: list[Event] = [Finish(reason, stop="END"), Usage(3, 2)]
    body = whole(calls, ending, stop_words=["END"])
    last = stream(calls, ending, stop_words=["END"])[-2]["delta"]

    assert [tool("c0", "f", {})] == body["content"]
    assert ("stop_sequence", "END") == (body["stop_reason"], body["stop_sequence"])
    assert {"stop_reason": "stop_sequence", "stop_sequence": "END"} == last


def test_calls_before_a_stop_word() -> None:
    """Calls that were complete before the client's stop word came are a reason to run tools."""
    calls: list[Event] = [ToolCallDelta(0, '{"x": 1}', "c0", "f"), ToolCallDelta(1, "", "c1", "g")]
    ending: list[Event] = [Finish("stop", stop="END"), Usage(3, 2)]
    body = whole(calls, ending, stop_words=["END"])

    assert [tool("c0", "f", {"x": 1}), tool("c1", "g", {})] == body["content"]
    assert "tool_use" == body["stop_reason"]
    assert "tool_use" == stream(calls, ending, stop_words=["END"])[-2]["delta"]["stop_reason"]


@pytest.mark.parametrize(
    ("finish", "used", "limit", "reason", "word"),
    [
        (Finish("stop"), 2, 5, "end_turn", None),
        (Finish("stop", stop="END"), 2, 5, "stop_sequence", "END"),
        (Finish("stop", stop="<|im_end|>"), 2, 5, "end_turn", None),
        (Finish("length"), 5, 5, "max_tokens", None),
        (Finish("length"), 4, 5, "model_context_window_exceeded", None),
        (Finish("length"), 4, None, "model_context_window_exceeded", None),
        (Finish("length"), 0, 5, "max_tokens", None),
        (Finish("content_filter"), 2, 5, "refusal", None),
    ],
)
def test_stop_reasons(
    finish: Finish, used: int, limit: int | None, reason: str, word: str | None
) -> None:
    """Why a message ended is told in Anthropic's words: the client's stop word by name, and a full context apart from a limit."""
    batch: list[Event] = [TextDelta("a"), finish, Usage(3, used)]
    expected = {"stop_reason": reason, "stop_sequence": word}

    assert stream(batch, stop_words=["END"], limit=limit)[-2]["delta"] == expected
    body = whole(batch, stop_words=["END"], limit=limit)
    assert {name: body[name] for name in expected} == expected


def test_refusals_are_text() -> None:
    """What the model says when it refuses is a text."""
    batch: list[Event] = [RefusalDelta("no"), Finish("content_filter"), DONE]

    assert blocks(stream(batch)) == whole(batch)["content"] == [{"type": "text", "text": "no"}]


def test_whole_messages_name_what_was_ignored() -> None:
    """A whole message says what was left out, as its header does."""
    assert whole([Finish("stop"), DONE], ignored=("tools[0]:x",))["unilect"] == {
        "ignored": ["tools[0]:x"]
    }


def test_errors_in_a_stream() -> None:
    """An error is an event in Anthropic's form, with the request's id."""
    CURRENT_REQUEST.set(Context(request_id="req_1"))

    (event,) = events(MessageEncoder("m").error(EngineOverloaded("full")))

    assert (event["error"]["type"], event["request_id"]) == ("overloaded_error", "req_1")


def test_many_interleaved_pieces_are_linear() -> None:
    """A call is looked at again only when it is twice as long, however often pieces of others come between."""
    encoder = MessageEncoder("m")
    looks = 0

    def count(data: Any) -> Any:
        nonlocal looks
        looks += 1
        raise msgspec.DecodeError

    encoder.encode([ToolCallDelta(0, '{"x":"', "c0", "f")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(msgspec.json, "decode", count)
        for _ in range(4000):
            encoder.encode([ToolCallDelta(0, "y"), TextDelta("z")])
    assert looks < 20
