"""Tests of unilect.answers.service, on the bundled model's engine and a scripted upstream."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from support.backends.engine import Spy, chat, completion, engine
from support.backends.scripted import (
    DONE,
    Exchange,
    delta,
    frames,
    says,
    scripted,
    small,
    stream_of,
)
from support.common.samples import sample
from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Run, Service
from unilect.api.backend import Batches, Capabilities
from unilect.core.errors import (
    BackendError,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
    UnsupportedOperation,
    UnsupportedParameter,
)
from unilect.core.events import Event, Progress, TextDelta, fold
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import EmbeddingRequest
from unilect.engines.gguf.engine import GgufEngine
from unilect.http.client import HttpServer
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.context import CURRENT_REQUEST, Context
from unilect.scheduling.breaker import FAILURES
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo
from unilect.upstreams.openai.backend import OpenAIUpstream

pytestmark = pytest.mark.asyncio(loop_scope="module")
WHOLE = stream_of(frames(delta(content="a"), delta(finish="stop"), DONE))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo() -> AsyncIterator[GgufEngine]:
    """The bundled model."""
    async with engine() as running:
        yield running


class Failing(Echo):
    """A backend that fails, and of which is known what it does not take."""

    capabilities = Capabilities(parameters={"verbosity": "refused"})

    async def generate(self, request: Any) -> Batches:
        """Nothing."""
        raise BackendError("It broke.")
        yield []


def service_of(backend: Any, **settings: Any) -> Service:
    """A service with one model, `m`."""
    return Service(Registry([Model("m", backend, **settings)]), Accounts(Metrics()))


async def events_of(run: Run) -> list[Event]:
    """All events of a run."""
    async with aclosing(run.batches()) as batches:
        return [event async for batch in batches for event in batch]


def counted(service: Service, status: int) -> bool:
    """Whether exactly one request was counted, with this status, its lease given back and its gauges at rest."""
    value = partial(sample, service.accounts.metrics)
    labels = {"model": "m", "endpoint": ""}
    done = value("unilect_request_duration_seconds_count", labels)
    with_status = value("unilect_requests_total", labels | {"status": str(status)})
    resting = [
        value(f"unilect_requests_{gauge}", {"model": "m"}) for gauge in ("running", "waiting")
    ]
    return (1, 1, [0, 0], 0) == (done, with_status, resting, service.registry.get("m")._in_use)


async def test_a_run(demo: GgufEngine) -> None:
    """A run answers, counts its usage and gives its lease back."""
    service = service_of(demo)
    run = service.run(chat(max_tokens=8))
    events = await events_of(run)

    assert events[-1] == run.usage
    assert (8, "m", ()) == (run.usage.completion_tokens, run.model.name, run.ignored)
    assert counted(service, 200)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_short_answer_is_measured(demo: GgufEngine, stream: bool) -> None:
    """The time to the first token of a short answer is counted, streamed or whole, though all of it comes at once."""
    service = service_of(demo)
    await events_of(service.run(chat(max_tokens=1, stream=stream)))

    labels = {"model": "m", "endpoint": ""}
    value = partial(sample, service.accounts.metrics)
    assert 1 == value("unilect_time_to_first_token_seconds_count", labels)


async def test_an_upstream_makes_its_own_choices() -> None:
    """A backend that makes choices itself is asked once, with all parameters."""
    hello = [delta(number, "stop", content="Hello") for number in range(3)]
    async with scripted(says(stream_of(frames(*hello)))) as server:
        upstream = OpenAIUpstream(HttpServer(server.url), "m")
        events = await events_of(service_of(upstream).run(chat(n=3)))

    assert {0, 1, 2} == {event.index for event in events if isinstance(event, TextDelta)}
    assert [3] == [exchange.json()["n"] for exchange in server.requests if exchange.body]


async def test_a_run_that_is_not_read(demo: GgufEngine) -> None:
    """Taking a request in starts nothing."""
    spy = Spy(demo)
    service_of(spy).run(chat())

    assert (0, []) == (spy.starts, spy.asked)


async def test_a_run_that_is_left(demo: GgufEngine) -> None:
    """A client that leaves is counted as such, and its lease is given back."""
    service = service_of(demo)
    batches = service.run(chat(max_tokens=400, ignore_eos=True, stream=True)).batches()
    await anext(batches)
    await batches.aclose()

    assert counted(service, 499)


async def test_a_run_that_is_cancelled() -> None:
    """A request that is cancelled while it waits is counted, and its lease is given back."""
    asked = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        asked.set()
        await exchange.client_gone()

    async with scripted(script) as server:
        service = service_of(OpenAIUpstream(HttpServer(server.url), "m"))
        task = asyncio.create_task(events_of(service.run(chat())))
        await asked.wait()
        task.cancel()
        await asyncio.wait({task})

    assert task.cancelled()
    assert counted(service, 499)


@pytest.mark.parametrize(
    ("stream", "status"), [(b"", 502), (stream_of(frames(delta(content="a"))), 502)]
)
async def test_a_run_that_breaks(stream: bytes, status: int) -> None:
    """An error before or after the first event is counted with its status."""
    async with scripted(says(stream)) as server:
        service = service_of(OpenAIUpstream(HttpServer(server.url), "m"))
        with pytest.raises(BackendError):
            await events_of(service.run(chat()))

    assert counted(service, status)


async def test_a_backend_that_breaks_before_it_says_anything() -> None:
    """A stream whose first backend has told only who it is is made by the next one."""
    first = says(stream_of(frames(delta(role="assistant", content="") | {"system_fingerprint": "b"})))  # fmt: skip
    async with scripted(first) as one, scripted(says(WHOLE)) as other:
        service = service_of([PooledBackend(OpenAIUpstream(HttpServer(at.url), "m")) for at in (one, other)])  # fmt: skip
        events = await events_of(service.run(chat(stream=True)))

    assert "a" == fold([events]).choices[0].text
    assert 1 == len(other.requests)


async def test_what_failed_backends_made_of_a_whole_answer() -> None:
    """Of an answer that is told at its end only what the last backend made is counted."""
    broken = says(stream_of(frames(*[delta(content="b")] * 40)))
    async with scripted(broken) as one, scripted(broken) as two, scripted(says(WHOLE)) as last:
        service = service_of([PooledBackend(OpenAIUpstream(HttpServer(at.url), "m")) for at in (one, two, last)])  # fmt: skip
        while not last.requests:
            run = service.run(chat())
            events = await events_of(run)

    assert "a" == fold([events]).choices[0].text
    assert 1 == run.usage.completion_tokens


async def test_a_request_that_is_refused_says_nothing_of_its_backend() -> None:
    """A backend that fails is out after five requests, whatever else is refused before it is sent to anybody."""
    service = service_of(Failing())
    for number in range(FAILURES):
        with pytest.raises(BackendError):
            await events_of(service.run(chat(f"{number}")))
        with pytest.raises(UnsupportedParameter):
            await events_of(service.run(chat(verbosity="low")))
    (member,) = service.registry.get("m").pool.members

    assert member.breaker.open


async def test_a_backend_that_cannot_start() -> None:
    """A backend that cannot be started is an error that is counted."""
    async with scripted(says(b"")) as server:
        service = service_of(OpenAIUpstream(HttpServer(server.url)))
        with pytest.raises(BackendError):
            await events_of(service.run(chat()))

    assert counted(service, 502)


async def test_parameters_are_judged(demo: GgufEngine) -> None:
    """A parameter that matters and is not honoured is refused before anything is made."""
    spy = Spy(demo)
    service = service_of(spy)
    with pytest.raises(UnsupportedParameter):
        await events_of(service.run(chat(verbosity="low")))

    assert spy.asked == []
    assert counted(service, 400)


@pytest.mark.parametrize("request_", [chat(verbosity="low"), EmbeddingRequest(input="a")])
async def test_what_is_refused_loads_no_model(demo: GgufEngine, request_: Any) -> None:
    """A request that its model cannot answer is refused before the model is loaded, and one that it can is not."""
    spy = Limited(demo) if isinstance(request_, EmbeddingRequest) else Spy(demo)
    service = service_of(spy)
    with pytest.raises(InvalidRequest):
        if isinstance(request_, EmbeddingRequest):
            await service.embed(request_)
        else:
            await events_of(service.run(request_))

    assert 0 == spy.starts
    assert service.registry.get("m").static_capabilities is not None


async def test_what_is_not_known_before_the_start_is_not_refused(demo: GgufEngine) -> None:
    """A backend that only its start tells what it can do is started, and then held against the request."""
    spy = Unlearnt(demo)
    await events_of(service_of(spy).run(chat(max_tokens=1)))

    assert 1 == spy.starts


async def test_ignored_parameters(demo: GgufEngine) -> None:
    """What is ignored is named, and the backend is not asked for it."""
    spy = Spy(demo)
    run = service_of(spy, unsupported="report").run(chat(verbosity="low", x_new=1, max_tokens=2))
    await events_of(run)

    assert {"verbosity", "x_new"} == set(run.ignored)


async def test_optional_parameters(demo: GgufEngine) -> None:
    """What a dialect calls optional is left out where the backend lacks it, under the dialect's name."""
    spy = Spy(demo)
    run = service_of(spy).run(
        chat(verbosity="low", enable_thinking=True, reasoning_effort="low", max_tokens=2)
    )
    run.optional = {"verbosity": "output.words", "enable_thinking": "", "reasoning_effort": "x"}
    await events_of(run)

    (asked,) = spy.asked
    assert run.ignored == ("output.words", "x")
    assert (None, None, None) == (asked.verbosity, asked.enable_thinking, asked.reasoning_effort)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_that_a_server_has_no_room_for(name: str) -> None:
    """A limit that an upstream refuses, since its prompt leaves less room, is lowered to that, and named as the client named it."""
    CURRENT_REQUEST.set(Context())
    async with scripted(small(4096, 1000)) as server:
        service = service_of(OpenAIUpstream(HttpServer(server.url), "theirs"))
        run = service.run(chat(**{name: 4000}))
        assert await events_of(run)

    assert [4000, 3096] == [request.json()[name] for request in server.requests]
    assert (name,) == run.ignored
    assert counted(service, 200)


