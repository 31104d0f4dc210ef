"""Tests of unilect.residency.residency: the rules, on backends that start at once."""

import asyncio
import re

import pytest

from support.backends.leases import Held, acquire
from support.backends.rooms import Clock, hold, kinds, model, reason, room, use, waiting
from support.common.waiting import until
from support.servers.listening import listening
from unilect.api.backend import MemoryNeed
from unilect.config.server import Config
from unilect.core.errors import BackendUnavailable, ModelTooLarge, QueueFull, QueueTimeout
from unilect.models.model import Model
from unilect.models.stays import Stays
from unilect.residency.residency import Residency
from unilect.residency.seat import State
from unilect.runtime.context import CURRENT_REQUEST, Context
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo


async def test_as_many_as_fit() -> None:
    """Models stay as long as there is memory; one that needs more has the cheapest idle one stopped, which says for whom."""
    a, b, c = model("a"), model("b"), model("c")
    async with room(a, b, c):
        for one in (a, b):
            await use(one)
        assert a.place is not None
        a.used_at, a.place.loaded_at = a.used_at - 100, a.used_at - 200
        await use(c)

        assert [False, True, True] == [one.runs_here for one in (a, b, c)]
        assert ["loaded", "evicted"] == kinds(a)
        assert re.fullmatch(
            r"a: evicted \(0 MB, idle 100 s, 0\.0 s to load\) for `c`: needs 0 MB, 0 MB free",
            reason(a),
        )


async def test_running_answers_are_not_cut() -> None:
    """A model that answers is not stopped: who needs its memory waits for the end, and who comes meanwhile waits behind."""
    a, b = model("a"), model("b", 20)
    async with room(a, b):
        lease = await acquire(a)
        other = asyncio.create_task(acquire(b))
        await until(waiting(b))
        behind = asyncio.create_task(acquire(a))
        await until(waiting(a))
        assert not other.done()
        assert a.runs_here
        lease.release()
        held = await other
        assert not behind.done()
        held.release()
        (await behind).release()

        assert ["loaded", "evicted", "loaded"] == [one for one in kinds(a) if one != "waits"]


async def test_a_turn_is_kept() -> None:
    """A model that was just loaded, and is asked for, takes requests while another one waits, until its turn is over."""
    a, b = model("a"), model("b")
    async with room(a, b, memory=10, turn_s=0.3):
        lease = await acquire(a)
        other = asyncio.create_task(acquire(b))
        await until(waiting(b))
        await use(a)
        assert "b: waits for `a` for" in reason(b)
        assert a.open
        await until(lambda: not a.open)
        lease.release()
        (await other).release()


async def test_who_is_always_asked_stays() -> None:
    """A model that has answered for many turns stays while two others take turns: the one waits for the other, also while that loads."""
    steady, b, c = model("steady"), model("b"), model("c")
    async with room(steady, b, c, turn_s=30.0):
        await use(b)  # from now on it is known what a load takes
        b.evict()
        await until(lambda: not b.runs_here)
        lease = await acquire(steady)
        assert steady.place is not None
        steady.place.loaded_at -= 1000
        ready = hold(b, "start")
        loading = asyncio.create_task(acquire(b))
        await until(lambda: b.is_loading)
        other = asyncio.create_task(acquire(c))
        await until(waiting(c))
        assert "c: waits for `b` for 30." in reason(c)
        assert steady.open
        ready.set()
        second = await loading
        assert b.place is not None
        b.place.loaded_at -= 30
        second.release()
        (await other).release()
        lease.release()

        assert [True, False, True] == [one.runs_here for one in (steady, b, c)]


async def test_what_was_told_is_kept() -> None:
    """A model has its place at the end of the turn that it was told to wait for, though others are newer by then, and so cheaper."""
    a, idle, b, c = model("a"), model("idle"), model("b"), model("c")
    async with room(a, idle, b, c, turn_s=30.0):
        first = await acquire(a)
        await use(idle)
        stopped = hold(idle, "aclose")
        newer = asyncio.create_task(acquire(b))
        await until(lambda: idle.stopping is not None)
        other = asyncio.create_task(acquire(c))
        await until(waiting(c))
        assert "c: waits for `a` for" in reason(c)
        stopped.set()
        second = await newer
        assert a.place is not None
        a.place.loaded_at -= 1000
        second.release()
        first.release()
        (await other).release()

        assert [False, True, True] == [one.runs_here for one in (a, b, c)]


