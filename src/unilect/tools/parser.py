"""
Parses a model's output into reasoning, text, and tool calls in the format of its family.

Nothing of a call is told as text, and nothing that is no call is lost: what looked like one and cannot be read is told as text.

Sources: the chat templates of the models; `forms` has an address for each form. Channels (gpt-oss) are read in `channels`.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from unilect.events import Event, ReasoningDelta, TextDelta, ToolCallDelta
from unilect.tools import held
from unilect.tools._values import Ending
from unilect.tools.formats import Tools, calls_of, is_whole


class Family(Struct, frozen=True):
    """
    How a family of models writes calls.

    Attributes:
        name: For a forced call's grammar, too.
        begin: What a call begins with; empty where the whole answer is one.
        end: What it ends with; empty where the answer's end is.
        marks: Other special tokens that a call is written with.
        think: What thoughts begin and end with.
        dropped: What an answer's text stands between, and is none of it.
        others: Families whose marks are read as well.
    """

    name: str
    begin: str
    end: str = ""
    marks: tuple[str, ...] = ()
    think: tuple[str, str] = ("<think>", "</think>")
    dropped: tuple[str, ...] = ()
    others: tuple["Family", ...] = ()


HERMES = Family("hermes", "<tool_call>", "</tool_call>")
MISTRAL = Family("mistral", "[TOOL_CALLS]", marks=("[ARGS]", "[CALL_ID]"))
DEEPSEEK = Family("deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
PHI = Family("phi", "<|tool_call|>", "<|/tool_call|>")
#: Phi 4 mini, as its examples and vLLM's template have it.
FUNCTOOLS = Family("functools", "functools")
DSML = Family("dsml", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", ("｜DSML｜",))
KIMI = Family(
    "kimi",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
KIMI3 = Family(
    "kimi3",
    "<|open|>tools<|sep|>",
    "<|close|>tools<|sep|>",
    ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    (
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ),
)
GEMMA4 = Family("gemma4", "<|tool_call>", "<tool_call|>", ('<|"|>',))
GRANITE = Family("granite", "<|tool_call|>")
LLAMA3 = Family("llama3", "", marks=("<|python_tag|>",))
LLAMA4 = Family("llama4", "", marks=("<|python_start|>", "<|python_end|>"))
GLM = Family("glm", "")
#: A family that is not known: the answer is a call where it is JSON, or a list of calls as Python writes it, or where the model marks
#: it in the way that it was trained with, whatever it was told.
PLAIN = Family("plain", "", others=(HERMES, MISTRAL, DEEPSEEK, PHI, DSML, KIMI, KIMI3, GEMMA4))
#: gpt-oss; see `channels`.
HARMONY = Family(
    "harmony", "<|channel|>", "", ("<|message|>", "<|constrain|>", "<|start|>", "<|end|>")
)
#: What thoughts of most families stand between.
THINK = HERMES.think
#: What shows in a template that its model marks its thoughts, and what a prompt ends with that has begun them.
_THINKS = (THINK[1], KIMI3.marks[-1])
_BEGUN = (THINK[0], KIMI3.think[0])
_MOST_BREAKS = 16
_FENCE = "```"
#: Characters that are looked through for marks at a time: what follows a mark is looked through again, and copied.
_AT_ONCE = 512
#: Blanks before anything else that may still be followed by thoughts, or by an answer that is a call.
_MOST_BLANKS = 4096
#: What a block of code that holds a call begins with; models put one into such, too, that were not told to.
_FENCES = frozenset(_FENCE + language for language in ("json", "tool_call", "tool_code", "python"))
#: What a template shows, and whose it is then; the first that is found counts.
_SHOWN = (
    ("｜DSML｜", DSML),
    (DEEPSEEK.begin, DEEPSEEK),
    (KIMI.begin, KIMI),
    ("<|end_of_msg|>", KIMI3),
    (GEMMA4.begin, GEMMA4),
    (HARMONY.begin, HARMONY),
    (HERMES.begin, HERMES),
    (MISTRAL.begin, MISTRAL),
    ("<|start_of_role|>", GRANITE),
    (PHI.begin, PHI),
    ("functools", FUNCTOOLS),
    ("<|python_start|>", LLAMA4),
    ("<|header_start|>", LLAMA4),
    ("<|python_tag|>", LLAMA3),
    ("Environment: ipython", LLAMA3),
    ("<|observation|>", GLM),
)


def family(template: str) -> Family:
    """The family whose chat template this is; Hermes', which most models have seen, where it shows none."""
    return next((family for mark, family in _SHOWN if mark in template), HERMES)


def thinks(template: str, prompt: str) -> tuple[bool, bool]:
    """Whether a model marks its thoughts, and whether the prompt has begun them already."""
    marks = any(mark in template for mark in _THINKS)
    return marks, marks and prompt.rstrip().endswith(_BEGUN)


