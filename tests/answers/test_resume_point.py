"""Tests of unilect.answers.resume_point: texts that another server goes on with."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from msgspec.structs import replace

from support.backends.engine import chat, completion
from support.common.entries import meter_of
from support.common.properties import given
from unilect.accounting.metrics import Metrics
from unilect.answers.resume import Continuation
from unilect.answers.resume_point import ContinuationFilter, find_resume_point, split
from unilect.api.backend import Batches, Capabilities
from unilect.api.parameters.rules import resolve_parameters
from unilect.core.errors import BackendError, ContextLengthExceeded, UnilectError
from unilect.core.events import (
    Event,
    Extra,
    Finish,
    Progress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
    fold,
)
from unilect.core.requests import ChatRequest, CompletionRequest, FunctionDefinition, Message, Tool
from unilect.runtime.context import CURRENT_REQUEST, Context

LOST = BackendError("It broke.")
TEXT = Capabilities(passes_unknown=True, continues=True, resumes="text")
TOOLS = [Tool(FunctionDefinition("add"))]
#: Words, stop words and their beginnings, spaces of all kinds, and characters of several bytes.
WORDS = st.lists(
    st.sampled_from([" the", "a", "E", "EN", "END", " ", "\n", " \t", "é", "日本", "👩‍👩‍👧", "e\u0301", ". ", "STOP"]), max_size=20
)  # fmt: skip


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """A text up to its first stop word, and whether there was one."""
    found = [text.find(word) for word in stops if word in text]
    return (text[: min(found)], True) if found else (text, False)


def server(text: str, stops: list[str], size: int, prompt: int = 5) -> list[Event]:
    """What a server says that makes this text, in pieces of this size, and tells nothing that may be a stop word."""
    said, _ = cut(text, stops)
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    return [*map(TextDelta, pieces), Finish("stop"), Usage(prompt, len(pieces))]


def held_back(told: str, stops: list[str]) -> bool:
    """Whether a server would not have told all of this yet, since it may end with the beginning of a stop word."""
    beginnings = (word[:length] for word in stops for length in range(1, len(word)))
    return any(told.endswith(one) for one in beginnings)


@given(WORDS, st.lists(st.sampled_from(["END", "STOP", "\n\n", "日本"]), max_size=2), st.integers(1, 7), st.booleans())  # fmt: skip
def test_every_split_of_a_text(words: list[str], stops: list[str], size: int, chats: bool) -> None:
    """Wherever a greedy text is cut the client has it whole, up to its stop word, and its usage is that of all its tokens."""
    text, said = "".join(words), server("".join(words), stops, size)
    whole = fold([said])
    asked = {"temperature": 0, "stop": stops or None, "max_tokens": 1000}
    request = chat(**asked) if chats else completion("Say: ", **asked)
    for at in range(len(said) - 1):
        had = [event for event in said[:at] if isinstance(event, TextDelta)]
        begun = "".join(event.text for event in had)
        if held_back(begun, stops):
            continue
        seam = find_resume_point(request, TEXT, begun, len(had), had)
        assert seam is not None
        given_to_it = sent(seam.request)
        assert text.startswith(given_to_it)
        prompt = 5 + seam.tokens - seam.again
        more = server(text[len(given_to_it) :], stops, size, prompt)
        assert 1000 - seam.tokens + seam.again == seam.request.token_limit
        answer = fold([had, joined(ContinuationFilter(seam, LOST), more)])
        assert whole.choices[0].text == answer.choices[0].text
        assert whole.choices[0].finish_reason == answer.choices[0].finish_reason
        assert 5 == answer.usage.prompt_tokens


def sent(request: ChatRequest | CompletionRequest) -> str:
    """What a request has an answer begin with."""
    if isinstance(request, CompletionRequest):
        return str(request.prompt).removeprefix("Say: ")
    last = request.messages[-1]
    assert (last.role == "assistant") == (request.continue_final_message is True)
    return str(last.content) if last.role == "assistant" else ""


def joined(join: ContinuationFilter, events: list[Event]) -> list[Event]:
    """What a client gets of these events."""
    return [new for event in events if (new := join.rest(event)) is not None]


@given(WORDS, WORDS, st.sampled_from(["END", "STOP", "the", "\n\n"]))
def test_a_stop_word_across_the_seam(first: list[str], second: list[str], stop: str) -> None:
    """Of a server that tells the beginning of a stop word, the answer ends where that word is complete, and nothing more is told."""
    begun, more = "".join(first), "".join(second)
    request = completion(temperature=0, stop=stop)
    seam = find_resume_point(request, TEXT, begun, 1, [])
    assert seam is not None
    seam = replace(seam, expected="")
    join = ContinuationFilter(seam, LOST)
    new = "".join(
        event.text
        for event in joined(join, [TextDelta(letter) for letter in more])
        if isinstance(event, TextDelta)
    )

    tail = begun[-len(stop) + 1 :]
    crosses = any(match.start() < len(tail) < match.end() for match in re.finditer(f"(?=({re.escape(stop)}))", tail + more[: len(stop) - 1]) for match in [re.compile(re.escape(stop)).match(tail + more, match.start())] if match)  # fmt: skip
    assert crosses == bool(join.stopped)
    assert more.startswith(new)
    assert crosses or new == more


@pytest.mark.parametrize(
    ("text", "pieces", "greedy", "expected"),
    [
        ("The quick bro", ["The", " quick", " bro"], True, (" bro", 1)),
        ("The quick bro", ["The", " quick", " b", "ro"], True, (" bro", 2)),
        ("The quick", ["The qu", "ick"], True, ("The quick", 2)),
        ("x" * 99, ["x"] * 99, True, ("", 0)),
        ("The quick ", ["The", " quick", " "], False, (" ", 1)),
        ("The quick \n", ["The", " quick \n"], False, (" \n", 0)),
        ("The quick", ["The", " quick"], False, ("", 0)),
    ],
)
def test_what_is_made_again(
    text: str, pieces: list[str], greedy: bool, expected: tuple[str, int]
) -> None:
    """A greedy answer makes its last word again, any other one the space at its end."""
    assert expected == split(text, [TextDelta(piece) for piece in pieces], greedy)


def test_the_words_of_another_answer() -> None:
    """A server that does not make the last word again, ends before it or thinks first, has not gone on with the answer."""
    text, tail = "The quick", [TextDelta("The"), TextDelta(" quick")]
    seam = find_resume_point(chat(temperature=0), TEXT, text, 2, tail)
    assert seam is not None
    for events in (
        [TextDelta(" slow")],
        [TextDelta(" qu"), Finish("stop")],
        [ReasoningDelta("So")],
        [ToolCallDelta(0, "{}", "call_1", "add")],
    ):
        with pytest.raises(BackendError):
            joined(ContinuationFilter(seam, LOST), events)


def test_the_body_of_a_chat_that_goes_on() -> None:
    """What a client sent stays as it was, also what nobody here knows, and the answer's beginning comes after it."""
    body = b'{"messages":[{"role":"user","content":"Hi","cache_control":{"a":1}}],"max_tokens":9,"temperature":0.5}'
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    request = replace(chat(), raw_fields=fields, max_tokens=9, temperature=0.5)
    seam = find_resume_point(request, TEXT, "Hello\n", 2, [TextDelta("Hello"), TextDelta("\n")])

    assert seam is not None
    told = msgspec.json.decode(msgspec.json.encode(seam.request.raw_fields))
    assert [
        {"role": "user", "content": "Hi", "cache_control": {"a": 1}},
        {"role": "assistant", "content": "Hello"},
    ] == told["messages"]
    assert (8, True, False) == (
        told["max_tokens"], told["continue_final_message"], told["add_generation_prompt"],
    )  # fmt: skip


