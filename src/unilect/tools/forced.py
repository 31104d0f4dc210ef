"""
Forced tool calls: `tool_choice` required or named.

llama.cpp forbids only that the answer ends without a call, so a model may talk until its last token first. Here the prompt ends
where a call begins, and a grammar allows nothing but one of the calls, its arguments bound by the tool's schema: whatever the
model is, the answer is one call that satisfies the schema, unless `max_tokens` cuts it.

Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md (the grammar's language)
"""

import json
from typing import Any

from unilect.constraints.normal import regular
from unilect.core.errors import BackendError, InvalidRequest
from unilect.core.events import Event, Finish, TextDelta, ToolCallDelta
from unilect.core.requests import ChatRequest, ToolChoice
from unilect.families import PLAIN, CallStyle, new_call_id, of_template

_THOUGHTS_END = PLAIN.thoughts[1]
_ELSEWHERE = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


def call_style(template: str) -> CallStyle:
    """The style of the family whose chat template this is."""
    return (of_template(template) or PLAIN).force


def must_call(request: ChatRequest) -> bool:
    """True when the answer has to be a tool call."""
    choice = request.tool_choice
    return bool(request.tools) and (choice == "required" or isinstance(choice, ToolChoice))


def callable_tools(request: ChatRequest) -> dict[str, dict[str, Any]]:
    """The tools that may be called, each with a schema of its arguments that allows none but those it names."""
    choice = request.tool_choice
    return {
        tool.function.name: _close(tool.function.parameters or {})
        for tool in request.tools or ()
        if not isinstance(choice, ToolChoice) or choice.function.name == tool.function.name
    }


def call_head(name: str, style: CallStyle) -> str:
    """A call's JSON up to its arguments."""
    return f'{{"name": {json.dumps(name)}, "{style.arguments}": '


def call_grammar(request: ChatRequest, style: CallStyle) -> str:
    """
    The grammar of llguidance that allows one call of a tool that may be called, and nothing else.

    Where a schema does not say, a call has no arguments but those it names.
    """
    calls, schemas = [], []
    for number, (name, schema) in enumerate(callable_tools(request).items()):
        calls.append(f'{json.dumps(call_head(name, style))} args{number} "}}"')
        schemas.append(f"args{number}: %json {json.dumps(compact(schema))}")
    return "%llguidance {}\nstart: " + " | ".join(calls) + "\n" + "\n".join(schemas)


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """
    A schema whose answers have one blank after commas and colons and no other: a weak model would write blanks for ever.

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
    """A schema of an object without arguments that it does not name; where others name them (`$ref`), they say."""
    if "properties" not in schema and not _ELSEWHERE.isdisjoint(schema):
        return {"type": "object"} | schema
    return {"type": "object", "properties": {}, "additionalProperties": False} | schema


class ForcedCall:
    """Reads the text of one call as it comes: the head tells the name, all but the last brace is arguments."""

    def __init__(self, request: ChatRequest, style: CallStyle) -> None:
        self._heads = {name: call_head(name, style) for name in callable_tools(request)}
        self._text = ""
        self._begun = False

    def read(self, batch: list[Event]) -> list[Event]:
        """
        The events of the call for the events of its text.

        Raises:
            InvalidRequest: There is no text at all: a tool's schema is wrong.
            BackendError: The text is no call.
        """
        events: list[Event] = []
        for event in batch:
            match event:
                case TextDelta(text):
                    self._text += text
                    events += self._arguments()
                case Finish(reason):
                    if not self._begun and reason != "stop":
                        raise InvalidRequest(
                            "`max_tokens`, or the context size, ended the answer before the required tool call began. "
                            "Raise `max_tokens`, or shorten the prompt.",
                            param="max_tokens",
                        )
                    if not self._text and not self._begun:
                        # an engine takes a grammar that it cannot read for one that allows nothing
                        raise InvalidRequest(
                            f"Tool `{'` or `'.join(self._heads)}`: unsupported JSON Schema in `parameters`. Simplify it.",
                            param="tools",
                        )
                    if not self._begun or (reason == "stop" and self._text != "}"):
                        raise BackendError("The engine did not call the required tool.")
                    if reason != "stop" and self._begun and self._text:
                        events.append(ToolCallDelta(0, self._text))
                    events.append(Finish("tool_calls" if reason == "stop" else reason))
                case _:
                    events.append(event)
        return events

    def _arguments(self) -> list[Event]:
        events: list[Event] = []
        if not self._begun:
            # llama.cpp tells the line break that a prompt has behind ended thoughts, and their mark where it knows none
            self._text = self._text.lstrip()
            if _THOUGHTS_END.startswith(self._text):
                return []
            self._text = self._text.removeprefix(_THOUGHTS_END).lstrip()
            name = next((n for n, head in self._heads.items() if self._text.startswith(head)), None)
            if name is None:
                if not any(head.startswith(self._text) for head in self._heads.values()):
                    raise BackendError("The engine did not call the required tool.")
                return []
            self._begun = True
            self._text = self._text.removeprefix(self._heads[name])
            events.append(ToolCallDelta(0, "", new_call_id(), name))
        ready, self._text = self._text[:-1], self._text[-1:]  # the last brace closes the call
        if ready:
            events.append(ToolCallDelta(0, ready))
        return events
