"""
The bodies of the Responses API: fields in, a chat out, and how its answer is told.

What a field asks for that nobody here can do is told in `X-Unilect-Ignored`, or refused where the answer would be another.
A field of a chat that this API has not, such as `top_k`, means here what it means there.

Source: https://platform.openai.com/docs/api-reference/responses/create
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, Struct

from unilect.api.parameters.rules import AGENTS_SEND, parameters_of, refusal
from unilect.core.bounds import check_free_form
from unilect.core.errors import InvalidRequest
from unilect.core.requests import MAX_TOKENS_FIELD, ChatRequest, Request, StreamOptions, Text
from unilect.dialects.responses._items import MAX_ID, Conversation
from unilect.dialects.responses._output import ResponseOptions
from unilect.dialects.responses._tools import Tools
from unilect.web.decode import convert
from unilect.web.param_locations import ParamLocations

#: Where an item stands in the body, and the item.
Placed: TypeAlias = tuple[str, dict[str, Any]]
Id = Annotated[str, Meta(min_length=1, max_length=MAX_ID)]
Short = Annotated[str, Meta(max_length=512)]
MAX_ITEMS = 4096  # each takes some ten microseconds
_LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
#: About the bookkeeping, beside the fields of a request.
_ACCEPTED = frozenset({"client_metadata", "prompt_cache_options"})
#: What nobody here can do, and without which an answer is the same or nearly so.
_NAMED = frozenset(
    {"max_tool_calls", "context_management", "moderation", "access_programs", "image", "background_options"}
)  # fmt: skip
_EFFORTS = {"max": "xhigh"}
#: What a chat's parameters are called here.
NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "store": "",  # what is called so here is kept by this server
}
#: Left out where the model's backend lacks them.
OPTIONAL = {name: NAMES[name] for name in AGENTS_SEND if name in NAMES}


class Reasoning(Struct, frozen=True):
    """The settings of the model's thinking."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Short | None = None
    generate_summary: Short | None = None
    context: Any = None
    mode: Any = None


class TextOptions(Struct, frozen=True):
    """The form of the answer's text."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ConversationRef(Struct, frozen=True):
    """A conversation."""

    id: Id


class PromptRequest(Request, frozen=True, kw_only=True):
    """The fields that make a prompt: of a response, and of requests that only count or shorten one."""

    input: Text | Annotated[list[Any], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: Text | None = None
    previous_response_id: Id | None = None
    conversation: Id | ConversationRef | None = None
    tools: Annotated[list[Any], Meta(max_length=1024)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation."""
        named = self.conversation
        return named.id if isinstance(named, ConversationRef) else named


class ResponseRequest(PromptRequest, frozen=True, kw_only=True):
    """POST /v1/responses."""

    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS_FIELD)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: Annotated[list[Short], Meta(max_length=64)] | None = None
    metadata: Annotated[dict[str, Short], Meta(max_length=16)] | None = None
    safety_identifier: Short | None = None
    prompt_cache_key: Short | None = None
    prompt_cache_retention: Short | None = None
    service_tier: Short | None = None
    prompt: Any = None


class CompactRequest(PromptRequest, frozen=True, kw_only=True):
    """POST /v1/responses/compact."""

    prompt_cache_key: Short | None = None


class Plan(Struct, frozen=True):
    """
    A request that is ready for the model.

    Attributes:
        chat: The request to the model.
        options: The form of the answer.
        left_out: The names of what was left out of the request.
        items: The request's own input, resolved.
    """

    chat: ChatRequest
    options: ResponseOptions
    left_out: tuple[str, ...]
    items: list[dict[str, Any]]


def items_of(asked: PromptRequest) -> list[Any]:
    """Return the items of a request's own input; a text is one message of the user."""
    if isinstance(asked.input, str):
        return [{"type": "message", "role": "user", "content": asked.input}]
    return list(asked.input or ())


