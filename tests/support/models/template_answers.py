"""The turns of published chat templates: what a template makes of an answer with thoughts, text and calls is what its model would write."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import SandboxedEnvironment
from msgspec import Struct

from unilect.families import PLAIN, of_template
from unilect.templates.sandbox import Generation
from unilect.templates.thoughts import find_open_ending, learn_marks, probes

CITY, TEXT, NOTE = "Köln 😀 \"x\" 'y'", {"type": "string"}, "one\ntwo: {3} <b>"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {**TEXT, "description": "Where."},
        "days": {"type": "integer", "description": "How many."},
        "near": {"type": "array", "items": TEXT, "description": "Others."},
        "more": {
            "type": "object",
            "properties": {},
            "description": "More.",
            "additionalProperties": {"type": "string"},
        },
        "note": {**TEXT, "description": "A note."},
    },
    "required": ["city"],
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
SCHEMAS = {"get_weather": SCHEMA, "ping": NOTHING}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "Does it.", "parameters": schema},
    }
    for name, schema in SCHEMAS.items()
]
PARIS = ("get_weather", {"city": "Paris"})
PING: tuple[str, dict[str, Any]] = ("ping", {})
RICH = ("get_weather", {"city": CITY, "days": 2, "near": ["Bonn", "Café"], "more": {"a": {"b": [1, True]}}, "note": NOTE})  # fmt: skip
SAYS, THINKS = "Ich schaue nach: 7 °C?", "Zuerst die Stadt, dann das Wetter."
_USER = {"role": "user", "content": "Weather?"}
#: Arguments as text, the ids of calls, and the content where nothing is said: what templates want of a turn is one of these.
_FORMS = [
    (as_text, id, empty)
    for id in ("abcdefgh{1}", "functions.{0}:{1}")
    for empty in ("", None)
    for as_text in (False, True)
]
_ANOTHER = "<|START_OF_TURN_TOKEN|>"  # Command R+ tells the model how to call behind the last turn
_LAST_MARK = re.compile(r"(?:<[^<>]*>\n*)?\Z")
_MARK = re.compile(r"(?<=[>\]\n])|(?=[<\[\n])")


def _refuse(words: str) -> None:
    raise TemplateError(words)


def _json(value: Any, indent: int | None = None, **_: Any) -> str:
    given = list(value) if isinstance(value, Iterator) else value
    return json.dumps(given, ensure_ascii=False, indent=indent)


#: Lists may be changed in it, as llama.cpp lets templates do and transformers does not.
_ENVIRONMENT = SandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
)
_ENVIRONMENT.filters["tojson"] = _json
_ENVIRONMENT.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: "2025-01-01"}


class Answer(Struct, frozen=True):
    """What an assistant's turn says."""

    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    text: str = ""
    thoughts: str = ""


ANSWERS = {
    "a call": Answer([PARIS]),
    "no arguments": Answer([PING]),
    "nested arguments, not in ASCII": Answer([RICH]),
    "two calls": Answer([RICH, PING]),
    "a text and a call": Answer([PARIS], SAYS),
    "thoughts and a call": Answer([PARIS], "", THINKS),
    "thoughts, a text and two calls": Answer([PARIS, RICH], SAYS, THINKS),
    "thoughts and a text": Answer([], SAYS, THINKS),
}


class Writing(Struct, frozen=True):
    """
    A turn as a template writes it.

    Attributes:
        before: The prompt, as far as the turn goes on with it.
        text: What the model would have written.
        told: What of the answer stands in it.
    """

    before: str
    text: str
    told: Answer


class Writer:
    """
    Renders turns with a template.

    Attributes:
        thoughts: The marks of thoughts that it shows.
    """

    def __init__(self, template: str) -> None:
        self._template = _ENVIRONMENT.from_string(template)
        self._prompt = self._render([_USER], True) or ""
        self._opening = _LAST_MARK.search(self._prompt)[0]
        family = of_template(template) or PLAIN
        self._begins = [family.thoughts[0]]
        plain = self._render([_USER, _turn(Answer(text=SAYS), *_FORMS[0])], False) or ""
        self._end = plain.partition(SAYS)[2]
        self._ends = (*family.turn_ends, _ANOTHER)
        self.thoughts = learn_marks(
            [self._render(list(turns), more) for turns, more in probes()], template
        )

    def write(self, answer: Answer) -> Writing | None:
        """Return the turn of an answer; None where the template cannot write one of its calls."""
        for form in _FORMS:
            whole = self._render([_USER, _turn(answer, *form)], False)
            if whole is None:
                continue
            before = next(one for one in _beginnings(self._prompt) if whole.startswith(one))
            text = self._cut(whole[len(before) :].removeprefix(self._opening))
            if any(str(given) in text for _, given in answer.calls if given) or not _names_all(
                text, answer
            ):
                continue
            thoughts = answer.thoughts if answer.thoughts in text else ""
            if (
                thoughts
                and text.startswith(thoughts)
                and not find_open_ending(before, self.thoughts)
            ):
                before = self._prompt  # which has begun them
            elif (
                not thoughts
                and find_open_ending(before, self.thoughts)
                and self.thoughts.ending.mark not in text
            ):
                continue  # the thoughts that it has begun were left out, and where they would end
            says = answer.text if answer.text in text else ""
            if says and any(begin + says in text for begin in self._begins):  # as thoughts
                says, thoughts = "", says
            return Writing(before, text, Answer(answer.calls, says, thoughts))
        return None

    def _render(self, turns: list[Any], goes_on: bool) -> str | None:
        try:
            return self._template.render(
                messages=turns, tools=TOOLS, functions=json.dumps(TOOLS), datetime="2025", add_generation_prompt=goes_on, bos_token="<s>",
                eos_token="</s>", enable_thinking=True, preserve_thinking=True,
            )  # fmt: skip
        except (TemplateError, TypeError, ValueError):
            return None

    def _cut(self, text: str) -> str:
        """Leave the end of a turn out: what an answer of words ends with, too, or what ends a turn of the family."""
        text = text.removesuffix(self._end)
        found = [text.find(end) for end in self._ends if end in text]
        return text[: min(found)] if found else text


def _beginnings(prompt: str) -> Iterator[str]:
    """The prompt, and what is left of it without one mark after the other at its end."""
    yield prompt
    for found in reversed(list(_MARK.finditer(prompt))):
        yield prompt[: found.start()]
    yield ""


def _names_all(text: str, answer: Answer) -> bool:
    names = [name for name, _ in answer.calls]
    return all(text.count(name) >= names.count(name) for name in names)


def _turn(answer: Answer, as_text: bool, id: str, empty: str | None) -> dict[str, Any]:
    calls = []
    for n, (name, given) in enumerate(answer.calls):
        arguments = json.dumps(given, ensure_ascii=False) if as_text else given
        calls.append({"id": id.format(name, n), "type": "function", "function": {"name": name, "arguments": arguments}})  # fmt: skip
    turn: dict[str, Any] = {"role": "assistant", "content": answer.text or empty}
    turn |= {"tool_calls": calls} if calls else {}
    thoughts = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), answer.thoughts)
    return turn | (thoughts if answer.thoughts else {})
