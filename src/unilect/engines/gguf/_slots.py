"""
Assigns an engine's slots to requests, and queues the others.

llama.cpp steps busy slots together only where they lie side by side (each has a KV cache of its own), and left to itself it
spreads them: eight requests on 32 slots then make 0.65 of the tokens. So the lowest free slot is handed out, except to a
conversation whose beginning a free slot still holds: it goes back there, when that saves more than the gap costs. What a
slot held before is not lost to others: llama.cpp keeps it in memory and brings it back to any slot.

Requests wait in the order in which they came.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (`id_slot`)
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from unilect.context import in_hand
from unilect.errors import BackendUnavailable, InvalidRequest
from unilect.http.client import HttpServer

BLOCK_BYTES = 128
WORTH_A_GAP = 8  # blocks, about 256 tokens: reading them takes as long as an answer loses to a gap
_MAX_BLOCKS = 2048  # of a prompt are remembered
_OF_ALL = ("id", "n_ctx", "speculative", "is_processing")


class Slots:
    """
    The slots of one engine.

    Args:
        count: How many there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = set(range(count))
        self._blocks: dict[int, list[int]] = {}
        self._owners: dict[int, str] = {}
        self._restored: set[int] = set()  # and not asked since
        self._waiting: deque[asyncio.Future[int]] = deque()

    async def take(self, prompt: bytes) -> int:
        """
        A slot for a prompt, once one is free and it is this request's turn; to be given back.

        Args:
            prompt: What the engine will read, in any form whose beginning stays as the conversation goes on.

        Raises:
            BackendUnavailable: The model was stopped meanwhile.
        """
        blocks = _blocks(prompt)
        slot = self._choose(blocks) if self._free else await self._wait()
        self._free.discard(slot)
        self._restored.discard(slot)
        self._blocks[slot] = blocks
        self._owners[slot] = in_hand().caller
        return slot

    @contextmanager
    def held(self, slot: int, fills: bool = False) -> Iterator[None]:
        """
        A slot of the caller's, which no request gets meanwhile.

        Args:
            fills: What it holds is replaced: it may be nobody's, and the caller's next request gets it.

        Raises:
            InvalidRequest: It is another caller's, or answers a request, or there is none.
        """
        caller, owner = in_hand().caller, self._owners.get(slot)
        if slot >= self._count or (owner != caller and not (fills and owner is None)):
            raise InvalidRequest(
                f"`slot_id`: {slot} is no slot of yours. GET /slots lists the slots; one is yours after it has answered you.",
                param="slot_id",
            )
        if slot not in self._free:
            raise InvalidRequest(
                f"`slot_id`: slot {slot} answers a request. Try again when that has ended.",
                param="slot_id",
            )
        self._free.discard(slot)
        self._blocks.pop(slot, None)
        try:
            yield
            if fills:
                self._owners[slot] = caller
                self._restored.add(slot)
        finally:
            self.give_back(slot)

    def give_back(self, slot: int) -> None:
        """The request is over, however it ended: the slot goes to who has waited longest."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(slot)
                return
        self._free.add(slot)

    def forget(self) -> None:
        """The engine was started anew, and its slots are empty."""
        self._blocks.clear()
        self._owners.clear()
        self._restored.clear()

    async def told(self, server: HttpServer) -> list[dict[str, Any]]:
        """What the engine says of its slots: all of those whose last request was the caller's, of others whether they are busy."""
        mine = in_hand().caller
        found = msgspec.json.decode(await server.get("/slots"), type=list[dict[str, Any]])
        return [
            slot
            if self._owners.get(slot["id"]) == mine
            else {name: slot[name] for name in _OF_ALL if name in slot}
            for slot in found
        ]

    def dismiss(self) -> None:
        """The model is stopped: who waits need not wait longer."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(BackendUnavailable("The model was stopped.", retry_after_s=5))

    async def _wait(self) -> int:
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):  # it was passed over already
                    self._waiting.remove(waiter)
            elif waiter.exception() is None:  # it was our turn, and we left in the same moment
                self.give_back(waiter.result())
            raise

    def _choose(self, blocks: list[int]) -> int:
        """The free slot that was filled for the caller, or the one with the longest common beginning, where that is long enough; else the lowest."""
        caller = in_hand().caller
        for slot in self._restored & self._free:
            if self._owners.get(slot) == caller:
                return slot
        held = {slot: _common(self._blocks.get(slot, []), blocks) for slot in self._free}
        best = max(held, key=lambda slot: (held[slot], -slot))
        alone = len(self._free) == self._count  # then there is nobody to lie beside
        return best if held[best] >= (1 if alone else WORTH_A_GAP) else min(self._free)


def _blocks(prompt: bytes) -> list[int]:
    """Hashes of the whole blocks of a prompt, which are kept instead of it."""
    end = min(len(prompt) // BLOCK_BYTES, _MAX_BLOCKS) * BLOCK_BYTES
    return [hash(prompt[at : at + BLOCK_BYTES]) for at in range(0, end, BLOCK_BYTES)]


def _common(one: list[int], other: list[int]) -> int:
    """How many blocks they begin with alike."""
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        count += 1
    return count
