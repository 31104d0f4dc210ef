"""
The turns before a request: those of an earlier response and its ancestors, of a conversation, and the items that are named.

Source: https://platform.openai.com/docs/guides/conversation-state
"""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from unilect.core.bounds import LARGE_BYTES, check_levels
from unilect.core.errors import InvalidRequest, NotStored, PreviousNotFound
from unilect.core.requests import Request
from unilect.dialects.responses._items import kind_of, own_id, prefix_of
from unilect.dialects.responses._request import Placed, PromptRequest, items_of, place_items
from unilect.dialects.responses._tools import wrong
from unilect.store.ids import item_id
from unilect.store.responses import ResponseStore

FoundT = TypeVar("FoundT")
#: The statuses of a response that has no end yet.
UNFINISHED = ("queued", "in_progress")
_MAX_BEFORE = 8192  # items that go before a request
_AT_ONCE = 512  # items, and then others are served
_ITEM_BYTES = 1024  # what an item costs beside its text


class History:
    """
    The items of the conversation that stand before those of a request.

    Args:
        answers: The store of responses; None where nothing is stored.
    """

    def __init__(self, answers: ResponseStore | None) -> None:
        self._answers = answers

    async def read(
        self, asked: PromptRequest, owner: str, response: str
    ) -> tuple[list[Placed], list[dict[str, Any]]]:
        """
        Return the items of a conversation with where they stand in the body, and those of the request's own input, without references.

        Args:
            response: The id of the response that answers it.

        Raises:
            InvalidRequest, NotStored: What it names is not there; or it holds what cannot be kept.
        """
        if asked.previous_response_id is not None and asked.conversation_id is not None:
            raise InvalidRequest.at(
                "previous_response_id", "and `conversation` cannot be combined; send one of them."
            )
        await check_depth(asked, "input", "tools", "tool_choice")
        bodies: list[bytes] = []
        if asked.previous_response_id is not None:
            bodies = await self._chain(owner, asked.previous_response_id)
        elif asked.conversation_id is not None:
            bodies = await self._conversation(owner, asked.conversation_id)
        before = await _decode(bodies)
        items = items_of(asked)
        named = await self._find_references(items, before, sum(map(len, bodies)), owner)
        own = await _resolve(items, named, response)
        return place_items(asked, before, own), own

    async def _chain(self, owner: str, id: str) -> list[bytes]:
        chain = None
        if self._answers is not None:
            chain = await self._answers.chain(owner, id, with_bodies=False)
        if chain is None:
            raise PreviousNotFound(
                f"Previous response with id '{id[:100]}' not found. Send the whole conversation as `input`, or the id of a stored response.",
                param="previous_response_id",
            )
        last = chain[-1]
        if last.status in UNFINISHED:
            raise InvalidRequest.at(
                "previous_response_id",
                f": the response '{id[:100]}' is still {last.status}; wait for its end.",
            )
        bodies = [item.body for each in chain for item in (*each.input, *each.output)]
        _check_count(len(bodies), "previous_response_id")
        return bodies

    async def _conversation(self, owner: str, id: str) -> list[bytes]:
        # in one piece: between two, items could go, of which the next one is asked for
        items = await require_store(self._answers).whole(owner, id, _MAX_BEFORE + 1)
        if items is None:
            raise NotStored(f"Conversation with id '{id[:100]}' not found.")
        _check_count(len(items), "conversation")
        return [item.body for item in items]

    async def _find_references(
        self, items: list[Any], before: Sequence[dict[str, Any]], used: int, owner: str
    ) -> dict[int, dict[str, Any] | None]:
        """
        Return the items that references in an input mean, by the references' numbers; None for one that stands before already.

        Args:
            used: The bytes of what stands before.

        Raises:
            NotStored: There is no such item.
            InvalidRequest: They are too large, each counted as often as it is named.
        """
        ids = {
            number: _id(item, number)
            for number, item in enumerate(items)
            if kind_of(item, f"input[{number}]") == "item_reference"
        }
        if not ids:
            return {}
        known = {str(item.get("id")) for item in before}
        wanted = [id for id in ids.values() if id not in known]
        bodies: dict[str, bytes] = {}
        if wanted and self._answers is not None:
            bodies = await self._answers.items(owner, list(dict.fromkeys(wanted)))
        for id in wanted:
            require_found(bodies.get(id), "Item", id, "input")
        if self._answers is not None:
            size, most = used + sum(len(bodies[id]) for id in wanted), self._answers.most_read_bytes
            if size > most:
                raise InvalidRequest.at(
                    "input",
                    f": the stored items that it names, each counted as often as it is named, and what stands before them have {size} bytes; "
                    f"at most {most} can be used in one request. Name fewer, and each once.",
                )
        found = dict(zip(bodies, await _decode(list(bodies.values())), strict=True))
        return {number: found.get(id) for number, id in ids.items()}


async def _resolve(
    items: list[Any], named: dict[int, dict[str, Any] | None], response: str
) -> list[dict[str, Any]]:
    """Return items with ids of their own, and for references the items that they mean; what stands before already is not repeated."""
    resolved: list[dict[str, Any]] = []
    ids: set[str] = set()
    for number, item in enumerate(items):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        kind = ""
        if number not in named:
            kind = kind_of(item, f"input[{number}]")
        elif (item := named[number]) is None:
            continue
        id = own_id(item, ids) or item_id(response, prefix_of(kind), number)
        ids.add(id)
        resolved.append(item | {"type": kind, "id": id} if kind else item | {"id": id})
    return resolved


def require_found(found: FoundT | None, what: str, id: str, param: str | None = None) -> FoundT:
    """
    Return what was found, or done.

    Raises:
        NotStored: It is nothing.
    """
    if not found:
        raise NotStored(f"{what} with id '{id[:100]}' not found.", param=param)
    return found


def require_store(answers: ResponseStore | None) -> ResponseStore:
    """
    Return the store of responses.

    Raises:
        NotStored: Nothing is stored here.
    """
    if answers is None:
        raise NotStored("Responses are not stored here: the operator has turned `[store] responses` off. Send the whole conversation as `input`.")  # fmt: skip
    return answers


async def check_depth(asked: Request, *names: str) -> None:
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


async def _decode(bodies: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return stored items, with others served in between."""
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
        raise InvalidRequest.at(
            param,
            f"stands for more than {_MAX_BEFORE} items; begin anew, with a summary of what went before.",
        )


def _id(item: dict[str, Any], number: int) -> str:
    id = item.get("id")
    if not isinstance(id, str):
        wrong(f"input[{number}].id", "the id of a stored item")
    return id
