"""
Ollama's chats and continued texts: POST /api/chat and /api/generate, on any model.

A body is put into OpenAI's words and then is a chat or a completion like any other. What Ollama would do and is not done here is named in
`X-Unilect-Ignored`, or refused.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Annotated, Any
from weakref import WeakSet

from aiohttp import web
from msgspec import Meta

from unilect.answers.service import Service
from unilect.api.parameters.rules import refusal
from unilect.core.errors import InvalidRequest
from unilect.core.requests import (
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_TOOLS,
    ChatRequest,
    Text,
    TextRequest,
)
from unilect.dialects.ollama import _answer as answers
from unilect.dialects.ollama import _options as options
from unilect.dialects.ollama._errors import ollama_error
from unilect.dialects.ollama._messages import (
    MAX_CONTEXT,
    Images,
    Said,
    Turn,
    openai_messages,
    read_context,
    with_images,
)
from unilect.dialects.ollama._names import find_model, load_model, set_keep_alive
from unilect.dialects.ollama._truncate import truncate
from unilect.dialects.openai import chat as openai_chat
from unilect.dialects.openai import completions as openai_completions
from unilect.models.model import Model
from unilect.web.decode import BodyDecoder, RawFields, decode_request, decode_translation
from unilect.web.route import Route, Translation, json_answer
from unilect.web.site import Site
from unilect.web.streaming import respond

log = logging.getLogger("unilect")


class OllamaTextRequest(options.OllamaRequest, frozen=True, kw_only=True):
    """The fields that both kinds of requests have."""

    stream: bool | None = None
    format: Any = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    truncate: bool | None = None
    shift: bool | None = None


class OllamaChatRequest(OllamaTextRequest, frozen=True, kw_only=True):
    """POST /api/chat."""

    messages: Annotated[list[Turn], Meta(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)] | None = None


class OllamaGenerateRequest(OllamaTextRequest, frozen=True, kw_only=True):
    """POST /api/generate."""

    prompt: Text | None = None
    suffix: Text | None = None
    system: Text | None = None
    template: Text | None = None
    raw: bool | None = None
    context: Annotated[list[int], Meta(max_length=MAX_CONTEXT)] | None = None
    images: Images | None = None


_chat = BodyDecoder(OllamaChatRequest)
_generate = BodyDecoder(OllamaGenerateRequest)


def routes(site: Site) -> list[Route]:
    """Return the URLs of this part."""
    service = site.service
    reported = WeakSet[Model]()

    async def ollama_chat(request: web.Request) -> web.StreamResponse:
        """Answer a conversation, in Ollama's words."""
        asked = await decode_request(request, _chat.decode)
        model = find_model(service, asked.model)
        if not asked.messages:
            return await _load_or_unload(request, service, model, asked, answers.chat_shape)
        fields, left_out = _fields(asked, model, reported)
        fields |= _chat_fields(asked, model)
        body = fields | {"messages": openai_messages(asked.messages), "tools": asked.tools or None}
        chat = await decode_translation(body, _only_chat)
        return await _answer(request, service, model, asked, chat, left_out)

    async def ollama_generate(request: web.Request) -> web.StreamResponse:
        """Continue a text, or answer it, in Ollama's words."""
        asked = await decode_request(request, _generate.decode)
        model = find_model(service, asked.model)
        if asked.template:
            raise refusal("template", "a model's template is the operator's to choose")
        if not asked.prompt and not asked.images:
            return await _load_or_unload(request, service, model, asked, answers.generate_shape)
        fields, left_out = _fields(asked, model, reported)
        if _is_raw(asked, model):
            left_out += ("think",) if asked.think else ()
            body = fields | _completion_fields(asked)
            plain = await decode_translation(body, openai_completions.decode)
            return await _answer(request, service, model, asked, plain, left_out)
        said = _collect_turns(asked)
        fields |= _chat_fields(asked, model)
        chat = await decode_translation(
            fields | {"messages": _conversation(asked, said)}, _only_chat
        )
        return await _answer(request, service, model, asked, chat, left_out, said)

    words = Translation(options.NAMES)
    return [
        Route("POST", "/api/chat", ollama_chat, "chat", request=OllamaChatRequest, summary="Answer a conversation (Ollama)", error=ollama_error, translation=words),
        Route("POST", "/api/generate", ollama_generate, "generate", request=OllamaGenerateRequest, summary="Continue or answer a text (Ollama)", error=ollama_error, translation=words),
    ]  # fmt: skip


