"""
Assigns an engine's slots to requests, and queues the others.

A conversation goes back to the slot that holds its beginning, or gets the one that its client asks for. Any other request gets a slot that holds nothing, else one that was not
used for longest, so that conversations which take turns keep theirs.

llama.cpp steps busy slots together only where they lie side by side (each has a KV cache of its own), and left to itself it
spreads them: eight requests on 32 slots then make 0.65 of the tokens. So beside others a request gets the lowest slot that holds nothing
worth the gap, which is what would soon be read again; and where llama.cpp keeps in memory what a slot held and brings it back to any slot,
the lowest free one.

Where callers are kept apart (see `_cache_isolation`), a request is given no slot that holds another caller's prompts while there is one of its
own or an empty one. Only a slot of whose content it is known that it is the caller's is read from: a request that was given up early
leaves nobody's.

Requests wait in the order in which they came.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (`id_slot`)
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import msgspec
from msgspec import Struct

from unilect.core.errors import BackendUnavailable, InvalidRequest
from unilect.core.events import Event, Progress, Usage
from unilect.engines.gguf._kept_files import Given
from unilect.engines.process.supervisor import Ticket
from unilect.http.client import HttpServer
from unilect.runtime.context import cache_owner

BLOCK_BYTES = 128
WORTH_A_GAP = 8  # blocks, about 256 tokens: reading them takes as long as an answer loses to a gap
_MAX_BLOCKS = 2048  # of a prompt are remembered
_OF_ALL = {"id", "n_ctx", "speculative", "is_processing"}


class _Slot(Struct):
    """A slot, as llama.cpp tells it."""

    id: int
    is_processing: bool


class _Held(Struct, frozen=True):
    """
    Content of a slot when it was given to a request.

    Attributes:
        blocks: Hashes of the prompt's blocks.
        given: The prompt, as it would be kept on the disk, if it is the same caller's.
    """

    blocks: list[int] = []
    given: Given | None = None


class Slots:
    """
    The slots of one engine.

    Args:
        count: How many there are.

    Attributes:
        apart: Callers are kept apart: none reads what a slot holds of another's prompts.
        kept: llama.cpp keeps what a slot held when another prompt is read there.
        tickets: Those of the requests that the engine has been asked, by their slots.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = set(range(count))
        self._blocks: dict[int, list[int]] = {}
        self._given: dict[int, Given] = {}  # the prompts of which more than the blocks is known
        self._before: dict[int, _Held] = {}  # of those whose request was not read yet
        # whose prompts a slot holds, of those of which that is sure
        self._owners: dict[int, str] = {}
        self._takers: dict[int, str] = {}  # whose request was given it last
        self._order: dict[int, int] = {}  # of being taken
        self._taken = 0
        self.apart = self.kept = False
        self.tickets: dict[int, Ticket] = {}
        self._restored: set[int] = set()  # and not asked since
        self._waiting: deque[asyncio.Future[int]] = deque()

    async def acquire(self, prompt: bytes, wish: int | None = None) -> int:
        """
        Return a slot for a prompt, once one is free and it is this request's turn; to be released.

        Args:
            prompt: What the engine will read, in any form whose beginning stays as the conversation goes on.
            wish: The slot that the client would like, which it gets if that is free and holds nothing of another's.

        Raises:
            BackendUnavailable: The model was stopped meanwhile.
        """
        blocks, caller = _blocks(prompt), cache_owner()
        if wish in self._free and not self._is_anothers(wish, caller):
            slot = wish
        else:
            slot = self._choose(blocks, caller) if self._free else await self._wait()
        self._free.discard(slot)
        self._restored.discard(slot)
        is_own, given = self._owners.get(slot) == caller, self._given.pop(slot, None)
        self._before[slot] = _Held(self._blocks.get(slot, []), given if is_own else None)
        self._blocks[slot] = blocks
        self._taken += 1
        self._order[slot], self._takers[slot] = self._taken, caller
        if not is_own:
            self._owners.pop(slot, None)  # and not the caller's either, until its prompt is read
        return slot

    def lacks(self, slot: int, length: int) -> bool:
        """Return True if a slot that was just given holds less than so many bytes of its prompt, and nothing is lost if it is filled with them."""
        if self.apart and slot not in self._owners:
            return True
        before = self._before[slot].blocks
        if self.kept:  # llama.cpp moves what it held into its cache when the prompt is read, and looks there for the prompt
            return not before
        common = _common(before, self._blocks[slot])
        # of what is behind the last block nothing is known: it may be there
        return common < _MAX_BLOCKS and (common + 1) * BLOCK_BYTES <= length

    def disown(self, slot: int) -> None:
        """Note that the slot of a request holds nothing that is known any more."""
        self._owners.pop(slot, None)
        self._before[slot] = _Held()

    def note_filled(self, slot: int, given: Given) -> None:
        """Note that the slot of a request was filled with a conversation of its caller's."""
        self._owners[slot] = self._takers[slot]
        self._before[slot] = _Held(self._blocks[slot], given)

    def note_given(self, slot: int, given: Given) -> None:
        """Note the prompt of the request that was given a slot, as it would be kept."""
        self._given[slot] = given

    def note_refused(self, slot: int) -> None:
        """
        Note that the request of a slot was refused: if nothing was read of it, the slot holds what it held.

        Content of another caller's stays nobody's: that nothing was read is likely, and not sure.
        """
        if (held := self._before.pop(slot, None)) is None:
            return
        self._blocks[slot] = held.blocks
        self._given.pop(slot, None)
        if held.given is not None:
            self._given[slot] = held.given

    def idle_conversations(self) -> list[tuple[int, str, Given]]:
        """Return the slots that hold a conversation and answer nobody, each with its caller and prompt, the last one that was used first."""
        idle = [
            slot
            for slot in self._owners.keys() & self._given.keys() - self._before.keys()
            if self._blocks.get(slot) and slot not in self.tickets
        ]
        idle.sort(key=self._order.__getitem__, reverse=True)
        return [(slot, self._owners[slot], self._given[slot]) for slot in idle]

    def fields(self, slot: int) -> dict[str, Any]:
        """Make the fields of a body for the request that has a slot."""
        if self.apart and slot not in self._owners:
            return {"id_slot": slot, "cache_prompt": False}  # which empties it, checkpoints too
        return {"id_slot": slot}

    def note_batch(self, slot: int, batch: list[Event]) -> None:
        """
        Take note of what is told of the request that was given a slot: once it is read there, nothing is left of another's.

        An empty prompt is not read, and leaves what there was.
        """
        if slot in self._before and any(map(_tells_of_reading, batch)):
            del self._before[slot]
            self._owners[slot] = self._takers[slot]

    @asynccontextmanager
    async def all(self) -> AsyncIterator[None]:
        """Every slot, once the requests before this one have ended; those after it wait."""
        taken = sorted(self._free)
        self._free.clear()
        rest = [self._enqueue() for _ in range(self._count - len(taken))]
        try:
            for waiter in rest:
                await waiter
            yield
        finally:
            for waiter in rest:
                if not (waiter.cancel() or waiter.cancelled() or waiter.exception()):
                    taken.append(waiter.result())
            for slot in taken:
                self.release(slot)

    @contextmanager
    def hold(self, slot: int, fills: bool = False) -> Iterator[None]:
        """
        A slot of the caller's, which no request gets meanwhile.

        Args:
            fills: What it holds is replaced: it may be nobody's, and the caller's next request gets it.

        Raises:
            InvalidRequest: It is another caller's, or answers a request, or there is none.
        """
        caller, owner = cache_owner(), self._owners.get(slot)
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
        self._given.pop(slot, None)
        try:
            yield
            if fills:
                self._owners[slot] = caller
                self._restored.add(slot)
        finally:
            self.release(slot)

    def release(self, slot: int) -> None:
        """Give the slot of a request that is over, however it ended, to who has waited longest."""
        self.tickets.pop(slot, None)
        if self._before.pop(slot, None) is not None:  # nobody knows how much of it was read
            self._given.pop(slot, None)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(slot)
                return
        self._free.add(slot)

    def forget(self) -> None:
        """Forget what the slots held: the engine was started anew. What is still to be read there stays known."""
        for known in (self._blocks, self._given):
            for slot in known.keys() - self._before.keys():
                del known[slot]
        self._before = dict.fromkeys(self._before, _Held())
        self._owners.clear()
        self._restored.clear()

    async def note_progress(self, server: HttpServer) -> None:
        """Ask which slots are at work: what stands there has been taken up, though nothing is told of it while others' prompts are read."""
        for slot in msgspec.json.decode(await server.get("/slots"), type=list[_Slot]):
            if slot.is_processing and slot.id in self.tickets:
                self.tickets[slot.id].acked_at = time.monotonic()

    async def describe(self, server: HttpServer) -> list[dict[str, Any]]:
        """Read the slots of the engine: all fields where the last request was the caller's, of others only whether they are busy."""
        mine = cache_owner()
        found = msgspec.json.decode(await server.get("/slots"), type=list[dict[str, Any]])
        for slot in found:
            if self._owners.get(slot["id"]) != mine:
                for name in slot.keys() - _OF_ALL:
                    del slot[name]
        return found

    def fail_waiting(self) -> None:
        """Fail all who wait: the model is stopped."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(
                    BackendUnavailable("The model was stopped. Try again.", retry_after_s=5)
                )

    def _enqueue(self) -> asyncio.Future[int]:
        """Return a place at the end of the line."""
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    async def _wait(self) -> int:
        waiter = self._enqueue()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                with suppress(ValueError):  # it was passed over already
                    self._waiting.remove(waiter)
            elif waiter.exception() is None:  # it was our turn, and we left in the same moment
                self.release(waiter.result())
            raise

    def _choose(self, blocks: list[int], caller: str) -> int:
        """Return the free slot that was filled for the caller, or the one with the longest common beginning, where that is long enough; else another."""
        own = {slot for slot in self._free if self._owners.get(slot) == caller}
        for slot in self._restored & own:
            return slot
        read = own if self.apart else self._free
        held = {slot: _common(self._blocks.get(slot, []), blocks) for slot in read}
        best = max(held, key=lambda slot: (held[slot], -slot), default=None)
        alone = len(self._free) == self._count  # then there is nobody to lie beside
        worth = 1 if alone else WORTH_A_GAP
        if best is not None and held[best] >= worth:
            return best
        return self._to_fill(own, worth)

    def _to_fill(self, own: set[int], worth: int) -> int:
        """
        Return the free slot whose content costs least.

        Args:
            own: Those of the caller's.
            worth: So many blocks are worth keeping.
        """
        mine = own | (self._free - self._owners.keys()) if self.apart else self._free
        for group in (mine, self._free):
            rest = group - self._restored
            if empty := [slot for slot in rest if len(self._blocks.get(slot, ())) < worth]:
                return min(empty)
        if self.kept and worth > 1:
            return min(self._free)
        return min(mine or self._free, key=lambda slot: self._order.get(slot, 0))

    def _is_anothers(self, slot: int, caller: str) -> bool:
        """Return True if a slot holds prompts of another caller, from whom this one is kept apart."""
        return self.apart and self._owners.get(slot, caller) != caller


def _tells_of_reading(event: Event) -> bool:
    return isinstance(event, Progress) or (isinstance(event, Usage) and event.prompt_tokens > 0)


def _blocks(prompt: bytes) -> list[int]:
    """Return hashes of the whole blocks of a prompt, which are kept instead of it."""
    end = min(len(prompt) // BLOCK_BYTES, _MAX_BLOCKS) * BLOCK_BYTES
    return [hash(prompt[at : at + BLOCK_BYTES]) for at in range(0, end, BLOCK_BYTES)]


def _common(one: list[int], other: list[int]) -> int:
    """Count the blocks that both begin with."""
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        count += 1
    return count
