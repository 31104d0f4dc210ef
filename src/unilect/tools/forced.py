"""
Forced tool calls: `tool_choice` required or named.

llama.cpp forbids only that the answer ends without a call, so a model may talk until its last token first. Here the prompt ends
where a call begins, and a grammar allows nothing but one of the calls, its arguments bound by the tool's schema: whatever the
model is, the answer is one call that satisfies the schema, unless `max_tokens` cuts it.

Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md (the grammar's language)
"""

import json
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from unilect.constraints.normal import regular
from unilect.core.errors import BackendError, InvalidRequest
from unilect.core.events import Event, Finish, TextDelta, ToolCallDelta
from unilect.core.requests import ChatRequest, ToolChoice
from unilect.families import PLAIN, CallStyle, Reading, Scanner, new_call_id, of_template
from unilect.tools.reader import Reader

_THOUGHTS_END = PLAIN.thoughts[1]
_NO_CALL = "The engine did not call the required tool."
_ELSEWHERE = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


def call_style(template: str) -> CallStyle:
    """Return the style of the family whose chat template this is."""
    return (of_template(template) or PLAIN).force


def must_call(request: ChatRequest) -> bool:
    """Return True when the answer has to be a tool call."""
    choice = request.tool_choice
    return bool(request.tools) and (choice == "required" or isinstance(choice, ToolChoice))


def callable_tools(request: ChatRequest) -> dict[str, dict[str, Any]]:
    """Return the tools that may be called, each with a schema of its arguments that allows none but those it names."""
    choice = request.tool_choice
    return {
        tool.function.name: _close(tool.function.parameters or {})
        for tool in request.tools or ()
        if not isinstance(choice, ToolChoice) or choice.function.name == tool.function.name
    }


def call_head(name: str, style: CallStyle) -> str:
    """Return a call's JSON up to its arguments."""
    return f'{{"name": {json.dumps(name)}, "{style.arguments}": '


def call_grammar(request: ChatRequest, style: CallStyle) -> str:
    """
    Return the grammar of llguidance that allows one call of a tool that may be called, and nothing else.

    Where a schema does not say, a call has no arguments but those it names.
    """
    calls, schemas = [], []
    for number, (name, schema) in enumerate(callable_tools(request).items()):
        calls.append(f'{json.dumps(call_head(name, style))} args{number} "}}"')
        schemas.append(f"args{number}: %json {json.dumps(compact(schema))}")
    return "%llguidance {}\nstart: " + " | ".join(calls) + "\n" + "\n".join(schemas)


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """
    Return a schema whose answers have one blank after commas and colons and no other: a weak model would write blanks for ever.

    What llguidance cannot enforce it leaves out, and finished answers are held against it.

    Source: https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md
    """
    made: dict[str, Any] = regular(schema)
    return made | {
        "x-guidance": {
            "lenient": True,
            "whitespace_flexible": False,
            "item_separator": ", ",
            "key_separator": ": ",
        }
    }


def _close(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of an object without arguments that it does not name; where others name them (`$ref`), they say."""
    if "properties" not in schema and not _ELSEWHERE.isdisjoint(schema):
        return {"type": "object"} | schema
    return {"type": "object", "properties": {}, "additionalProperties": False} | schema


def call_reading(request: ChatRequest, style: CallStyle) -> Reading:
    """Return how the answer to a request for a forced call is read."""
    family = replace(PLAIN, force=style, scanner=ForcedScanner)
    return Reading(family=family, tools=callable_tools(request))


def call_reader(request: ChatRequest, style: CallStyle) -> Callable[[list[Event]], list[Event]]:
    """Make a reader of the events of a forced call; what a server tells beside its text is dropped."""
    reader = Reader(call_reading(request, style))
    return lambda batch: reader.read([_bare(event) for event in batch])


def _bare(event: Event) -> Event:
    if isinstance(event, Finish):
        return Finish(event.reason, event.index)
    return replace(event, extra=None, logprobs=None) if isinstance(event, TextDelta) else event


class ForcedScanner(Scanner):
    """Reads the text of one call as it comes: the head tells the name, all but the last brace is arguments; see `Scanner`."""

    def __init__(self, reading: Reading, new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__(reading, new_id)
        self._heads = {name: call_head(name, self._family.force) for name in self._tools or ()}

    def add(self, text: str) -> list[Event]:
        """
        See `Scanner`.

        Raises:
            BackendError: The text is no call.
        """
        self.held += text
        events = [] if self.calls else self._read_head()
        if self.calls:
            ready, self.held = self.held[:-1], self.held[-1:]  # the last brace closes the call
            if ready:
                events.append(ToolCallDelta(0, ready))
        return events

    def _read_head(self) -> list[Event]:
        # llama.cpp tells the line break that a prompt has behind ended thoughts, and their mark where it knows none
        self.held = self.held.lstrip()
        if _THOUGHTS_END.startswith(self.held):
            return []
        self.held = self.held.removeprefix(_THOUGHTS_END).lstrip()
        for name, head in self._heads.items():
            if self.held.startswith(head):
                self.held = self.held.removeprefix(head)
                return self._make_call(name, "")
        if not any(head.startswith(self.held) for head in self._heads.values()):
            raise BackendError(_NO_CALL)
        return []

    def end(self, is_cut: bool = False, by_word: bool = False) -> list[Event]:
        """
        See `Scanner`.

        Raises:
            InvalidRequest: There is no text at all: a tool's schema is wrong; or a limit has cut it before a call began.
            BackendError: The text is no call.
        """
        if not self.calls and is_cut:
            raise InvalidRequest(
                "`max_tokens`, or the context size, ended the answer before the required tool call began. "
                "Raise `max_tokens`, or shorten the prompt.",
                param="max_tokens",
            )
        if not self.calls and not self.held:
            # an engine takes a grammar that it cannot read for one that allows nothing
            raise InvalidRequest(
                f"Tool `{'` or `'.join(self._heads)}`: unsupported JSON Schema in `parameters`. Simplify it.",
                param="tools",
            )
        if not self.calls or (not is_cut and self.held != "}"):
            raise BackendError(_NO_CALL)
        return [ToolCallDelta(0, self.held)] if is_cut and self.held else []
