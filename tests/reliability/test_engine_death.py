"""An engine that dies takes nothing with it: streams end with an error frame, the engine comes back, nothing is left."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from inprocess import Site, site, until

from engine import ENGINES_IN_CI, SOURCES
from unilect.config import Config, ModelConfig

STREAMS = 8
on_each_engine = pytest.mark.parametrize("engine", ENGINES_IN_CI)


async def frames(response: Any) -> list[Any]:
    """The frames of a stream, decoded; `[DONE]` as it is."""
    text = (await response.read()).decode()
    data = [
        block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")
    ]
    return [block if block == "[DONE]" else json.loads(block) for block in data]


@on_each_engine
async def test_streams_end_with_one_error_frame_and_the_engine_comes_back(engine: str) -> None:
    """kill -9 under eight streams: eight error frames, no finish reason, no [DONE], and the next request is answered."""
    model = ModelConfig(source=SOURCES[engine], parallel=STREAMS)
    async with site(Config(port=0, models={"demo": model}, log_level="warning")) as running:
        child = running.child
        folder, pid = Path(child.socket_path).parent, child.pid
        body = {"max_tokens": 1500, "ignore_eos": True, "stream": True}
        responses = [await running.post(**body).__aenter__() for _ in range(STREAMS)]
        for response in responses:
            await response.content.readline()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        endings = [await frames(response) for response in responses]
        async with running.post(max_tokens=5) as response:
            answer = await response.json()

        for ending in endings:
            assert ending[-1]["error"]["code"] == "engine_died"
            assert {"message", "type", "param", "code"} == set(ending[-1]["error"])
            reasons = [c["finish_reason"] for f in ending[:-1] for c in f["choices"]]
            assert set(reasons) <= {None}
        assert response.status == 200
        assert answer["choices"][0]["finish_reason"] in ("stop", "length")
        assert pid != child.pid
        assert not folder.exists()
        last = Path(child.socket_path).parent
    assert not last.exists()
    assert not Path(f"/proc/{child.pid}").exists() or child.pid is None


@on_each_engine
async def test_request_that_had_not_begun_is_answered_by_the_new_engine(engine: str) -> None:
    """An answer whose engine dies before its first token, and vectors, are begun again; the client sees nothing of it."""
    model = ModelConfig(source=SOURCES[engine], parallel=1)
    async with site(Config(port=0, models={"demo": model}, log_level="warning")) as running:
        child = running.child
        long = asyncio.ensure_future(
            running.post(max_tokens=1500, ignore_eos=True, stream=True).__aenter__()
        )
        await running.until_busy(1)
        queued = asyncio.ensure_future(running.post(max_tokens=5).__aenter__())
        await until(lambda: waiting(running, 1))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        vectors = asyncio.ensure_future(
            running.post(path="/v1/embeddings", input="Paris").__aenter__()
        )
        await until(lambda: waiting(running, 2))
        os.kill(child.pid, signal.SIGKILL)

        assert (await queued).status == 200
        assert (await vectors).status == 200
        (await long).close()


@on_each_engine
async def test_engine_dies_with_its_gateway(engine: str) -> None:
    """An engine whose gateway is killed ends by itself, and its socket with it."""
    from serving import serve

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


async def test_engine_that_hangs_is_killed_and_comes_back() -> None:
    """A grammar that keeps llama.cpp busy for ever costs its own request, also when its client has left."""
    hard = 'root ::= y x\nx ::= y x "a" | "b"\ny ::= "c"?'
    models = {"demo": ModelConfig(hang_timeout_s=1.0)}
    async with site(Config(port=0, models=models, log_level="warning")) as running:
        child = running.engine()._generator
        async with running.post(grammar=hard, max_tokens=5) as response:
            answer = await response.json()
        request = asyncio.ensure_future(running.post(grammar=hard, max_tokens=5).__aenter__())
        await until(lambda: hangs(running))
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)

        async def killed_twice() -> bool:
            return child.hangs == 2

        await until(killed_twice, deadline_s=90)
        async with running.post(max_tokens=5) as response:
            after = response.status

    assert "engine_died" == answer["error"]["code"]
    assert "grammar" in answer["error"]["message"]
    assert 200 == after


async def hangs(running: Site) -> bool:
    """True once the engine is there and answers nobody."""
    if not running.engine()._generator.alive:
        return False
    try:
        async with asyncio.timeout(0.3):
            await running.slots()
    except TimeoutError:
        return True
    return False
