"""Tests of unilect.dialects.responses._output: what is told of an answer, in pieces and whole."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.events import (
    Event,
    Finish,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from unilect.dialects.responses._background import BackgroundResponse
from unilect.dialects.responses._output import ResponseEncoder, ResponseOptions
from unilect.dialects.responses._tools import CalledAs
from unilect.runtime.context import Context

NAMES = {"f": CalledAs("function", "f"), "c": CalledAs("custom", "c", "n")}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LOGPROBS = st.none() | st.just([TokenLogprob("x", -0.5)])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(TextDelta, TEXTS),
    st.builds(TextDelta, TEXTS, logprobs=LOGPROBS),
    st.builds(ReasoningDelta, TEXTS),
    st.builds(RefusalDelta, TEXTS),
    st.builds(
        ToolCallDelta, st.integers(0, 2), TEXTS, st.just("id"), st.sampled_from([None, "f", "c"])
    ),
)
BATCHES = st.lists(st.lists(EVENTS, min_size=1, max_size=8), max_size=6)
END: list[Event] = [Finish("stop"), Usage(3, 5)]


def told(batches: list[list[Event]], options: ResponseOptions) -> tuple[ResponseEncoder, bytes]:
    """The encoder of a stream at its end, and all that was told."""
    encoder = ResponseEncoder("resp_1", options)
    pieces = [encoder.encode(batch) for batch in (*batches, END)]
    return encoder, b"".join([*pieces, encoder.end()])


def items_of(encoder: ResponseEncoder) -> list[dict[str, Any]]:
    """The items that are closed, as values."""
    return [msgspec.json.decode(item.body) for item in encoder.items]


def fields_of(written: bytes) -> list[dict[str, object]]:
    """The data of the events, whose first line names their type."""
    found = []
    for event in written.split(b"\n\n")[:-1]:
        name, data = event.split(b"\n")
        fields = msgspec.json.decode(data.removeprefix(b"data: "))
        assert name == b"event: " + fields["type"].encode()
        found.append(fields)
    return found


@given(BATCHES, st.booleans(), st.booleans())
def test_a_stream_and_a_whole_answer(
    batches: list[list[Event]], logprobs: bool, summary: bool
) -> None:
    """A stream ends with the response that the same events make as a whole answer, but for ids; its events are numbered, and each item is told once more."""
    options = ResponseOptions(
        {"a": "\u2028"}, NAMES, summary=summary, encrypted=True, logprobs=logprobs
    )
    encoder, written = told(batches, options)
    events = fields_of(written)
    whole = ResponseEncoder("resp_1", options)
    for batch in (*batches, END):
        whole.take_in(batch)
    whole.close()

    assert [*range(len(events))] == [event["sequence_number"] for event in events]
    assert items_of(encoder) == [
        e["item"] for e in events if e["type"] == "response.output_item.done"
    ]
    assert events[-1]["response"] == msgspec.json.decode(encoder.body())
    assert items_of(encoder) == msgspec.json.decode(encoder.body())["output"]
    assert [without_ids(item) for item in items_of(encoder)] == [
        without_ids(i) for i in items_of(whole)
    ]
    assert [item.id for item in encoder.items] == [item["id"] for item in items_of(encoder)]


@given(BATCHES)
def test_what_is_kept_of_a_stream(batches: list[list[Event]]) -> None:
    """What is kept of a stream are its events one by one, each at the place of its number."""
    encoder, written = told(batches, ResponseOptions({}, NAMES))
    kept = BackgroundResponse(encoder, Context())
    kept.write_events(written)
    log = kept.pieces

    assert b"".join(log) == written
    assert [[number] for number in range(len(log))] == [
        [event["sequence_number"] for event in fields_of(frame)] for frame in log
    ]


@given(st.lists(TEXTS, min_size=1, max_size=20))
def test_texts_in_one_batch(texts: list[str]) -> None:
    """Texts that come together are told as the same pieces as one by one, and the closed item holds all of them."""
    together: list[Event] = [TextDelta("x"), *map(TextDelta, texts)]
    encoder, written = told([together], ResponseOptions({}, {}))

    deltas = [e["delta"] for e in fields_of(written) if e["type"] == "response.output_text.delta"]
    assert ["x", *texts] == deltas
    assert "x" + "".join(texts) == items_of(encoder)[0]["content"][0]["text"]


def without_ids(item: dict[str, object]) -> dict[str, object]:
    """An item without what is random in it."""
    return {name: value for name, value in item.items() if name != "id"}
