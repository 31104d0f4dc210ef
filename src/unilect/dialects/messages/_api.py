"""
Anthropic's Messages API: POST /v1/messages and /v1/messages/count_tokens, and both without /v1.

Source: https://platform.claude.com/docs/en/api/messages
"""

from aiohttp import web
from msgspec import structs

from unilect.answers.service import Service
from unilect.dialects.messages import _errors
from unilect.dialects.messages._body import MessagesRequest
from unilect.dialects.messages._encoder import MessageEncoder
from unilect.dialects.messages._request import NAMES, OPTIONAL, DecodedBody, decode, read
from unilect.runtime.context import current_request
from unilect.web.decode import decode_request
from unilect.web.route import Route, Translation, both, json_answer
from unilect.web.site import Site
from unilect.web.streaming import HEADERS, respond


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    service = site.service

    async def create_message(request: web.Request) -> web.StreamResponse:
        """Answer a conversation, as Anthropic does."""
        asked = read(await decode_request(request, decode))
        with_request_id(request)
        with asked.places.in_errors():
            return await _answer(request, service, asked)

    async def count_message_tokens(request: web.Request) -> web.StreamResponse:
        """Count the tokens that a conversation's prompt has."""
        asked = read(await decode_request(request, decode))
        with_request_id(request)
        with asked.places.in_errors():
            count = await service.count_tokens(asked.request)
        return json_answer(request, {"input_tokens": count}, asked.left_out)

    path, summary = "/messages", "Answer a conversation, as Anthropic does"
    counting = "Count the tokens of a conversation"
    found = [
        *both(path, create_message, summary, MessagesRequest, "messages"),
        *both(
            f"{path}/count_tokens",
            count_message_tokens,
            counting,
            MessagesRequest,
            "messages.count_tokens",
        ),
    ]
    words = Translation(NAMES, tuple(OPTIONAL))
    return [structs.replace(route, error=_errors.answer, translation=words) for route in found]


def with_request_id(request: web.Request) -> None:
    """Have the answer tell its id in the header of Anthropic's clients."""
    request[HEADERS] = request[HEADERS] | {"request-id": current_request().request_id}


async def _answer(request: web.Request, service: Service, asked: DecodedBody) -> web.StreamResponse:
    """Answer what a body asks."""
    chat = asked.request
    model = service.model(chat.model)
    if chat.messages[-1].role == "assistant" and not model.capabilities.continues:
        model = await service.inspect_model(model.name)  # a server says it itself
        asked.check(model.capabilities)
    run = service.run(chat)
    run.left_out, run.optional = asked.left_out, OPTIONAL
    encoder = MessageEncoder(
        run.model.name,
        chat.stop_words,
        run.model.settings.defaults.get("max_tokens")
        if chat.token_limit is None
        else chat.token_limit,
        asked.omits_thoughts,
        asked.places,
    )
    return await respond(request, run, encoder)