async def test_what_was_told_ends_with_its_wait() -> None:
    """A model whose callers have left is told anew whom it waits for when it is asked for again."""
    a, idle, b, c = model("a"), model("idle"), model("b"), model("c")
    async with room(a, idle, b, c, turn_s=30.0):
        leases = [await acquire(a)]
        await use(idle)
        stopped = hold(idle, "aclose")
        newer = asyncio.create_task(acquire(b))
        await until(lambda: idle.stopping is not None)
        gone = asyncio.create_task(acquire(c))
        await until(waiting(c))
        assert "c: waits for `a` for" in reason(c)
        gone.cancel()
        await asyncio.wait([gone])
        stopped.set()
        leases.append(await newer)
        assert a.place is not None
        a.place.loaded_at -= 1000
        again = asyncio.create_task(acquire(c))
        await until(waiting(c))

        assert "c: waits for `b` for" in reason(c)
        assert a.open
        again.cancel()
        await asyncio.wait([again])
        for lease in leases:
            lease.release()


async def test_the_first_to_wait_is_the_first_to_come() -> None:
    """Requests for one model are loaded for together, and models have their turns in the order in which they began to wait."""
    a, b, c = model("a"), model("b"), model("c")
    async with room(a, b, c, memory=10):
        lease = await acquire(a)
        order = list[str]()

        async def ask(one: Model) -> None:
            held = await acquire(one)
            order.append(one.name)
            held.release()

        tasks = list[asyncio.Task[None]]()
        for one in (b, c, b, c, b):
            tasks.append(asyncio.create_task(ask(one)))
            await until(waiting(one))
        lease.release()
        await asyncio.gather(*tasks)

        assert ["b", "b", "b", "c", "c"] == order


