"""Tests of unilect.scheduling.pool and unilect.routing._attempts: several scripted servers behind one model."""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec import structs

from support.backends.engine import chat
from support.backends.scripted import (
    HELLO,
    Exchange,
    Script,
    Scripted,
    answer,
    delta,
    frames,
    says,
    scripted,
    stream_of,
)
from support.servers.appserver import serving, upstream
from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Run, Service
from unilect.api.backend import Backend, Batches, Capabilities
from unilect.core.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BackendUnreachable,
    InvalidRequest,
    QueueTimeout,
    RateLimited,
    UnilectError,
)
from unilect.core.events import Finish, TextDelta, Usage, fold
from unilect.core.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from unilect.dialects.openai import chat as openai_chat
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.context import CURRENT_REQUEST, Context
from unilect.runtime.redact import Secrets
from unilect.scheduling import pool
from unilect.scheduling.fair_queue import QueueSettings
from unilect.scheduling.pool import Pool, RoutedRequest
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import CAPABILITIES, Echo

GOOD = says(stream_of(HELLO))
BROKEN = says(stream_of(b""))
BUSY = says(answer(b"{}", "429 Too Many Requests", retry_after="20"))
WRONG = says(answer(b'{"error":{"message":"no"}}', "400 Bad Request"))


class Farm:
    """Scripted servers behind the model `m`."""

    def __init__(self, servers: list[Scripted], service: Service) -> None:
        self.servers = servers
        self.service = service

    @property
    def members(self) -> tuple[PooledBackend, ...]:
        """The model's backends."""
        return self.service.registry.get("m").pool.members

    @property
    def asked(self) -> list[int]:
        """How many requests for answers each server got."""
        return [sum(b"/chat/" in one.head for one in server.requests) for server in self.servers]

    def run(self, text: str = "Hi", **fields: Any) -> Run:
        """A request on its way."""
        return self.service.run(chat(text, model="m", **fields))

    async def says(self, text: str = "Hi", **fields: Any) -> str | None:
        """The answer's text."""
        async with aclosing(self.run(text, **fields).batches()) as batches:
            return fold([batch async for batch in batches]).choices[0].text


@asynccontextmanager
async def farm(*scripts: Script, fallback: Script | None = None) -> AsyncIterator[Farm]:
    """A model with a backend for each script, and one that it falls back on."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted(script)) for script in scripts]
        model = Model(
            "m",
            [PooledBackend(upstream(server.url), server.url) for server in servers],
            fallback="f" if fallback else None,
            runs_locally=False,
        )
        models = [model]
        if fallback is not None:
            other = await stack.enter_async_context(scripted(fallback))
            models.append(Model("f", upstream(other.url)))
        registry = Registry(models)
        stack.push_async_callback(registry.aclose)
        yield Farm(servers, Service(registry, Accounts(Metrics())))


# Which backend


async def test_new_conversations_are_spread_evenly() -> None:
    """Conversations that nobody knows go in turn to the backends that have served least."""
    async with farm(GOOD, GOOD, GOOD) as site:
        for number in range(30):
            assert "Hello" == await site.says(f"conversation {number}")

        assert [10, 10, 10] == site.asked


async def test_a_conversation_stays() -> None:
    """Every turn of a conversation goes to the backend of its first."""
    async with farm(GOOD, GOOD, GOOD) as site:
        talks = [[{"role": "user", "content": f"talk {n}"}] for n in range(6)]
        for _turn in range(4):
            for talk in talks:
                text = await site.says(messages=talk)
                talk += [
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": "more"},
                ]
        places = [
            Counter(exchange.json()["messages"][0]["content"] for exchange in server.requests)
            for server in site.servers
        ]

    assert [8, 8, 8] == site.asked
    assert all({4} == set(place.values()) for place in places), places


async def test_a_loaded_backend_is_left() -> None:
    """A conversation leaves its backend when that one has clearly more to do than another."""
    go_on = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async with farm(slow, slow) as site:
        same = [asyncio.create_task(site.says("the same")) for _ in range(12)]
        while sum(site.asked) < 12:
            await asyncio.sleep(0)
        asked = site.asked
        go_on.set()
        await asyncio.gather(*same)

    assert min(asked) >= 3, asked


# What fails


@pytest.mark.parametrize("bad", [BROKEN, BUSY, says(answer(b"no", "500 Oops"))])
async def test_what_has_not_begun_is_begun_elsewhere(bad: Script) -> None:
    """A backend that breaks off, is busy or fails before its first word is followed by another, unseen by the client."""
    async with farm(bad, GOOD) as site:
        for number in range(6):
            assert "Hello" == await site.says(f"{number}")


async def poisoned(exchange: Exchange) -> None:
    """A worker that fails on one kind of content, and is well otherwise."""
    if exchange.head.startswith(b"GET"):
        await exchange.send(answer(b'{"data":[]}'))
    elif b"poison" in exchange.body:
        await exchange.send(answer(b'{"error":{"message":"CUDA error"}}', "500 Oops"))
    else:
        await exchange.send(stream_of(HELLO))
    exchange.close()


@pytest.mark.parametrize("same", [True, False], ids=["one request", "many requests"])
@pytest.mark.parametrize("count", [2, 3])
async def test_one_callers_requests_close_no_backend_for_others(count: int, same: bool) -> None:
    """Requests that make every backend fail are refused, and all others beside them are answered."""
    async with farm(*[poisoned] * count) as site:
        for burst in range(20):
            bad = [site.says(f"poison {0 if same else (burst, n)}") for n in range(12)]
            good = [site.says(f"good {burst} {n}") for n in range(6)]
            found = await asyncio.gather(*bad, *good, return_exceptions=True)

            assert ["Hello"] * 6 == found[12:]
            assert {BackendUnavailable} == {type(error) for error in found[:12]}
        assert not any(member.breaker.open for member in site.members)


async def test_one_callers_requests_over_http() -> None:
    """Over HTTP, too: bursts that make both backends fail are refused, and every request of other callers is answered."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted(poisoned)) for _ in range(2)]
        members = [PooledBackend(upstream(server.url), server.url) for server in servers]
        app = await stack.enter_async_context(serving(members))

        async def status(text: str) -> int:
            messages = [{"role": "user", "content": text}]
            async with app.chat(messages=messages, stream=False) as response:
                await response.read()
            return response.status

        bad, good = [], []
        for burst in range(20):
            running = [asyncio.create_task(status(f"poison {burst} {n}")) for n in range(12)]
            good += [await status(f"{burst} {n}") for n in range(20)]
            bad += await asyncio.gather(*running)

    assert {200} == {*good}
    assert {503} == {*bad}


