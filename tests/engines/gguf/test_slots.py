"""Tests of unilect.engines.gguf._slots."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import strategies as st

from support.clients.callers import of
from support.common.properties import given
from unilect.core.errors import BackendUnavailable
from unilect.core.events import Event, Progress, TextDelta, Usage
from unilect.engines.gguf._kept_files import Given
from unilect.engines.gguf._slots import BLOCK_BYTES, WORTH_A_GAP, Slots

LONG = b"a long conversation " * BLOCK_BYTES
SHORT = LONG[: BLOCK_BYTES * (WORTH_A_GAP - 1)]
OTHER = b"something else " * BLOCK_BYTES


def waiting(slots: Slots, prompt: bytes = b"") -> asyncio.Task[int]:
    """A request that takes a slot when it is its turn."""
    return asyncio.ensure_future(slots.acquire(prompt))


async def read(slots: Slots, caller: str, prompt: bytes) -> int:
    """The slot in which a prompt of a caller's was read."""
    with of(caller):
        slot = await slots.acquire(prompt)
    slots.note_batch(slot, [Progress(0, 9)])
    slots.release(slot)
    return slot


async def settled() -> None:
    """Everything that can go on has gone on."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_lowest_free_slot_is_handed_out() -> None:
    """Slots are handed out from the lowest on, and a gap is filled first."""
    slots = Slots(4)
    first = [await slots.acquire(b"") for _ in range(4)]
    for slot in (3, 1):
        slots.release(slot)

    assert [0, 1, 2, 3] == first
    assert [1, 3] == [await slots.acquire(b""), await slots.acquire(b"")]


async def test_wish() -> None:
    """A free slot is given to who asks for it, though another holds its beginning; one that is busy, none, or another caller's is not."""
    slots = Slots(3)
    slots.apart = True
    assert 0 == await read(slots, "a", LONG)
    with of("a"):
        assert 2 == await slots.acquire(LONG, 2)
        assert 0 == await slots.acquire(LONG, 2)
        slots.release(2)
        slots.release(0)
        assert 0 == await slots.acquire(LONG, 9)
        slots.release(0)
    with of("b"):
        assert 1 == await slots.acquire(LONG, 0)


async def test_conversation_goes_back_to_its_slot() -> None:
    """A conversation gets the slot that holds its beginning, though a lower one is free and another is busy."""
    slots = Slots(3)
    for prompt in (OTHER, b"busy", LONG):
        await slots.acquire(prompt)
    slots.release(0)
    slots.release(2)

    assert await slots.acquire(LONG + b" goes on") == 2


async def test_short_beginning_is_not_worth_a_gap() -> None:
    """A beginning that is soon read again draws a request away from its neighbours only where it has none."""
    slots = Slots(2)
    for prompt in (OTHER, SHORT):
        await slots.acquire(prompt)
    slots.release(1)
    slots.release(0)
    alone = await slots.acquire(SHORT + b" goes on")
    slots.release(alone)
    slots = Slots(3)
    for prompt in (b"another", b"busy", SHORT):
        await slots.acquire(prompt)
    slots.release(0)
    slots.release(2)

    assert (1, 0) == (alone, await slots.acquire(SHORT + b" goes on"))


async def test_conversations_that_take_turns_keep_their_slots() -> None:
    """A new conversation gets an empty slot, and where there is none that of the conversation that was not heard of for longest."""
    slots = Slots(3)
    slots.kept = True
    prompts = [letter * BLOCK_BYTES for letter in (b"a", b"b", b"c")]
    found = [await read(slots, "ada", prompt) for prompt in prompts * 2]
    found += [await read(slots, "ada", prompt) for prompt in (prompts[0], b"d" * BLOCK_BYTES)]

    assert [0, 1, 2, 0, 1, 2, 0, 1] == found


@pytest.mark.parametrize(("kept", "expected"), [(True, [3, 0]), (False, [3, 2])])
async def test_beside_others(kept: bool, expected: list[int]) -> None:
    """Beside a busy slot one that holds little is lost first; where llama.cpp keeps what is lost the lowest comes next, else the oldest."""
    slots = Slots(4)
    slots.kept = kept
    for prompt in (LONG, b"busy", OTHER, SHORT):
        await slots.acquire(prompt)
    for slot in (2, 0, 3):
        slots.release(slot)
    slots._order[0] = 9  # was heard of later
    found = [await slots.acquire(b"x" + LONG) for _ in range(2)]

    assert expected == found


async def test_a_slot_that_was_filled_is_not_empty() -> None:
    """What a caller has filled a slot with is not lost to another conversation while there is an empty one."""
    slots = Slots(2)
    with of("ada"), slots.hold(0, fills=True):
        pass

    assert 1 == await read(slots, "bob", LONG)


