"""
What a model writes, told apart: thoughts, text, and tool calls in the manner of its family.

Nothing of a call is told as text, and nothing that is no call is lost: what looked like one and is not valid JSON is told as text.

Sources: the chat templates of Qwen 2.5 and 3 (Hermes' form), Llama 3, Mistral, ChatGLM 3 and GLM 4.
"""

import json
import re
from typing import Any

from msgspec import Struct

from unilect.events import Event, ReasoningDelta, TextDelta, ToolCallDelta


class Family(Struct, frozen=True):
    """
    How a family of models writes calls.

    Attributes:
        name: For a forced call's grammar, too.
        begin: What a call begins with; empty where the whole answer is one.
        end: What it ends with; empty where the answer's end is.
    """

    name: str
    begin: str
    end: str = ""


HERMES = Family("hermes", "<tool_call>", "</tool_call>")
MISTRAL = Family("mistral", "[TOOL_CALLS]")
LLAMA3 = Family("llama3", "")
GLM = Family("glm", "")
THINK = ("<think>", "</think>")
_NAME = re.compile(r"^\s*([A-Za-z0-9_.-]{1,64})\s*\n\s*(?=[{`t])")
_GLM3 = re.compile(r"tool_call\((.*)\)", re.DOTALL)
_ARGUMENT = re.compile(r"(\w+)=('(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[^,]+)")


def family(template: str) -> Family:
    """The family whose chat template this is; Hermes', which most models have seen, where it shows none."""
    if "<tool_call>" in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<|python_tag|>" in template or "Environment: ipython" in template:
        return LLAMA3
    if "<|observation|>" in template:
        return GLM
    return HERMES


def thinks(template: str, prompt: str) -> tuple[bool, bool]:
    """Whether a model marks its thoughts, and whether the prompt has begun them already."""
    marks = THINK[1] in template
    return marks, marks and prompt.rstrip().endswith(THINK[0])


class Parser:
    """
    Tells the events of one answer's text.

    Args:
        tools: The names of the tools; None where calls are not looked for.
        thinking: Thoughts are marked in the text.
        begun: The prompt has begun them.
        new_id: Makes an id for a call.
    """

    def __init__(
        self,
        family: Family,
        tools: frozenset[str] | None,
        new_id: Any,
        *,
        thinking: bool = False,
        begun: bool = False,
    ) -> None:
        self._family = family
        self._tools = tools
        self._new_id = new_id
        self._thinking = thinking
        self._state = "thought" if begun else "start"
        self._text = ""
        self._fresh = False  # behind a call or thoughts, where line breaks are none of the answer's
        self.calls = 0

    def add(self, text: str) -> list[Event]:
        """The events that a piece of text completes."""
        self._text += text
        events: list[Event] = []
        while True:
            if self._fresh:
                self._text = self._text.lstrip("\n")
                self._fresh = not self._text
            before = (self._state, self._text)
            events += self._advance()
            if before == (self._state, self._text) or not self._text:
                return events

    def end(self) -> list[Event]:
        """The events of what was held back."""
        text, self._text = self._text, ""
        if not text:
            return []
        if self._state == "thought":
            return [ReasoningDelta(text)]
        if self._state == "call":
            return self._calls(text, self._family.begin)
        if self._state == "whole":
            return self._calls(text, "")
        return [TextDelta(text)]

    def _advance(self) -> list[Event]:
        match self._state:
            case "start":
                return self._start()
            case "thought":
                return self._thought()
            case "text":
                return self._plain()
            case "call":
                return self._call()
        return []  # a whole answer that may be a call is told at its end

    def _start(self) -> list[Event]:
        stripped = self._text.lstrip()
        if self._thinking and (not stripped or THINK[0].startswith(stripped[: len(THINK[0])])):
            if stripped.startswith(THINK[0]):
                self._text, self._state = stripped.removeprefix(THINK[0]), "thought"
            return []
        if self._tools is None or self._family.begin:
            self._state = "text"
            return []
        return self._maybe_whole(stripped)

    def _maybe_whole(self, text: str) -> list[Event]:
        """For families without a mark: an answer is a call when it begins as JSON or with a tool's name."""
        if not text:
            return []
        names = self._tools or frozenset()
        if text[0] in "{[<" or any(name.startswith(text.split("\n")[0].strip()) for name in names):
            self._state = "whole"
        else:
            self._state = "text"
        return []

    def _thought(self) -> list[Event]:
        told, found, rest = _upto(self._text, THINK[1])
        self._text = rest
        if found:
            self._state, self._thinking, self._fresh = "start", False, True
        return [ReasoningDelta(told)] if told else []

    def _plain(self) -> list[Event]:
        if self._tools is None or not self._family.begin:
            told, self._text = self._text, ""
            return [TextDelta(told)]
        told, found, self._text = _upto(self._text, self._family.begin)
        if found:
            self._state = "call"
            told = told.rstrip("\n") if not told.strip() else told
        return [TextDelta(told)] if told else []

    def _call(self) -> list[Event]:
        if not self._family.end or self._family.end not in self._text:
            return []
        body, _, self._text = self._text.partition(self._family.end)
        self._state = "text"
        events = self._calls(body, self._family.begin, self._family.end)
        self._fresh = any(isinstance(event, ToolCallDelta) for event in events)
        return events

    def _calls(self, body: str, begin: str, end: str = "") -> list[Event]:
        """The calls of a text; the text itself where it has none."""
        found = _read(body, self._tools or frozenset())
        if not found:
            return [TextDelta(begin + body + end)]
        events: list[Event] = []
        for name, arguments in found:
            events.append(ToolCallDelta(self.calls, arguments, self._new_id(), name))
            self.calls += 1
        return events


