"""Starting, sharing, idling and stopping."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from inprocess import site, until

from support.servers.serving import serve
from unilect.config.server import Config, ModelConfig
from unilect.demo import MODEL


async def test_two_models_answer_side_by_side() -> None:
    """Two models are listed, and requests to both may run at the same time."""
    models = {"one": ModelConfig(), "two": ModelConfig(aliases=["zwei"])}
    async with site(Config(port=0, models=models, log_level="warning")) as running:
        async with running.client.get(running.url + "/v1/models") as response:
            listed = [model["id"] for model in (await response.json())["data"]]

        async def ask(name: str) -> str:
            async with running.post(model=name, max_tokens=5) as response:
                answer = await response.json()
                return str(answer["model"])

        names = ["one", "two", "zwei", "one", "two", "zwei"] * 3
        answered = await asyncio.gather(*(ask(name) for name in names))

    assert listed == ["one", "two"]
    assert [name.replace("zwei", "two") for name in names] == answered


async def test_engine_is_started_once_for_many_requests() -> None:
    """Requests that come while a model loads wait for it, and start nothing themselves."""
    models = {"demo": ModelConfig(load="demand")}
    async with site(Config(port=0, models=models, log_level="warning")) as running:
        await running.engine().aclose()

        async def ask() -> int:
            async with running.post(max_tokens=1) as response:
                return int(response.status)

        statuses = await asyncio.gather(*(ask() for _ in range(10)))

        assert statuses == [200] * 10
        children = psutil.Process().children()
        assert 1 == sum("gguf._child" in " ".join(child.cmdline()) for child in children)


async def test_idle_engine_stops_and_starts_again() -> None:
    """An engine without requests is stopped after its time, and the next request is answered all the same."""
    models = {"demo": ModelConfig(idle_stop_s=0.05)}
    async with site(Config(port=0, models=models, log_level="warning")) as running:
        child = running.engine()._generator.process

        async def stopped() -> bool:
            return child.pid is None and child.closed

        async with running.post(max_tokens=1) as response:
            assert response.status == 200
        await until(stopped)
        async with running.post(max_tokens=1) as response:
            assert response.status == 200


def test_running_answer_is_finished_after_sigterm() -> None:
    """A stream that runs when SIGTERM comes is finished, and the server then exits with 0."""
    import openai

    with serve() as server, openai.OpenAI(base_url=server.url, api_key="x") as client:
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Tell me a story."}],
            max_tokens=200,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        chunks = iter(stream)
        next(chunks)
        os.kill(server.pid, signal.SIGTERM)
        rest = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]

    assert rest[-1] == "length"


@pytest.mark.heavy(but=4)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["missing.gguf"], "There is no file"),
        (["./empty.gguf"], "is not a GGUF file"),
        (["./text.gguf"], "not a valid GGUF file"),
        (["./cut.gguf"], "cut off"),
        (["./garbled.gguf"], "The engine ended while it loaded the model"),
        (["demo:", "--host", "0.0.0.0"], "no API key is set"),
        (["demo:", "--context", "9999999"], "context"),
        (["demo:", "--parallel", "0"], "parallel"),
        (["demo:", "--lora", "missing.gguf"], "missing.gguf"),
        (["gguf://nonsense"], "nonsense"),
        (["ftp://host/x"], "scheme"),
        (["localhost:8080"], "write http://localhost:8080"),
        (["--config", "missing.toml"], "missing.toml"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_sentence(
    tmp_path: Path, arguments: list[str], expected: str
) -> None:
    """A wrong file or flag is told in one line on stderr, with exit code 1."""
    whole = MODEL.read_bytes()
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "text.gguf").write_text("no model, but a text\n" * 100)
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "garbled.gguf").write_bytes(
        whole.replace(b"llama.embedding_length", b"llama.embedding_lenght", 1)
    )

    done = subprocess.run(
        [sys.executable, "-m", "unilect", "serve", *arguments, "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1, done
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("unilect: ")
    assert expected in lines[0]


def test_port_that_is_taken_is_told(tmp_path: Path) -> None:
    """A port that another server has is told in one line, and nothing is left running."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = subprocess.run(
            [sys.executable, "-m", "unilect", "serve", "--port", str(other.getsockname()[1])],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert done.returncode == 1
    assert "cannot listen" in done.stderr


async def test_upstream_that_is_down_joins_when_it_comes_up() -> None:
    """A server starts without an upstream that is down, says 503 for it, and uses it once it is there."""
    async with site(Config(port=0, models={"demo": ModelConfig()}, log_level="warning")) as behind:
        host = behind.url
    models = {"far": ModelConfig(source=f"{host}/v1"), "near": ModelConfig()}
    async with site(Config(port=0, models=models, log_level="warning")) as running:
        async with running.post(model="far", max_tokens=1) as response:
            down = response.status, response.headers["Retry-After"]
        port = int(host.rpartition(":")[2])
        config = Config(port=port, models={"demo": ModelConfig()}, log_level="warning")
        async with site(config), running.post(model="far", max_tokens=1) as response:
            up = response.status

    assert (503, "1") == down
    assert 200 == up


async def test_stream_is_readable_by_an_allowed_page() -> None:
    """A page of an allowed origin may read a stream, whose head is sent before the stream ends."""
    page = "https://my.page"
    models = {"demo": ModelConfig()}
    config = Config(port=0, models=models, allowed_origins=[page], log_level="warning")
    async with site(config) as running:
        for stream in (True, False):
            body = {"messages": [{"role": "user", "content": "Hi"}], "stream": stream}
            url = running.url + "/v1/chat/completions"
            async with running.client.post(url, json=body, headers={"Origin": page}) as response:
                told = response.headers.getall("Access-Control-Allow-Origin")
            assert [page] == told


@pytest.mark.heavy
async def test_stopped_engine_is_not_brought_back() -> None:
    """An engine that dies and is stopped before it is back stays stopped, until a request wants it."""
    async with site(Config(port=0, models={"demo": ModelConfig()}, log_level="error")) as running:
        engine = running.engine()
        child = engine._generator.process
        running_child = child._process
        assert running_child is not None
        running_child.kill()
        await running_child.wait()
        await engine.aclose()
        await child._restart()
        stopped = child.pid
        async with running.post(max_tokens=1) as response:
            status = response.status

    assert stopped is None
    assert 200 == status