async def test_nothing_is_held_by_a_new_engine() -> None:
    """After the engine was started anew, a conversation gets the lowest slot like any other."""
    slots = Slots(2)
    for prompt in (OTHER, LONG):
        await slots.acquire(prompt)
    slots.release(0)
    slots.release(1)
    slots.forget()

    assert await slots.acquire(LONG) == 0


async def test_requests_wait_in_their_order() -> None:
    """Who came first gets the first slot that is given back, also when a later one's conversation is in it."""
    slots = Slots(1)
    await slots.acquire(LONG)
    first, second = waiting(slots), waiting(slots, LONG)
    await settled()
    slots.release(0)
    await settled()
    order = (first.done(), second.done())
    slots.release(0)

    assert (True, False) == order
    assert await second == 0


async def test_one_who_left_is_passed_over() -> None:
    """The place of a request that left while it waited is free."""
    slots = Slots(1)
    await slots.acquire(b"")
    first, second = waiting(slots), waiting(slots)
    await settled()
    first.cancel()
    await settled()
    slots.release(0)

    assert await second == 0


@pytest.mark.parametrize("give_first", [True, False])
async def test_one_who_leaves_as_it_is_its_turn_gives_the_slot_on(give_first: bool) -> None:
    """A slot that is handed to a request in the moment in which it leaves is not lost."""
    slots = Slots(1)
    await slots.acquire(b"")
    first, second = waiting(slots), waiting(slots)
    await settled()
    steps = [lambda: slots.release(0), first.cancel]
    for step in steps if give_first else reversed(steps):
        step()

    assert await asyncio.wait_for(second, 60) == 0
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_stopped_model_keeps_nobody_waiting() -> None:
    """Who waits for a model that is stopped is told so, and the slots serve on after a new start."""
    slots = Slots(1)
    await slots.acquire(b"")
    requests = [waiting(slots) for _ in range(2)]
    await settled()
    slots.fail_waiting()
    for request in requests:
        with pytest.raises(BackendUnavailable, match="stopped"):
            await request
    slots.release(0)

    assert await slots.acquire(b"") == 0


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["come", "go", "leave"]), st.integers(0, 9)), max_size=40),
)
async def test_any_coming_and_going(count: int, steps: list[tuple[str, int]]) -> None:
    """Whatever comes, goes and leaves: a slot has one request, nobody waits while one is free, and the order is kept."""
    slots = Slots(count)
    queue: list[asyncio.Task[int]] = []
    busy: list[asyncio.Task[int]] = []
    prompts = [LONG, LONG[:2000], OTHER, SHORT, b""]
    for step, number in steps:
        if step == "come":
            queue.append(waiting(slots, prompts[number % len(prompts)]))
        elif step == "go" and busy:
            slots.release(busy.pop(number % len(busy)).result())
        elif step == "leave" and queue:
            queue.pop(number % len(queue)).cancel()
        if number % 2:
            continue  # what follows happens in the same moment
        await settled()
        while queue and queue[0].done():
            busy.append(queue.pop(0))
        assert not any(request.done() for request in queue)
        held = [request.result() for request in busy]
        assert len(set(held)) == len(held)
        assert len(held) == count or not queue
    for request in queue:
        request.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*queue)


async def test_another_callers_slot_is_the_last_that_is_given() -> None:
    """An own slot with the prompt's beginning comes first, then an empty one, an own one, and another's: the one unused for longest."""
    slots = Slots(3)
    slots.apart = True
    found = [await read(slots, "ada", LONG), await read(slots, "bob", LONG)]
    again = [await read(slots, "bob", LONG), await read(slots, "ada", LONG)]
    full = [await read(slots, "cy", OTHER), await read(slots, "cy", LONG)]
    next_ones = [await read(slots, "dee", LONG), await read(slots, "ada", LONG)]

    assert [0, 1] == found
    assert [1, 0] == again
    assert [2, 2] == full
    assert [1, 0] == next_ones


async def test_where_callers_share_a_slots_owner_does_not_count() -> None:
    """Without the partition a conversation goes back to its slot, whoever sends it."""
    slots = Slots(3)
    found = [await read(slots, name, prompt) for name in ("ada", "bob") for prompt in (OTHER, LONG)]

    assert [0, 1] * 2 == found


@pytest.mark.parametrize(
    ("batch", "is_read"),
    [
        ([Progress(0, 9)], True),
        ([TextDelta("x", 0), Usage(3, 1)], True),
        ([TextDelta("", 0), Usage(0, 0)], False),
        ([], False),
    ],
)
async def test_what_was_not_read_is_nobodys(batch: list[Event], is_read: bool) -> None:
    """A slot whose request was not read there, as one that was given up at once, may hold anybody's prompts."""
    slots = Slots(1)
    slots.apart = True
    await read(slots, "ada", LONG)
    with of("bob"):
        slot = await slots.acquire(LONG)
        slots.note_batch(slot, batch)
        slots.release(slot)
    found: dict[str, bool] = {}
    for name in ("bob", "ada"):
        with of(name):
            slot = await slots.acquire(LONG)
            found[name] = "cache_prompt" not in slots.fields(slot)
            slots.release(slot)

    assert {"bob": is_read, "ada": False} == found


