"""
Parses a model's output into reasoning, text, and tool calls in the format of its family.

Nothing of a call is told as text, and nothing that is no call is lost: what looked like one and cannot be read is told as text.

Sources: the chat templates of Qwen (Hermes' form), Llama 3, Mistral, ChatGLM 3 and GLM 4, DeepSeek, Phi 4 and Granite.
"""

from collections.abc import Callable

from msgspec import Struct

from unilect.engines.text import begun
from unilect.engines.tools.formats import Tools, calls_of
from unilect.events import Event, ReasoningDelta, TextDelta, ToolCallDelta


class Family(Struct, frozen=True):
    """
    How a family of models writes calls.

    Attributes:
        name: For a forced call's grammar, too.
        begin: What a call begins with; empty where the whole answer is one.
        end: What it ends with; empty where the answer's end is.
        marks: Other special tokens that a call is written with.
    """

    name: str
    begin: str
    end: str = ""
    marks: tuple[str, ...] = ()


HERMES = Family("hermes", "<tool_call>", "</tool_call>")
MISTRAL = Family("mistral", "[TOOL_CALLS]", marks=("[ARGS]", "[CALL_ID]"))
DEEPSEEK = Family("deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
PHI = Family("phi", "<|tool_call|>", "<|/tool_call|>")
LLAMA3 = Family("llama3", "", marks=("<|python_tag|>",))
GLM = Family("glm", "")
THINK = ("<think>", "</think>")
_MOST_BREAKS = 16
#: What a template shows, and whose it is then; the first that is found counts.
_SHOWN = (
    (DEEPSEEK.begin, DEEPSEEK),
    (HERMES.begin, HERMES),
    (MISTRAL.begin, MISTRAL),
    (PHI.begin, PHI),
    ("<|python_tag|>", LLAMA3),
    ("Environment: ipython", LLAMA3),
    ("<|observation|>", GLM),
)


def family(template: str) -> Family:
    """The family whose chat template this is; Hermes', which most models have seen, where it shows none."""
    return next((family for mark, family in _SHOWN if mark in template), HERMES)


def thinks(template: str, prompt: str) -> tuple[bool, bool]:
    """Whether a model marks its thoughts, and whether the prompt has begun them already."""
    marks = THINK[1] in template
    return marks, marks and prompt.rstrip().endswith(THINK[0])


class Parser:
    """
    Tells the events of one answer's text.

    Args:
        tools: The tools; None where calls are not looked for.
        new_id: Makes an id for a call.
        thinking: Thoughts are marked in the text.
        begun: The prompt has begun them.
        most: The most calls that are told; what comes after the last of them is not.

    Attributes:
        calls: How many have been told.
    """

    def __init__(
        self,
        family: Family,
        tools: Tools | None,
        new_id: Callable[[], str],
        *,
        thinking: bool = False,
        begun: bool = False,
        most: int | None = None,
    ) -> None:
        self._family = family
        self._most = most
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

    @property
    def thinks(self) -> bool:
        """True while the text is a thought."""
        return self._state == "thought"

    @property
    def held(self) -> str:
        """What is not told yet."""
        return self._text

    @property
    def full(self) -> bool:
        """True when as many calls as may be have been told."""
        return self._most is not None and self.calls >= self._most

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
        line, broken, _ = text.partition("\n")
        names = self._tools or {}
        if not broken and text[0] not in "{[<" and any(name.startswith(line) for name in names):
            return []
        called = text[0] in "{[<" or line.strip() in names
        self._state = "whole" if called else "text"
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
        # line breaks before a call are none of the text; more than a few are a model's that has lost its way
        plain = told.rstrip("\n")
        plain += told[len(plain) : -_MOST_BREAKS]
        if found:
            self._state = "call"
        else:
            self._text = told[len(plain) :] + self._text
        return [TextDelta(plain)] if plain else []

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
        found, rest = calls_of(body, self._tools or {}, begin)
        if not found:
            return [TextDelta(begin + body + end)]
        events: list[Event] = []
        for name, arguments in found:
            if not self.full:
                events.append(ToolCallDelta(self.calls, arguments, self._new_id(), name))
                self.calls += 1
        return [*events, TextDelta(rest)] if rest and not self.full else events


def _upto(text: str, mark: str) -> tuple[str, bool, str]:
    """The text before a mark, whether it is there, and what follows; a mark's beginning at the end is kept back."""
    before, found, after = text.partition(mark)
    if found:
        return before, True, after
    kept = len(text) - begun(text, mark)
    return text[:kept], False, text[kept:]