def test_an_answer_that_continues_a_message() -> None:
    """Where the client's last message is the beginning of the answer, it grows; one that is not to be continued is left alone."""
    turns = [Message("user", "Hi"), Message("assistant", "Well, ")]
    request = replace(chat(temperature=0.5), messages=turns)
    assert find_resume_point(request, TEXT, "hello", 1, []) is None
    seam = find_resume_point(replace(request, continue_final_message=True), TEXT, "hello", 1, [])

    assert seam is not None
    assert isinstance(seam.request, ChatRequest)
    assert [Message("user", "Hi"), Message("assistant", "Well, hello")] == seam.request.messages


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 1, "temperature": 0.5},
        {"n": 2},
        {"logprobs": True},
        {"presence_penalty": 0.5},
        {"grammar": 'root ::= "a"'},
        {"tools": TOOLS, "tool_choice": "required"},
        {"raw_fields": {"min_tokens": msgspec.Raw(b"5")}},
    ],
)
def test_what_does_not_go_on(fields: dict[str, Any]) -> None:
    """A text does not go on elsewhere where the rest would be bound, counted or drawn otherwise than the whole."""
    assert find_resume_point(replace(chat(), **fields), TEXT, "Hello", 1, []) is None
    assert (
        find_resume_point(replace(chat(), tools=TOOLS, seed=-1), TEXT, "Hello", 1, []) is not None
    )


@pytest.mark.parametrize(
    ("request_", "can"),
    [
        (chat(), replace(TEXT, continues=False)),
        (completion([1, 2]), TEXT),
        (completion(["a", "b"]), TEXT),
        (completion(suffix="b"), TEXT),
        (completion(echo=True), TEXT),
    ],
)
def test_prompts_that_cannot_grow(request_: Any, can: Capabilities) -> None:
    """Nothing can be put behind token ids, several prompts, or a chat whose server continues none."""
    assert find_resume_point(request_, can, "Hello", 1, []) is None


