"""
A Messages body as a chat request.

What changes no answer is accepted (`metadata`, `cache_control`); what is asked for and cannot be had is named in `X-Unilect-Ignored`, or
refused where the answer would be another one without it.

Source: https://platform.claude.com/docs/en/api/messages
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from unilect.api.backend import Capabilities
from unilect.api.parameters.rules import AGENTS_SEND, parameters_of
from unilect.core.bounds import MAX_NAME, check_free_form
from unilect.core.errors import UnsupportedParameter
from unilect.core.requests import ChatRequest, JsonSchema, JsonSchemaFormat
from unilect.dialects.messages._body import Format, MessagesRequest
from unilect.dialects.messages._conversation import Conversation
from unilect.dialects.messages._errors import ThreadNotFound
from unilect.dialects.messages._tools import Tools
from unilect.web.decode import BodyDecoder
from unilect.web.param_locations import ParamLocations

#: What a chat's parameters are called here; empty for what every client asks of every model, and nobody is told of.
NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "enable_thinking": "",
    "thinking_budget_tokens": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
#: Left out where the model's backend lacks them.
OPTIONAL = {name: NAMES[name] for name in (*AGENTS_SEND, "thinking_budget_tokens") if name in NAMES}
#: An answer without them is another one.
_REFUSED = ("mcp_servers", "container")
_EFFORTS = {"max": "xhigh"}
_KEEPS_THOUGHTS = {"type": "clear_thinking_20251015", "keep": "all"}
_MAX_EDITS_BYTES = 4096
decode = BodyDecoder(MessagesRequest).decode


class DecodedBody(Struct, frozen=True):
    """
    A decoded body.

    Attributes:
        request: The chat request.
        left_out: The names of the fields that are left out.
        places: Where its parts stand in the body.
        omits_thoughts: The text of thoughts is not shown, and goes into their signature.
    """

    request: ChatRequest
    left_out: tuple[str, ...]
    places: ParamLocations
    omits_thoughts: bool

    def check(self, can: Capabilities) -> None:
        """
        Refuse a conversation that the model's backend would not go on with.

        Raises:
            UnsupportedParameter: It ends with a turn of the assistant, and the backend begins another one.
        """
        if can.continues or self.request.messages[-1].role != "assistant":
            return
        place = self.places.messages[-1].message
        raise UnsupportedParameter.at(
            place,
            ": the conversation ends with a turn of the assistant, which this model's backend does not continue. "
            "End with a turn of the user, or use a GGUF model.",
        )


def read(given: MessagesRequest) -> DecodedBody:
    """
    Turn a request for a message into a chat request.

    Raises:
        InvalidRequest: A field is wrong, or not supported; the message names it.
    """
    if given.metadata is not None:
        check_free_form("metadata", given.metadata)
    if given.thread is not None and given.thread.type == "continue":
        raise ThreadNotFound.at(
            "thread",
            ": no conversation is held by this server. Send the whole conversation in `messages`.",
        )
    left_out = _left_out(given)
    conversation = Conversation(given)
    tools = Tools(given, conversation.referenced)
    thinking, choice = given.thinking, given.tool_choice
    request = ChatRequest(
        model=given.model,
        messages=conversation.messages,
        stream=given.stream,
        max_tokens=given.max_tokens,
        stop=given.stop_sequences or None,
        temperature=given.temperature,
        top_p=given.top_p,
        top_k=given.top_k,
        tools=tools.tools,
        tool_choice=tools.choice,
        parallel_tool_calls=False
        if choice is not None and choice.disable_parallel_tool_use and tools.tools
        else None,
        enable_thinking={"enabled": True, "disabled": False}.get(thinking.type)
        if thinking
        else None,
        thinking_budget_tokens=_budget(given),
        reasoning_effort=_effort(given),
        response_format=_format(given),
    )
    return DecodedBody(
        request,
        (*left_out, *conversation.left_out, *tools.left_out),
        ParamLocations(NAMES, ".source", ".input_schema", conversation.places, tools.places),
        thinking is not None and thinking.display == "omitted",
    )


def _budget(given: MessagesRequest) -> int | None:
    """Return the most tokens of thoughts; Anthropic's only type that has it is `enabled`."""
    thinking = given.thinking
    return thinking.budget_tokens if thinking and thinking.type == "enabled" else None


def _effort(given: MessagesRequest) -> Any:
    effort = given.output_config.effort if given.output_config is not None else None
    return _EFFORTS.get(effort, effort) if effort is not None else None


def _format(given: MessagesRequest) -> JsonSchemaFormat | None:
    """Return the form of the answer, from its place of today or of older betas."""
    now = given.output_config.format if given.output_config is not None else None
    form: Format | None = now or given.output_format
    if form is None:
        return None
    check_free_form("output_config.format.schema" if now else "output_format.schema", form.schema)
    return JsonSchemaFormat(JsonSchema("answer", form.schema, strict=True))


def _left_out(given: MessagesRequest) -> list[str]:
    """
    Return the fields that the client has set and that are left out.

    Raises:
        UnsupportedParameter: One cannot be left out.
    """
    asked = {name for name, raw in given.raw_fields.items() if not _is_empty(raw)}
    for name in _REFUSED:
        if name in asked:
            raise UnsupportedParameter.at(
                name, "is not supported: it is run by Anthropic's servers. Remove it."
            )
    known = parameters_of(MessagesRequest) | {"cache_control"}
    found = [name[:MAX_NAME] for name in given.raw_fields if name in asked and name not in known]
    if "context_management" in found and _keeps_all(given.raw_fields["context_management"]):
        found.remove("context_management")
    if given.thinking is not None and given.thinking.budget_tokens != _budget(given):
        found.append("thinking.budget_tokens")
    if given.output_config is not None and given.output_config.task_budget is not None:
        found.append("output_config.task_budget")
    if given.thread is not None:
        found.append("thread")
    return found


def _is_empty(raw: Raw) -> bool:
    """Return True for a field that asks for nothing."""
    return bytes(memoryview(raw)[:5]) in (b"null", b"[]", b"{}", b'""', b"false")


def _keeps_all(raw: Raw) -> bool:
    """Return True if `context_management` only says that thoughts are to be kept, as they are."""
    if len(memoryview(raw)) > _MAX_EDITS_BYTES:
        return False
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return isinstance(fields, dict) and all(
        name == "edits" and value in ([], [_KEEPS_THOUGHTS]) for name, value in fields.items()
    )
