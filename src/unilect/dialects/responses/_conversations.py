"""
Conversations: lists of items with a name, to which responses add what they were asked and what they said.

Source: https://platform.openai.com/docs/api-reference/conversations
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from unilect.core.errors import NotStored
from unilect.core.requests import Request
from unilect.dialects.openai.chunks import encode_json
from unilect.dialects.responses._before import check_kept
from unilect.dialects.responses._items import (
    check_readable,
    kind_of,
    list_form,
    new_id,
    own_id,
    prefix_of,
)
from unilect.dialects.responses._kept import Kept
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
        kept: Where they are stored.
    """

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    async def create_conversation(self, request: web.Request) -> web.StreamResponse:
        """Begin a conversation."""
        asked = await decode_request(request, _decoder.decode)
        await check_kept(asked, "items")
        items, metadata = _as_items(asked.items or ()), encode_json(asked.metadata or {})
        owner, store = current_request().caller, self._kept.store()
        return await self._answer(request, await store.create_conversation(owner, metadata, items))

    async def retrieve_conversation(self, request: web.Request) -> web.StreamResponse:
        """Tell a conversation."""
        return await self._answer(request, request.match_info["conversation_id"])

    async def update_conversation(self, request: web.Request) -> web.StreamResponse:
        """Change the metadata of a conversation."""
        asked = await decode_request(request, _decoder.decode)
        id = request.match_info["conversation_id"]
        metadata = encode_json(asked.metadata or {})
        if not await self._kept.store().update_conversation(current_request().caller, id, metadata):
            raise _missing(id)
        return await self._answer(request, id)

    async def delete_conversation(self, request: web.Request) -> web.StreamResponse:
        """Remove a conversation with its items."""
        id = request.match_info["conversation_id"]
        if not await self._kept.store().delete_conversation(current_request().caller, id):
            raise _missing(id)
        body = {"id": id, "object": "conversation.deleted", "deleted": True}
        return json_answer(request, body)

    async def create_items(self, request: web.Request) -> web.StreamResponse:
        """Add items to a conversation."""
        asked = await decode_request(request, _items_decoder.decode)
        await check_kept(asked, "items")
        id, items = request.match_info["conversation_id"], _as_items(asked.items)
        if not await self._kept.store().add_items(current_request().caller, id, items):
            raise _missing(id)
        return json_answer(request, encode_page(items, more=False))

    async def list_items(self, request: web.Request) -> web.StreamResponse:
        """List the items of a conversation."""
        id, wanted = request.match_info["conversation_id"], page(request.query)
        found = await self._kept.store().list_items(
            current_request().caller, id, wanted.after, wanted.limit, wanted.newest_first
        )
        if found is None:
            raise _missing(id)
        return json_answer(request, encode_page(*found))

    async def retrieve_item(self, request: web.Request) -> web.StreamResponse:
        """Tell one item of a conversation."""
        id, item = request.match_info["conversation_id"], request.match_info["item_id"]
        found = await self._kept.store().item(current_request().caller, id, item)
        if found is None:
            raise NotStored(f"Item with id '{item[:100]}' not found.")
        return json_answer(request, found.body)

    async def delete_item(self, request: web.Request) -> web.StreamResponse:
        """Remove one item of a conversation."""
        id, item = request.match_info["conversation_id"], request.match_info["item_id"]
        if not await self._kept.store().delete_item(current_request().caller, id, item):
            raise NotStored(f"Item with id '{item[:100]}' not found.")
        return await self._answer(request, id)

    async def _answer(self, request: web.Request, id: str) -> web.Response:
        found = await self._kept.store().conversation(current_request().caller, id)
        if found is None:
            raise _missing(id)
        metadata, created_s = found
        body = {
            "id": id,
            "object": "conversation",
            "created_at": int(created_s),
            "metadata": msgspec.Raw(metadata),
        }
        return json_answer(request, body)


def routes(kept: Kept) -> list[Route]:
    """The URLs of conversations."""
    api = Conversations(kept)
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
    Items with ids.

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


def _missing(id: str) -> NotStored:
    return NotStored(f"Conversation with id '{id[:100]}' not found.")