async def test_one_callers_failures_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing tells whose fault it is, one caller's failures close a backend for nobody, and those of five callers do."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 60.0)
    async with farm(poisoned, fallback=GOOD) as site:
        (member,) = site.members
        for number in range(50):
            CURRENT_REQUEST.set(Context(request_id="req", caller="key-a" if number else "key-b"))
            assert "Hello" == await site.says(f"poison {number}")
        assert not member.breaker.open
        for number in range(5):
            CURRENT_REQUEST.set(Context(request_id="req", caller=f"key-{number}"))
            await site.says(f"poison {number}")
        assert member.breaker.open


async def test_a_backend_that_fails_where_another_answers_is_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backend on which requests fail that another one answers gets no more of them, though they are all one caller's."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 60.0)
    CURRENT_REQUEST.set(Context(request_id="req", caller="key-a"))
    async with farm(says(answer(b"no", "500 Oops")), GOOD) as site:
        for number in range(30):
            assert "Hello" == await site.says(f"{number}")

        assert (5, True) == (site.asked[0], site.members[0].breaker.open)


async def test_backends_that_all_fail_are_asked_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """When every backend has failed too often, they are asked nevertheless, as nobody else answers."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 60.0)
    well = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(HELLO if well.is_set() else HALF_FRAMES))
        exchange.close()

    async with farm(script, script) as site:
        for number in range(20):
            with pytest.raises(UnilectError):
                await site.says(f"{number}", stream=True)
        assert all(member.breaker.open for member in site.members)
        well.set()
        assert "Hello" == await site.says("now")


async def test_connections_that_end_before_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that closes connections before it answers is out where another one answers, and a request that has all close them is not."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 60.0)
    async with farm(says(b"", "reset"), GOOD) as site:
        for number in range(30):
            assert "Hello" == await site.says(f"{number}")
        assert (5, True) == (site.asked[0], site.members[0].breaker.open)
    async with farm(says(b"", "reset"), says(b"", "reset")) as site:
        for _ in range(5):
            with pytest.raises(BackendUnavailable):
                await site.says("the same")
        assert not any(member.breaker.open for member in site.members)


async def test_failures_of_one_caller_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is one caller, or nobody has a key, failures of one prompt count once, and those of five prompts close a backend."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 60.0)
    CURRENT_REQUEST.set(Context(request_id="req", caller="anonymous"))
    async with farm(poisoned, fallback=GOOD) as site:
        (member,) = site.members
        for _ in range(50):
            assert "Hello" == await site.says("poison")
        assert not member.breaker.open
        for number in range(4):
            await site.says(f"poison {number}")
        assert member.breaker.open


async def test_why_a_backend_is_out_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says once why a backend cannot be reached or fails, with the request's id and without credentials."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 60.0)
    CURRENT_REQUEST.set(Context(request_id="req_7"))
    key = "sk-very-secret-key"
    told = msgspec.json.encode({"error": {"message": f"out of memory for {key}\n\x1b[31m"}})
    async with farm(says(answer(told, "500 Oops")), GOOD) as site:
        first, second = site.members
        first.secrets = Secrets([key])
        await site.servers[1].stop()
        for number in range(4):
            with pytest.raises(BackendUnavailable) as raised:
                await site.says(f"{number}")

    lines = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    url, gone = first.source, second.source.removesuffix("/v1").removeprefix("http://")
    assert sorted(
        [
            f"m: {url} fails: POST {url}/chat/completions was answered with status 500 (it names: out of memory; its words may repeat the request, and are left out). (req_7)",
            f"m: {second.source} is out: The model's server cannot be reached: connection refused by {gone}. (req_7)",
        ]
    ) == sorted(lines)
    assert key not in raised.value.message + str(raised.value.reason)


HALF_FRAMES = frames(delta(content="Hel"))
HALF = says(stream_of(frames(delta(content="Hel"))))


async def test_what_has_begun_is_not_repeated() -> None:
    """A stream that breaks after its first word is an error: no other backend goes on in its place."""
    async with farm(HALF, HALF) as site:
        with pytest.raises(BackendError):
            await site.says(stream=True)

        assert 1 == sum(site.asked)


async def test_a_whole_answer_is_made_anew() -> None:
    """A whole answer of which a backend broke off the middle is made by another, and holds nothing of the first."""
    async with farm(HALF, GOOD) as site:
        for number in range(4):
            assert "Hello" == await site.says(f"{number}")


async def test_a_bad_request_is_not_tried_elsewhere() -> None:
    """What a backend says of the request itself is the answer."""
    async with farm(WRONG, WRONG, WRONG) as site:
        with pytest.raises(InvalidRequest):
            await site.says()

        assert 1 == sum(site.asked)


async def test_a_busy_backend_rests() -> None:
    """A backend that is over its limit is left alone for as long as it said."""
    async with farm(BUSY, GOOD) as site:
        for number in range(10):
            await site.says(f"{number}")

        assert 1 == site.asked[0]


async def test_none_is_left() -> None:
    """When every backend has failed, the answer is 503 and says when to come again."""
    async with farm(BUSY, BROKEN) as site:
        for _ in range(2):
            with pytest.raises(
                BackendUnavailable, match=r"No backend of the model `m` \(it has 2\)"
            ) as raised:
                await site.says()
            assert raised.value.retry_after_s

    async with farm(BUSY) as site:
        with pytest.raises(RateLimited) as limited:
            await site.says()
        assert 20 == limited.value.retry_after_s


async def test_one_that_is_down_joins_when_it_comes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that nobody listens for gets no requests; once it listens it is found, without any request being spent on it."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 0.001)
    async with farm(GOOD, GOOD) as site:
        late, listed = site.servers[1], answer(b'{"data":[]}')
        member = site.members[1]

        async def script(exchange: Exchange) -> None:
            await exchange.send(listed if exchange.head.startswith(b"GET") else stream_of(HELLO))
            exchange.close()

        port = late.port
        await late.stop()
        for number in range(6):
            assert "Hello" == await site.says(f"{number}")
        assert member.breaker.open
        async with scripted(script, port=port) as again:
            async with asyncio.timeout(60):
                while member.breaker.open:
                    await asyncio.sleep(0)
            looked = len(again.requests)
            assert (0, looked) == (
                member.outstanding,
                sum(b"GET" in one.head for one in again.requests),
            )
            for number in range(6):
                await site.says(f"later {number}")
            assert len(again.requests) > looked


class Loading(Backend):
    """A backend that cannot be reached at first, and then takes as long to start as a test wants."""

    def __init__(self) -> None:
        self.begun, self.loaded = asyncio.Event(), asyncio.Event()
        self.starts = 0

    async def start(self) -> None:
        """Fail, and later wait."""
        self.starts += 1
        if self.starts == 1:
            raise BackendUnreachable("no")
        self.begun.set()
        await self.loaded.wait()

    async def check(self) -> None:
        """Nothing is wrong."""

    async def aclose(self) -> None:
        """Nothing to stop."""


async def looked_at(backend: Any) -> tuple[pool.Pool, PooledBackend]:
    """A pool that looks at a backend, which could not be started, and that member of it."""
    member = PooledBackend(backend)
    looked_after = pool.Pool("m", [member, PooledBackend(backend)])
    with pytest.raises(BackendUnreachable) as raised:
        await member.backend.start()
    looked_after.record_result(member, raised.value)
    return looked_after, member


async def test_a_look_waits_for_a_model_that_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look does not give up the start of a backend, which may load a model for minutes."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 0.001)
    monkeypatch.setattr(pool, "LOOK_TIMEOUT_S", 0.001)
    backend: Any = Loading()
    looked_after, member = await looked_at(backend)
    async with asyncio.timeout(60):
        await backend.begun.wait()
        asyncio.get_running_loop().call_later(0.01, backend.loaded.set)
        while member.breaker.open:
            await asyncio.sleep(0)
    await looked_after.aclose()

    assert 2 == backend.starts


async def test_a_flaw_in_a_look_is_not_the_last_look(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A backend whose check fails as none may is looked at again, and joins once it is well; the log has the flaw."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 0.001)

    class Flawed(Loading):
        async def check(self) -> None:
            if self.starts == 2:
                raise RuntimeError("flaw")

    backend: Any = Flawed()
    backend.loaded.set()
    looked_after, member = await looked_at(backend)
    async with asyncio.timeout(60):
        await looked_after._looks[member]
    await looked_after.aclose()

    assert (3, False) == (backend.starts, member.breaker.open)
    assert ["flaw"] == [str(one.exc_info[1]) for one in caplog.records if one.exc_info]


async def test_who_comes_back_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A backend that answers a request while it is looked at is told to be back once."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 0.001)
    backend: Any = Loading()
    looked_after, member = await looked_at(backend)
    async with asyncio.timeout(60):
        await backend.begun.wait()
        looked_after.record_result(member, None)
        backend.loaded.set()
        await looked_after._looks[member]
    await looked_after.aclose()

    assert 1 == sum(record.getMessage().endswith("is back") for record in caplog.records)


async def test_start_with_some_down() -> None:
    """A model starts while one of its backends is down, and fails to start when all are."""
    gone = upstream("http://127.0.0.1:9/v1")
    gone._model = None
    async with scripted(says(answer(b'{"data":[{"id":"m"}]}'))) as server:
        well = upstream(server.url)
        model = Model(
            "m", [PooledBackend(gone, "gone"), PooledBackend(well, "well")], runs_locally=False
        )
        await model.start()
        assert [True, False] == [member.breaker.open for member in model.pool.members]
        await model.aclose()
    model = Model("m", [PooledBackend(gone, "a"), PooledBackend(gone, "b")], runs_locally=False)
    with pytest.raises(UnilectError):
        await model.start()
    await model.aclose()


# The fallback


async def test_the_fallback_answers() -> None:
    """When a model's backends are all out, its fallback answers, and the run says so."""
    async with farm(BROKEN, BUSY, fallback=GOOD) as site:
        run = site.run()
        async with aclosing(run.batches()) as batches:
            text = fold([batch async for batch in batches]).choices[0].text

    assert ("Hello", "m", "f") == (text, run.model.name, run.answering.name)


