"""
ChatGLM's first API, used by LangChain's `ChatGLM` class: POST / with a prompt and a history of pairs.

`max_length` counts the answer alone; the older servers counted the prompt too. One that no answer can reach asks for nothing:
LangChain sends 20000 to every model. Any other parameter of a chat may stand beside these.

Source: https://github.com/THUDM/ChatGLM-6B/blob/main/api.py
"""

from datetime import datetime
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta

from unilect.api.parameters.rules import refusal
from unilect.core.events import Answer
from unilect.core.requests import MAX_MESSAGES, Count, Request, Text
from unilect.dialects.openai import chat as openai_chat
from unilect.dialects.openai.chunks import encode_json, unilect_field
from unilect.web.decode import BodyDecoder, decode_request, decode_translation
from unilect.web.route import Route, call
from unilect.web.site import Site
from unilect.web.streaming import respond_whole

_OURS = frozenset({"prompt", "history", "max_length", "messages", "stream", "stream_options", "n"})
#: Parameters of a chat that this form of question and answer has no place for, and why.
_NOT_HERE = {
    "messages": "use `prompt` and `history`",
    "stream": "this endpoint does not stream",
    "n": "this endpoint returns one answer",
}
_NEUTRAL = frozenset({b"null", b"false", b"[]", b"1"})


class LangChainRequest(Request, frozen=True, kw_only=True):
    """POST /."""

    prompt: Text
    history: Annotated[list[tuple[Text, Text]], Meta(max_length=(MAX_MESSAGES - 1) // 2)] | None = (
        None
    )
    max_length: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None


_decoder = BodyDecoder(LangChainRequest)


def routes(site: Site) -> list[Route]:
    """Return the URL of this dialect."""
    service = site.service

    async def create_langchain_answer(request: web.Request) -> web.StreamResponse:
        """Answer a prompt and its history."""
        asked = await decode_request(request, _decoder.decode)
        context = service.model(asked.model).capabilities.context
        chat = await decode_translation(chat_fields(asked, context), openai_chat.decode)
        run = service.run(chat.request)
        return await respond_whole(
            request, run, lambda answer, ignored: body(asked, answer, ignored)
        )

    summary = "Answer a prompt and its history (ChatGLM, LangChain)"
    return [call("/", create_langchain_answer, summary, LangChainRequest, "langchain")]


def chat_fields(asked: LangChainRequest, context: int | None) -> dict[str, Any]:
    """
    Return the fields of a chat that asks the same.

    Args:
        context: The model's, where it is known.

    Raises:
        InvalidRequest: A field beside these has no place here.
    """
    for name, why in _NOT_HERE.items():
        if name in asked.raw_fields and bytes(asked.raw_fields[name]) not in _NEUTRAL:
            raise refusal(name, why)
    messages = [
        {"role": role, "content": text}
        for pair in asked.history or ()
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    messages.append({"role": "user", "content": asked.prompt})
    fields: dict[str, Any] = {k: raw for k, raw in asked.raw_fields.items() if k not in _OURS}
    if asked.max_length is not None and (context is None or asked.max_length < context):
        fields.setdefault("max_tokens", asked.max_length)
    return fields | {"messages": messages}


def body(asked: LangChainRequest, answer: Answer, ignored: tuple[str, ...]) -> bytes:
    """Return the body of the answer."""
    text = answer.choices[0].text or ""
    return encode_json(
        {
            "response": text,
            "history": [*(asked.history or ()), (asked.prompt, text)],
            "status": 200,
            "time": datetime.now().strftime("%Y-%m-%d %H:%M:%S"),
        }
        | unilect_field(ignored)
    )
