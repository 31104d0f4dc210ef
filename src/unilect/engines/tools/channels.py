"""
A lenient parser for answers in channels (gpt-oss): reasoning, tool calls and text, even if markers are missing.

Source: https://github.com/openai/harmony/blob/main/docs/format.md
"""

import re

from unilect.engines.tools.chatglm import new_call_id
from unilect.engines.tools.formats import Tools, calls_of
from unilect.events import Event, ReasoningDelta, TextDelta, ToolCallDelta

#: The special tokens of the form.
MARKS = ("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>")
_CHANNEL, _MESSAGE = MARKS[:2]
_END = re.compile(r"<\|(?:end|start|return|call)\|>")
_RECIPIENT = re.compile(r"to=functions\.([\w.-]{1,64})")
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
    calls, rest = calls_of(f"{name}{arguments.strip()}", tools)
    return calls[0] if len(calls) == 1 and not rest else None