async def test_no_fallback_for_a_bad_request() -> None:
    """A request that is wrong is wrong for the fallback too."""
    async with farm(WRONG, fallback=GOOD) as site:
        with pytest.raises(InvalidRequest):
            await site.says()


async def test_a_fallback_that_fails_too() -> None:
    """When the fallback fails as well, its error is the answer."""
    async with farm(BROKEN, fallback=BUSY) as site:
        with pytest.raises(RateLimited):
            await site.says()


async def test_stopping_when_idle_forgets_who_was_out() -> None:
    """A backend that was out when its model was stopped for being idle is asked again afterwards."""
    async with farm(GOOD, GOOD) as site:
        late, model = site.servers[1], site.service.registry.get("m")
        await late.stop()
        for number in range(4):
            await site.says(f"{number}")
        assert site.members[1].breaker.open
        model._stop_idle()
        assert model.stopping is not None
        await model.stopping
        async with scripted(GOOD, port=late.port) as again:
            for number in range(4):
                assert "Hello" == await site.says(f"again {number}")
            assert again.requests


async def test_nothing_is_begun_in_a_model_that_is_closed() -> None:
    """A request whose backend is stopped by the end of the server is an error: no other backend is started for it."""
    begun = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        begun.set()
        await exchange.client_gone()

    async with farm(slow, slow, slow) as site:
        answer = asyncio.create_task(site.says())
        await begun.wait()
        await site.service.registry.aclose()
        with pytest.raises(BackendUnavailable):
            await answer
        model = site.service.registry.get("m")

        assert (1, {}, 0) == (sum(site.asked), model.pool._looks, model._in_use)


