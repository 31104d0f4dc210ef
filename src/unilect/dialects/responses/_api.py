"""The URLs of responses: create, count, shorten, and what is done with stored ones."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from aiohttp import web

from unilect.answers.service import Run, Service
from unilect.core.bounds import LARGE_BYTES
from unilect.core.errors import InvalidRequest
from unilect.core.events import Fold
from unilect.core.requests import ChatRequest, Message
from unilect.dialects.responses._background import ResponseService
from unilect.dialects.responses._items import kind_of, list_form, new_id, pack
from unilect.dialects.responses._output import ResponseEncoder, usage_object
from unilect.dialects.responses._pages import page, page_of
from unilect.dialects.responses._request import (
    NAMES,
    OPTIONAL,
    CompactRequest,
    Placed,
    Plan,
    PromptRequest,
    ResponseRequest,
    plan,
    prompt_of,
)
from unilect.dialects.responses._truncation import truncate
from unilect.runtime.context import current_request
from unilect.store.ids import response_id
from unilect.web.decode import BodyDecoder, decode_request, read_number
from unilect.web.route import Route, Translation, call, json_answer
from unilect.web.streaming import SERVER_SENT_EVENTS, full_response, relay, respond

_decoder = BodyDecoder(ResponseRequest)
_prompt_decoder = BodyDecoder(PromptRequest)
_compact_decoder = BodyDecoder(CompactRequest)
_HANDOVER = (
    "Sum up this conversation for whoever goes on with it and knows nothing of it: the task, what was decided, what was done and found, "
    "with names, paths and numbers, and what is left. Write only the summary."
)
_HANDED_OVER = "The conversation so far, summed up:\n\n"


class Responses:
    """
    The handlers.

    Args:
        service: Answers the requests.
        responses: The stored responses, and those that are made in the background.
    """

    def __init__(self, service: Service, responses: ResponseService) -> None:
        self._service = service
        self._responses = responses

    async def create_response(self, request: web.Request) -> web.StreamResponse:
        """Answer an input, whole, as a stream, or in the background."""
        asked = await decode_request(request, _decoder.decode)
        owner = current_request().caller
        id = response_id()
        talk, items = await self._responses.history.read(asked, owner, id)
        made = plan(asked, talk, items)
        if asked.truncation == "auto":
            made = await truncate(self._service, asked, talk, made)
        keeps = asked.store is not False and self._responses.answers is not None
        made.options.fields["store"] = keeps
        made.options.fields["model"] = self._service.model(asked.model).name
        if asked.background:
            return await self._begin(request, asked, made, id, keeps)
        encoder = ResponseEncoder(id, made.options)
        await _prepare(request, encoder)

        async def keep() -> None:
            encoder.close()
            if keeps:
                await self._responses.save(asked, made.items, encoder, owner)

        run = self._run(made.chat, made)
        with made.options.places.in_errors():
            if run.streams:  # what is not kept has nothing to wait for before its end
                answer = respond(request, run, encoder, keep=keep if keeps else None)
                return await (self._responses.expect(answer) if keeps else answer)
            async with aclosing(run.batches()) as batches:
                async for batch in batches:
                    encoder.take_in(batch)
            await keep()
            return full_response(request, run, encoder.body())

    async def retrieve_response(self, request: web.Request) -> web.StreamResponse:
        """Tell a stored response; its events again where a stream is asked for."""
        owner, id = current_request().caller, request.match_info["response_id"]
        if request.query.get("stream") not in ("true", "1", "True"):
            return json_answer(request, (await self._responses.get(owner, id)).body)
        after = request.query.get("starting_after", "-1")
        is_first = after.startswith("-")  # as of clients that have none yet
        number = read_number("starting_after", after.removeprefix("-"), "the number of an event")
        return await self._stream(request, id, -1 if is_first else number)

    async def delete_response(self, request: web.Request) -> web.StreamResponse:
        """Remove a stored response."""
        id = request.match_info["response_id"]
        await self._responses.delete(current_request().caller, id)
        return json_answer(request, {"id": id, "object": "response", "deleted": True})

    async def cancel_response(self, request: web.Request) -> web.StreamResponse:
        """Stop a response that is made in the background."""
        found = await self._responses.cancel(
            current_request().caller, request.match_info["response_id"]
        )
        return json_answer(request, found.body)

    async def list_input_items(self, request: web.Request) -> web.StreamResponse:
        """List the input of a stored response."""
        found = await self._responses.get(
            current_request().caller, request.match_info["response_id"]
        )
        return json_answer(request, page_of(found.input, page(request.query)))

    async def count_input_tokens(self, request: web.Request) -> web.StreamResponse:
        """Count the tokens of the prompt that an input makes."""
        asked = await decode_request(request, _prompt_decoder.decode)
        chat, places = prompt_of(asked, await self._read_history(asked))
        with places.in_errors():
            count = await self._service.count_tokens(chat)
        return json_answer(request, {"object": "response.input_tokens", "input_tokens": count})

    async def compact_response(self, request: web.Request) -> web.StreamResponse:
        """Shorten a conversation: what the user said stays, the rest is summed up."""
        asked = await decode_request(request, _compact_decoder.decode)
        talk = await self._read_history(asked)
        chat, places = prompt_of(asked, talk)
        messages: Sequence[Message] = [*chat.messages, Message("user", _HANDOVER)]
        folding = Fold()
        run = self._service.run(chat.changed(messages=messages, stream=None, tools=None, tool_choice=None, response_format=None))  # fmt: skip
        with places.in_errors():
            async with aclosing(run.batches()) as batches:
                async for batch in batches:
                    folding.add(batch)
        answer = folding.answer()
        text = _HANDED_OVER + (answer.choices[0].text or "")
        users = [list_form(item) for place, item in talk if kind_of(item, place) == "message" and item.get("role") == "user"]  # fmt: skip
        summary = {"id": new_id("cmp"), "type": "compaction", "encrypted_content": pack(text)}
        body = {
            "id": response_id(),
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [*users, summary],
            "usage": usage_object(answer.usage),
        }
        return json_answer(request, body, run.ignored)

    async def _read_history(self, asked: PromptRequest) -> list[Placed]:
        """Return the items of a conversation that no response follows; errors as of `History.read`."""
        owner = current_request().caller
        return (await self._responses.history.read(asked, owner, response_id()))[0]

    def _run(self, chat: ChatRequest, made: Plan) -> Run:
        run = self._service.run(chat)
        run.left_out, run.optional = made.left_out, OPTIONAL
        run.limit_name = "max_output_tokens"
        return run

    async def _begin(
        self, request: web.Request, asked: ResponseRequest, made: Plan, id: str, keeps: bool
    ) -> web.StreamResponse:
        """Begin a response that its client asks for later."""
        if not keeps:
            raise InvalidRequest.at(
                "background",
                "needs a response that is stored; leave `store: false` out, or `background`.",
            )
        encoder = ResponseEncoder(id, made.options, "queued")
        await _prepare(request, encoder)
        body = encoder.body()
        chat = made.chat.changed(stream=True)
        await self._responses.begin(asked, made.items, encoder, partial(self._run, chat, made))
        if not asked.stream:
            return json_answer(request, body, made.left_out)
        return await self._stream(request, id, -1)

    async def _stream(self, request: web.Request, id: str, after: int) -> web.StreamResponse:
        """Tell the events of a response after one."""
        events = await self._responses.events(current_request().caller, id, after)
        return await relay(request, events, SERVER_SENT_EVENTS, lambda error: b"")


async def _prepare(request: web.Request, encoder: ResponseEncoder) -> None:
    """Encode what a response repeats of a large request, with others served before and after it."""
    if len(await request.read()) > LARGE_BYTES:
        await asyncio.sleep(0)
        encoder.encode_request_fields()
        await asyncio.sleep(0)


def routes(service: Service, responses: ResponseService) -> list[Route]:
    """Return the URLs of responses."""
    api = Responses(service, responses)
    found = []
    words = Translation(NAMES, tuple(OPTIONAL))
    for prefix in ("/v1/responses", "/responses"):
        one = prefix + "/{response_id}"
        found += [
            Route("POST", prefix, api.create_response, "responses", request=ResponseRequest, summary="Answer an input", translation=words),
            call(f"{prefix}/input_tokens", api.count_input_tokens, "Count an input's tokens", PromptRequest, "responses"),
            call(f"{prefix}/compact", api.compact_response, "Shorten a conversation", CompactRequest, "responses"),
            Route("GET", one, api.retrieve_response, summary="Tell a stored response"),
            Route("DELETE", one, api.delete_response, summary="Remove a stored response"),
            Route("POST", f"{one}/cancel", api.cancel_response, summary="Stop a response in the background"),
            Route("GET", f"{one}/input_items", api.list_input_items, summary="List a response's input"),
        ]  # fmt: skip
    return found
