"""Tests of unilect.tools.reader: generated text as events, however it is cut."""

import itertools
from typing import Any

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.events import (
    Choice,
    Event,
    Extra,
    Finish,
    FinishReason,
    Opaque,
    TextDelta,
    TokenLogprob,
    fold,
)
from unilect.core.requests import ChatRequest, FunctionDefinition, Message, Tool
from unilect.families import FAMILIES, Reading, find
from unilect.families.chatglm import IN_TURNS
from unilect.tools.reader import Reader, reading_of, tools_of

TOOLS: dict[str, Any] = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": "1"}}</tool_call>'


def reader(family: str = "hermes", **how: Any) -> Reader:
    """A reader of answers with one tool."""
    return Reader(Reading(family=find(family), tools=TOOLS, **how))


def said(family: str, text: str, size: int = 1000, **how: Any) -> Choice:
    """What an answer says that comes in pieces of this size."""
    scanner = Reading(family=find(family), tools=TOOLS, **how).scanner(lambda: "call")
    batches = [scanner.add(text[at : at + size]) for at in range(0, len(text), size)]
    choices = fold([*batches, scanner.end()]).choices
    return choices[0] if choices else Choice(0)


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("stop", None, "tool_calls"),
        ("stop", "<|im_end|>", "tool_calls"),
        ("stop", "own", "tool_calls"),
        ("length", None, "length"),
        ("tool_calls", None, "tool_calls"),
    ],
)
def test_the_reason_of_an_end(reason: FinishReason, stop: str | None, expected: str) -> None:
    """An end with calls is told as one, unless a limit has cut the answer; without any it is an end like others."""
    events = reader(stop_words=["own"]).read([TextDelta(CALL), Finish(reason, stop=stop)])
    plain = reader().read([TextDelta("Hi"), Finish("tool_calls")])

    assert expected == next(event.reason for event in events if isinstance(event, Finish))
    assert [TextDelta("Hi"), Finish("stop")] == plain


@pytest.mark.parametrize(("reason", "stop"), [("length", None), ("stop", "own")])
def test_a_call_that_is_cut(reason: FinishReason, stop: str | None) -> None:
    """A call is told as far as it goes where a limit has cut it, and is text where the client's stop word has; the model's own end ends it."""
    text = "<tool_call><function=f>\n<parameter=a>\n1"
    cut = reader(stop_words=["own"]).read([TextDelta(text), Finish(reason, stop=stop)])
    own = reader(stop_words=["own"]).read([TextDelta(text), Finish("stop", stop="<|im_end|>")])

    assert Finish(reason, stop=stop) == cut[-1]
    told = fold([cut]).choices[0]
    expected = ([("f", '{"a": "1')], None) if reason == "length" else ([], text)
    assert expected == ([(call.name, call.arguments) for call in told.tool_calls], told.text)
    assert Finish("tool_calls", stop="<|im_end|>") == own[-1]


def test_several_answers() -> None:
    """Each answer has its own calls and its own end, and every token is counted once."""
    batch: list[Event] = [TextDelta("Hi", 1), *(TextDelta(piece, 0) for piece in (CALL[:9], CALL[9:])), Finish("stop", 1), Finish("stop", 0)]  # fmt: skip
    events = reader().read(batch)
    choices = fold([events]).choices

    assert ["tool_calls", "stop"] == [choice.finish_reason for choice in choices]
    assert ["f"] == [call.name for call in choices[0].tool_calls]
    assert 3 == sum(event.tokens for event in events)


def test_what_stands_beside_a_text() -> None:
    """Fields that a server says beside a text are passed on, and a text with log probabilities is told as it is."""
    extra, logprobs = Extra(chunk={"x": 1}), [TokenLogprob("<tool_call>", -1.0)]
    scored = TextDelta("<tool_call>", logprobs=logprobs)

    assert [Opaque(extra, 0), TextDelta("Hi"), scored] == reader().read([TextDelta("Hi", extra=extra), scored])  # fmt: skip