class Parser:
    """
    Tells the events of one answer's text.

    Args:
        tools: The tools; None where calls are not looked for.
        new_id: Makes an id for a call.
        thinking: Thoughts are marked in the text.
        begun: The prompt has begun them.
        most: The most calls that are told; what comes after the last of them is not.
        bare: Calls may come without their marks, which are special tokens to some tokenizers, and lost on the way.

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
        bare: bool = False,
    ) -> None:
        self._bare = bare
        self._family = family
        self._most = most
        self._tools = tools
        self._new_id = new_id
        self._thinking = thinking
        self._state = "thought" if begun else "start"
        known = (family, *family.others) if tools is not None else ()
        self._begins = {one.begin: one for one in known if one.begin}
        self._marks = (*self._begins, *family.dropped)  # that a text may hold
        self._looked = 0  # how far the end of a call was looked for
        self._ending = Ending()
        self._strays = False  # True once a model has not kept to its form
        self._passed: int | None = None  # the first mark that is within a value of the call
        self._text = ""
        self._breaks = ""  # before what may be a call; they are text where it is none
        self._fresh = False  # behind a call or thoughts, where line breaks are none of the answer's
        self.calls = 0

    def add(self, text: str) -> list[Event]:
        """The events that a piece of text completes."""
        if len(text) <= _AT_ONCE:
            return self._add(text)
        pieces = (text[at : at + _AT_ONCE] for at in range(0, len(text), _AT_ONCE))
        return [event for piece in pieces for event in self._add(piece)]

    def _add(self, text: str) -> list[Event]:
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

    def end(self, is_cut: bool = False) -> list[Event]:
        """The events of what was held back; a call that a limit or a stop word has cut is text."""
        if self._passed is not None and not is_cut:
            return [*self._end_early(), *self.end()]
        text, self._text = self._text, ""
        if not text:
            return []
        if self._passed is not None:  # a value was cut, which may hold calls that are only told of
            return [TextDelta(self._breaks + self._family.begin + text)]
        if self._state == "thought":
            return [ReasoningDelta(text)]
        if self._state == "call":
            return self._calls(text, self._family.begin, is_cut=is_cut)
        if self._state == "whole":
            return self._calls(text, "", is_cut=is_cut)
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
        if not stripped and len(self._text) > _MOST_BLANKS:  # they are looked at with each token
            self._state = "text"
            return []
        begin = self._family.think[0]
        if self._thinking and (not stripped or begin.startswith(stripped[: len(begin)])):
            if stripped.startswith(begin):
                self._text, self._state = stripped.removeprefix(begin), "thought"
            return []
        if self._tools is None or (self._family.begin and not self._bare):
            self._state = "text"
            return []
        return self._maybe_whole(stripped)

    def _maybe_whole(self, text: str) -> list[Event]:
        """Where no mark has to stand before a call, an answer is one when it begins as JSON or with a tool's name."""
        mark = self._family.begin
        if not text or any(one != text and one.startswith(text) for one in self._marks):
            return []
        if text.startswith(self._marks):
            self._state = "text"
            return []
        line, broken, _ = text.partition("\n")
        names = self._tools or {}
        if not broken and (
            _FENCE.startswith(text[:3]) or any(name.startswith(line) for name in names)
        ):
            return []
        called = (
            text[0] in ("{[" if mark else "{[<") or line.strip() in names or line.strip() in _FENCES
        )
        self._state = "whole" if called else "text"
        return []

    def _thought(self) -> list[Event]:
        told, found, rest = _upto(self._text, self._family.think[1:])
        self._text = rest
        if found:
            self._state, self._thinking, self._fresh = "start", False, True
        return [ReasoningDelta(told)] if told else []

    def _plain(self) -> list[Event]:
        if not self._marks:
            told, self._text = self._text, ""
            return [TextDelta(told)]
        told, found, self._text = _upto(self._text, self._marks)
        if found in self._family.dropped:
            return [TextDelta(told)] if told else []
        # line breaks before a call are none of the text; more than a few are a model's that has lost its way
        plain = told.rstrip("\n")
        plain += told[len(plain) : -_MOST_BREAKS]
        if found:
            self._family = self._begins[found]
            self._state, self._breaks = "call", told[len(plain) :]
        else:
            self._text = told[len(plain) :] + self._text
        return [TextDelta(plain)] if plain else []

    def _call(self) -> list[Event]:
        end = self._family.end
        place = self._text.find(end, self._looked) if end else -1
        while place > 0 and not self._strays and not self._ending.is_at(self._text, place):
            self._passed = place if self._passed is None else self._passed
            place = self._text.find(end, place + len(end))
        if place < 0:  # a long call is not searched from its beginning for each of its tokens
            self._looked = max(0, len(self._text) - len(end))
            return []
        body = self._text[:place]
        if self._passed is not None and not is_whole(body, self._tools or {}, self._family.begin):
            return self._end_early()
        self._text = self._text[place + len(end) :]
        return self._end_call(body)

    def _end_call(self, body: str) -> list[Event]:
        self._state, self._looked, self._passed = "text", 0, None
        self._ending.begin()
        before = self.calls
        events = self._calls(body, self._family.begin, self._family.end)
        self._fresh = self.calls > before
        return events

    def _end_early(self) -> list[Event]:
        """End a call that no value explains at the first mark that seemed to be in one; once, since what follows is read again."""
        assert self._passed is not None
        body, rest = self._text[: self._passed], self._text[self._passed + len(self._family.end) :]
        self._text, self._strays = "", True
        return [*self._end_call(body), *self.add(rest)]

    def _calls(self, body: str, begin: str, end: str = "", is_cut: bool = False) -> list[Event]:
        """The calls of a text; the text itself where it has none."""
        found, rest = calls_of(body, self._tools or {}, begin, is_cut=is_cut)
        breaks, self._breaks = self._breaks, ""
        if not found:
            return [TextDelta(breaks + begin + body + end)]
        events: list[Event] = []
        for name, arguments in found:
            if not self.full:
                events.append(ToolCallDelta(self.calls, arguments, self._new_id(), name))
                self.calls += 1
        return [*events, TextDelta(rest)] if rest and not self.full else events


def _upto(text: str, marks: tuple[str, ...]) -> tuple[str, str, str]:
    """The text before the first mark, that mark, and what follows; a mark's beginning at the end is kept back."""
    found = _any_of(marks).search(text)
    if found is not None:
        return text[: found.start()], found[0], text[found.end() :]
    kept = len(text) - held(text, marks)
    return text[:kept], "", text[kept:]


@lru_cache(64)
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    """What finds the first of some marks."""
    return re.compile("|".join(map(re.escape, sorted(marks))))