async def test_inputs_are_embedded_elsewhere_too() -> None:
    """A backend that fails to embed is followed by the next one; a fallback, whose vectors are others, is not."""
    vector = says(answer(b'{"data":[{"embedding":[1.0]}]}'))
    down, request = says(answer(b"no", "500 Oops")), EmbeddingRequest(input="a", model="m")
    async with farm(down, vector, fallback=vector) as site:
        for _ in range(4):
            model, found, _ = await site.service.embed(request)
            assert ("m", [[1.0]]) == (model.name, found.vectors)
    async with farm(down, fallback=vector) as site:
        with pytest.raises(BackendError):
            await site.service.embed(request)


# A single backend


async def test_a_single_backend_is_always_asked(caplog: pytest.LogCaptureFixture) -> None:
    """A single backend that is out is asked by every request, and by nobody else; the log says once that it is out, and back."""
    async with farm(GOOD) as site:
        (server,), (member,) = site.servers, site.members
        await server.stop()
        for _ in range(7):
            with pytest.raises(BackendUnreachable):
                await site.says()
        looks = site.service.registry.get("m").pool._looks
        async with scripted(GOOD, port=server.port) as again:
            assert "Hello" == await site.says()
            assert ([b"POST"], {}) == ([one.head[:4] for one in again.requests], looks)

    assert [f"m: {member.source} is out", f"m: {member.source} is back"] == [
        record.getMessage().partition(": The")[0] for record in caplog.records
    ]


