"""The application on a free port of this process, in front of backends that a test chooses, and a client of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import ClientResponse, ClientSession, ClientTimeout, web

from support.common.samples import sample
from unilect.accounting.failures import Failures
from unilect.accounting.tracing import Tracing
from unilect.answers.inflight import Answers
from unilect.answers.service import Service
from unilect.api.backend import Backend
from unilect.config.server import Config
from unilect.http.client import HttpServer
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.server._acceptor import Acceptor
from unilect.server._connections import Connections, Limits
from unilect.server._state import metrics_of
from unilect.server.app import GUARD, SITE, Shared, create_app
from unilect.store.store import Store
from unilect.upstreams.openai.backend import OpenAIUpstream
from unilect.web.guard import Guard

HI = [{"role": "user", "content": "Hi"}]


class App:
    """
    A running application.

    Attributes:
        port: Where it listens, on 127.0.0.1.
        session: A client.
        connections: The table of its connections.
        failures: Its failed requests.
        inflight: Its answers that may outlive their clients.
    """

    def __init__(
        self,
        app: web.Application,
        port: int,
        session: ClientSession,
        connections: Connections,
        failures: Failures,
    ) -> None:
        self.port = port
        self.failures = failures
        self.connections = connections
        self.session = session
        self.service: Service = app[SITE].service
        self.inflight: Answers = app[SITE].inflight
        self.guard: Guard = app[GUARD]

    def post(self, path: str, **body: Any) -> Any:
        """POST a body; a message where a chat has none."""
        if path.endswith("chat/completions"):
            body = {"messages": HI} | body
        return self.session.post(f"http://127.0.0.1:{self.port}{path}", json=body)

    def chat(self, **body: Any) -> Any:
        """POST a chat, streamed unless the body says otherwise."""
        return self.post("/v1/chat/completions", **{"stream": True} | body)

    async def get(self, path: str) -> tuple[int, bytes]:
        """The status and the body of a GET."""
        async with self.session.get(f"http://127.0.0.1:{self.port}{path}") as response:
            return response.status, await response.read()

    def counted(self, endpoint: str, status: int) -> float:
        """How many requests were counted with this status."""
        labels = {"model": "m", "endpoint": endpoint, "status": str(status)}
        return sample(self.service.accounts.metrics, "unilect_requests_total", labels) or 0


@asynccontextmanager
async def serving(
    backend: Backend | list[PooledBackend],
    config: Config | None = None,
    limits: Limits | None = None,
    fallback: list[PooledBackend] | None = None,
    store: Store | None = None,
    tracing: Tracing | None = None,
    inflight: Answers | None = None,
    **model: Any,
) -> AsyncIterator[App]:
    """An application that serves one model, `m`, until the block ends, and its fallback `other` where there is one."""
    models = [Model("m", backend, fallback=None if fallback is None else "other", **model)]
    if fallback is not None:
        models.append(Model("other", fallback))
    registry = Registry(models)
    async with serving_models(
        config or Config(), registry, limits, store, tracing, inflight
    ) as app:
        yield app


@asynccontextmanager
async def serving_models(
    config: Config,
    registry: Registry,
    limits: Limits | None = None,
    store: Store | None = None,
    tracing: Tracing | None = None,
    inflight: Answers | None = None,
) -> AsyncIterator[App]:
    """An application that serves models until the block ends."""
    failures = Failures()
    metrics = metrics_of(registry, per_key=config.metrics_per_key)
    more: dict[str, Any] = {"store": store, "tracing": tracing, "inflight": inflight}
    shared = Shared(registry, metrics, failures=failures, **more)
    app = create_app(config, shared)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    assert runner.server is not None
    connections = Connections(limits or Limits())
    acceptor = Acceptor(runner.server, connections, access_log=None, auto_decompress=False)
    try:
        port = await acceptor.listen("127.0.0.1", 0)
        async with ClientSession(timeout=ClientTimeout(20)) as session:
            yield App(app, port, session, connections, failures)
    finally:
        acceptor.close()
        await runner.cleanup()
        await connections.aclose(0)


def upstream(url: str, **settings: Any) -> OpenAIUpstream:
    """The backend for a server that speaks OpenAI's API."""
    return OpenAIUpstream(HttpServer(url, **settings), "theirs")


async def chunks(response: ClientResponse) -> list[Any]:
    """The data of a stream's frames, decoded; `[DONE]` and comments as they are."""
    found: list[Any] = []
    for frame in (await response.read()).decode().split("\n\n")[:-1]:
        data = frame.removeprefix("data: ")
        found.append(msgspec.json.decode(data) if data.startswith("{") else data)
    return found
