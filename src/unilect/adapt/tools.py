"""
Tools and response formats for backends without them: what the model is told of them stands in the prompt, and calls are read from its
text.

A call that must come, and an answer that must have a form, are enforced by a grammar where the backend takes one, else by its own
`response_format`, else by validating the whole answer and asking again; such an answer is held back until it is valid, also in a stream.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from unilect.adapt.enforcement import Stage, generate_valid, keyword_error
from unilect.api.backend import Batches, Capabilities, Generates
from unilect.api.parameters.rules import honours, refusal
from unilect.constraints.checker import Checker
from unilect.constraints.keywords import can_be_validated
from unilect.constraints.schema import find_unenforced
from unilect.core.events import ENDED, Choice, Event, Fold, TextDelta, ToolCallDelta
from unilect.core.requests import ChatRequest, JsonSchema, JsonSchemaFormat, TextRequest
from unilect.families import CallStyle, Family, Reading, find
from unilect.tools.conversation import has_calls, rewrite_as_text, with_text
from unilect.tools.forced import call_reader, callable_tools, must_call
from unilect.tools.grammar import calls_grammar
from unilect.tools.reader import Reader, tools_of
from unilect.wire.stream import map_batches

_FEW_TOOLS, _FEW_MESSAGES = 16, 64  # what is more is written beside the loop
_BUDGET = "thinking_budget_tokens"
_JSON_CALL = CallStyle("", "arguments")
_SCHEMA = "Answer with JSON that satisfies this JSON Schema, and with nothing else:\n"
_MUST = "\n\nYou must call a function now."
_ONE = "\n\nCall one function at most."


class ToolEmulation(Struct, frozen=True):
    """
    The tool and format features of a request that are emulated.

    Attributes:
        prompted: The tools are written into the prompt, and so are earlier calls and results.
        forced: The way in which a required call is enforced; None where the backend does it, or no call is required.
        single: Only the first call is sent to the client.
        formed: The text is validated against `response_format`.
    """

    prompted: bool = False
    forced: Literal["grammar", "schema", "retry"] | None = None
    single: bool = False
    formed: bool = False

    @property
    def held(self) -> bool:
        """Answers are held back until one is valid, and made again."""
        return self.forced != "grammar" and (self.forced is not None or self.formed)


_NOTHING = ToolEmulation()


def plan(request: TextRequest, can: Capabilities) -> ToolEmulation | None:
    """Plan what is emulated of a request on a backend with the capabilities `can`; None for nothing."""
    if not isinstance(request, ChatRequest):
        return None
    knows = honours(can, "tools")
    if request.response_format is None and not request.tools:  # as most requests
        past = not knows and has_calls(request.messages)
        return ToolEmulation(prompted=True) if past else None
    formed = request.answer_schema is not None and not honours(can, "response_format")
    if knows and not request.tools:
        return ToolEmulation(formed=True) if formed else None
    calls = _calls(request)
    forced: Literal["grammar", "schema", "retry"] | None = None
    if must_call(request) and not (knows and honours(can, "tool_choice")):
        forced = "schema" if honours(can, "response_format") else "retry"
        if honours(can, "grammar"):
            forced = "grammar"
    prompted = not knows and (calls or has_calls(request.messages))
    if prompted and calls and forced is None:  # no call would have that form
        formed = request.answer_schema is not None
    one = calls and request.parallel_tool_calls is False
    made = ToolEmulation(
        prompted or forced in ("grammar", "schema"),
        forced,
        one and not (knows and honours(can, "parallel_tool_calls")),
        formed,
    )
    return made if made != _NOTHING else None


def build_request(request: ChatRequest, can: Capabilities) -> ChatRequest:
    """Return the request that a backend is asked, where something is made up for."""
    made = plan(request, can)
    return request if made is None else _build_request(request, made, _form(made, can))


class PromptedTools(Stage):
    """
    A backend whose lack of tools or response formats is made up for; see `Stage`.

    Args:
        made: What it lacks.
        note: Called with the number of attempts that an answer has taken which is validated.
    """

    def __init__(
        self, backend: Generates, made: ToolEmulation, checker: Checker, note: Callable[[int], None]
    ) -> None:
        super().__init__(backend, checker)
        self._plan = made
        self._note = note

    async def _start(self, request: TextRequest) -> Batches:
        """
        See `Stage`. Of the text of a streamed answer nothing is held back but what may be a call.

        Raises:
            UnsupportedParameter: What cannot be had together with tools that stand in the prompt.
            ConstraintViolated: None of the answers was a call that must come, or had the form that it must have.
        """
        assert isinstance(request, ChatRequest)
        form = _form(self._plan, self.capabilities)
        _check(request, self._plan)
        if len(request.tools or ()) > _FEW_TOOLS or len(request.messages) > _FEW_MESSAGES:
            asked = await asyncio.to_thread(_build_request, request, self._plan, form)
        else:
            asked = _build_request(request, self._plan, form)
        if self._plan.forced == "grammar":
            read = call_reader(request, _JSON_CALL)
            return map_batches(self._backend.generate(await self._bind(request, asked)), read)
        if not self._plan.held:
            read = _reader(request, self._plan, form)
            return map_batches(self._backend.generate(asked), read)
        await self._compile(request)

        def clean(events: list[Event]) -> list[Event]:
            read = _reader(request, self._plan, form)(events)
            return _strip_fence(read) if self._plan.formed else read

        find_fault = partial(self._find_fault, request)
        return generate_valid(self._backend, asked, find_fault, clean, self._note)

    async def _bind(self, request: ChatRequest, asked: ChatRequest) -> ChatRequest:
        """Return the request for the one call that a grammar allows, without thoughts before it: they would take the tokens that it needs."""
        bound = asked.changed(grammar=await calls_grammar(request, _JSON_CALL, self._checker))
        if bound.thinking_budget_tokens is None and honours(self.capabilities, _BUDGET):
            bound = bound.changed(thinking_budget_tokens=0)
        return bound

    async def _compile(self, request: ChatRequest) -> None:
        """
        Raises:
            InvalidRequest: A schema that answers are to be held against is none.
            UnsupportedParameter: It has a keyword that cannot be validated.
        """
        if self._plan.forced:
            for number, tool in enumerate(request.tools or ()):
                where = f"tools[{number}].function.parameters"
                await self._checker.schema(tool.function.parameters or {}, where)
        elif request.answer_schema is not None:
            uses = await self._checker.schema(request.answer_schema, "response_format")
            missing = [use for use in find_unenforced(uses, ()) if not can_be_validated(use)]
            if missing:
                raise keyword_error("response_format", missing[0])

    async def _find_fault(self, request: ChatRequest, choices: Sequence[Choice]) -> str | None:
        """Return the first error in the choices of an answer, as a text; None if all are valid."""
        for choice in choices:
            if self._plan.forced:
                why = await self._find_wrong_call(request, choice)
            elif choice.finish_reason == "stop" and request.answer_schema is not None:
                why = await self._checker.validate(request.answer_schema, choice.text or "")
                why = why and f"`response_format`: {why}"
            else:  # it was cut, or calls a tool
                why = None
            if why is not None:
                return why
        return None

    async def _find_wrong_call(self, request: ChatRequest, choice: Choice) -> str | None:
        allowed = callable_tools(request)
        is_cut = choice.finish_reason not in ENDED
        if not choice.tool_calls or (is_cut and choice.tool_calls[-1].parse_arguments() is None):
            end = " before its end; raise `max_tokens`" if is_cut else ""
            return f"`tool_choice`: no tool is called{end}"
        for call in choice.tool_calls:
            if call.name not in allowed:
                return f"`tool_choice`: another tool than `{next(iter(allowed))}` is called"
            why = await self._checker.validate(allowed[call.name], call.arguments)
            if why is not None:
                return f"`tools`: the arguments for `{call.name}`: {why}"
        return None


def _reader(
    request: ChatRequest, made: ToolEmulation, form: Family
) -> Callable[[list[Event]], list[Event]]:
    """Make a reader of an answer's events: calls in its text where the tools stand in the prompt, and no others than the first."""
    if made.prompted and _calls(request):
        reading = Reading(
            family=form,
            tools=tools_of(request),
            thinking=True,
            most=1 if made.single else None,
            bare=True,
            stop_words=request.stop_words,
        )
        return Reader(reading).read

    def is_beyond(event: Event) -> bool:
        return made.single and isinstance(event, ToolCallDelta) and event.call > 0

    return lambda batch: [event for event in batch if not is_beyond(event)]