async def test_a_limit_beyond_the_context(demo: GgufEngine) -> None:
    """A limit that no context has is lowered, and named as its dialect calls it, or as the request does."""
    named, plain = (service_of(demo).run(chat(max_tokens=9000)) for _ in range(2))
    named.limit_name = "limit"

    for run in (named, plain):
        assert await events_of(run)
    assert (("limit",), ("max_tokens",)) == (named.ignored, plain.ignored)


async def test_a_default_that_is_refused(demo: GgufEngine) -> None:
    """A default that the backend refuses is not sent: the client did not ask for it, who is refused where it does."""
    service = service_of(demo, defaults={"verbosity": "low"})
    run = service.run(chat())

    assert await events_of(run)
    assert () == run.ignored
    with pytest.raises(UnsupportedParameter):
        await events_of(service.run(chat(verbosity="low")))


@pytest.mark.parametrize(("request_", "param"), [(chat, "messages"), (completion, "prompt")])
async def test_a_long_prompt(demo: GgufEngine, request_: Any, param: str) -> None:
    """A prompt that is too long is told with the parameter that holds it."""
    service = service_of(demo)
    with pytest.raises(ContextLengthExceeded) as raised:
        await events_of(service.run(request_("word " * 10_000)))

    assert param == raised.value.param
    assert counted(service, 400)


