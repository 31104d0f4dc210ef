"""Failed requests together with failover, fallbacks, and answers that are cut after their head."""

import asyncio

from support.backends.loopback import free_port
from support.backends.scripted import answer, delta, frames, says, scripted, stream_of
from support.servers.appserver import App, chunks, serving, upstream
from unilect.accounting.failures import Failure
from unilect.core.errors import BackendUnavailable
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo, Options


def at(url: str) -> PooledBackend:
    """The backend at a URL."""
    return PooledBackend(upstream(url), url)


async def failed(app: App) -> Failure:
    """The only failure, once it is kept."""
    async with asyncio.timeout(20):
        while not (found := app.failures.latest(2)):
            await asyncio.sleep(0.005)
    (one,) = found
    return one


async def test_failover() -> None:
    """The failure of a request that two backends failed on names each of them, with its own reason."""
    gone = f"http://127.0.0.1:{free_port()}"
    async with scripted(says(answer(b"{}", status="500 Broken"))) as broken:
        backends = [at(f"{gone}/v1"), at(f"http://127.0.0.1:{broken.port}/v1")]
        async with serving(backends) as app:
            async with app.chat(stream=False) as response:
                assert 503 == response.status
            failure = await failed(app)

    reasons = {one.backend: one.reason for one in failure.attempts}
    assert {gone, f"http://127.0.0.1:{broken.port}"} == reasons.keys()
    assert "refused" in reasons.pop(gone)
    assert "500" in reasons.popitem()[1]


async def test_fallback() -> None:
    """The failure of a request that neither its model nor the fallback answers names the backends of both."""
    first, second = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    async with serving([at(f"{first}/v1")], fallback=[at(f"{second}/v1")]) as app:
        async with app.chat() as response:
            assert 503 == response.status
        failure = await failed(app)

    assert [("m", first), ("other", second)] == [(one.model, one.backend) for one in failure.attempts]  # fmt: skip
    assert "m" == failure.model


async def test_a_success_after_failures() -> None:
    """A request that another backend has answered is no failure."""
    async with serving(
        [at(f"http://127.0.0.1:{free_port()}/v1"), PooledBackend(Echo(), "echo:")]
    ) as app:
        for _ in range(2):
            async with app.chat() as response:
                assert 200 == response.status
                await response.read()

        assert [] == app.failures.latest(1)


async def test_a_stream_that_is_cut() -> None:
    """An answer that broke after its head of 200 has failed, with the code of its last frame."""
    async with scripted(says(stream_of(frames(delta(content="Hello "))), end="reset")) as broken:
        async with serving([at(f"http://127.0.0.1:{broken.port}/v1")]) as app:
            async with app.chat() as response:
                told = (await chunks(response))[-1]
            failure = await failed(app)

    assert 200 == response.status == failure.status
    assert told["error"]["code"] == failure.code == "backend_error"
    assert "error backend_error" == failure.ended


async def test_a_stream_that_is_ended_by_us() -> None:
    """An answer that an operator ends, or a stop of the server, says so."""
    endless = Echo(Options(text="word " * 1000, tokens_per_s=50))
    async with serving(endless) as app:
        async with app.chat() as response:
            await response.content.readany()
            (context,) = app.guard.requests.values()
            context.end(BackendUnavailable("The server is stopping."))
            await response.read()
        failure = await failed(app)

    assert (200, "error backend_unavailable") == (failure.status, failure.ended)
