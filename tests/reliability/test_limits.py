"""Limits and keys on real servers, with the official client: streams of revoked keys, headers, gateways that are killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from support.servers.postgresql import POSTGRESQL
from support.servers.redis_server import redis_server
from support.servers.serving import Server, serve

HI: Any = [{"role": "user", "content": "x" * 20}]
CONFIG = """
api_keys = ["sk-of-the-file"]
[store]
url = "{store}"
{limits}
[models.m]
source = "echo:"
options = {{ text = "{text}", tokens_per_s = 40.0, context = 4096 }}
"""


class Keys:
    """A file of keys, and a configuration with it."""

    def __init__(self, folder: Path, limits: str = "", url: str | None = None) -> None:
        url = url or f"sqlite:///{folder / 'unilect.db'}"
        self.config = CONFIG.format(store=url, limits=limits, text="y" * 400)
        self._file = folder / "unilect.toml"
        self._file.write_text(self.config)

    def run(self, *args: str) -> str:
        """What a command for keys prints."""
        command = [sys.executable, "-m", "unilect", "keys", *args, "--config", str(self._file)]
        env = {k: v for k, v in os.environ.items() if not k.startswith("UNILECT_")}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.strip()  # fmt: skip

    def create(self, name: str, *limits: str) -> str:
        """A new key."""
        return self.run("create", name, *[word for limit in limits for word in ("--limit", limit)])


def client(server: Server, key: str, retries: int = 0) -> openai.OpenAI:
    """The official client."""
    return openai.OpenAI(base_url=server.url, api_key=key, max_retries=retries, timeout=60)


@pytest.fixture(scope="module", params=["sqlite", POSTGRESQL])
def keys(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Keys of a new file, counted in memory, and of a new database of a server, counted on Redis."""
    folder = tmp_path_factory.mktemp("limits")
    if request.param == "sqlite":
        return Keys(folder)
    redis = request.getfixturevalue("server_of_redis")
    redis.flush()
    url = request.getfixturevalue("server_of_postgresql").new_database()
    return Keys(folder, f'[limits]\nurl = "{redis.url}"', url)


@pytest.fixture(scope="module")
def server(keys: Keys) -> Iterator[Server]:
    """A server with these keys, one of which is there when it starts, so that it asks for them."""
    keys.create("first")
    with serve(config=keys.config) as running:
        yield running


@pytest.mark.heavy
@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_revoked_in_a_stream(keys: Keys, server: Server, path: str) -> None:
    """A stream of a revoked key ends with an error event within a second, in the form of its API, and the key is refused."""
    name = f"ann-{path.partition('/')[0]}"
    key = keys.create(name)
    body: dict[str, Any] = {"model": "m", "stream": True, "max_tokens": 400, "messages": HI}
    if path == "responses":
        body = {"model": "m", "stream": True, "input": "Hi"}
    told: list[tuple[float, str]] = []
    with client(server, key) as asked:
        begun = threading.Event()

        def read() -> None:
            with asked._client.stream(
                "POST", f"{server.url}/{path}", json=body, headers=asked.auth_headers, timeout=60
            ) as answer:
                for line in answer.iter_lines():
                    told.append((time.monotonic(), line))
                    begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(30)
        keys.run("revoke", name)
        revoked = time.monotonic()
        reader.join(30)
        assert told[-1][0] - revoked < 2  # one, and one for a machine that does other things too
        assert "data: [DONE]" not in [line for _, line in told]
        last = json.loads([line for _, line in told if line.startswith("data: ")][-1][6:])
        assert "it has been revoked" in json.dumps(last)
        with pytest.raises(openai.AuthenticationError):
            asked.chat.completions.create(model="m", messages=HI, max_tokens=1)


@pytest.mark.heavy
def test_revoked_before_the_answer(keys: Keys, server: Server) -> None:
    """A request without a stream is answered with 401 when its key is revoked meanwhile."""
    key = keys.create("whole")
    failures: list[Exception] = []
    with client(server, key) as asked:

        def ask() -> None:
            try:
                asked.chat.completions.create(model="m", messages=HI)
            except openai.APIStatusError as error:
                failures.append(error)

        waiting = threading.Thread(target=ask)
        waiting.start()
        keys.run("revoke", "whole")
        waiting.join(30)
    (failure,) = failures
    assert isinstance(failure, openai.AuthenticationError)


@pytest.mark.heavy
def test_headers_and_errors(keys: Keys, server: Server) -> None:
    """The official client finds its limits in the headers of OpenAI's names, waits as it is told, and knows an exhausted quota."""
    key = keys.create("headers", "requests_per_minute=60", "tokens_per_day=70")
    with client(server, key) as asked:
        raw = asked.chat.completions.with_raw_response.create(model="m", messages=HI, max_tokens=5)
        assert {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-limit-tokens": "70",
            "x-ratelimit-remaining-tokens": "45",
        }.items() <= dict(raw.headers).items()
        assert raw.parse().choices[0].message.content == "y" * 5
        with asked.chat.completions.with_streaming_response.create(
            model="m", messages=HI, max_tokens=5, stream=True
        ) as stream:
            assert "20" == stream.headers["x-ratelimit-remaining-tokens"]
            stream.read()
    with client(server, key, retries=3) as asked:
        began = time.monotonic()
        with pytest.raises(openai.RateLimitError) as raised:
            asked.chat.completions.create(model="m", messages=HI, max_tokens=5)
        assert time.monotonic() - began < 1  # no second try
        assert "insufficient_quota" == raised.value.code

    key = keys.create("waits", "requests_per_minute=30", "parallel=1")
    with client(server, key, retries=1) as asked:
        for _ in range(31):  # the last one comes again after Retry-After, once
            asked.chat.completions.create(model="m", messages=HI, max_tokens=0)


@pytest.mark.heavy
def test_a_killed_gateway(tmp_path: Path) -> None:
    """What a gateway had reserved on Redis that is killed is free again on the others, and budgets are not passed meanwhile."""
    with redis_server() as redis:
        keys = Keys(tmp_path, f'[limits]\nurl = "{redis.url}"')
        key = keys.create("ann", "tokens_per_day=1000")
        with serve(config=keys.config) as other:
            with pytest.raises(AssertionError), serve(config=keys.config) as killed:
                with client(killed, key) as asked:
                    streams = [
                        asked.chat.completions.create(
                            model="m", messages=HI, max_tokens=380, stream=True
                        )
                        for _ in range(2)
                    ]
                    for stream in streams:
                        next(iter(stream))
                    os.kill(killed.pid, signal.SIGKILL)  # before it sees that its client leaves
            with client(other, key) as asked:
                with pytest.raises(openai.RateLimitError):
                    asked.chat.completions.create(model="m", messages=HI, max_tokens=380)
                deadline = time.monotonic() + 30
                while True:
                    try:
                        asked.chat.completions.create(model="m", messages=HI, max_tokens=380)
                        break
                    except openai.RateLimitError as error:
                        assert time.monotonic() < deadline
                        assert "reserved for running requests" in error.message
                        time.sleep(float(error.response.headers["Retry-After"]))
