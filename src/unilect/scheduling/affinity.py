"""
Cache affinity: which backend has the beginning of a conversation in its prompt cache.

A conversation is identified by its messages: each request is stored under a digest of all its messages, and the next turn of the same
conversation begins with them. A plain text is identified by its first blocks. Each caller's are told apart: to which backend a request goes
says nothing of what another caller has asked. Digests are Python's hashes: they are valid in this process
only, and a collision costs a cache hit, never an answer.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from unilect.core.requests import ChatRequest, CompletionRequest, Request
from unilect.runtime.context import cache_owner

MAX_KNOWN = 16_384
BLOCK_CHARS = 256
MAX_BLOCKS = 64
PlaceT = TypeVar("PlaceT")


class Affinity(Generic[PlaceT]):
    """
    The backends of the conversations that were asked for last: of `MAX_KNOWN` at most, and of half as many at least.

    They are in two dicts, of which the older one is dropped when the newer one is full: one dict whose oldest entry goes for each new one is
    made anew, larger and larger, as places of entries that are gone are not used again.
    """

    def __init__(self) -> None:
        self._new: dict[int, PlaceT] = {}
        self._old: dict[int, PlaceT] = {}

    def find(self, digests: Sequence[int]) -> PlaceT | None:
        """The backend of the longest known prefix."""
        for digest in reversed(digests):
            if (place := self._new.get(digest)) is not None:
                return place
            if (place := self._old.get(digest)) is not None:
                self._keep(digest, place)
                return place
        return None

    def note(self, digests: Sequence[int], place: PlaceT) -> None:
        """Store the backend of a request, for the next turn of its conversation."""
        if digests:
            self._keep(digests[-1], place)

    def _keep(self, digest: int, place: PlaceT) -> None:
        if len(self._new) >= MAX_KNOWN // 2 and digest not in self._new:
            self._new, self._old = {}, self._new
        self._new[digest] = place


def digests(request: Request | None) -> list[int]:
    """A digest for each prefix of a request's prompt, as its caller's, the shortest first; empty if there is no prompt."""
    if isinstance(request, ChatRequest):
        return _of_turns(request)
    if isinstance(request, CompletionRequest):
        return _of_blocks(request.prompts[0]) if request.prompt else []
    return []


def _of_turns(request: ChatRequest) -> list[int]:
    found: list[int] = []
    last = hash((cache_owner(), msgspec.json.encode(request.tools) if request.tools else b""))
    for message in request.messages:
        content = message.content
        text = content if isinstance(content, str) else msgspec.json.encode(content)
        last = hash((last, message.role, text))
        found.append(last)
    return found


def _of_blocks(prompt: str | list[int]) -> list[int]:
    found: list[int] = []
    last = hash(cache_owner())
    for number in range(
        min(len(prompt) // BLOCK_CHARS, MAX_BLOCKS)
    ):  # whole ones: the last part grows
        block = prompt[number * BLOCK_CHARS : (number + 1) * BLOCK_CHARS]
        last = hash((last, block if isinstance(block, str) else tuple(block)))
        found.append(last)
    return found