@pytest.mark.parametrize(
    "batch",
    [
        [ReasoningDelta("So")],
        [ToolCallDelta(0, "{", "call_1", "add")],
        [TextDelta("a"), Finish("stop")],
        [TextDelta("a", 1)],
    ],
)
def test_answers_that_are_not_text_alone(batch: list[Event]) -> None:
    """Of thoughts, calls and several choices a server cannot be given the beginning: the failure is told."""
    continuation = Continuation()
    continuation.begin_attempt(TEXT)
    assert chat() == continuation.build_request(chat(), TEXT)
    continuation.see(batch)
    with pytest.raises(BackendError):
        continuation.build_request(chat(), TEXT, LOST)


async def says(*events: Event, error: UnilectError | None = None) -> Batches:
    """A backend's answer."""
    for event in events:
        yield [event]
    if error is not None:
        raise error


async def rest_of(request: ChatRequest, had: str, batches: Batches) -> list[Event]:
    """What a client gets of the second server that has these letters of an answer."""
    continuation = Continuation()
    continuation.begin_attempt(TEXT)
    continuation.see([TextDelta(letter) for letter in had])
    continuation.build_request(request, TEXT, LOST)
    return [event async for batch in continuation.rest(batches, LOST) for event in batch]


async def test_an_answer_that_has_all_its_tokens() -> None:
    """A server that broke between the last token that was asked for and the end is not followed: the answer is complete."""
    got = await rest_of(chat(max_tokens=3, temperature=0.5), "abc", says(TextDelta("d")))
    assert [Finish("length"), Usage(0, 3)] == got


async def test_a_stop_word_ends_the_answer() -> None:
    """A stop word that began before the seam ends the answer, in its second server too, and its usage is told."""
    got = await rest_of(
        chat(stop="END", temperature=0.5), "aE", says(TextDelta("ND"), TextDelta("more"))
    )
    assert [Finish("stop", stop="END"), Usage(0, 3)] == got


async def test_an_answer_of_one_token() -> None:
    """An answer that may have one token only, and has it, is complete."""
    got = await rest_of(chat(max_tokens=1, temperature=0.5), "a", says(TextDelta("d")))
    assert [Finish("length"), Usage(0, 1)] == got
    got = await rest_of(chat(max_tokens=1, temperature=0), "a b", says(TextDelta("d")))
    assert [Finish("length"), Usage(0, 3)] == got


async def test_a_stop_word_in_the_last_batch() -> None:
    """A stop word across the seam ends the answer once, also where the server ends its own in the same read."""

    async def at_once() -> Batches:
        yield [TextDelta("N"), TextDelta("D more"), Finish("length"), Usage(7, 2)]

    got = await rest_of(chat(stop="END", temperature=0.5), "aE", at_once())
    assert [TextDelta("N"), Finish("stop", stop="END"), Usage(5, 4)] == got


async def test_what_the_second_server_says_of_its_part() -> None:
    """The whole answer's usage is told, with the prompt that is known; fields of the second server's end are of its part, and are not."""
    context = Context(request_id="r")
    context.meter = meter_of(Metrics())
    context.meter.see([Progress(57, 57)])
    CURRENT_REQUEST.set(context)
    end = Finish("stop", extra=Extra(native={"tokens_evaluated": 9}))
    used = Usage(61, 2, cached_tokens=60)

    got = await rest_of(chat(temperature=0.5), "ab", says(TextDelta("c"), end, used))
    assert [TextDelta("c"), Finish("stop"), Usage(57, 4, cached_tokens=57)] == got
    got = await rest_of(chat(temperature=0.5, max_tokens=2), "ab", says())
    assert [Finish("length"), Usage(57, 2)] == got


async def test_a_server_that_refuses_the_beginning() -> None:
    """A server that does not take the text, or has no room for it, is no news for the client: its answer was interrupted."""
    for error in (ContextLengthExceeded("Too long."), BackendError("It broke, too.")):
        with pytest.raises(BackendError) as raised:
            await rest_of(chat(), "abc", says(Progress(1, 2), error=error))
        assert (raised.value is LOST) == isinstance(error, ContextLengthExceeded)


def test_probabilities_are_not_continued() -> None:
    """What has told log probabilities does not go on: a server counts them from another text."""
    request, _ = resolve_parameters(chat(logprobs=True), TEXT, "refuse")
    piece = TextDelta("a", logprobs=[TokenLogprob("a", -1.0)])
    assert find_resume_point(request, TEXT, "a", 1, [piece]) is None


def test_ids_at_the_seam() -> None:
    """An answer whose pieces have the ids of their tokens goes on; only a piece of which the client has a part comes without them."""
    had = [TextDelta(text, extra=Extra(native={"tokens": [1]})) for text in ("Once", " upon")]
    seam = find_resume_point(completion("Say: ", temperature=0, return_tokens=True), TEXT, "Once upon", 2, had)  # fmt: skip
    assert seam is not None
    again = Extra(native={"tokens": [2, 3]})
    more: list[Event] = [TextDelta("Once upon a", extra=again), TextDelta(" time", extra=again)]

    assert [TextDelta(" a"), more[1]] == joined(ContinuationFilter(replace(seam, expected="Once upon"), LOST), more)  # fmt: skip
