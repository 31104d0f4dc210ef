"""
Aliases of older servers' clients, normalized to OpenAI's parameters: other names for `max_tokens`, `do_sample`, messages with the key
`message`, and `messages` as a string. Plain completions also accept the chats' name of `max_tokens`.

Whoever writes OpenAI's own words pays one look at the names of the fields, `MAY_BE_ALIASES`.
"""

from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from unilect.core.errors import InvalidRequest, WrongType
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    JsonSchemaFormat,
)
from unilect.web.decode import RawFields

GenerationT = TypeVar("GenerationT", bound=GenerationRequest)
_LENGTHS = ("max_new_tokens", "n_predict", "max_length")
_LIMITS = ("max_tokens", "max_completion_tokens")
_limits = attrgetter(*_LIMITS)
_OLDER = frozenset({*_LENGTHS, "do_sample", "n_cmpl"})
_OLDER_OR_OF_CHATS = _OLDER | {"max_completion_tokens"}
#: A chat with none of these fields has nothing to normalize.
MAY_BE_ALIASES = _OLDER.union(_LIMITS, ["response_format"])


def normalize_aliases(request: GenerationT) -> GenerationT:
    """
    Return a request without older names: the first length becomes `max_tokens` where that is not given (-1 asks for no limit, and -2),
    and `do_sample: false` is greedy.
    """
    if -1 in _limits(request):
        unlimited = [name for name in _LIMITS if getattr(request, name) == -1]
        request = request.changed(**dict.fromkeys(unlimited))
    if type(form := request.response_format) is JsonSchemaFormat and not _is_openais(form):
        request = request.changed(response_format=_with_name(form))
    older = _OLDER_OR_OF_CHATS if isinstance(request, CompletionRequest) else _OLDER
    if older.isdisjoint(request.raw_fields):
        return request
    changes: dict[str, Any] = dict.fromkeys(older & request.raw_fields.keys())
    if "max_completion_tokens" in changes:
        changes["max_tokens"] = request.token_limit
    lengths = [value for name in _LENGTHS if (value := getattr(request, name)) is not None]
    if lengths and lengths[0] >= 0 and request.token_limit is None:
        changes["max_tokens"] = lengths[0]
    if request.do_sample is False:
        changes["temperature"] = 0.0
    if request.n_cmpl is not None:
        if request.n not in (None, request.n_cmpl):
            raise InvalidRequest.at(
                "n_cmpl",
                f"is {request.n_cmpl} and `n` is {request.n}; they are the same parameter; send one.",
            )
        changes["n"] = request.n_cmpl
    return request.changed(**changes)


def _is_openais(form: JsonSchemaFormat) -> bool:
    return form.json_schema.name != "" and form.schema is None


def _with_name(form: JsonSchemaFormat) -> JsonSchemaFormat:
    """
    Return a schema as OpenAI has it, of one without a name, or beside `type`, as llama.cpp's clients write it.

    Raises:
        InvalidRequest: There is none, or two.
    """
    where = "response_format.json_schema"
    given = form.json_schema
    if given.schema is not None and form.schema is not None:
        raise InvalidRequest.at(
            "response_format.schema", f"and `{where}` cannot be combined; send one of them."
        )
    schema = form.schema if given.schema is None else given.schema
    if schema is None:
        raise WrongType.at(where, "is missing; it is required, with a `schema`.")
    return JsonSchemaFormat(
        msgspec.structs.replace(given, name=given.name or "answer", schema=schema)
    )


def speaks_alpaca(request: ChatRequest) -> bool:
    """Return True for a client of Chinese-LLaMA-Alpaca's server: it alone writes `message` where others write `content`."""
    return any(m.message is not None and m.content is None for m in request.messages)


def with_contents(request: ChatRequest) -> ChatRequest:
    """Return the request with every message's text in `content`, where the text of both keys is."""
    messages = [
        msgspec.structs.replace(
            message,
            content=message.message if message.content is None else message.content,
            message=None,
        )
        for message in request.messages
    ]
    return request.changed(messages=messages)


def is_one_text(fields: RawFields) -> bool:
    """Return True for the fields of a body whose `messages` is one text."""
    return bytes(memoryview(fields.get("messages", Raw(b"")))[:1]) == b'"'


def as_messages(fields: RawFields) -> RawFields:
    """Return the fields of a chat in which the user says the text, which stays as it was written: it may be long."""
    said = b'[{"role":"user","content":' + bytes(fields["messages"]) + b"}]"
    return fields | {"messages": Raw(said)}


def as_prompt(fields: RawFields) -> RawFields:
    """Return the fields of a plain completion of the text."""
    return {name: raw for name, raw in fields.items() if name != "messages"} | {
        "prompt": fields["messages"]
    }