async def test_a_single_backend_with_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a single backend is out, requests go to the fallback without asking it, until it has been seen to be well."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 0.001)
    async with farm(GOOD, fallback=GOOD) as site:
        (server,), (member,) = site.servers, site.members
        await server.stop()
        for _ in range(4):
            run = site.run()
            async with aclosing(run.batches()) as batches:
                assert [batch async for batch in batches]
            assert "f" == run.answering.name
        assert 1 == member.served
        async with scripted(GOOD, port=server.port):
            async with asyncio.timeout(60):
                while member.breaker.open:
                    await asyncio.sleep(0)
            run = site.run()
            async with aclosing(run.batches()) as batches:
                assert [batch async for batch in batches]
            assert ("m", 2) == (run.answering.name, member.served)


# A model that goes


async def test_a_model_that_goes_is_looked_after_no_more() -> None:
    """Once a model is let go, its backends that are out are asked nothing more."""
    async with farm(GOOD, GOOD) as site:
        await site.servers[1].stop()
        for number in range(4):
            await site.says(f"{number}")
        model = site.service.registry.get("m")
        (look,) = model.pool._looks.values()
        site.service.registry.forget("m")
        assert model.stopping is not None
        await model.stopping

    assert look.cancelled()


async def test_what_a_model_that_goes_still_answers_ends_with_the_server() -> None:
    """A model that was let go while it answers is stopped with the others at the server's end."""
    begun = asyncio.Event()

    async def slow(exchange: Exchange) -> None:
        begun.set()
        await exchange.client_gone()

    async with farm(slow) as site:
        answer = asyncio.create_task(site.says())
        await begun.wait()
        site.service.registry.forget("m")
        await site.service.registry.aclose()
        with pytest.raises(UnilectError):
            async with asyncio.timeout(60):
                await answer


async def test_a_model_that_goes_between_two_attempts() -> None:
    """A request that fails in a model that was let go meanwhile is sent to its other backend, and the model is stopped after it."""

    async def broken(exchange: Exchange) -> None:
        site.service.registry.forget("m")
        await exchange.send(stream_of(b""))
        exchange.close()

    async with farm(broken, GOOD) as site:
        model = site.service.registry.get("m")
        assert "Hello" == await site.says()
        assert ([1, 1], 0) == (site.asked, model._in_use)
        assert model.stopping is not None
        await model.stopping

    assert model.gone


