"""Published chat templates: an answer as a template itself writes it is read as what it says, however it is cut."""

import itertools
import json
import random
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from support.models.published import chat_templates, vocabularies
from support.models.template_answers import ANSWERS, SCHEMAS, Answer, Writer, Writing
from support.models.vocabulary import pieces_of, tokens_of
from unilect.core.events import Event, Finish, TextDelta, fold
from unilect.core.requests import ChatRequest, FunctionDefinition, Message, Tool
from unilect.families import FAMILIES, PLAIN, find, name_of, of_template
from unilect.templates.thoughts import find_open_ending
from unilect.tools.reader import Reader, reading_of

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]  # the templates may have to be fetched
REQUEST = ChatRequest(
    model="m",
    messages=[Message(role="user", content="Weather?")],
    tools=[Tool(FunctionDefinition(name, "Does it.", schema)) for name, schema in SCHEMAS.items()],
)
LEAST = {"a call": 63, "no arguments": 63, "nested arguments, not in ASCII": 63, "two calls": 57, "a text and a call": 60, "thoughts and a call": 63, "thoughts, a text and two calls": 54, "thoughts and a text": 69}  # fmt: skip
#: Templates that write no call: such models have tools in their own words, or in those of the prompt.
WITHOUT_CALLS = {
    *("HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "LFM2.5-Instruct", "google-gemma-2-2b-it"),
    *("ibm-granite-granite-3.3-2B-Instruct", "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct"),
}  # fmt: skip
#: Templates that show neither calls nor thoughts of a form of their own.
WITHOUT_FAMILY = {"llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct"}
#: Vocabularies of three kinds: of bytes, of texts with bytes for what is missing, and with marks as tokens.
VOCABULARIES = ("qwen35", "llama-spm", "gemma-4")


@cache
def writings() -> dict[str, list[tuple[str, str, Writing, str | None]]]:
    """For each answer the templates that can write it, with their names, what they write, and what ends the thoughts that the prompt has begun."""
    found: dict[str, list[tuple[str, str, Writing, str | None]]] = {name: [] for name in ANSWERS}
    for template, text in chat_templates().items():
        writer = Writer(text)
        for name, answer in ANSWERS.items():
            if (writing := writer.write(answer)) is not None:
                found[name].append((template, text, writing, end_of(text, writing, writer)))
    return found


def end_of(template: str, writing: Writing, writer: Writer) -> str | None:
    """What ends the thoughts that a prompt has begun; None where it has begun none."""
    ending = find_open_ending(writing.before, writer.thoughts)
    own = (of_template(template) or PLAIN).thoughts[1]
    return ending and (own if (ending.mark + ending.rest).startswith(own) else ending.mark)


def read(template: str, end: str | None, pieces: Iterable[str]) -> Answer:
    """What the reader of a template's family makes of a text that comes in pieces."""
    reader = Reader(reading_of(REQUEST, template, end))
    batches: list[list[Event]] = [reader.read([TextDelta(piece)]) for piece in pieces]
    choice = fold([*batches, reader.read([Finish("stop")])]).choices[0]
    calls = [(call.name, json.loads(call.arguments)) for call in choice.tool_calls]
    return Answer(calls, (choice.text or "").strip(), (choice.reasoning or "").strip())


def ways_to_cut(text: str) -> Iterator[tuple[str, Iterable[str]]]:
    """The text in one piece, by characters, at random places, and by the tokens of each vocabulary."""
    yield "in one piece", [text]
    yield "by characters", text
    dice = random.Random(len(text))
    for _ in range(3):
        places = sorted(dice.sample(range(len(text)), min(9, len(text))))
        bounds = [0, *places, len(text)]
        yield f"at {places}", [text[a:b] for a, b in itertools.pairwise(bounds)]
    for name in VOCABULARIES:
        yield f"by the tokens of {name}", pieces_of(text, tokens(name))


@cache
def tokens(name: str) -> frozenset[bytes]:
    """The tokens of a published vocabulary."""
    return tokens_of(vocabularies()[name])


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_a_template_writes(answer: str) -> None:
    """Calls, thoughts and text that a template has written are read again as they were put in, however the text is cut."""
    others = []
    for name, template, writing, end in writings()[answer]:
        for how, pieces in ways_to_cut(writing.text):
            if (found := read(template, end, pieces)) != writing.told:
                others.append((name, how, writing.text, writing.told, found))

    assert [] == others
    assert LEAST[answer] <= len(writings()[answer])


def test_templates_that_write_no_call() -> None:
    """Every published template writes calls, but for those that are known to have no form for them."""
    writes = {name for name, _, _, _ in writings()["a call"]}

    assert WITHOUT_CALLS == chat_templates().keys() - writes


def test_families() -> None:
    """A family is known of each template that shows a form of calls or of thoughts, and of no other; its name alone shows no other one."""
    known = {name: of_template(text) for name, text in chat_templates().items()}

    assert {name for name, family in known.items() if family is None} == WITHOUT_FAMILY
    assert {"minimax3"} == {name_of(known["MiniMax-M3"])}
    assert {"functionary"} == {name_of(known["meetkai-functionary-medium-v3.2"])}
    assert {"hunyuan3"} == {name_of(known["tencent-Hy3"])}
    assert {"solar"} == {name_of(known["upstage-Solar-Open-100B"])}
    assert {"command-r"} == {name_of(known["CohereForAI-c4ai-command-r-plus-tool_use"])}
    assert {"muse"} == {name_of(known["muse-glimmer"])}
    assert {"gigachat3"} == {name_of(known["GigaChat3-10B-A1.8B"])}
    assert all(find(family.name) is family for family in FAMILIES)