@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([LONG, OTHER, SHORT]), st.booleans()),
        max_size=40,
    ),
)
async def test_nobody_reads_anothers(count: int, asked: list[tuple[str, bytes, bool]]) -> None:
    """Whoever asks whatever, and is read or gives up: a cache is read only where the same caller's prompt was the last."""
    slots = Slots(count)
    slots.apart = True
    holds: dict[int, set[str]] = {slot: set() for slot in range(count)}
    for caller, prompt, is_read in asked:
        with of(caller):
            slot = await slots.acquire(prompt)
        if "cache_prompt" not in slots.fields(slot):
            assert {caller} == holds[slot]
        elif is_read:
            holds[slot] = set()
        holds[slot] |= {caller}  # of a request that was given up something may have been read
        if is_read:
            slots.note_batch(slot, [Progress(0, 9)])
        slots.release(slot)


async def test_all_slots_are_free_of_others() -> None:
    """Whoever needs every slot gets them after those before, and before those after."""
    slots = Slots(2)
    busy = [await slots.acquire(b"") for _ in range(2)]
    order: list[str] = []

    async def all_of_them() -> None:
        async with slots.all():
            order.append("all")

    every = asyncio.ensure_future(all_of_them())
    await settled()
    later = waiting(slots)
    await settled()
    for slot in busy:
        assert not order
        slots.release(slot)
        await settled()
    await every
    slots.release(await later)

    assert ["all"] == order
    assert [0, 1] == [await slots.acquire(b"") for _ in range(2)]


@pytest.mark.parametrize("given", [0, 1])
async def test_who_gives_up_all_slots_keeps_none(given: int) -> None:
    """Whoever leaves while waiting for every slot leaves those that it had to others."""
    slots = Slots(2)
    busy = [await slots.acquire(b"") for _ in range(2)]

    async def all_of_them() -> None:
        async with slots.all():
            pass

    every = asyncio.ensure_future(all_of_them())
    await settled()
    later = [waiting(slots), waiting(slots)]
    await settled()
    for slot in busy[:given]:
        slots.release(slot)
    every.cancel()
    await settled()
    for slot in busy[given:]:
        slots.release(slot)

    assert [0, 1] == sorted([await request for request in later])
    assert every.cancelled()


async def begin(slots: Slots, caller: str, prompt: bytes, number: int) -> int:
    """The slot of a request of which nothing is read yet."""
    with of(caller):
        slot = await slots.acquire(prompt)
    slots.note_given(slot, Given(number, 0, 0.0, None))
    return slot


async def test_a_request_that_is_refused() -> None:
    """The slot holds its caller's conversation as before; of one that was given up, or of another caller's, nobody knows."""
    slots, found = Slots(1), []
    for caller, is_refused in (("ada", True), ("ada", False), ("ada", True), ("bob", True)):
        await begin(slots, "ada", LONG, 1)
        slots.note_batch(0, [Progress(0, 9)])
        slots.release(0)
        await begin(slots, caller, OTHER, 2)
        assert [] == slots.idle_conversations()
        if is_refused:
            slots.note_refused(0)
        slots.release(0)
        found.append([(owner, given.length) for _, owner, given in slots.idle_conversations()])

    assert [[("ada", 1)], [], [("ada", 1)], []] == found


async def test_a_new_life_between_a_slot_and_its_request() -> None:
    """What is about to be read stays known, and is asked as of an empty slot; what other slots held is forgotten."""
    slots = Slots(2)
    slots.apart = True
    for caller, number in (("ada", 1), ("bob", 2)):
        await begin(slots, caller, LONG, number)
    for slot in (0, 1):
        slots.note_batch(slot, [Progress(0, 9)])
        slots.release(slot)
    slot = await begin(slots, "bob", LONG, 3)
    slots.forget()
    lacks = slots.lacks(slot, 10)
    slots.note_batch(slot, [Progress(0, 9)])
    slots.release(slot)

    assert lacks
    assert [(slot, "bob", Given(3, 0, 0.0, None))] == slots.idle_conversations()


async def test_a_prompt_of_more_blocks_than_are_remembered() -> None:
    """A slot that holds all that is remembered of a prompt lacks nothing of it."""
    slots, lacks = Slots(1), []
    for more in (b"", b"y"):
        slot = await slots.acquire(LONG * 200 + more)
        lacks.append(slots.lacks(slot, len(LONG) * 200 - 1000))
        slots.release(slot)

    assert [True, False] == lacks
