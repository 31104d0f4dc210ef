"""A server in this process, so that a test can ask its engine directly what it is doing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from support.backends.engine import process
from unilect.config.server import Config
from unilect.engines.gguf.engine import GgufEngine
from unilect.engines.process._crash_blame import CrashBlame
from unilect.engines.process.child_process import ChildProcess
from unilect.engines.transformers.engine import HfEngine
from unilect.models import sources
from unilect.models.registry import Registry
from unilect.server.listener import Listener

PAUSE_S = 0.005


class Site:
    """
    A server on a free port, and a client for it.

    Attributes:
        url: Its base URL, without `/v1`.
        registry: Its models.
        client: An HTTP client.
        listener: The HTTP side of the server.
    """

    def __init__(
        self, url: str, registry: Registry, client: aiohttp.ClientSession, listener: Listener
    ) -> None:
        self.url = url
        self.listener = listener
        self.registry = registry
        self.client = client

    @property
    def child(self) -> ChildProcess:
        """The process that runs the default model."""
        return process(self.registry.get(None).pool.members[0].backend)

    @property
    def suspects(self) -> CrashBlame:
        """What is known of the requests of the default model's engine, when it dies."""
        backend = self.registry.get(None).pool.members[0].backend
        if isinstance(backend, HfEngine):
            return backend._server.supervisor.blame
        return self.engine()._generator.supervisor.blame

    def engine(self, name: str | None = None) -> GgufEngine:
        """The engine of a model."""
        backend = self.registry.get(name).pool.members[0].backend
        assert isinstance(backend, GgufEngine)
        return backend

    async def slots(self) -> list[dict[str, Any]]:
        """The slots of the default model's engine, as llama.cpp itself tells them."""
        engine = self.engine()
        server = await engine._generator.connect()
        slots: list[dict[str, Any]] = msgspec.json.decode(await server.get("/slots"))
        return slots

    async def busy(self) -> int:
        """How many places are at work, as the engine itself tells."""
        backend = self.registry.get(None).pool.members[0].backend
        if isinstance(backend, HfEngine):
            return msgspec.msgpack.decode(await backend._server.value("ping", None), type=int)
        return sum(bool(slot["is_processing"]) for slot in await self.slots())

    async def tokens_made(self) -> int:
        """How many tokens the engine has made since it started, as llama.cpp counts them."""
        engine = self.engine()
        server = await engine._generator.connect()
        for line in (await server.get("/metrics")).decode().splitlines():
            if line.startswith("llamacpp:tokens_predicted_total "):
                return int(float(line.split()[1]))
        raise AssertionError("llama.cpp counts no tokens")

    async def until_busy(self, slots: int) -> None:
        """Wait until so many places are at work."""
        await until(lambda: self._is_busy(slots))

    async def _is_busy(self, slots: int) -> bool:
        return await self.busy() == slots

    async def figures(self, *names: str) -> float:
        """The sum of the lines of `/metrics` that begin so."""
        headers = {"Authorization": f"Bearer {METRICS_KEY}"}
        async with self.client.get(self.url + "/metrics", headers=headers) as response:
            assert 200 == response.status
            lines = (await response.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(names))

    async def asked(self) -> float:
        """How many requests are with the server."""
        return await self.figures("unilect_requests_waiting{", "unilect_requests_running{")

    async def is_idle(self) -> bool:
        """True when no request is with the server."""
        return await self.asked() == 0

    def post(self, path: str = "/v1/chat/completions", **body: Any) -> Any:
        """POST a body; messages that say hello where it has none."""
        if path.endswith("chat/completions"):
            body = {"messages": [{"role": "user", "content": "Hello!"}]} | body
        return self.client.post(self.url + path, json=body)


async def until(condition: Callable[[], Any], deadline_s: float = 60.0) -> None:
    """
    Wait until an asynchronous condition holds, asking again and again.

    It leaves the processor to what it waits for: a child that starts needs it for seconds.

    Raises:
        TimeoutError: It did not hold in time.
    """
    async with asyncio.timeout(deadline_s):
        while not await condition():
            await asyncio.sleep(PAUSE_S)


#: Of the metrics, in a configuration with keys.
METRICS_KEY = "sk-metrics-of-a-test"


@asynccontextmanager
async def site(config: Config) -> AsyncIterator[Site]:
    """Serve a configuration in this process."""
    registry = sources.registry(config)
    listener = Listener(config, registry)
    try:
        await registry.start(list(registry.models))
        url = (await listener.listen())[0]
        async with aiohttp.ClientSession() as client:
            yield Site(url, registry, client, listener)
    finally:
        await listener.aclose()
        await registry.aclose()