def _upto(text: str, mark: str) -> tuple[str, bool, str]:
    """The text before a mark, whether it is there, and what follows; a mark's beginning at the end is kept back."""
    before, found, after = text.partition(mark)
    if found:
        return before, True, after
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return text[:-length], False, text[-length:]
    return text, False, ""


def _read(body: str, names: frozenset[str]) -> list[tuple[str, str]]:
    """The name and the arguments, as JSON text, of each call in what a model wrote."""
    text = body.strip().removeprefix("<|python_tag|>").strip()
    if (named := _NAME.match(text)) and named.group(1) in names:
        return _glm(named.group(1), text[named.end() :].strip())
    found: list[tuple[str, str]] = []
    decoder = json.JSONDecoder()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except ValueError:
            return found
        for call in value if isinstance(value, list) else [value]:
            if (one := _one(call)) is not None and one[0] in names:
                found.append(one)
            else:
                return []
        text = text[end:].lstrip(" \n;,")
    return found


def _one(call: Any) -> tuple[str, str] | None:
    if not isinstance(call, dict):
        return None
    call = call.get("function") if isinstance(call.get("function"), dict) else call
    name = call.get("name")
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):
        return (name, arguments) if isinstance(name, str) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return name, json.dumps(arguments, ensure_ascii=False)


def _glm(name: str, text: str) -> list[tuple[str, str]]:
    """GLM 4 writes JSON below the name, ChatGLM 3 a call `tool_call(city='Paris')` in a code block."""
    try:
        value = json.loads(text)
    except ValueError:
        inside = _GLM3.search(text)
        if inside is None:
            return []
        value = {key: _literal(raw) for key, raw in _ARGUMENT.findall(inside.group(1))}
    return [(name, json.dumps(value, ensure_ascii=False))] if isinstance(value, dict) else []


def _literal(raw: str) -> Any:
    """A Python literal's value, read and not run."""
    raw = raw.strip()
    if len(raw) > 1 and raw[0] in "'\"" and raw[-1] == raw[0]:
        return raw[1:-1].replace(f"\\{raw[0]}", raw[0])
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(raw, raw))
    except ValueError:
        return raw