async def test_what_is_kept_of_a_failure() -> None:
    """A request that failed everywhere is remembered by digest, and by errors that hold nothing of it."""
    async with farm(BROKEN, BROKEN) as site:
        with pytest.raises(BackendUnavailable):
            await site.says("Hi")
        (failed,) = site.service.registry.get("m").pool._suspects.values()

    assert {BackendError} == {type(error) for error in failed.values()}
    held = [(e.__traceback__, e.__cause__, e.__context__) for e in failed.values()]
    assert [(None, None, None)] * 2 == held


# Backends that come and go


class Held(Echo):
    """An echo whose answers wait until a test lets them end."""

    def __init__(self, text: str, capabilities: Capabilities | None = None) -> None:
        super().__init__()
        self.text = text
        self.go_on, self.begun = asyncio.Event(), asyncio.Event()
        self.closed = 0
        if capabilities is not None:
            self.capabilities = capabilities  # type: ignore[misc]

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Say the text, once the test lets it."""
        self.begun.set()
        self.answers += 1
        await self.go_on.wait()
        yield [TextDelta(self.text), Finish("stop"), Usage(1, 1)]

    async def aclose(self) -> None:
        """Count."""
        self.closed += 1
        await super().aclose()


@asynccontextmanager
async def echoes(*backends: Held, **settings: Any) -> AsyncIterator[Farm]:
    """A model of echoes that end their answers at once, but for those that a test holds."""
    for backend in backends:
        backend.go_on.set()
    registry = Registry([Model("m", [PooledBackend(backend) for backend in backends], **settings)])
    yield Farm([], Service(registry, Accounts(Metrics())))
    await registry.aclose()


@pytest.mark.parametrize("written", [True, False])
async def test_what_a_failure_of_a_large_request_costs(written: bool) -> None:
    """A failure costs about one pass over its request, whatever is asked of it: who waits on the event loop hardly notices."""
    text = "\N{GRINNING FACE}" * 4_000_000
    body = msgspec.json.encode({"messages": [{"role": "user", "content": text}]})
    request = openai_chat.decode(body).request
    request = request if written else structs.replace(request, raw_fields={})
    members = [PooledBackend(Echo()), PooledBackend(Echo())]
    known = Pool("m", members)

    def fails() -> None:
        known._suspects.clear()
        known.record_result(members[0], BackendError("x"), RoutedRequest(request, {*members}))
        members[0].breaker.close()

    one_pass = min(_cpu_s(lambda: hashlib.sha256(body)) for _ in range(3))
    assert min(_cpu_s(fails) for _ in range(3)) < 3 * one_pass


def _cpu_s(work: Callable[[], object]) -> float:
    begin_s = time.thread_time()
    work()
    return time.thread_time() - begin_s


async def test_a_backend_that_comes() -> None:
    """A backend that is added gets requests from then on, started by the first of them."""
    old, new = Held("old"), Held("new")
    new.go_on.set()
    async with echoes(old) as site:
        model = site.service.registry.get("m")
        assert {"old"} == {await site.says(f"{number}") for number in range(4)}
        model.pool.add(PooledBackend(new))
        assert 0 == new.starts
        assert {"old", "new"} == {await site.says(f"later {number}") for number in range(4)}

    assert (1, 1) == (new.starts, new.closed)


async def test_a_backend_that_goes() -> None:
    """A backend that is removed ends the answer that runs in it, gets no other request, and is closed after it, once."""
    stays, goes = Held("stays"), Held("goes")
    async with echoes(stays, goes) as site:
        pool_, leaving = site.service.registry.get("m").pool, site.members[1]
        goes.go_on.clear()
        stays.go_on.clear()
        running = [asyncio.create_task(site.says(f"{number}")) for number in range(2)]
        await asyncio.gather(stays.begun.wait(), goes.begun.wait())
        stays.go_on.set()
        pool_.remove(leaving)
        assert {"stays"} == {await site.says(f"later {number}") for number in range(4)}
        assert (0, None) == (goes.closed, leaving.closing)
        goes.go_on.set()
        assert {"stays", "goes"} == {*await asyncio.gather(*running)}
        assert leaving.closing is not None
        await leaving.closing
        assert (1, 1) == (goes.closed, goes.answers)

    assert 1 == stays.closed


async def test_a_backend_that_goes_is_closed_with_the_server() -> None:
    """A backend that was removed while it answers is stopped with the others at the server's end."""
    goes = Held("goes")
    async with echoes(Held("stays"), goes) as site:
        goes.go_on.clear()
        running = [asyncio.create_task(site.says(f"{number}")) for number in range(2)]
        await goes.begun.wait()
        site.service.registry.get("m").pool.remove(site.members[1])
        await site.service.registry.aclose()
        assert 1 == goes.closed
        goes.go_on.set()
        await asyncio.gather(*running)