def test_turns() -> None:
    """Where a server tells turns apart, each may be a call of its own."""
    glm = Reader(Reading(family=IN_TURNS, tools=TOOLS))
    turn = TextDelta("", extra=Extra(delta={"turn": "assistant"}))
    call = "f\n```python\ntool_call(a='1')\n```"
    choice = fold([glm.read([TextDelta("f\n"), turn, TextDelta(call), Finish("tool_calls")])]).choices[0]  # fmt: skip

    assert ("f", [("f", '{"a": "1"}')]) == (choice.text, [(c.name, c.arguments) for c in choice.tool_calls])  # fmt: skip


def asked(**fields: Any) -> ChatRequest:
    """A request with a tool."""
    tools = [Tool(FunctionDefinition("f", parameters={"type": "object"}))]
    return ChatRequest(messages=[Message("user", "Hi")], tools=tools, **fields)


def test_how_answers_are_read() -> None:
    """The template tells the family and its thoughts, the prompt whether they have begun, and the request its tools and how many calls there may be."""
    template = "[TOOL_CALLS] [THINK]{{ x }}[/THINK]"
    told = reading_of(asked(parallel_tool_calls=False, stop=["x"]), template, "[/THINK]")

    assert ("mistral", True, True, 1, ["x"]) == (told.family.name, told.thinking, told.begun, told.most, told.stop_words)  # fmt: skip
    assert {"f": {"type": "object"}} == told.tools
    assert tools_of(asked(tool_choice="none")) is None
    begun = reading_of(asked(), "{{ messages }}", "</mine>")
    assert (True, True, "</mine>") == (begun.thinking, begun.begun, begun.family.thoughts[1])
    unknown = reading_of(asked(), "{{ messages }}")
    assert ("plain", False, False) == (unknown.family.name, unknown.thinking, unknown.begun)


@pytest.mark.parametrize(
    ("family", "text", "thought", "answer"),
    [
        ("mistral", "[THINK]Hm.[/THINK]Hi", "Hm.", "Hi"),
        ("gemma4", "<|channel>thought\nHm.\n<channel|>Hi", "Hm.\n", "Hi"),
        ("command", "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>", "Hm.", "Hi"),
        ("command", "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Hi<|END_TEXT|>", "Hm.", "Hi"),
        ("seed", "<seed:think>Hm.</seed:think>Hi", "Hm.", "Hi"),
        ("granite", "<think>Hm.</think><response>Hi</response>", "Hm.", "Hi"),
        ("granite", "Write <response> or </response>.", None, "Write <response> or </response>."),
        ("hunyuan", "<think>\nHm.\n</think>\n<answer>\nHi\n</answer>", "\nHm.\n", "Hi"),
        ("apertus", "<|inner_prefix|>Hm.<|inner_suffix|>Hi", "Hm.", "Hi"),
        ("apriel", "Here are my reasoning steps:\nHm.[BEGIN FINAL RESPONSE]\nHi", "Hm.", "Hi"),
        ("hermes", "<think>\n\n</think>\n\nHi", None, "Hi"),
        ("hermes", "<think>a</think>\n<think>b</think>Hi", "ab", "Hi"),
        ("hermes", "<think>\n\n", None, None),
    ],
)  # fmt: skip
def test_thoughts_of_families(family: str, text: str, thought: str | None, answer: str | None) -> None:  # fmt: skip
    """Thoughts are told as such in the marks of each family; one without a word is none."""
    for size in (1, 4, 1000):
        choice = said(family, text, size, thinking=True)
        assert (thought, answer) == (choice.reasoning, choice.text)


HARMONY = "<|channel|>analysis<|message|>one<|end|><|start|>assistant<|channel|>analysis<|message|>two<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_second_thought(size: int) -> None:
    """Every message of gpt-oss in the channel of analysis is a thought, also one with the head that each but the first has."""
    choice = said("harmony", HARMONY, size)

    assert ("onetwo", "Hi") == (choice.reasoning, choice.text)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("to", ["functions.f", "f"])