async def test_unknown_models(demo: GgufEngine) -> None:
    """An unknown model is an error before a run begins."""
    with pytest.raises(ModelNotFound):
        service_of(demo).run(chat(model="nothing"))


async def test_a_model_that_is_gone(demo: GgufEngine) -> None:
    """The metrics tell of a model while it is served, also when a request to it ends later than that."""
    service = service_of(Spy(demo))
    service.registry.add(Model("other", OpenAIUpstream(HttpServer("http://127.0.0.1:1"), "m")))
    run = service.run(chat(model="other", max_tokens=1))
    await events_of(service.run(chat(max_tokens=1)))
    assert '"other"' in "".join(service.accounts.metrics.exposition())
    service.registry.forget("other")
    with pytest.raises(BackendUnavailable):
        await events_of(run)

    assert '"other"' not in "".join(service.accounts.metrics.exposition())
    assert '"m"' in "".join(service.accounts.metrics.exposition())


async def test_a_stopping_server(demo: GgufEngine) -> None:
    """A server that is stopping takes no request, and says when to try again."""
    service = service_of(demo)
    service.ready = False
    with pytest.raises(BackendUnavailable) as raised:
        service.run(chat())
    with pytest.raises(BackendUnavailable):
        await service.embed(EmbeddingRequest(input="a"))

    assert raised.value.retry_after_s == 5


