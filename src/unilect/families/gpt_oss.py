"""
gpt-oss: messages in channels, each with a head that says what it is; marks may be missing.

Source: https://github.com/openai/harmony/blob/main/docs/format.md
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from unilect.core.events import Event, ReasoningDelta, TextDelta
from unilect.core.marks import count_overlaps
from unilect.core.requests import FunctionDefinition
from unilect.families._calls import calls_of, new_call_id
from unilect.families._cut import read_cut_calls
from unilect.families._family import Family, ToolFormat
from unilect.families._scanner import Reading, Scanner
from unilect.families._typing import Tools
from unilect.families._values import Element, Quotes
from unilect.families._writing import dumped

_MARKS = ("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|eom|>", "<|eot|>")  # fmt: skip
_MARK = re.compile(r"<\|(?:channel|message|start|end|return|call|eom|eot)\|>")
_RECIPIENT = re.compile(r"to=(functions\.)?([\w.-]{1,128})")
_THINKS = re.compile(r"\s*(?:analysis|(?:assistant\s*)?to=self\b)")
_WORDS = re.compile(r"\s*(?:assistant)?\s*(?:analysis|commentary|final)?\s*")
#: Muse's.
_ELEMENTS, _END = "<atem:function_calls>", "</atem:function_calls>"
_MESSAGE = "<|message|>"
_STARTS = ("<|channel|>", "<|start|>")
#: Characters of a head; a longer one is none.
_MOST_HEAD = 256


class ChannelScanner(Scanner):
    """Reads the messages of an answer; see `Scanner`."""

    #: Recipients that are none of the tools; None for all that are not known as one.
    others: frozenset[str] | None = None

    def __init__(self, reading: Reading, new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__(reading, new_id)
        self._head: str | None = ""  # of the message that is being read
        self._to: str | None = None  # the tool that it is for
        self._in_head = self._is_first = (
            True  # the prompt has begun a head, which only a recipient goes on with
        )
        self._outside = False
        self._blanks: list[str] = []
        self._body: list[str] = []  # of a call
        self._inside: Quotes | Element | None = (
            None  # its arguments, where a mark may be a part of a text
        )
        self._passed = False  # there is such a mark
        self._strays = False  # True once such a text did not end

    def add(self, text: str) -> list[Event]:
        """See `Scanner`."""
        text, self.held = self.held + text, ""
        events: list[Event] = []
        read = (
            0  # a rest that is cut off behind each mark would be copied as often as there are marks
        )
        for found in _MARK.finditer(text):
            if found.start() > read:
                events += self._tell(text[read : found.start()])
            mark, read = found[0], found.end()
            self._is_first = False
            self._blanks = []
            if self._inside is not None and self._inside.is_open and not self._strays:
                self._passed = True
                events += self._tell(mark)
            elif mark == _MESSAGE and self._in_head:
                self._in_head = False
                self._to = self._recipient(self._head or "")
                self.thinks = _THINKS.match(self._head or "") is not None
            elif self._in_head or self._head is not None or mark in _STARTS:
                events += self._begin(mark in _STARTS)
            else:  # a mark behind the end of a message
                self.thinks = self._outside = False
        rest = text[read:]
        kept = len(rest) - count_overlaps(rest, _MARKS)
        events += self._tell(rest[:kept])
        self.held = rest[kept:]
        return events

    def _begin(self, starts: bool) -> list[Event]:
        """Go on behind a mark that ends what was before; a channel begins a head, or goes on with one: the recipient may stand before it."""
        before, events = "", list[Event]()
        if not self._in_head:
            events = self._end_message()
        elif not starts:
            events = self._leave_head()
        elif (recipient := _RECIPIENT.search(self._head or "")) is not None:
            before = f"{recipient[0]} "
        self._head = before if starts else None
        self._in_head = starts
        return events

    def end(self, is_cut: bool = False, by_word: bool = False) -> list[Event]:
        """Return the events of what was held back; the arguments, which are JSON, show whether they are whole, however the text has ended."""
        told, self.held = self.held, ""
        if is_cut and not by_word:
            return self._cut()
        events = self._tell(told)
        return [*events, *(self._leave_head() if self._in_head else self._end_message(is_cut))]

    def _cut(self) -> list[Event]:
        """Return a call that a limit has cut; of a head that is not whole, and of a mark, nothing is told."""
        if self._in_head or self._to is None:
            return []
        said = "".join(self._body)
        if self._passed or _call(self._to, said, self._tools or {}, is_cut=True) is not None:
            return self._end_message()
        marked = said.lstrip().startswith("<")
        begun = read_cut_calls(said, self._tools or {}, _ELEMENTS) if marked else None
        return [
            event
            for one in begun or [(self._to, said.strip() or "{")]
            for event in self._make_call(*one)
        ]

    def _recipient(self, head: str) -> str | None:
        """Return the tool that a message is for; without its name space only one that there is."""
        found = _RECIPIENT.search(head) if self._tools else None
        if found is None or found[1] or found[2] in (self._tools or {}):
            return found[2] if found is not None else None
        return None if self.others is None or found[2] in self.others else found[2]

    def _leave_head(self) -> list[Event]:
        """Tell a head that no message has followed as text, but for the words of one."""
        head, self._head, self._in_head = self._head or "", None, False
        words = _WORDS.match(head)
        text = head[words.end() if words is not None else 0 :]
        self._outside = True
        return [TextDelta(text)] if text and _RECIPIENT.search(head) is None else []

    def _tell_head(self, text: str) -> list[Event]:
        room = _MOST_HEAD + 1 - len(self._head or "")
        self._head = head = (self._head or "") + text[:room]
        named = head.lstrip()[:3]
        is_long = len(head) > _MOST_HEAD
        if self._is_first and (named != "to="[: len(named)] or (is_long and not named)):
            self._head, self._in_head = None, False
            return self._tell(head + text[room:])
        return [*self._leave_head(), *self._tell(text[room:])] if is_long else []

    def _tell(self, text: str) -> list[Event]:
        if not text:
            return []
        if self._in_head:
            return self._tell_head(text)
        if self._to is not None:
            if self._inside is None and text.strip():
                self._inside = Element(_END) if text.lstrip().startswith("<") else Quotes()
            self._body.append(text)
            if self._inside is not None:
                self._inside.add(text)
            return []
        if self._head is None and not self._outside:
            self._blanks.append(text)  # between two messages they are none of the answer
            if text.isspace():
                return []
            self._outside, text = True, "".join(self._blanks)
        return [ReasoningDelta(text) if self.thinks else TextDelta(text)]

    def _end_message(self, is_cut: bool = False) -> list[Event]:
        """Return the call that was read, or its text where it is none that is known."""
        name, call, said = self._to, None, ""
        if name is not None:
            said = "".join(self._body)
            self._body, self._inside = [], None
            call = _call(name, said, self._tools or {}, is_cut)
        if call is None and self._passed and not self._strays:  # it is read again, with its marks
            self._strays = True
            return [*self.add(said), *self.end()]
        self._head, self._to, self._passed = None, None, False
        self.thinks = self._outside = False
        if call is None:
            return [TextDelta(said)] if said and not self.full else []
        return self._make_call(*call)


def _call(name: str, arguments: str, tools: Tools, is_cut: bool = False) -> tuple[str, str] | None:
    said = arguments.strip()
    if said.startswith(_ELEMENTS):
        calls, rest = calls_of(said, tools, _ELEMENTS, is_cut=is_cut)
    else:
        calls, rest = calls_of(f"{name}{said}", tools, marked=True)
    return calls[0] if len(calls) == 1 and not rest else None


def _tool(function: FunctionDefinition) -> str:
    """Write a function as harmony declares it; what TypeScript has no word for stands as JSON Schema in a comment."""
    lines = [f"// {line}" for line in (function.description or "").splitlines()]
    schema = function.parameters or {}
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return "\n".join([*lines, f"type {function.name} = () => any;"])
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    lines.append(f"type {function.name} = (_: {{")
    for name, one in properties.items():
        told = one if isinstance(one, dict) else {}
        if isinstance(about := told.get("description"), str):
            lines += [f"// {line}" for line in about.splitlines()]
        mark = "" if name in needed else "?"
        lines.append(f"{name}{mark}: {_typescript(told)},")
    return "\n".join([*lines, "}) => any;"])


def _typescript(schema: Mapping[str, Any]) -> str:
    kind, values = schema.get("type"), schema.get("enum")
    if isinstance(values, list) and values:
        return " | ".join(map(dumped, values))
    if kind == "array" and isinstance(items := schema.get("items"), dict):
        inner = items.get("type")
        return f"{_TYPES.get(inner, 'any') if isinstance(inner, str) else 'any'}[]"
    found = _TYPES.get(kind) if isinstance(kind, str) else None
    return found or f"any /* {dumped(schema)} */"


_TYPES = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


GPT_OSS = Family(
    name="harmony",
    shown=("<|channel|>",),
    called=("gpt-oss",),
    thoughts=("<|channel|>analysis<|message|>", "<|end|>"),
    thinks=("<|channel|>",),
    marks=_MARKS,
    turn_ends=("<|return|>", "<|call|>"),
    scanner=ChannelScanner,
    written=ToolFormat(
        about="# Tools\n\n## functions\n\nnamespace functions {\n\n",
        tool=_tool,
        between="\n\n",
        rules="\n\n} // namespace functions\n\nCalls to these tools must go to the commentary channel: 'functions'.",
        call=lambda name, given, number: (
            f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumped(given)}<|call|>"
        ),
        calls=("", "<|start|>assistant", ""),
        result=lambda name, number, text: (
            f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{text}<|end|>"
        ),
    ),
    vllm=("openai", "openai_gptoss"),
    sglang=("gpt-oss", "gpt-oss"),
)
