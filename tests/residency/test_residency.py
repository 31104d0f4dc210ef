"""Tests of unilect.residency.residency: the rules on backends that start at once, and what engines take on the bundled model."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.backends.leases import Held, acquire
from support.common.waiting import until
from support.servers.listening import listening
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.core.errors import BackendUnavailable, ModelTooLarge, QueueTimeout
from unilect.demo import MODEL
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.models.stays import Stays
from unilect.residency.ledger import Ledger
from unilect.residency.residency import Residency
from unilect.scheduling.fair_queue import QueueSettings
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo


def model(name: str, size: int = 10, *, pinned: bool = False, timeout_s: float = 600.0) -> Model:
    """A model that takes so much."""
    queue = QueueSettings(timeout_s=timeout_s)
    member = PooledBackend(Echo(), name, queue=queue)
    return Model(name, [member], stays=Stays(True, pinned, size))


@asynccontextmanager
async def room(
    *models: Model, memory: int | None = 20, turn_s: float = 0.0
) -> AsyncIterator[Registry]:
    """A registry whose models share so much memory."""
    registry = Registry(models, residency=Residency(memory, turn_s, Ledger()))
    try:
        yield registry
    finally:
        await registry.aclose()


async def use(model: Model) -> None:
    """Ask a model, and be done with it."""
    (await acquire(model)).release()


def kinds(model: Model) -> list[str]:
    """What has happened to a model."""
    assert model.place is not None
    return [one.kind for one in model.place.events.last]


def reason(model: Model) -> str:
    """Why the last thing has happened to it."""
    assert model.place is not None
    return model.place.events.last[-1].reason


def waiting(model: Model) -> Callable[[], bool]:
    """Whether a request waits for its place."""
    return lambda: model.place is not None and bool(model.place.waiting)


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


async def test_what_comes_beside(tmp_path: Path) -> None:
    """The second engine of a model, which makes embeddings, counts as soon as it has come."""
    async with listening(Config(port=0, models=tables(tmp_path, "a"))) as server:
        await ask(server, "a")
        a = server.registry.models["a"]
        assert a.place is not None
        before = a.place.need
        async with server.request("", "/v1/embeddings", model="a", input="x") as response:
            assert 200 == response.status
        assert a.place.need > before + 10**7


def tables(folder: Path, *names: str, **options: object) -> dict[str, ModelConfig]:
    """Small models that are loaded on demand, each of a file of its own."""
    found = {}
    for name in names:
        (folder / f"{name}.gguf").write_bytes(MODEL.read_bytes())
        found[name] = ModelConfig(
            source=str(folder / f"{name}.gguf"), load="demand", context=256, parallel=1, cache_ram_mib=0, **options,  # type: ignore[arg-type]
        )  # fmt: skip
    return found


async def ask(server: object, name: str, prompt: str = "Once") -> tuple[int, dict[str, str]]:
    """Ask for a completion; returns the status and the headers."""
    body = {"model": name, "prompt": prompt, "max_tokens": 2}
    async with server.request("", "/v1/completions", **body) as response:  # type: ignore[attr-defined]
        await response.read()
        return response.status, dict(response.headers)


async def test_engines(tmp_path: Path) -> None:
    """Two engines of which one fits are exchanged; an answer that waited says for how long the model was loaded; each is measured."""
    models = tables(tmp_path, "a", "b", memory="60MB")
    async with listening(Config(port=0, memory="110MB", models=models)) as server:
        for name in ("a", "b"):
            status, headers = await ask(server, name)
            assert 200 == status
            assert float(headers["X-Unilect-Loaded-In"]) > 0
        a, b = server.registry.models.values()
        assert [False, True] == [a.runs_here, b.runs_here]
        assert b.place is not None
        await until(lambda: b.place.measured_bytes > 0)  # type: ignore[union-attr]
        assert 10**7 < b.place.measured_bytes < b.place.need
        async with server.client.get(f"{server.url}/metrics") as response:
            told = await response.text()
        assert 'unilect_model_events_total{event="evicted",model="a"} 1' in told
        assert "unilect_memory_budget_bytes 110000000" in told


async def test_an_engine_that_is_killed_while_it_loads(tmp_path: Path) -> None:
    """An engine that is killed while it loads for a request is started again, and the request is answered."""
    async with listening(
        Config(port=0, memory="110MB", models=tables(tmp_path, "a", "b", memory="60MB"))
    ) as server:
        await ask(server, "a")
        b = server.registry.models["b"]
        asking = asyncio.create_task(ask(server, "b"))
        child = b.pool.members[0].backend.children[0]
        await until(lambda: child.starting_pid is not None)  # type: ignore[attr-defined]
        os.kill(child.starting_pid, signal.SIGKILL)  # type: ignore[attr-defined]

        status, _ = await asking
        assert 200 == status


async def test_another_one_answers_meanwhile(tmp_path: Path) -> None:
    """While a model is loaded the one that `while_loading` names answers, if it is loaded itself."""
    models = {
        **tables(tmp_path, "large", while_loading="small"),
        "small": ModelConfig(source="echo:yes"),
    }
    async with listening(Config(port=0, models=models)) as server:
        _, headers = await ask(server, "large")
        assert "small" == headers["X-Unilect-Fallback"]
        large = server.registry.models["large"]
        await until(lambda: large.runs_here)
        _, headers = await ask(server, "large")
        assert "X-Unilect-Fallback" not in headers


async def test_another_one_that_cannot_answer_meanwhile(tmp_path: Path) -> None:
    """What the model of `while_loading` refuses, or fails at, waits for the requested one after all."""
    models = {
        **tables(tmp_path, "large", while_loading="small"),
        "small": ModelConfig(source="echo:yes", options={"context": 16}),
    }
    async with listening(Config(port=0, models=models)) as server:
        status, headers = await ask(server, "large", "a prompt of more tokens than " * 9)
        assert 200 == status
        assert "X-Unilect-Fallback" not in headers
        assert float(headers["X-Unilect-Loaded-In"]) > 0