# Embeddings


async def test_embed(demo: GgufEngine) -> None:
    """Embeddings are answered in the order of the inputs, and counted."""
    service = service_of(demo)
    model, embeddings, ignored = await service.embed(EmbeddingRequest(input=["Hello", "Bye"]))
    _, alone, _ = await service_of(demo).embed(EmbeddingRequest(input="Bye"))

    assert ("m", (), 2) == (model.name, ignored, len(embeddings.vectors))
    assert embeddings.vectors[1] == pytest.approx(alone.vectors[0], abs=1e-4)
    assert embeddings.prompt_tokens > alone.prompt_tokens > 0
    assert counted(service, 200)


async def test_an_input_that_is_too_long(demo: GgufEngine) -> None:
    """An input that is too long is refused by name, and counted."""
    service = service_of(demo)
    with pytest.raises(ContextLengthExceeded) as raised:
        await service.embed(EmbeddingRequest(input=["a", "word " * 10_000]))

    assert raised.value.param == "input"
    assert counted(service, 400)


class Limited(Spy):
    """A backend that answers nothing."""

    @property
    def capabilities(self) -> Any:
        """Nothing at all."""
        return msgspec.structs.replace(
            self._backend.capabilities, chat=False, completions=False, embeddings=False
        )


class Unformatted(Spy):
    """A backend that writes text, and does not know how turns are written."""

    @property
    def capabilities(self) -> Any:
        """All but chats."""
        return msgspec.structs.replace(self._backend.capabilities, chat=False)


class Unlearnt(Spy):
    """A backend that knows only when it has started that it can chat."""

    @property
    def capabilities(self) -> Any:
        """No chats before the start."""
        can = self._backend.capabilities
        return can if self.starts else msgspec.structs.replace(can, chat=False, is_final=False)


async def test_a_model_without_a_chat_template(demo: GgufEngine) -> None:
    """A model that has no chat template refuses a chat with what to use and what to configure, and is not asked."""
    spy = Unformatted(demo)
    with pytest.raises(InvalidRequest) as raised:
        await events_of(service_of(spy).run(chat()))

    assert "The model `m` has no chat template" in raised.value.message
    assert "Use /v1/completions, or configure `chat_template`" in raised.value.message
    assert "model" == raised.value.param


@pytest.mark.parametrize("request_", [chat(), completion(), EmbeddingRequest(input="a")])
async def test_a_model_of_another_kind(demo: GgufEngine, request_: Any) -> None:
    """A model that does not answer such requests is told by name, and not asked."""
    spy = Limited(demo)
    service = service_of(spy)
    with pytest.raises(InvalidRequest) as raised:
        if isinstance(request_, EmbeddingRequest):
            await service.embed(request_)
        else:
            await events_of(service.run(request_))

    assert ("model", []) == (raised.value.param, spy.asked)


@pytest.mark.parametrize("grammar", ["root ::= (", "nonsense", "root ::= missing"])
async def test_errors_are_ours(demo: GgufEngine, grammar: str) -> None:
    """What the engine refuses is told as the client's mistake, and the engine goes on."""
    service = service_of(demo)
    with pytest.raises(InvalidRequest):
        await events_of(service.run(chat(grammar=grammar)))

    assert counted(service, 400)
    assert await events_of(service_of(demo).run(chat(max_tokens=2)))


class Flawed(Spy):
    """A backend with a flaw in its code."""

    async def generate(self, request: Any) -> Any:
        """Begin, and fail as no backend may."""
        yield [TextDelta("a")]
        raise RuntimeError("flaw")

    async def embed(self, request: Any) -> Any:
        """Fail as no backend may."""
        raise RuntimeError("flaw")


