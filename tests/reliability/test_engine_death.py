"""An engine that dies takes nothing with it: streams go on or end with an error frame, the engine comes back, nothing is left."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from inprocess import Site, site, until
from msgspec.structs import replace

from support.backends.engine import ENGINES_IN_CI, SOURCES
from support.backends.tiny_child import halted
from unilect.config.server import Config, ModelConfig
from unilect.engines.process._restarts import MAX_DEATHS

STREAMS = 8
pytestmark = pytest.mark.asyncio(loop_scope="module")
on_each_engine = pytest.mark.parametrize("engine", ENGINES_IN_CI)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES_IN_CI)
async def mortal_site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """A server of the bundled model on each engine, whose child dies again and again: it takes seconds to start one."""
    model = ModelConfig(source=SOURCES[request.param], parallel=STREAMS)
    async with site(Config(port=0, models={"demo": model}, log_level="error")) as running:
        yield running
        pid, folder = running.child.pid, Path(running.child.socket_path).parent
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()


@pytest_asyncio.fixture(loop_scope="module")
async def mortal(mortal_site: Site) -> Site:
    """The server when its child is up and idle, and nothing is known of earlier deaths."""
    assert (200, None) == await status_of(mortal_site, max_tokens=1)
    await mortal_site.until_busy(0)
    mortal_site.child.restarts.deaths.clear()
    suspects = mortal_site.suspects
    suspects._deaths, suspects._lingering = [], []
    return mortal_site


async def frames(response: Any) -> list[Any]:
    """The frames of a stream, decoded; `[DONE]` as it is."""
    text = (await response.read()).decode()
    data = [
        block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")
    ]
    return [block if block == "[DONE]" else json.loads(block) for block in data]


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize("goes_on", [True, False])
async def test_streams_of_an_engine_that_is_killed(
    mortal: Site, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 under eight streams: all are whole, or eight error frames without a finish reason; the next request is answered."""
    child, backend = mortal.child, mortal.registry.get(None).pool.members[0].backend
    if not goes_on:
        monkeypatch.setattr(backend, "capabilities", replace(backend.capabilities, resumes=None))
    folder, pid = Path(child.socket_path).parent, child.pid
    body = {"max_tokens": 150 if goes_on else 1500, "ignore_eos": True, "stream": True}
    responses = [await mortal.post(**body).__aenter__() for _ in range(STREAMS)]
    for response in responses:
        await response.content.readline()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    endings = [await frames(response) for response in responses]
    async with mortal.post(max_tokens=5) as response:
        answer = await response.json()

    for ending in endings:
        if goes_on:
            assert ("[DONE]", "length") == (ending[-1], ending[-2]["choices"][0]["finish_reason"])
            continue
        assert ending[-1]["error"]["code"] == "engine_died"
        assert {"message", "type", "param", "code"} == set(ending[-1]["error"])
        reasons = [c["finish_reason"] for f in ending[:-1] for c in f["choices"]]
        assert set(reasons) <= {None}
    assert response.status == 200
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    assert pid != child.pid
    assert not folder.exists()


async def test_request_that_had_not_begun_is_answered_by_the_new_engine(mortal: Site) -> None:
    """An answer whose engine dies before its first token, and vectors, are begun again; the client sees nothing of it."""
    child = mortal.child
    long = {"ignore_eos": True, "stream": True}
    busy = [await mortal.post(max_tokens=1400 + n, **long).__aenter__() for n in range(STREAMS)]
    await mortal.until_busy(STREAMS)
    queued = asyncio.ensure_future(mortal.post(max_tokens=6).__aenter__())
    await until(lambda: waiting(mortal, 1))
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    vectors = asyncio.ensure_future(mortal.post(path="/v1/embeddings", input="Paris").__aenter__())
    await until(lambda: waiting(mortal, 2))
    os.kill(child.pid, signal.SIGKILL)

    assert (await queued).status == 200
    assert (await vectors).status == 200
    for response in busy:
        response.close()