async def test_a_model_without_backends() -> None:
    """A model whose last backend is removed can do nothing, and says so, until another one comes."""
    async with echoes(Held("first")) as site:
        model = site.service.registry.get("m")
        (first,) = site.members
        model.pool.remove(first)
        assert not model.capabilities.chat
        with pytest.raises(BackendUnavailable, match=r"No backend of the model `m` \(it has 0\)"):
            await site.says()
        second = Held("second")
        second.go_on.set()
        model.pool.add(PooledBackend(second))
        assert "second" == await site.says()


async def test_one_that_is_out_is_looked_after_once_there_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A single backend that is out, and that nobody looked after, is found to be well again once there is another one."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 0.001)
    async with echoes(Held("first")) as site:
        (member,) = site.members
        await site.says()
        pool_ = site.service.registry.get("m").pool
        pool_.record_result(member, BackendUnreachable("no"))
        assert (True, {}) == (member.breaker.open, pool_._looks)
        pool_.add(PooledBackend(Held("second")))
        async with asyncio.timeout(60):
            await pool_._looks[member]

    assert not member.breaker.open


async def test_one_that_is_out_is_looked_after_once_there_is_a_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A single backend that is out is found to be well again once its model was given a fallback, which gets all requests until then."""
    monkeypatch.setattr(pool, "FIRST_LOOK_S", 0.001)
    async with echoes(Held("first")) as site:
        (member,), model = site.members, site.service.registry.get("m")
        model.pool.record_result(member, BackendUnreachable("no"))
        assert (True, {}) == (member.breaker.open, model.pool._looks)
        model.update_settings(Model("m", Held("the same"), fallback="f"))
        async with asyncio.timeout(60):
            await model.pool._looks[member]

    assert not member.breaker.open


async def test_a_backend_that_goes_while_the_others_start() -> None:
    """A model that starts is started, though one of its backends goes meanwhile."""
    stays, goes = Held("stays"), Held("goes")
    async with echoes(stays, goes) as site:
        model = site.service.registry.get("m")
        starting = asyncio.create_task(model.start())
        await asyncio.sleep(0)
        model.pool.remove(site.members[1])
        await starting
        assert "stays" == await site.says()


# Backends that can do different things


REFUSES = {"top_k": "refused", "logprobs": "refused"}
TEXT = structs.replace(CAPABILITIES, context=100, parameters=REFUSES)
SEES = structs.replace(TEXT, context=200, vision=True, parameters=REFUSES | {"top_k": "native"})
PLAIN = structs.replace(TEXT, chat=False, why_not={"chat": "no template"})


def looks_at(text: str) -> list[dict[str, Any]]:
    """A message with an image."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    return [{"role": "user", "content": [{"type": "text", "text": text}, image]}]


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize(
    "asked", [{"top_k": 3}, {"messages": looks_at("what")}], ids=["parameter", "image"]
)
async def test_a_request_goes_where_it_can_be_answered(asked: dict[str, Any], cold: bool) -> None:
    """Where one of a model's backends can do what a request asks for, all such requests go to that one."""
    backends = Held("text", TEXT), Held("sees", SEES), Held("plain", PLAIN)
    async with echoes(*backends) as site:
        if not cold:
            await site.service.registry.get("m").start()
        assert {"sees"} == {await site.says(f"{number}", **asked) for number in range(5)}
        assert {"text", "sees"} == {await site.says(f"{number}") for number in range(8)}
        assert 0 == backends[2].answers


async def test_what_no_backend_can_do() -> None:
    """What none of a model's backends can do is refused by name; where the able one fails, the others are not asked for it."""
    sees, text = Held("sees", SEES), Held("text", TEXT)
    async with echoes(sees, text) as site:
        with pytest.raises(InvalidRequest, match="`logprobs`"):
            await site.says(logprobs=True)
        first = site.members[0]
        site.service.registry.get("m").pool.record_result(first, BackendUnreachable("no"))
        with pytest.raises(BackendUnavailable):
            await site.says(top_k=3)
        assert (0, 0) == (sees.answers, text.answers)