async def test_a_flaw_is_counted_as_ours(demo: GgufEngine) -> None:
    """An exception that is no error of ours is counted as 500, not as a client that left; the lease is given back."""
    service = service_of(Flawed(demo))
    with pytest.raises(RuntimeError):
        await events_of(service.run(chat()))
    assert counted(service, 500)

    service = service_of(Flawed(demo))
    with pytest.raises(RuntimeError):
        await service.embed(EmbeddingRequest(input="a"))
    assert counted(service, 500)


class Broken(Spy):
    """A backend that breaks off after a batch of progress and text."""

    async def generate(self, request: Any) -> Any:
        """Begin, and break off."""
        self.asked.append(request)
        yield [Progress(1, 1), TextDelta("once")]
        raise BackendError("broken")


async def test_a_begun_answer_is_not_told_again(demo: GgufEngine) -> None:
    """A stream that breaks after its first text, which came together with progress, is made again elsewhere, and told once."""
    one, other = Broken(demo), Broken(demo)
    service = Service(
        Registry([Model("m", [PooledBackend(one), PooledBackend(other)])]), Accounts(Metrics())
    )
    told = []
    with pytest.raises(BackendError):
        async with aclosing(service.run(chat(stream=True)).batches()) as batches:
            async for batch in batches:
                told += [event for event in batch if isinstance(event, TextDelta)]

    assert (1, 2) == (len(told), len(one.asked + other.asked))
    await service.registry.aclose()


class Ranks(Echo):
    """A backend that ranks documents by their length, one request at a time."""

    capabilities = Capabilities(rerank=True, max_in_flight=1)

    async def rerank(self, request: RerankRequest) -> Ranking:
        """The part of nine characters that each document has."""
        return Ranking([len(text) / 9 for text in request.texts], 7)


async def test_rerank() -> None:
    """Documents are ranked by the backend of the model that can, also behind its limit of requests, and counted."""
    members = [PooledBackend(Echo()), PooledBackend(Ranks())]
    service = Service(Registry([Model("m", members)]), Accounts(Metrics()))
    asked = RerankRequest(query="a", documents=["abc", "a"])
    model, ranking, ignored = await service.rerank(asked)

    assert ("m", [3 / 9, 1 / 9], ()) == (model.name, ranking.scores, ignored)
    assert counted(service, 200)
    assert 7 == sample(
        service.accounts.metrics, "unilect_tokens_total", {"model": "m", "kind": "prompt"}
    )


async def test_nobody_else_ranks() -> None:
    """A model that does not rank is 501, whatever its fallback can, and is not started for it."""
    echo, fallback = Echo(), Ranks()
    models = [Model("m", echo, fallback="other"), Model("other", fallback)]
    service = Service(Registry(models), Accounts(Metrics()))
    with pytest.raises(UnsupportedOperation, match="`m` is no reranker"):
        await service.rerank(RerankRequest(query="a", documents=["a"]))

    assert counted(service, 501)
    assert (0, 0) == (echo.starts, fallback.starts)


async def test_names_of_other_models() -> None:
    """What a key is refused names only the models that it may use, and what it has asked for itself."""
    models = [Model("first", Echo(), aliases=["al"]), Model("mine", Echo())]
    service = Service(Registry(models), Accounts(Metrics()))
    lenient = Service(service.registry, Accounts(Metrics()), unknown_model="default")
    CURRENT_REQUEST.set(Context(models=frozenset({"mine"})))
    told = []
    for one, name in ((service, "nosuch"), (service, "al"), (service, None), (lenient, "nosuch")):
        with pytest.raises((ModelNotFound, PermissionDenied)) as raised:
            one.run(chat(model=name))
        told.append(str(raised.value))

    unusable = "model: this API key may not use {}; it may use mine."
    assert [
        "The model `nosuch` is not served here. Models: mine.",
        unusable.format("`al`"),
        *[unusable.format("the default model")] * 2,
    ] == told
    assert ["mine"] == [model.name for model in service.models]