@pytest.mark.heavy
async def test_a_whole_answer_whose_engine_dies(mortal: Site) -> None:
    """An answer of which tokens were made is made by the new engine, a whole one as a stream."""
    child, asked = mortal.child, {"max_tokens": 1400, "ignore_eos": True}
    starts = child.starts
    whole = asyncio.ensure_future(mortal.post(**asked).__aenter__())
    await mortal.until_busy(1)
    # its first text comes beside the whole answer's: the engine makes one token of each in a step
    async with mortal.post(**asked, stream=True, seed=2) as stream:
        await stream.content.readline()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        ending = await frames(stream)
    response = await whole
    answer = await response.json()

    assert "[DONE]" == ending[-1]
    assert (200, 1400) == (response.status, answer["usage"]["completion_tokens"])
    assert 1 == child.starts - starts


@on_each_engine
async def test_engine_dies_with_its_gateway(engine: str) -> None:
    """An engine whose gateway is killed ends by itself, and its socket with it."""
    from support.servers.serving import serve

    with serve_killed(serve, engine) as (pid, folder):
        await until(lambda: gone(pid))
        await until(lambda: missing(folder))


def serve_killed(serve: Any, engine: str) -> Any:
    """A context with the pid and folder of the engine of a server that has been killed."""
    from contextlib import contextmanager

    import psutil

    @contextmanager
    def killed() -> Any:
        process = None
        try:
            with serve(f"demo={SOURCES[engine]}") as server:
                process = psutil.Process(server.pid)
                child = process.children()[0]
                folder = next(
                    Path(c.laddr).parent for c in child.net_connections("unix") if c.laddr
                )
                process.kill()
                yield child.pid, folder
        except AssertionError:
            pass  # `serve` rightly complains that its server did not end by itself

    return killed()


async def gone(pid: int) -> bool:
    """True when there is no such process."""
    return not Path(f"/proc/{pid}").exists()


async def missing(folder: Path) -> bool:
    """True when there is no such folder."""
    return not folder.exists()


async def waiting(running: Site, requests: int) -> bool:
    """True when so many requests wait for the first of their answer."""
    async with running.client.get(running.url + "/metrics") as response:
        text = await response.text()
    return f'unilect_requests_waiting{{model="demo"}} {requests}.0' in text


@pytest.mark.heavy
async def test_engine_that_hangs_is_killed_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that an engine hangs on is told so and refused from then on, also where its client has left; others are answered."""
    async with site(Config(port=0, models={"demo": ModelConfig()}, log_level="warning")) as running:
        engine = running.engine()
        child = engine._generator.process

        async def ask() -> None:
            if halted(
                child.pid
            ):  # told at once: after a short time a busy engine would seem to hang, too
                raise TimeoutError
            await engine._generator._ask()

        monkeypatch.setattr(engine._generator.supervisor, "_ask", ask)
        first, second = ({"max_tokens": count, "stream": True} for count in (1500, 1501))
        response = await hanging(running, first)
        told = (await frames(response))[-1]["error"]
        (await hanging(running, second)).close()

        async def killed_twice() -> bool:
            return child.hangs == 2 and child.starts == 3

        await until(killed_twice, deadline_s=90)
        refused = [await status_of(running, **body) for body in (first, second)]
        answered = await status_of(running, max_tokens=5)

    assert "engine_died" == told["code"]
    assert "hung while it worked on this request" in told["message"]
    assert [(400, "request_killed_engine")] * 2 == refused
    assert (200, None) == answered


async def hanging(running: Site, body: dict[str, Any]) -> Any:
    """A stream that has begun, of an engine that then stands still."""
    response = await streaming(running, body["max_tokens"])
    pid = running.child.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return response


async def status_of(running: Site, **body: Any) -> tuple[int, str | None]:
    """The status of an answer, and its error's code."""
    body = {"ignore_eos": True} | body
    async with running.post(**body) as response:
        answer = await response.json(content_type=None) if response.status != 200 else {}
        return response.status, answer.get("error", {}).get("code")


