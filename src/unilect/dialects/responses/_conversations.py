"""
Conversations: lists of items with a name, to which responses add what they were asked and what they said.

Source: https://platform.openai.com/docs/api-reference/conversations
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from unilect.core.requests import Request
from unilect.dialects.openai.chunks import encode_json
from unilect.dialects.responses._background import ResponseService
from unilect.dialects.responses._history import check_depth, require_found
from unilect.dialects.responses._items import (
    check_readable,
    kind_of,
    list_form,
    new_id,
    own_id,
    prefix_of,
)
from unilect.dialects.responses._pages import encode_page, page
from unilect.dialects.responses._request import Short
from unilect.runtime.context import current_request
from unilect.store.records import Item
from unilect.web.decode import BodyDecoder, decode_request
from unilect.web.route import Route, call, json_answer

_Items = Annotated[list[Any], Meta(max_length=20)]
_Metadata = Annotated[dict[str, Short], Meta(max_length=16)]


class ConversationRequest(Request, frozen=True, kw_only=True):
    """POST /v1/conversations, and /v1/conversations/{conversation_id}."""

    items: _Items | None = None
    metadata: _Metadata | None = None


class ItemsRequest(Request, frozen=True, kw_only=True):
    """POST /v1/conversations/{conversation_id}/items."""

    items: _Items


_decoder = BodyDecoder(ConversationRequest)
_items_decoder = BodyDecoder(ItemsRequest)


class Conversations:
    """
    The handlers.

    Args:
        responses: Their store.
    """

    def __init__(self, responses: ResponseService) -> None:
        self._store = responses.store

    async def create_conversation(self, request: web.Request) -> web.StreamResponse:
        """Begin a conversation."""
        asked = await decode_request(request, _decoder.decode)
        await check_depth(asked, "items")
        items, metadata = _as_items(asked.items or ()), encode_json(asked.metadata or {})
        owner, store = current_request().caller, self._store()
        return await self._answer(request, await store.create_conversation(owner, metadata, items))

    async def retrieve_conversation(self, request: web.Request) -> web.StreamResponse:
        """Tell a conversation."""
        return await self._answer(request, request.match_info["conversation_id"])

    async def update_conversation(self, request: web.Request) -> web.StreamResponse:
        """Change the metadata of a conversation."""
        asked = await decode_request(request, _decoder.decode)
        id = request.match_info["conversation_id"]
        metadata = encode_json(asked.metadata or {})
        done = await self._store().update_conversation(current_request().caller, id, metadata)
        require_found(done, "Conversation", id)
        return await self._answer(request, id)

    async def delete_conversation(self, request: web.Request) -> web.StreamResponse:
        """Remove a conversation with its items."""
        id = request.match_info["conversation_id"]
        done = await self._store().delete_conversation(current_request().caller, id)
        require_found(done, "Conversation", id)
        body = {"id": id, "object": "conversation.deleted", "deleted": True}
        return json_answer(request, body)

    async def create_items(self, request: web.Request) -> web.StreamResponse:
        """Add items to a conversation."""
        asked = await decode_request(request, _items_decoder.decode)
        await check_depth(asked, "items")
        id, items = request.match_info["conversation_id"], _as_items(asked.items)
        done = await self._store().add_items(current_request().caller, id, items)
        require_found(done, "Conversation", id)
        return json_answer(request, encode_page(items, more=False))

    async def list_items(self, request: web.Request) -> web.StreamResponse:
        """List the items of a conversation."""
        id, wanted = request.match_info["conversation_id"], page(request.query)
        found = await self._store().list_items(
            current_request().caller, id, wanted.after, wanted.limit, wanted.newest_first
        )
        return json_answer(request, encode_page(*require_found(found, "Conversation", id)))

    async def retrieve_item(self, request: web.Request) -> web.StreamResponse:
        """Tell one item of a conversation."""
        id, item = request.match_info["conversation_id"], request.match_info["item_id"]
        found = await self._store().item(current_request().caller, id, item)
        return json_answer(request, require_found(found, "Item", item).body)

    async def delete_item(self, request: web.Request) -> web.StreamResponse:
        """Remove one item of a conversation."""
        id, item = request.match_info["conversation_id"], request.match_info["item_id"]
        require_found(
            await self._store().delete_item(current_request().caller, id, item), "Item", item
        )
        return await self._answer(request, id)

    async def _answer(self, request: web.Request, id: str) -> web.Response:
        found = await self._store().conversation(current_request().caller, id)
        metadata, created_s = require_found(found, "Conversation", id)
        body = {
            "id": id,
            "object": "conversation",
            "created_at": int(created_s),
            "metadata": msgspec.Raw(metadata),
        }
        return json_answer(request, body)


def routes(responses: ResponseService) -> list[Route]:
    """Return the URLs of conversations."""
    api = Conversations(responses)
    all = "/v1/conversations"
    one = all + "/{conversation_id}"
    return [
        call(all, api.create_conversation, "Begin a conversation", ConversationRequest),
        Route("GET", one, api.retrieve_conversation, summary="Tell a conversation"),
        call(one, api.update_conversation, "Change a conversation", ConversationRequest),
        Route("DELETE", one, api.delete_conversation, summary="Remove a conversation"),
        call(f"{one}/items", api.create_items, "Add items to a conversation", ItemsRequest),
        Route("GET", f"{one}/items", api.list_items, summary="List a conversation's items"),
        Route("GET", one + "/items/{item_id}", api.retrieve_item, summary="Tell an item"),
        Route("DELETE", one + "/items/{item_id}", api.delete_item, summary="Remove an item"),
    ]


def _as_items(given: Sequence[Any]) -> list[Item]:
    """
    Return items with ids.

    Raises:
        InvalidRequest: One cannot be read: no response could be made with the conversation any more.
    """
    check_readable(given, "items")
    found = []
    for number, item in enumerate(given):
        kind = kind_of(item, f"items[{number}]")
        id = own_id(item) or new_id(prefix_of(kind))
        found.append(Item(id, encode_json(list_form(item | {"type": kind, "id": id}))))
    return found