def _form(made: ToolEmulation, can: Capabilities) -> Family:
    """Return the model's own form; a plain one where the call is bound to JSON."""
    bound = made.forced in ("grammar", "schema")
    return find("plain" if bound else can.tool_form)


def _check(request: ChatRequest, made: ToolEmulation) -> None:
    """
    Raises:
        UnsupportedParameter: What cannot be had together with tools that stand in the prompt.
    """
    if not made.prompted or not _calls(request):
        return
    if request.logprobs:
        raise refusal("logprobs", "the tools stand in the prompt, and calls are read from the text")
    if request.grammar:
        raise refusal("grammar", "the tools stand in the prompt, and a call has its own form")


def _build_request(request: ChatRequest, made: ToolEmulation, form: Family) -> ChatRequest:
    """Return the request with what the backend lacks in its messages."""
    changes: dict[str, Any] = {}
    told, declared = list[str](), ""
    called = callable_tools(request)
    tools = [tool for tool in request.tools or () if tool.function.name in called]
    if made.single:
        changes["parallel_tool_calls"] = None
    if made.prompted:
        changes = dict.fromkeys(("tools", "tool_choice", "parallel_tool_calls"))
        if tools and _calls(request):
            rules = _MUST * must_call(request) + _ONE * made.single
            if form.written.tools_turn:
                declared = form.written.tools_turn + form.written.tools_text(tools)
                told += filter(None, [rules.strip()])
            else:
                told.append(form.written.tools_text(tools) + rules)
    elif made.forced:
        changes |= {"tools": tools, "tool_choice": None}
    if made.forced == "schema":
        changes["response_format"] = JsonSchemaFormat(JsonSchema("call", schema=_any_of(called)))
    elif made.forced:
        changes["response_format"] = None
    elif made.formed:
        changes["response_format"] = None
        told.append(_SCHEMA + msgspec.json.encode(request.answer_schema).decode())
    messages = (
        rewrite_as_text(request.messages, form.written) if made.prompted else list(request.messages)
    )
    if told:
        messages = with_text(messages, "\n\n".join(told), form.written.in_user and made.prompted)
    if declared:
        messages = with_text(messages, declared, False, between="")
    return request.changed(messages=messages, **changes)


def _any_of(called: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of a call of one of these tools; references would point elsewhere here, and are left to validation."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": [name]},
                "arguments": {"type": "object"}
                if b'"$ref"' in msgspec.json.encode(schema)
                else schema,
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in called.items()
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _calls(request: ChatRequest) -> bool:
    """Return True if the model may call a tool."""
    return bool(request.tools) and request.tool_choice != "none"


def _strip_fence(events: list[Event]) -> list[Event]:
    """Return the events of an answer without the block of code that a model puts around JSON."""
    folding = Fold()
    folding.add(events)
    found: dict[int, str] = {}
    for choice in folding.answer().choices:
        text = (choice.text or "").strip()
        if text.startswith("```") and text.endswith("```") and len(text) > 6:
            found[choice.index] = text[3:-3].partition("\n")[2].strip()
    told: list[Event] = []
    for event in events:
        if isinstance(event, TextDelta) and event.index in found:
            text, found[event.index] = found[event.index], ""
            event = replace(event, text=text, logprobs=None)
        told.append(event)
    return told