def place_items(
    asked: PromptRequest, before: Iterable[dict[str, Any]], items: Iterable[dict[str, Any]]
) -> list[Placed]:
    """Return the items of the turns before a request and its own, with where they stand in the body."""
    named = "conversation" if asked.previous_response_id is None else "previous_response_id"
    earlier = [(f"{named}.items[{number}]", item) for number, item in enumerate(before)]
    return earlier + [(f"input[{number}]", item) for number, item in enumerate(items)]


def plan(asked: ResponseRequest, talk: Iterable[Placed], items: list[dict[str, Any]]) -> Plan:
    """
    Turn a request into one to the model.

    Args:
        talk: The items of the conversation.
        items: The request's own, without references.

    Raises:
        InvalidRequest: A field is wrong, or not supported.
    """
    if asked.prompt is not None:
        raise refusal("prompt", "there are no stored prompts here; send `input` and `instructions`")
    fields, left_out = _sampling(asked), _left_out(asked)
    chat, places, tools, of_items = _read(asked, talk, fields)
    if asked.tool_choice != "none":
        tools.check_some_run_here()
    include = asked.include or ()
    reasoning = asked.reasoning or Reasoning()
    options = ResponseOptions(
        echo_fields(asked),
        tools.names,
        summary=(reasoning.summary or reasoning.generate_summary) is not None,
        encrypted=ENCRYPTED in include,
        logprobs=bool(chat.logprobs),
        places=places,
    )
    return Plan(chat, options, (*left_out, *tools.left_out, *of_items), items)


def prompt_of(asked: PromptRequest, talk: Iterable[Placed]) -> tuple[ChatRequest, ParamLocations]:
    """Return the chat whose prompt a request makes, for what only counts its tokens, and where its parts stand; errors as `plan`."""
    fields = {name: _value(name, raw) for name, raw in asked.raw_fields.items() if name in _OF_PROMPTS}  # fmt: skip
    chat, places, _, _ = _read(asked, talk, fields)
    return chat, places


def _read(
    asked: PromptRequest, talk: Iterable[Placed], fields: dict[str, Any]
) -> tuple[ChatRequest, ParamLocations, Tools, list[str]]:
    """Return the chat of a conversation, where its parts stand, its tools, and the items that were left out."""
    tools = Tools()
    tools.add(asked.tools or [])
    conversation = Conversation(asked.instructions, tools)
    for place, item in talk:
        conversation.add(item, place)
    conversation.finish()
    choice, functions = tools.choice(asked.tool_choice)
    if functions:
        fields |= {"tools": functions, "tool_choice": choice, "parallel_tool_calls": asked.parallel_tool_calls}  # fmt: skip
    if asked.reasoning is not None and asked.reasoning.effort is not None:
        effort = asked.reasoning.effort
        fields["reasoning_effort"] = _EFFORTS.get(effort, effort)
    if asked.text is not None:
        fields |= {"verbosity": asked.text.verbosity, "response_format": _format(asked.text.format)}
    fields |= {"model": asked.model, "messages": conversation.messages, "user": asked.user}
    chat = convert(fields, ChatRequest)
    of_tools = [tools.places[tool.function.name] for tool in chat.tools or ()]
    places = ParamLocations(NAMES, ".image_url", ".parameters", conversation.places, of_tools)
    return chat, places, tools, conversation.left_out


def _sampling(asked: ResponseRequest) -> dict[str, Any]:
    """Return the fields of a chat that a request has, those of local engines included."""
    own = parameters_of(ResponseRequest)
    fields: dict[str, Any] = {
        name: _value(name, raw)
        for name, raw in asked.raw_fields.items()
        if name not in own and name in parameters_of(ChatRequest) and name not in _NOT_HERE
    }
    wanted = _LOGPROBS in (asked.include or ())
    return fields | {
        "stream": asked.stream,
        "max_completion_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "logprobs": True if wanted or asked.top_logprobs else None,
        "top_logprobs": asked.top_logprobs or None,
        "prompt_cache_key": asked.prompt_cache_key,
        "safety_identifier": asked.safety_identifier,
        "service_tier": asked.service_tier,
    }


