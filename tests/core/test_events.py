"""Tests of unilect.core.events."""

from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.events import (
    Answer,
    Choice,
    Event,
    Extra,
    Finish,
    Fold,
    Opaque,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
    fold,
)

EVENTS = (
    TextDelta,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
    Finish,
    Usage,
    Opaque,
    Progress,
)
NONE = Usage(0, 0)
A, B = TokenLogprob("a", -1.0), TokenLogprob("b", -2.0)
CASES: list[tuple[list[Event], list[Choice]]] = [
    ([], []),
    ([Finish("stop")], [Choice(0, finish_reason="stop")]),
    ([TextDelta("")], [Choice(0, text="")]),
    ([TextDelta("a"), TextDelta("b"), Finish("stop")], [Choice(0, "ab", finish_reason="stop")]),
    ([TextDelta("b", 1), TextDelta("a", 0)], [Choice(0, "a"), Choice(1, "b")]),
    ([ReasoningDelta("h"), ReasoningDelta("m"), TextDelta("a")], [Choice(0, "a", "hm")]),
    ([RefusalDelta("n"), RefusalDelta("o")], [Choice(0, refusal="no")]),
    ([TextDelta("a", 0, [A]), TextDelta("b", 0, [B])], [Choice(0, "ab", logprobs=[A, B])]),
    ([TextDelta("", 0, [])], [Choice(0, "", logprobs=[])]),
    ([Progress(1, 2)], []),
    (
        [ToolCallDelta(0, "", "c", "f"), ToolCallDelta(0, "{"), ToolCallDelta(0, "}")],
        [Choice(0, tool_calls=[ToolCall("c", "f", "{}")])],
    ),
    (
        [ToolCallDelta(1, "2", "d", "g"), ToolCallDelta(0, "1", "c", "f")],
        [Choice(0, tool_calls=[ToolCall("c", "f", "1"), ToolCall("d", "g", "2")])],
    ),
    (
        [ToolCallDelta(0, "1", "c", "f", 1), ToolCallDelta(0, "2", "d", "g", 0)],
        [
            Choice(0, tool_calls=[ToolCall("d", "g", "2")]),
            Choice(1, tool_calls=[ToolCall("c", "f", "1")]),
        ],
    ),
]


@pytest.mark.parametrize(("events", "expected"), CASES)
def test_fold(events: list[Event], expected: list[Choice]) -> None:
    """Events give their choices, in the order of the indices."""
    assert Answer(expected, NONE) == fold([events])


@pytest.mark.parametrize(("events", "expected"), CASES)
def test_fold_in_any_batches(events: list[Event], expected: list[Choice]) -> None:
    """How events are cut into batches changes nothing."""
    for cut in range(len(events) + 1):
        assert Answer(expected, NONE) == fold([events[:cut], [], events[cut:]])
    assert Answer(expected, NONE) == fold([event] for event in events)


def test_the_usage_of_an_answer() -> None:
    """The usage of an answer is the one that was told."""
    assert Usage(1, 2, 3, 4) == fold([[TextDelta("a")], [Usage(1, 2, 3, 4)]]).usage


def test_an_answer_that_is_asked_for_twice() -> None:
    """Asking twice gives the same answer, and one that has grown in between has each call once."""
    folding = Fold()
    folding.add([ToolCallDelta(0, "{", "c", "f"), ToolCallDelta(1, "", "d", "g")])

    assert folding.answer() == folding.answer()
    folding.add([ToolCallDelta(0, "}")])
    (choice,) = folding.answer().choices
    assert [ToolCall("c", "f", "{}"), ToolCall("d", "g", "")] == choice.tool_calls


def test_an_unfinished_answer() -> None:
    """A choice that was not finished says so."""
    assert fold([[TextDelta("a")]]).choices[0].finish_reason is None


def extra(level: str, **fields: Any) -> Extra:
    """Unknown fields at one level."""
    return Extra(**{level: fields})


def test_extras_have_their_level() -> None:
    """Unknown fields stay at the level on which they stood."""
    events: list[Event] = [
        Opaque(extra("chunk", a=1)),
        TextDelta("t", 1, extra=Extra({"b": 2}, {"c": 3}, {"d": 4})),
        Finish("stop", 1, extra("choice", e=5)),
        Usage(1, 1, extra=extra("chunk", f=6)),
    ]
    answer = fold([events])

    assert {"a": 1, "b": 2, "f": 6} == answer.extra
    (choice,) = answer.choices
    assert (1, {"c": 3, "e": 5}, {"d": 4}) == (choice.index, choice.extra, choice.message_extra)