@pytest.mark.heavy
async def test_a_request_that_ran_at_two_deaths_is_refused(mortal: Site) -> None:
    """Of the streams that ran when an engine was killed the one that ran when it was killed again is refused, and no other."""
    first, *others = [await streaming(mortal, count) for count in (1510, 1501, 1502)]
    for other in others:
        other.close()
    for begins_again in (True, False):
        await kill(mortal, signal.SIGKILL, begins_again)
    assert "engine_died" == (await frames(first))[-1]["error"]["code"]
    refused = await status_of(mortal, max_tokens=1510, stream=True)
    answered = [await streaming(mortal, count) for count in (1501, 1503)]
    for stream in answered:
        stream.close()

    assert (400, "request_killed_engine") == refused
    assert [200, 200] == [stream.status for stream in answered]


async def kill(running: Site, number: signal.Signals, begins_again: bool) -> None:
    """Kill an engine, and wait until the one request that it had is at work again, if that is to come."""
    child, life = running.child, running.child.starts

    async def at_work_again() -> bool:
        return child.starts > life and child.alive and await running.busy() == 1

    assert child.pid is not None
    os.kill(child.pid, number)
    if begins_again:
        await until(at_work_again)


async def streaming(running: Site, max_tokens: int) -> Any:
    """A stream that has begun; while an engine starts there may be comments before it."""
    response = await running.post(max_tokens=max_tokens, ignore_eos=True, stream=True).__aenter__()
    while not (await response.content.readline()).startswith(b"data:"):
        assert not response.content.at_eof()
    return response


async def test_a_request_is_refused_before_the_engine_is_back(
    mortal: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an engine has died of twice is refused while the engine still starts; another request waits for it and is answered."""
    child, may_start = mortal.child, asyncio.Event()
    stream = await streaming(mortal, 1520)
    await kill(mortal, signal.SIGSEGV, begins_again=True)
    starts = child.starts
    monkeypatch.setattr(child, "_pause", may_start.wait)
    await kill(mortal, signal.SIGSEGV, begins_again=False)
    told = (await frames(stream))[-1]["error"]["code"]
    other = asyncio.create_task(status_of(mortal, max_tokens=7))
    refused = await asyncio.wait_for(status_of(mortal, max_tokens=1520, stream=True), 60)
    assert (starts, False) == (child.starts, other.done())
    may_start.set()

    assert ("engine_died", (400, "request_killed_engine")) == (told, refused)
    assert (200, None) == await other


@pytest.mark.heavy
async def test_requests_that_kill_do_not_put_a_model_out() -> None:
    """After more requests that an engine died of than it may die, the next one is answered; each was told what happened."""
    models = {"demo": ModelConfig(parallel=1)}
    async with site(Config(port=0, models=models, log_level="error")) as running:
        for number in range(MAX_DEATHS + 1):
            stream = await streaming(running, 1500 + number)
            for begins_again in (True, False):
                await kill(running, signal.SIGSEGV, begins_again)
            told = (await frames(stream))[-1]["error"]
            assert "engine_died" == told["code"]
        answered = await status_of(running, max_tokens=5)

    assert (200, None) == answered


async def test_a_socket_that_was_removed_is_made_again(mortal: Site) -> None:
    """Where a cleaner of temporary files has removed an engine's socket the next request is answered, by a new child."""
    old = mortal.child.pid
    shutil.rmtree(Path(mortal.child.socket_path).parent)
    answered = [await status_of(mortal, max_tokens=5) for _ in range(2)]

    assert [(200, None)] * 2 == answered
    assert old != mortal.child.pid


async def test_another_backend_answers_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """While an engine that died does not come back, requests are answered by the model's other backend, and by both afterwards."""
    models = {"demo": ModelConfig(source=["demo:", "demo:"], parallel=2)}
    may_start = asyncio.Event()
    async with site(Config(port=0, models=models, log_level="critical")) as running:
        members = running.registry.get(None).pool.members
        child = running.child

        async def died() -> bool:
            return child.state == "died"

        monkeypatch.setattr(child, "_pause", may_start.wait)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        await until(died)
        before = members[0].served
        answered = [await status_of(running, max_tokens=4) for _ in range(4)]
        assert (before, "died") == (members[0].served, child.state)
        may_start.set()
        await child.start()
        for number in range(4):  # another conversation each: one stays where its prompt is cached
            messages = [{"role": "user", "content": f"{number}"}]
            answered.append(await status_of(running, max_tokens=4, messages=messages))

    assert [(200, None)] * 8 == answered
    assert members[0].served > before