def _value(name: str, raw: Raw) -> Any:
    """
    Decode a field of a chat; its raw bytes were not looked at yet.

    Raises:
        InvalidRequest: They are no JSON that can be read, or too much.
    """
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest.at(
            name[:100], f": expected a value that can be read ({str(error)[:100]})."
        ) from error
    if name == "chat_template_kwargs":
        check_free_form(name, value)
    return value


#: Fields of a chat that change its prompt, and that this API has not.
_OF_PROMPTS = ("chat_template_kwargs", "enable_thinking", "add_generation_prompt", "continue_final_message")  # fmt: skip
#: Fields of a chat that would be another way to say what this API has its own fields for.
_NOT_HERE = {
    "messages": "`input`",
    "max_tokens": "`max_output_tokens`",
    "max_completion_tokens": "`max_output_tokens`",
    "max_new_tokens": "`max_output_tokens`",
    "n_predict": "`max_output_tokens`",
    "max_length": "`max_output_tokens`",
    "do_sample": "`temperature`",
    "response_format": "`text.format`",
    "reasoning_effort": "`reasoning.effort`",
    "verbosity": "`text.verbosity`",
    "functions": "`tools`",
    "function_call": "`tool_choice`",
}


#: The fields that are honoured, or may be ignored without a word.
_VALID_FIELDS = parameters_of(ResponseRequest) | parameters_of(ChatRequest) | _ACCEPTED
#: The fields of which nothing has to be said.
_PLAIN = parameters_of(ResponseRequest) - _NAMED - _NOT_HERE.keys() - {"n", "n_cmpl"}


def _left_out(asked: ResponseRequest) -> list[str]:
    """
    Return the fields that are left out.

    Raises:
        InvalidRequest: One of them would have changed the answer.
    """
    found: list[str] = []
    for name, raw in asked.raw_fields.items():
        if name in _PLAIN or bytes(memoryview(raw)[:5]) == b"null":
            continue
        if name in _NOT_HERE:
            raise refusal(name, f"this endpoint has {_NOT_HERE[name]} for it")
        if name in ("n", "n_cmpl") and bytes(raw) != b"1":
            raise refusal(name, "a response is one answer")
        if name in _NAMED or name not in _VALID_FIELDS:
            found.append(name)
    if asked.reasoning is not None:
        found += [f"reasoning.{name}" for name in ("context", "mode") if getattr(asked.reasoning, name) is not None]  # fmt: skip
    return found


def _format(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """`text.format` as a chat has it, where a schema stands one level deeper."""
    if given is None:
        return None
    check_free_form("text.format", given)
    kind = given.get("type")
    if kind == "json_schema":
        if not isinstance(given.get("schema"), dict):
            raise InvalidRequest.at("text.format.schema", ": expected a JSON Schema.")
        fields = {"name": given.get("name") or "answer", "schema": given["schema"], "strict": given.get("strict")}  # fmt: skip
        return {"type": kind, "json_schema": fields}
    if kind in ("text", "json_object"):
        return {"type": kind} if kind == "json_object" else None
    raise InvalidRequest.at(
        "text.format.type", ": expected `text`, `json_object` or `json_schema`."
    )


#: What a response repeats of a request that leaves it out.
_LEFT_UNSAID: dict[str, Any] = {
    "background": False,
    "conversation": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "model": None,
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
_AS_SAID = _LEFT_UNSAID.keys() - {"conversation", "reasoning", "service_tier", "text"}


def echo_fields(asked: ResponseRequest) -> dict[str, Any]:
    """Return the fields that a response repeats of its request; its clients' types require all of them."""
    fields = _LEFT_UNSAID.copy()
    for name in asked.raw_fields:
        if name in _AS_SAID and (value := getattr(asked, name)) is not None:
            fields[name] = value
    if (named := asked.conversation_id) is not None:
        fields["conversation"] = {"id": named}
    if (reasoning := asked.reasoning) is not None:
        fields["reasoning"] = {"effort": reasoning.effort, "summary": reasoning.summary}
    if (text := asked.text) is not None:
        fields["text"] = {
            "format": text.format or {"type": "text"},
            "verbosity": text.verbosity or "medium",
        }
    return fields
