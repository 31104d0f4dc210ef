"""
The bodies of the Messages API, typed. Field names are Anthropic's.

Unknown fields and new values of a block's `type` must not fail here: clients send the fields of their newest API version to every
server. So a block is one Struct with the fields of all types, and `_conversation` reads those of its type.

Source: https://platform.claude.com/docs/en/api/messages, and the types of the official clients
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct, field

from unilect.core.requests import MAX_MESSAGES, MAX_PARTS, MAX_TOKENS_FIELD, Request, StopWord, Text

MAX_GIVEN_TOOLS = 1024  # with those of `defer_loading`, which are not in the prompt

ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
Limit = Annotated[int, Meta(ge=1, le=MAX_TOKENS_FIELD)]


class Block(Struct, frozen=True):
    """A content block; which fields it has depends on its type."""

    type: str
    text: Text | None = None
    # of an image, a document or a search result
    source: Raw = field(default_factory=Raw)
    title: str | None = None
    context: str | None = None
    # of a call, a result, a search result
    id: str | None = None
    name: str | None = None
    input: Raw = field(default_factory=Raw)
    tool_use_id: str | None = None
    content: Raw = field(default_factory=Raw)
    is_error: bool | None = None
    tool_name: str | None = None
    # of a thought
    thinking: Text | None = None
    signature: Text | None = None


Content: TypeAlias = Text | Annotated[list[Block], Meta(max_length=MAX_PARTS)]


class Source(Struct, frozen=True):
    """The data of an image or a document, or a reference to it; which fields there are depends on the type."""

    type: str
    media_type: str | None = None
    data: Text | None = None
    url: Text | None = None
    content: Raw = field(default_factory=Raw)


class Turn(Struct, frozen=True):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Content


class GivenTool(Struct, frozen=True):
    """A tool as the client gives it."""

    name: ToolName | None = None
    type: str | None = None
    description: Text | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class GivenChoice(Struct, frozen=True):
    """The choice of a tool that is to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, frozen=True):
    """The switches for thinking before the answer, and for showing the thoughts."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Limit | None = None
    display: Literal["summarized", "omitted"] | None = None


class Format(Struct, frozen=True):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, frozen=True):
    """The effort that the answer is worth, and its form."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None
    task_budget: Any = None


class Thread(Struct, frozen=True):
    """A conversation that the server is to hold."""

    type: Literal["create", "continue"]
    previous_message_id: str | None = None


class MessagesRequest(Request, frozen=True, kw_only=True):
    """POST /v1/messages, and /v1/messages/count_tokens."""

    messages: Annotated[list[Turn], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: Content | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS_FIELD)] | None = (
        None  # 0 reads the prompt only
    )
    stream: bool | None = None
    stop_sequences: Annotated[list[StopWord], Meta(max_length=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    tools: Annotated[list[GivenTool], Meta(max_length=MAX_GIVEN_TOOLS)] | None = None
    tool_choice: GivenChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None  # its place in older betas
    metadata: dict[str, Any] | None = None
    thread: Thread | None = None
