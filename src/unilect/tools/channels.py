"""
Lenient parsers for answers in channels (gpt-oss): reasoning, tool calls and text, even if markers are missing.

Source: https://github.com/openai/harmony/blob/main/docs/format.md
"""

import re
from collections.abc import Callable

from unilect.events import Event, ReasoningDelta, TextDelta, ToolCallDelta
from unilect.tools import held
from unilect.tools._values import Quotes
from unilect.tools.chatglm import new_call_id
from unilect.tools.formats import Tools, calls_of

#: The special tokens of the form.
MARKS = ("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>")
_CHANNEL, _MESSAGE = MARKS[:2]
_END = re.compile(r"<\|(?:end|start|return|call)\|>")
_RECIPIENT = re.compile(r"to=functions\.([\w.-]{1,128})")
_STOPS = ("<|return|>", "<|call|>")
_ALL = (*MARKS, *_STOPS)
_MARK = re.compile(r"<\|(?:channel|message|start|end|return|call)\|>")
_MOST_HEAD = 256
_BETWEEN = re.compile(r"<\|start\|>assistant|<\|(?:end|start|return|call)\|>")


def events_of(text: str, tools: Tools | None) -> list[Event]:
    """
    What a finished answer says.

    Args:
        tools: The tools; None where calls are not looked for.
    """
    first, *channels = text.split(_CHANNEL)
    events, calls, begun_for = _plain(first), 0, _RECIPIENT.search(first)
    for channel in channels:
        head, found, body = channel.partition(_MESSAGE)
        if not found:
            head, body = "", head
        end = _END.search(body)
        said, rest = (body[: end.start()], body[end.start() :]) if end else (body, "")
        recipient = _RECIPIENT.search(head) or begun_for
        call = _call(recipient[1], said, tools) if recipient and tools else None
        if call is not None:
            events.append(ToolCallDelta(calls, call[1], new_call_id(), call[0]))
            calls += 1
        elif said:
            events.append((ReasoningDelta if head.startswith("analysis") else TextDelta)(said))
        events += _plain(rest)
    return events


def _plain(text: str) -> list[Event]:
    """The text that stands outside of every message."""
    plain = _BETWEEN.sub("", text)
    return [TextDelta(plain)] if plain.strip() else []


def _call(name: str, arguments: str, tools: Tools) -> tuple[str, str] | None:
    calls, rest = calls_of(f"{name}{arguments.strip()}", tools, marked=True)
    return calls[0] if len(calls) == 1 and not rest else None


class ChannelParser:
    """
    The same as the answer comes; in what it can be asked it is like `parser.Parser`.

    Args:
        tools: The tools; None where calls are not looked for.
        new_id: Makes an id for a call.
        most: The most calls that are told; what comes after the last of them is not.

    Attributes:
        calls: How many have been told.
        held: What is not told yet.
        thinks: True while the text is a thought.
    """

    def __init__(
        self, tools: Tools | None, new_id: Callable[[], str], most: int | None = None
    ) -> None:
        self.calls = 0
        self.held = ""
        self.thinks = False
        self._tools = tools
        self._new_id = new_id
        self._most = most
        self._head: str | None = None  # of the message that is being read
        self._in_head = self._outside = False
        self._blanks: list[str] = []
        self._body: list[str] = []  # of a call
        self._quotes = Quotes()  # of its arguments, where a mark is a part of a text
        self._passed = False  # there is such a mark
        self._strays = False  # True once such a text did not end

    @property
    def full(self) -> bool:
        """True when as many calls as may be have been told."""
        return self._most is not None and self.calls >= self._most

    def add(self, text: str) -> list[Event]:
        """The events that a piece of text completes."""
        text, self.held = self.held + text, ""
        events: list[Event] = []
        read = (
            0  # a rest that is cut off behind each mark would be copied as often as there are marks
        )
        for found in _MARK.finditer(text):
            events += self._tell(text[read : found.start()])
            mark, read = found[0], found.end()
            self._blanks = []
            if self._quotes.are_open and not self._strays:
                self._passed = True
                events += self._tell(mark)
            elif mark == _MESSAGE and self._in_head:
                self._in_head = False
                self.thinks = (self._head or "").startswith("analysis")
            else:
                if not self._in_head:
                    events += self._end_message()
                # a channel begins a head, or goes on with one: the recipient may stand before it
                starts = mark in ("<|channel|>", "<|start|>")
                before = f"{self._recipient} " if self._in_head else ""
                self._head = before if starts else None
                self._in_head = starts
        rest = text[read:]
        kept = len(rest) - held(rest, _ALL)
        events += self._tell(rest[:kept])
        self.held = rest[kept:]
        return events

    def end(self, is_cut: bool = False) -> list[Event]:
        """The events of what was held back; the arguments, which are JSON, show whether they are whole, however the text has ended."""
        told, self.held = self.held, ""
        return [*self._tell(told), *self._end_message()]

    @property
    def _recipient(self) -> str:
        found = _RECIPIENT.search(self._head or "")
        return found[0] if found is not None else ""

    def _tell(self, text: str) -> list[Event]:
        if not text:
            return []
        if self._in_head:
            self._head = ((self._head or "") + text)[-_MOST_HEAD:]
            return []
        if self._tools and self._recipient:
            self._body.append(text)
            self._quotes.add(text)
            return []
        if self._head is None and not self._outside:
            self._blanks.append(text)  # between two messages they are none of the answer
            if text.isspace():
                return []
            self._outside, text = True, "".join(self._blanks)
        return [ReasoningDelta(text) if self.thinks else TextDelta(text)]

    def _end_message(self) -> list[Event]:
        """The call that was read, or its text where it is none that is known."""
        said, recipient = "".join(self._body), _RECIPIENT.search(self._head or "")
        self._body, self._quotes = [], Quotes()
        call = _call(recipient[1], said, self._tools) if recipient and self._tools else None
        if call is None and self._passed and not self._strays:  # it is read again, with its marks
            self._strays = True
            return [*self.add(said), *self.end()]
        self._head, self._passed = None, False
        self.thinks = self._outside = False
        if call is None or self.full:
            return [TextDelta(said)] if said and not self.full else []
        self.calls += 1
        return [ToolCallDelta(self.calls - 1, call[1], self._new_id(), call[0])]
