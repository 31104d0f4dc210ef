"""
The turns before a request: those of an earlier response and its ancestors, of a conversation, and the items that are named.

Source: https://platform.openai.com/docs/guides/conversation-state
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from unilect.bounds import LARGE_BYTES, check_levels
from unilect.dialects.responses._items import kind_of, own_id, prefix_of
from unilect.dialects.responses._request import PromptRequest, items_of
from unilect.dialects.responses._tools import wrong
from unilect.errors import InvalidRequest, NotStored, PreviousNotFound
from unilect.requests import Request
from unilect.store.answers import Answers
from unilect.store.ids import item_id

#: The statuses of a response that has no end yet.
UNFINISHED = ("queued", "in_progress")
_MAX_BEFORE = 8192  # items that go before a request
_AT_ONCE = 512  # items, and then others are served
_ITEM_BYTES = 1024  # what an item costs beside its text


class Before:
    """
    What stands before requests.

    Args:
        answers: Where responses are stored; None where nothing is.
    """

    def __init__(self, answers: Answers | None) -> None:
        self._answers = answers

    async def items(
        self, asked: PromptRequest, owner: str, response: str
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """
        The items of the turns before a request, and those of its own input, without references.

        Args:
            response: The id of the response that answers it.

        Raises:
            InvalidRequest, NotStored: What it names is not there; or it holds what cannot be kept.
        """
        if asked.previous_response_id is not None and asked.conversation_id is not None:
            raise InvalidRequest(
                "`previous_response_id` and `conversation` cannot be combined; send one of them.",
                param="previous_response_id",
            )
        await check_kept(asked, "input", "tools", "tool_choice")
        before: list[dict[str, Any]] = []
        if asked.previous_response_id is not None:
            before = await self._chain(owner, asked.previous_response_id)
        elif asked.conversation_id is not None:
            before = await self._conversation(owner, asked.conversation_id)
        return before, await self._resolved(items_of(asked), before, owner, response)

    async def _chain(self, owner: str, id: str) -> list[dict[str, Any]]:
        chain = None
        if self._answers is not None:
            chain = await self._answers.chain(owner, id, with_bodies=False)
        if chain is None:
            raise PreviousNotFound(
                f"Previous response with id '{id[:100]}' not found.", param="previous_response_id"
            )
        last = chain[-1]
        if last.status in UNFINISHED:
            raise InvalidRequest(
                f"`previous_response_id`: the response '{id[:100]}' is still {last.status}; wait for its end.",
                param="previous_response_id",
            )
        bodies = [item.body for each in chain for item in (*each.input, *each.output)]
        _check_count(len(bodies), "previous_response_id")
        return await _decoded(bodies)

    async def _conversation(self, owner: str, id: str) -> list[dict[str, Any]]:
        # in one piece: between two, items could go, of which the next one is asked for
        items = await stored_in(self._answers).whole(owner, id, _MAX_BEFORE + 1)
        if items is None:
            raise NotStored(f"Conversation with id '{id[:100]}' not found.")
        _check_count(len(items), "conversation")
        return await _decoded([item.body for item in items])

    async def _resolved(
        self, items: list[Any], before: Sequence[dict[str, Any]], owner: str, response: str
    ) -> list[dict[str, Any]]:
        """Items with ids of their own, and for references the items that they mean; what stands before already is not repeated."""
        kinds = [kind_of(item, f"input[{number}]") for number, item in enumerate(items)]
        known: set[str] = set()
        found: dict[str, bytes] = {}
        if "item_reference" in kinds:
            known = {str(item.get("id")) for item in before}
            found = await self._named(items, kinds, known, owner)
        resolved: list[dict[str, Any]] = []
        ids: set[str] = set()
        for number, (item, kind) in enumerate(zip(items, kinds, strict=True)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            if kind == "item_reference":
                id = _id(item, number)
                if id in known:
                    continue
                if id not in found:
                    raise NotStored(f"Item with id '{id[:100]}' not found.", param="input")
                item, kind = msgspec.json.decode(found[id]), ""
            id = own_id(item, ids) or item_id(response, prefix_of(kind), number)
            ids.add(id)
            resolved.append(item | {"type": kind, "id": id} if kind else item | {"id": id})
        return resolved

    async def _named(
        self, items: list[Any], kinds: list[str], known: set[str], owner: str
    ) -> dict[str, bytes]:
        """The bodies of the items that references mean, but of known ones."""
        wanted = {_id(item, number) for number, (item, kind) in enumerate(zip(items, kinds, strict=True)) if kind == "item_reference"}  # fmt: skip
        missing = list(wanted - known)
        if not missing or self._answers is None:
            return {}
        return await self._answers.items(owner, missing)


def stored_in(answers: Answers | None) -> Answers:
    """
    Where responses are stored.

    Raises:
        NotStored: Nothing is stored here.
    """
    if answers is None:
        raise NotStored("Responses are not stored here: the operator has turned `[store] responses` off.")  # fmt: skip
    return answers


async def check_kept(asked: Request, *names: str) -> None:
    """
    Look at fields that are kept or told again as they are; others are served after each that is large.

    Raises:
        InvalidRequest: One is nested too deep.
    """
    for name in names:
        if (raw := asked.raw_fields.get(name)) is None:
            continue
        value = getattr(asked, name)
        if (
            isinstance(value, str) and len(value) < LARGE_BYTES // 6
        ):  # as JSON at most six times as long
            continue
        written = bytes(raw)
        check_levels(name, written, value)
        if len(written) > LARGE_BYTES:
            await asyncio.sleep(0)


async def _decoded(bodies: Sequence[bytes]) -> list[dict[str, Any]]:
    """Stored items, with others served in between."""
    found: list[dict[str, Any]] = []
    size = 0
    for body in bodies:
        found.append(msgspec.json.decode(body))
        size += len(body) + _ITEM_BYTES
        if size > LARGE_BYTES:
            size = 0
            await asyncio.sleep(0)
    return found


def _check_count(count: int, param: str) -> None:
    if count > _MAX_BEFORE:
        raise InvalidRequest(
            f"`{param}` stands for more than {_MAX_BEFORE} items; begin anew, with a summary of what went before.",
            param=param,
        )


def _id(item: dict[str, Any], number: int) -> str:
    id = item.get("id")
    if not isinstance(id, str):
        wrong(f"input[{number}].id", "the id of a stored item")
    return id