def _fields(
    asked: OllamaTextRequest, model: Model, reported: WeakSet[Model]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """
    Translate the fields that chats and completions share to OpenAI's. Return them, and the names of those that are left out.

    Args:
        reported: The models for which the log says already that clients ask for a larger context.

    Raises:
        InvalidRequest: A field is wrong.
    """
    can = model.capabilities
    fields, left_out = options.option_fields(asked.options or {}, can.context)
    if "options.num_ctx" in left_out and can.context is not None and model not in reported:
        reported.add(model)
        log.warning(
            "A client of Ollama's API asks for a larger context (options.num_ctx) than the %s tokens of the model %s, and gets these. "
            "Set `context` of the model to serve more. This is logged once for a model.",
            can.context,
            model.name,
        )
    fields |= options.format_field(asked.format)
    fields["model"] = model.name
    fields["stream"] = asked.stream is not False
    if {"n", "best_of"} & model.settings.defaults.keys():
        fields |= {"n": 1, "best_of": 1}
    if asked.shift:
        left_out += ("shift",)
    return fields, (*left_out, *asked.unknown)


def _chat_fields(asked: OllamaTextRequest, model: Model) -> dict[str, Any]:
    """Translate the fields that only a chat has: thoughts, and log probabilities by a switch and a number."""
    fields = options.think_fields(asked.think, model.capabilities, model.name)
    if asked.logprobs or asked.top_logprobs:
        fields |= {"logprobs": True, "top_logprobs": asked.top_logprobs}
    return fields


def _is_raw(asked: OllamaGenerateRequest, model: Model) -> bool:
    """
    Return True if a text is continued as it stands: on request, around a gap, and by a model without a template.

    Raises:
        InvalidRequest: There is a field beside it that only a template has a place for.
    """
    can = model.capabilities
    plain = bool(asked.raw or asked.suffix)
    for name in ("system", "context", "images"):
        if plain and getattr(asked, name):
            with_what = "raw" if asked.raw else "suffix"
            raise InvalidRequest.at(
                name,
                f"cannot be combined with `{with_what}`, which takes the prompt as it stands. Leave one of them out.",
            )
    has_more = asked.system or asked.context or asked.images
    return plain or (not can.chat and can.completions and can.is_final and not has_more)


def _completion_fields(asked: OllamaGenerateRequest) -> dict[str, Any]:
    """Return the text of a plain completion; log probabilities are a number there."""
    fields: dict[str, Any] = {"prompt": asked.prompt or "", "suffix": asked.suffix or None}
    if asked.logprobs or asked.top_logprobs:
        fields["logprobs"] = asked.top_logprobs or 0
    return fields


def _collect_turns(asked: OllamaGenerateRequest) -> list[Said]:
    """Return the conversation that a text ends; the request's system text is instead of the context's."""
    said = read_context(asked.context or ())
    if asked.system:
        said = [("system", asked.system), *(one for one in said if one[0] != "system")]
    return [*said, ("user", asked.prompt or "")]


def _conversation(asked: OllamaGenerateRequest, said: Sequence[Said]) -> list[dict[str, Any]]:
    """Return the messages of a text that is answered."""
    messages: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in said]
    if asked.images:
        messages[-1]["content"] = with_images(asked.prompt, asked.images, "images")
    return messages


def _only_chat(body: bytes, raw: RawFields | None = None) -> ChatRequest:
    request = openai_chat.decode(body, raw).request
    assert isinstance(request, ChatRequest)  # `messages` is a list
    return request


async def _load_or_unload(
    request: web.Request, service: Service, model: Model, asked: OllamaTextRequest, shape: Any
) -> web.StreamResponse:
    """Answer a request that asks nothing: the model is loaded, or with `keep_alive: 0` stopped once nothing runs in it."""
    seconds, reason = asked.keep_alive_s, "load"
    if seconds == 0:
        reason = "unload"
        model.set_keep_alive(0)
        if model.stopping is not None:
            await asyncio.shield(model.stopping)
    else:
        began = time.perf_counter()
        await load_model(service, model)
        set_keep_alive(model, seconds)
    body = {"model": asked.model, "created_at": answers.now(), **shape(), "done": True}
    body["done_reason"] = reason
    if reason == "load":
        body |= answers.durations(began)
    return json_answer(request, body, asked.unknown)


async def _answer(
    request: web.Request,
    service: Service,
    model: Model,
    asked: OllamaTextRequest,
    generation: TextRequest,
    left_out: tuple[str, ...],
    said: Sequence[Said] | None = None,
) -> web.StreamResponse:
    """Answer with a model, which stays loaded after it as the request says."""
    stays = asked.keep_alive_s
    if isinstance(generation, ChatRequest) and asked.truncate is not False:
        generation, is_cut = await truncate(service, generation)
        left_out += ("truncated",) if is_cut else ()
    run = service.run(generation)
    run.left_out, run.limit_name = left_out, "options.num_predict"
    is_chat = isinstance(asked, OllamaChatRequest)
    shape = answers.chat_shape if is_chat else answers.generate_shape
    encoder = answers.RowEncoder(asked.model or "", run, shape, said, generation.stop_words)
    try:
        return await respond(request, run, encoder, answers.ROWS)
    finally:
        set_keep_alive(model, stays)