def test_a_recipient(to: str, size: int) -> None:
    """The tool may stand before the channel, and without its name space; another recipient makes no call."""
    call = f'<|start|>assistant to={to}<|channel|>commentary json<|message|>{{"a": "1"}}<|call|>'
    choice = said("harmony", call, size)

    assert [("f", '{"a": "1"}')] == [(one.name, one.arguments) for one in choice.tool_calls]
    search = '<|channel|>analysis to=browser.search code<|message|>{"query": "x"}<|call|>'
    assert ('{"query": "x"}', []) == (said("harmony", search).reasoning, said("harmony", search).tool_calls)  # fmt: skip


@pytest.mark.parametrize("family", ["llama3", "llama4", "glm", "plain", "gemma", "jamba"])
@pytest.mark.parametrize(
    ("text", "held"),
    [("```python\nx = 1", 11), ("[1] See", 2), ("<b>Hi</b>", 2), ("f is a function", 3), ('{"answer": 1}', 4), ('{"name": "Bob"', 11)],
)  # fmt: skip
def test_what_only_begins_like_a_call(family: str, text: str, held: int) -> None:
    """An answer that begins like a call is told as soon as it cannot be one."""
    scanner = Reading(family=find(family), tools=TOOLS).scanner()
    first = next(at for at, letter in enumerate(text, 1) if scanner.add(letter))

    assert held >= first


NAME = "mcp__" + "x" * 123


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
def test_long_names(family: str) -> None:
    """A tool's name may have as many characters as a request may give it."""
    text = find(family).written.calls_text([(NAME, {"a": "1"})])
    scanner = Reading(family=find(family), tools={NAME: TOOLS["f"]}, bare=True).scanner()
    [choice] = fold([scanner.add(text), scanner.end()]).choices

    assert [NAME] == [call.name for call in choice.tool_calls]


def test_raw_line_breaks() -> None:
    """Line breaks and tabs that a model writes into a text of JSON as they are belong to it."""
    call = '<tool_call>{"name": "f", "arguments": {"a": "one\n\ttwo"}}</tool_call>'

    assert ['{"a": "one\\n\\ttwo"}'] == [one.arguments for one in said("hermes", call).tool_calls]


PIECES = {
    family.name: [
        *sorted(family.tokens),
        *('{"name": "f", "arguments": {}}', '{"name": "f", "arguments": {"a": "', '"}}', "f", "\n", " ", "Hi", '"', "{", "}", "[", "]"),
        *("<function=f>", "<parameter=a>", "</function>", "<arg_key>a</arg_key>", "<arg_value>x</arg_value>", "```json\n", "```"),
        *('<invoke name="f">', "</invoke>", "f(a='1')", "functions.f:0", "analysis", "final", " to=functions.f", " " * 4090, "\n" * 20),
    ]
    for family in (*FAMILIES, IN_TURNS)
}  # fmt: skip


@pytest.mark.heavy(but=3)
@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
@given(data=st.data(), examples=60)
def test_pieces_say_what_the_whole_says(family: str, data: Any) -> None:
    """Whatever a model writes, and wherever it is cut, it comes to the same."""
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES[family]), max_size=12)))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    how = {"thinking": data.draw(st.booleans()), "bare": data.draw(st.booleans())}
    is_cut, by_word = data.draw(st.booleans()), data.draw(st.booleans())

    def outcome(sizes: list[int]) -> list[Any]:
        scanner = Reading(family=find(family), tools=TOOLS, **how).scanner(lambda: "call")
        at, batches, turns = 0, list[list[Event]](), itertools.cycle(sizes)
        while at < len(text):
            size = next(turns)
            batches.append(scanner.add(text[at : at + size]))
            at += size
        return [(one.text, one.reasoning, [(c.name, c.arguments) for c in one.tool_calls]) for one in fold([*batches, scanner.end(is_cut, by_word)]).choices]  # fmt: skip

    assert outcome([len(text) + 1]) == outcome(sizes) == outcome([1])