@pytest.mark.parametrize(
    ("level", "values", "expected"),
    [
        ("delta", [[1], [2, 3]], [1, 2, 3]),
        ("delta", ["a", "b"], "ab"),
        ("delta", [1, 2], 2),
        ("delta", [{"a": 1}, {"b": 2}], {"b": 2}),
        ("delta", [1, None], 1),
        ("delta", [None, 1], 1),
        ("delta", ["a", None, "b"], "ab"),
        ("delta", ["a", 1], 1),
        ("choice", [[1], [2]], [1, 2]),
        ("choice", ["a", "b"], "b"),
        ("chunk", ["a", "a"], "a"),
        ("chunk", [[1], [2]], [1, 2]),
    ],
)
def test_extras_that_come_again(level: str, values: list[Any], expected: Any) -> None:
    """Lists grow, texts of a delta grow, and of anything else the last value that is not null counts."""
    answer = fold([TextDelta("", extra=extra(level, x=value))] for value in values)
    choice = answer.choices[0]

    levels = {"delta": choice.message_extra, "choice": choice.extra, "chunk": answer.extra}
    assert {"x": expected} == levels[level]


def test_folding_does_not_change_events() -> None:
    """A list of an event is not grown when more comes."""
    first = TextDelta("a", 0, [A], extra("delta", x=[1]))
    fold([[first, first]])

    assert TextDelta("a", 0, [A], extra("delta", x=[1])) == first


@pytest.mark.parametrize("event", EVENTS)
def test_events_are_frozen(event: Any) -> None:
    """An event cannot be changed."""
    config = msgspec.structs.fields(event) and event.__struct_config__

    assert config.frozen


def test_log_probabilities_are_gathered_in_one_list() -> None:
    """What comes later is put behind the log probabilities so far, which are not copied; the events keep their own."""
    folding, one, other = Fold(), TextDelta("a", 0, [A]), TextDelta("b", 0, [B])
    folding.add([one])
    first = folding.answer().choices[0].logprobs
    folding.add([other])

    assert first is folding.answer().choices[0].logprobs
    assert [A, B] == first
    assert ([A], [B]) == (one.logprobs, other.logprobs)


def test_a_long_answer_is_folded_in_linear_time() -> None:
    """A hundred thousand pieces are joined once."""
    folding = Fold()
    for _ in range(100_000):
        folding.add([TextDelta("x" * 10), ToolCallDelta(0, "y" * 10)])
    (choice,) = folding.answer().choices

    assert (1_000_000, 1_000_000) == (len(choice.text or ""), len(choice.tool_calls[0].arguments))


texts = st.text(max_size=5)
indices = st.integers(0, 2)
pieces = st.one_of(
    st.builds(TextDelta, texts, indices),
    st.builds(ReasoningDelta, texts, indices),
    st.builds(RefusalDelta, texts, indices),
    st.builds(ToolCallDelta, st.integers(0, 2), texts, index=indices),
    st.builds(Progress, st.integers(0, 9), st.integers(0, 9)),
)


@given(events=st.lists(pieces, max_size=30), cut=st.integers(0, 30))
def test_fold_of_any_events(events: list[Any], cut: int) -> None:
    """For any events in any batches, each choice holds all its own pieces in order."""
    answer = fold([events[:cut], events[cut:]])

    for choice in answer.choices:
        mine = [e for e in events if not isinstance(e, Progress) and e.index == choice.index]
        for kind, whole in (
            (TextDelta, choice.text),
            (ReasoningDelta, choice.reasoning),
            (RefusalDelta, choice.refusal),
        ):
            assert "".join(e.text for e in mine if isinstance(e, kind)) == (whole or "")
        arguments = [e.arguments for e in mine if isinstance(e, ToolCallDelta)]
        told = sum(len(call.arguments) for call in choice.tool_calls)
        assert len("".join(arguments)) == told
    assert sorted({e.index for e in events if not isinstance(e, Progress)}) == [
        choice.index for choice in answer.choices
    ]