async def test_what_a_start_finds_out() -> None:
    """A backend that turns out at its start to lack what a request asks for does not get it, and another one does."""

    class Found(Held):
        async def start(self) -> None:
            self.capabilities = TEXT  # type: ignore[misc]
            await super().start()

    unknown = Found("unknown", structs.replace(TEXT, is_final=False))
    async with echoes(unknown, Held("sees", SEES)) as site:
        assert {"sees"} == {await site.says(f"{number}", top_k=3) for number in range(4)}
        assert (0, 0) == (unknown.answers, site.members[0].outstanding)


async def test_what_a_model_can_do() -> None:
    """A model can do what one of its backends can, at the context that all of them have."""
    async with echoes(Held("plain", PLAIN), Held("sees", SEES)) as site:
        can = site.service.registry.get("m").capabilities

    assert (True, True, True, False, 100) == (
        can.chat,
        can.completions,
        can.vision,
        can.embeddings,
        can.context,
    )
    assert {"top_k": "native", "logprobs": "refused"} == can.parameters


def test_a_parameter_that_one_backend_does_not_know() -> None:
    """A parameter that one backend refuses and another does not know is not called refused."""
    unknown = structs.replace(TEXT, parameters={}, passes_unknown=True)
    backends = [PooledBackend(Held("a", TEXT)), PooledBackend(Held("b", unknown))]
    can = pool.Pool("m", backends).capabilities

    assert ({}, True) == (can.parameters, can.passes_unknown)


async def test_no_backend_after_the_deadline() -> None:
    """A request whose deadline has passed is sent to no backend, nor to a further one after a failure."""
    late = asyncio.get_running_loop().time()
    async with farm(GOOD) as site:
        CURRENT_REQUEST.set(Context(deadline=late))
        with pytest.raises(BackendTimeout, match="deadline"):
            await site.says()
        CURRENT_REQUEST.set(Context(deadline=late + 3600))
        assert "Hello" == await site.says()
        assert [1] == site.asked


# Queues


def queued(backend: Held, **settings: Any) -> PooledBackend:
    """A backend with one place, behind a queue."""
    return PooledBackend(backend, queue=QueueSettings(max_in_flight=1, **settings))


async def test_a_queue_that_is_full() -> None:
    """A request that a full queue refuses goes to the next backend, then to the fallback, and leaves all as well as they were."""
    one, other, spare = Held("one"), Held("other"), Held("spare")
    members = [queued(backend, max_queue=1) for backend in (one, other)]
    models = [Model("m", members, fallback="f"), Model("f", [PooledBackend(spare)])]
    registry = Registry(models)
    site = Farm([], Service(registry, Accounts(Metrics())))
    tasks = []
    for number in range(4):
        tasks.append(asyncio.create_task(site.says(f"{number}")))
        while sum(member.outstanding for member in members) <= number:
            await asyncio.sleep(0)
        while models[0].queue.length < number - 1:
            await asyncio.sleep(0)
    spare.go_on.set()
    assert "spare" == await site.says("one too many")
    assert all(member.breaker.allows(asyncio.get_running_loop().time()) for member in members)
    one.go_on.set()
    other.go_on.set()

    assert ["one", "one", "other", "other"] == sorted(map(str, await asyncio.gather(*tasks)))
    await registry.aclose()


async def test_who_waits_for_a_model_that_is_stopped() -> None:
    """A model that is stopped tells all who wait for a place."""
    backend = Held("held")
    registry = Registry([Model("m", [queued(backend)])])
    site = Farm([], Service(registry, Accounts(Metrics())))
    tasks = [asyncio.create_task(site.says(f"{number}")) for number in range(3)]
    while registry.get("m").queue.length < 2:
        await asyncio.sleep(0)
    await registry.aclose()
    for task in tasks[1:]:
        with pytest.raises(BackendUnavailable, match="stopped"):
            await task
    backend.go_on.set()

    assert "held" == await tasks[0]


async def test_a_request_that_has_waited_long_enough() -> None:
    """A request whose time in the queue is up is sent nowhere else, and the backend is none the worse."""
    held, spare = Held("held"), Held("spare")
    models = [
        Model("m", [queued(held, timeout_s=0.01)], fallback="f"),
        Model("f", [PooledBackend(spare)]),
    ]
    registry = Registry(models)
    site = Farm([], Service(registry, Accounts(Metrics())))
    first = asyncio.create_task(site.says("first"))
    await held.begun.wait()
    with pytest.raises(QueueTimeout):
        await site.says("second")
    held.go_on.set()

    assert ("held", 0) == (await first, spare.answers)
    await registry.aclose()