async def test_a_key_that_asks_for_many_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that asks for one model waits for one load of another key at a time, which pays for its loads and is told so."""
    monkeypatch.setattr("unilect.scheduling.pooled_backend.time", Clock())
    many, z = [model(name) for name in "abc"], model("z")
    order = list[str]()

    async def ask(key: str, one: Model, times: int) -> None:
        CURRENT_REQUEST.set(Context(caller=key))
        for _ in range(times):
            held = await acquire(one)
            order.append(one.name)
            held.release()
            await until(lambda: not one.runs_here)

    async with room(*many, z, memory=10, turn_s=0.01):
        asking = [asyncio.create_task(ask("x", one, 100)) for one in many]
        await until(waiting(many[2]))
        await asyncio.create_task(ask("y", z, 4))
        for task in asking:
            task.cancel()
        reasons = [one.reason for a in many for one in a.events.last]

    rest = "".join(order[order.index("z") :])
    assert all(len(part) <= 1 for part in rest.split("z")[:-1])
    assert "charged to `x`" in "".join(reasons)
    assert "waits for `z`, whose callers were charged" in "".join(reasons)


async def test_a_load_in_the_background_is_paid_for() -> None:
    """Who is answered by another model while one loads pays for that load."""
    a = model("a")
    async with room(a):
        CURRENT_REQUEST.set(Context(caller="x"))
        a.load_soon()
        await until(lambda: a.runs_here and "loaded" in kinds(a))

        assert reason(a).endswith("s are charged to `x`")


async def test_who_waits_may_leave() -> None:
    """If nobody waits for a model any more, who was to leave for it stays, and takes requests again."""
    a, b = model("a"), model("b")
    async with room(a, b, memory=10) as registry:
        lease = await acquire(a)
        other = asyncio.create_task(acquire(b))
        await until(waiting(b))
        behind = asyncio.create_task(acquire(a))
        await until(waiting(a))
        other.cancel()
        (await behind).release()
        lease.release()

        assert a.runs_here
        assert registry.residency is not None
        assert 10 == registry.residency.claimed


async def test_waiting_has_an_end() -> None:
    """Who waits longer than `queue_timeout_s` is told when to come again."""
    a, b = model("a"), model("b", timeout_s=0.05)
    async with room(a, b, memory=10):
        lease = await acquire(a)
        with pytest.raises(QueueTimeout) as told:
            await acquire(b)
        assert (told.value.retry_after_s or 0) > 0
        lease.release()
        await use(b)


async def test_pinned() -> None:
    """A pinned model never leaves; what cannot fit beside it is refused at once, with sizes."""
    a, b, c = model("a", pinned=True), model("b", 11), model("c")
    async with room(a, b, c):
        await use(a)
        with pytest.raises(
            ModelTooLarge, match=r"`b` does not fit .* needs 0 MB, .* pinned models have 0 MB"
        ):
            await acquire(b)
        await use(c)

        assert a.runs_here
        assert ["refused"] == kinds(b)


async def test_a_load_that_fails() -> None:
    """A model that cannot be loaded keeps no memory from others, and says why."""
    a, b = model("a"), model("b")
    async with room(a, b, memory=10) as registry:

        async def fail() -> None:
            raise BackendUnavailable("Broken.")

        b.pool.members[0].backend.start = fail  # type: ignore[method-assign]
        with pytest.raises(BackendUnavailable):
            await acquire(b)

        assert registry.residency is not None
        assert 0 == registry.residency.claimed
        assert "b: not loaded: Broken." == reason(b)
        await use(a)


async def test_stopped_by_hand() -> None:
    """What an operator stops makes room for who waits."""
    a, b = model("a"), model("b")
    async with room(a, b, memory=10, turn_s=3600.0):
        lease = await acquire(a)
        other = asyncio.create_task(acquire(b))
        await until(waiting(b))
        a.set_keep_alive(0)
        lease.release()
        (await other).release()

        assert "a: stopped: 0 MB are free again" == reason(a)


async def test_start() -> None:
    """With a budget the server starts what fits, pinned models first; what can never fit is told, and without a budget all is started."""
    a, b, c = model("a"), model("b"), model("c", pinned=True)
    async with room(a, b, c) as registry:
        await registry.start(["a", "b", "c"])
        assert [True, False, True] == [one.runs_here for one in (a, b, c)]
        assert ["skipped"] == kinds(b)
    async with room(large := model("d", 21)) as registry:
        with pytest.raises(ModelTooLarge):
            await registry.start(["d"])
    async with room(large := model("d", 10**15), memory=None) as registry:
        await registry.start(["d"])
        assert large.runs_here


async def test_a_model_that_is_replaced_while_it_is_waited_for() -> None:
    """Who waits for a model that a reload replaces is answered by the new one."""
    a, b, new = model("a"), model("b"), model("b")
    async with room(a, b, memory=10) as registry:
        lease = await acquire(a)
        other = asyncio.create_task(acquire(b))
        await until(waiting(b))
        registry.swap([a, new])
        lease.release()
        held: Held = await other
        assert new.runs_here
        held.release()


async def test_a_model_that_is_taken_out_while_it_is_to_be_loaded() -> None:
    """No engine is started for a model that a reload has taken out."""
    a, b = model("a"), model("b")
    async with room(a, b, memory=10) as registry:
        lease = await acquire(a)
        loading = asyncio.create_task(b.start())
        await until(waiting(b))
        registry.swap([a])
        lease.release()
        with pytest.raises(BackendUnavailable, match="was stopped"):
            await loading

        assert not b.has_begun
        assert a.runs_here


async def test_a_model_that_is_taken_out_while_another_one_leaves_for_it() -> None:
    """If a reload takes out a model for which another one was to leave, that stays, and was never evicted."""
    a, b = model("a"), model("b")
    async with room(a, b, memory=10) as registry:
        lease = await acquire(a)
        asking = asyncio.create_task(acquire(b))
        await until(lambda: not a.open)
        registry.swap([a])
        with pytest.raises(BackendUnavailable):
            await asking
        assert a.open
        lease.release()

        assert a.runs_here
        assert ["loaded"] == kinds(a)


async def test_a_model_that_is_taken_out_while_it_stops() -> None:
    """A model that a reload takes out while it is being stopped leaves no trace: also a pinned one gives its memory back."""
    a, b = model("a", pinned=True), model("b")
    async with room(a, b, memory=10) as registry:
        await use(a)
        end = hold(a, "aclose")
        a.drain()
        await until(lambda: a.stopping is not None)
        registry.swap([b])
        end.set()
        await until(lambda: a.gone)

        assert registry.residency is not None
        assert [b] == list(registry.residency.seats)
        await use(b)


async def test_a_model_that_cannot_fit_any_more() -> None:
    """Who waits for a model that a reload leaves no room for is told at once, and keeps nobody from their places."""
    a, b, c = model("a"), model("b", 15), model("c")
    async with room(a, b, c):
        lease = await acquire(a)
        asking, behind = asyncio.create_task(acquire(b)), asyncio.create_task(acquire(c))
        await until(waiting(c))
        a.update_settings(model("a", pinned=True))
        lease.release()
        with pytest.raises(ModelTooLarge):
            await asking
        (await behind).release()

        assert a.runs_here


async def test_a_model_that_is_drained_while_it_is_waited_for() -> None:
    """A model that an operator drains while requests wait for its place answers these, and is stopped."""
    a, b = model("a"), model("b")
    async with room(a, b, memory=10):
        lease = await acquire(a)
        asking = asyncio.create_task(acquire(b))
        await until(waiting(b))
        b.drain()
        lease.release()
        (await asking).release()
        await until(lambda: not b.runs_here and b.stopping is None)

        assert "stopped" == kinds(b)[-1]


async def test_no_queue() -> None:
    """A model for which no request may wait in a queue is loaded for as many as it answers at a time."""
    a, b = model("a"), model("b", max_queue=0)
    async with room(a, b, memory=10):
        lease = await acquire(a)
        asking = asyncio.create_task(acquire(b))
        await until(waiting(b))
        with pytest.raises(QueueFull):
            await acquire(b)
        lease.release()
        (await asking).release()


async def test_a_size_that_its_operator_says() -> None:
    """What an operator says of a model's size counts more than what is measured."""
    a = model("a")
    a.measure_memory = lambda: 30  # type: ignore[method-assign]
    async with room(a, model("b", 20)) as registry:
        await use(a)
        await until(lambda: a.place is not None and a.place.measured_bytes == 30)
        await use(registry.models["b"])
        assert not a.runs_here
        await use(a)


