"""The questions of an operator at three in the morning, each answered by one command, of a real server without any configuration of it."""

import asyncio
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import ClientSession

from support.backends.loopback import free_port
from support.servers.serving import Server, serve

CONFIG = """
api_keys = ["sk-night"]
[models.demo]
source = "demo:"
[models.slow]
source = "echo:"
options = {{ text = "{text}", tokens_per_s = 20.0 }}
[models.down]
source = "http://127.0.0.1:{port}/v1"
"""


@dataclass
class Night:
    """
    A server with a model that is loaded, one that answers slowly, and one that is out.

    Attributes:
        server: It.
        port: Where the upstream is not.
        data: The folder of the user's data.
    """

    server: Server
    port: int
    data: Path

    def ask(self, model: str, **more: object) -> tuple[int, str]:
        """The status of an answer and the id of its request."""
        body = {"model": model, "messages": [{"role": "user", "content": "zebra"}], **more}
        request = urllib.request.Request(
            f"{self.server.url}/chat/completions",
            json.dumps(body).encode(),
            {"Authorization": "Bearer sk-night"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
                return answer.status, answer.headers["X-Request-Id"]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["X-Request-Id"]

    def run(self, *command: str) -> str:
        """What `unilect` prints for an operator in another terminal."""
        line = [sys.executable, "-m", "unilect", *command]
        env = {"XDG_DATA_HOME": str(self.data), "PATH": ""}
        done = subprocess.run(line, env=env, cwd=self.data, capture_output=True, text=True, timeout=60)  # fmt: skip
        assert 0 == done.returncode, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """The server, which has answered once."""
    data, port = tmp_path_factory.mktemp("data"), free_port()
    config = CONFIG.format(text="word " * 1000, port=port)
    with serve(config=config, env={"XDG_DATA_HOME": str(data)}) as server:
        found = Night(server, port, data)
        assert 200 == found.ask("demo")[0]
        yield found


def row(text: str, first: str) -> list[str]:
    """The cells of the row that begins with a word."""
    line = next(line for line in text.splitlines() if line.startswith(f"{first} "))
    return re.split(r"\s{2,}", line.strip())


def test_which_model_is_loaded(night: Night) -> None:
    """`unilect ps` says of each model if it is loaded, and of one that cannot answer why, and since when."""
    told = night.run("ps")

    assert "ready" == row(told, "demo")[1]
    assert "out" == row(told, "down")[1]
    assert re.search(rf"down: out: .*connection refused by 127.0.0.1:{night.port}, since \d\d:\d\d:\d\d, tried with the next request", told)  # fmt: skip


def test_what_takes_memory(night: Night) -> None:
    """`unilect ps` says what each model has in memory, on what it runs, and how large its context is."""
    told = row(night.run("ps"), "demo")

    assert re.fullmatch(r"[\d.]+ [MG]B", told[2])
    assert told[3].startswith("CPU, ")
    assert told[4:6] == ["2048", "0/4"]


async def test_who_uses_it(night: Night) -> None:
    """`unilect ps` lists the requests that run, with key, address, model, state and tokens."""
    body = {"model": "slow", "stream": True, "messages": [{"role": "user", "content": "zebra"}]}
    headers = {"Authorization": "Bearer sk-night"}
    async with ClientSession(headers=headers) as client:
        async with client.post(f"{night.server.url}/chat/completions", json=body) as answer:
            await answer.content.readany()
            told = await asyncio.to_thread(night.run, "ps")

    cells = row(told, "req_" + told.split("\nreq_")[1].split()[0])
    assert re.fullmatch(r"key-[0-9a-f]{16}", cells[1])
    assert ["127.0.0.1", "slow", "chat.completions", "answering"] == cells[2:6]


def test_why_did_a_request_fail(night: Night) -> None:
    """`unilect why ID` says why a request failed, for whom, and what each backend said; `unilect why` lists the last failures."""
    status, request_id = night.ask("down")
    _, wrong = night.ask("demo", temperature="hot")
    told, every = night.run("why", request_id), night.run("why")

    assert 503 == status
    assert "status  503 backend_unreachable" in told
    assert f"connection refused by 127.0.0.1:{night.port}" in told
    assert f"tried   down at http://127.0.0.1:{night.port}: " in told
    assert re.search(r"caller  key-[0-9a-f]{16} from 127.0.0.1", told)
    assert "remedy  Start the backend, or correct its address" in told
    assert "param   temperature" in night.run("why", wrong)
    assert request_id in every
    assert wrong in every
    assert "zebra" not in told + every + night.server.log.read_text()


def test_why_is_a_model_loaded(night: Night) -> None:
    """`unilect why MODEL` says when a model was loaded, how long that took, and what it takes."""
    night.ask("demo")
    told = night.run("why", "demo")

    assert told.startswith("demo: ready\n")
    assert re.search(r"loaded in [\d.]+ s: takes \d+ MB at most, all models \d+ MB of ", told)


def test_what_is_slow(night: Night) -> None:
    """`unilect ps` says how fast each model answers, and how many requests wait for it."""
    head, told = row(night.run("ps"), "MODEL"), row(night.run("ps"), "demo")

    assert float(told[head.index("TOKENS/S")]) > 0
    assert "0" == told[head.index("QUEUE")]


def test_is_it_well(night: Night) -> None:
    """/readyz says that a server is well while one of its models can answer."""
    with urllib.request.urlopen(f"{night.server.root}/readyz", timeout=60) as answer:
        assert b"ready\n" == answer.read()


async def test_what_has_changed(night: Night) -> None:
    """`unilect reload` says what it has changed, and so does the log."""
    file = night.server.log.parent / "unilect.toml"
    file.write_text(file.read_text() + '[models.more]\nsource = "echo:"\n')

    assert "reloaded: added more" in await asyncio.to_thread(night.run, "reload")
    async with asyncio.timeout(20):  # the log is written soon
        while "reloaded: added more" not in night.server.log.read_text():
            await asyncio.sleep(0.02)


def test_a_client_of_a_model_that_is_out(night: Night) -> None:
    """`unilect connect` writes no limits for a model that cannot answer, and leaves it out."""
    told = night.run("connect", "zed", "--url", night.server.url, "--api-key", "sk-night")

    assert '"demo"' in told
    assert "down" not in told
