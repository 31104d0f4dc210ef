"""Tests of unilect.runtime.context: what is known of the requests that a server is answering."""

import asyncio

import pytest

from support.servers.appserver import App, serving
from unilect.api.backend import Batches
from unilect.auth.keys import Keys
from unilect.config.server import Config
from unilect.core.events import Finish, TextDelta, Usage
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.runtime.context import Context
from unilect.testing.echo import Echo

KEY = {"Authorization": "Bearer sk-test"}


class Paused(Echo):
    """An echo that waits before its first token, and again before its end."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.begin, self.end = (asyncio.Event() for _ in range(3))

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Two tokens, and the end."""
        self.asked.set()
        await self.begin.wait()
        yield [TextDelta("a"), TextDelta("b")]
        await self.end.wait()
        yield [Finish("stop"), Usage(3, 2)]


def told(context: Context) -> tuple[str, int]:
    """How far a request is: its state, and its tokens so far."""
    assert context.meter is not None
    return context.state, context.meter.usage.completion_tokens


async def none_runs(app: App) -> None:
    """Wait until no request is listed."""
    async with asyncio.timeout(60):
        while app.guard.requests:
            await asyncio.sleep(0)


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_running_request_is_listed(leaves: bool) -> None:
    """A streamed request is listed with its caller, what it asks and how far it is, until it ends or its client leaves."""
    backend = Paused()
    async with serving(backend, Config(api_keys=["sk-test"])) as app:
        app.session.headers.update(KEY)
        asking = asyncio.create_task(app.session._request("GET", f"http://127.0.0.1:{app.port}/x"))
        assert 404 == (await asking).status
        stream = asyncio.create_task(app.chat().__aenter__())
        await backend.asked.wait()
        (context,) = app.guard.requests.values()
        assert ("waiting", 0) == told(context)
        backend.begin.set()
        response = await stream
        await response.content.readany()
        assert [context] == list(app.guard.requests.values())
        assert ("answering", 2) == told(context)
        caller = await Keys(["sk-test"]).caller(KEY)
        assert (caller.name, "m", "chat.completions", "openai", 0, None) == (
            context.caller,
            context.model,
            context.endpoint,
            context.dialect,
            context.priority,
            context.deadline,
        )
        assert context.request_id == response.headers["X-Request-Id"]
        if leaves:
            response.close()
        else:
            backend.end.set()
            await response.read()
        await none_runs(app)
        assert app.counted("chat.completions", 499 if leaves else 200) == 1


async def test_a_request_whose_body_is_read_is_listed() -> None:
    """A request that has asked no model yet is listed as one that is read."""
    async with serving(Echo()) as app:
        _, writer = await asyncio.open_connection("127.0.0.1", app.port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
        writer.write(head.encode())
        async with asyncio.timeout(60):
            while not app.guard.requests:
                await asyncio.sleep(0)
        (context,) = app.guard.requests.values()
        assert ("reading", "", "completions") == (context.state, context.model, context.endpoint)
        writer.close()
        await writer.wait_closed()
        await none_runs(app)