async def test_one_source_fails_while_another_one_loads() -> None:
    """A model keeps its place as long as something of it loads, though another source of it has failed."""
    failing, loading = PooledBackend(Echo(), "1"), PooledBackend(Echo(), "2")
    a, b = Model("a", [failing, loading], stays=Stays(True, False, 10)), model("b")
    async with room(a, b, memory=10) as registry:

        async def fail() -> None:
            raise BackendUnavailable("Broken.")

        failing.backend.start = fail  # type: ignore[method-assign]
        ready = hold(a, "start", 1)
        first = asyncio.create_task(acquire(a))
        await until(lambda: loading.loads)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await acquire(b)
        assert registry.residency is not None
        assert 10 == registry.residency.claimed
        ready.set()
        (await first).release()
        await use(b)

        assert not a.runs_here


async def test_a_load_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load lasts until its end, however late that is seen, and a download before it is none of it."""
    a, b, now = model("a"), model("b"), Clock()
    monkeypatch.setattr("unilect.scheduling.pooled_backend.time", now)
    backend, member = a.pool.members[0].backend, a.pool.members[0]

    async def fetch() -> None:
        now.seconds += 600

    backend.fetch = fetch  # type: ignore[method-assign]
    async with room(a, b):
        ready = hold(a, "start")
        asking = asyncio.create_task(acquire(a))
        await until(lambda: member.loads)
        asking.cancel()
        now.seconds += 2
        ready.set()
        await until(lambda: member.started)
        now.seconds += 60
        await use(b)
        await use(a)

        assert a.place is not None
        assert (2.0, 602.0) == (a.place.load_s, a.place.loaded_at)


def downloaded(name: str, size: int) -> Model:
    """A model whose need is known once its file is here."""
    one = model(name)
    one.update_settings(Model(name, Echo(), stays=Stays(True)))
    backend = one.pool.members[0].backend

    async def fetch() -> None:
        backend.memory_need = lambda: MemoryNeed(ready=size)  # type: ignore[method-assign]

    backend.fetch = fetch  # type: ignore[method-assign]
    return one


async def test_a_download() -> None:
    """A model whose file is fetched first waits for its memory once its size is known, and others leave for it."""
    a, b = model("a"), downloaded("b", 15)
    async with room(a, b):
        lease = await acquire(a)
        asking = asyncio.create_task(acquire(b))
        await until(waiting(b))
        assert b.state == "stopped"
        lease.release()
        (await asking).release()

        assert [False, True] == [one.runs_here for one in (a, b)]
        assert ["loaded", "evicted"] == kinds(a)


async def test_a_download_of_a_model_that_is_replaced() -> None:
    """Who waits for a model that a reload replaces while its file comes, and that does not fit then, is answered by the new one."""
    a, b, new = model("a"), downloaded("b", 15), model("b")
    async with room(a, b) as registry:
        lease = await acquire(a)
        came = hold(b, "fetch")
        asking = asyncio.create_task(acquire(b))
        await until(lambda: b.state == "loading")
        registry.swap([a, new])
        came.set()
        (await asking).release()

        assert [True, False, True] == [one.runs_here for one in (a, b, new)]
        lease.release()


async def test_a_download_that_was_for_nothing() -> None:
    """A model that cannot fit, as is known once its file is here, is refused, and its engine is not started."""
    b = downloaded("b", 30)
    async with room(b):
        with pytest.raises(ModelTooLarge):
            await acquire(b)
        with pytest.raises(ModelTooLarge):
            await b.start()
        assert not b.pool.members[0].started


async def test_a_download_that_fails() -> None:
    """All who wait for a model whose file cannot be fetched are told by one attempt, and it keeps no place."""
    a, tries = model("a"), list[str]()

    async def fetch() -> None:
        tries.append("")
        await asyncio.sleep(0)
        raise BackendUnavailable("The hub is away.")

    a.pool.members[0].backend.fetch = fetch  # type: ignore[method-assign]
    async with room(a) as registry:
        told = await asyncio.gather(acquire(a), acquire(a), return_exceptions=True)

        assert ["The hub is away."] * 2 == [str(one) for one in told]
        assert 1 == len(tries)
        assert "a: not loaded: The hub is away." == reason(a)
        assert registry.residency is not None
        assert 0 == registry.residency.claimed


async def test_a_download_at_start() -> None:
    """Without a budget of the operator's a model is loaded at the server's start, however large its file proves to be."""
    a, b = model("a"), downloaded("b", 10**15)
    async with room(a, b, memory=None) as registry:
        await registry.start(["a", "b"])
        assert [True, True] == [one.runs_here for one in (a, b)]


async def test_bytes_are_promised_once() -> None:
    """A model that leaves for one which needs it no more leaves for the next, to which its bytes are promised."""
    large, pinned, small, next_one = model("v", 50), model("g", 40), model("f", 20), model("s", 40)
    pinned.update_settings(model("g", 40, pinned=True))
    async with room(large, pinned, small, next_one, memory=100) as registry:
        await use(pinned)
        lease = await acquire(large)
        first = asyncio.create_task(acquire(small))
        await until(lambda: not large.open)
        second = asyncio.create_task(acquire(next_one))
        await until(waiting(next_one))
        pinned.set_keep_alive(0)
        (await first).release()

        assert registry.residency is not None
        assert 70 == registry.residency.claimed
        assert not second.done()
        lease.release()
        (await second).release()
        assert "for `s`" in reason(large)


async def test_what_a_stream_hears_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that waits for a model's place gets comments that say what it waits for, and for how long about."""
    monkeypatch.setattr("unilect.web.streaming.KEEP_ALIVE_S", 0.01)
    a, b = model("a"), model("b")
    async with room(a, b, memory=10) as registry, listening(Config(port=0), registry) as server:
        lease = await acquire(a)
        body = {"model": "b", "prompt": "hello", "stream": True}
        async with server.request("", "/v1/completions", **body) as response:
            heard = await response.content.readline()
            lease.release()
            rest = await response.read()

    assert heard == b": waiting for memory to load b, about 1 s left\n"
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_stage_of_a_load() -> None:
    """The rest of a load is told as long as one is expected, and after that for how long it has lasted."""
    seat = Residency(10).take(model("a"))
    assert seat is not None
    seat.enter(State.GIVEN)
    seat.expected_s = 3.5
    assert "loading a, about 4 s left" == seat.stage
    seat.expected_s = 0.0
    assert "loading a, for 0 s so far" == seat.stage
