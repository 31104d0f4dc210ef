"""Tests of tokens that reach their client without its task, with what else sees each token of an answer."""

import asyncio
from typing import Any

import msgspec
import pytest

from support.backends.scripted import DONE, USAGE, Exchange, delta, frames, one_by_one, scripted
from support.common.waiting import until
from support.servers.appserver import App, serving, upstream
from unilect.core.errors import QuotaExceeded
from unilect.core.events import Tally, Usage
from unilect.core.requests import Request
from unilect.runtime.context import Context
from unilect.scheduling.fair_queue import ANSWER_WEIGHT, QueueSettings
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.upstreams.openai._servers import KINDS, capabilities
from unilect.web import streaming

WORDS = [f" w{number}" for number in range(40)]
BEGIN = frames(delta(role="assistant", content=""))
TOKENS = [frames(delta(content=word)) for word in WORDS]
END = frames(delta(finish="stop"), USAGE, DONE)


class Counted:
    """A recorder of requests, which ends an answer at a number of tokens."""

    is_on = True

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen: list[int] = []

    async def open(self, context: Context, request: Request) -> "Counted":
        """Begin a record."""
        return self

    def note_usage(self, usage: Usage) -> None:
        """Note what was used."""
        self.seen.append(usage.completion_tokens)
        if usage.completion_tokens > self.most:
            raise QuotaExceeded("No tokens are left.")

    async def close(self, usage: Tally | Usage, status: int) -> None:
        """End it."""


def text_of(line: bytes) -> str:
    """The text of a line of a stream."""
    if not line.startswith(b"data: {"):
        return ""
    choices = msgspec.json.decode(line[6:]).get("choices") or [{"delta": {}}]
    return choices[0]["delta"].get("content") or ""


async def read(app: App, taken: asyncio.Semaphore, words: int = 100) -> tuple[str, bytes]:
    """Read a stream whose server sends a token when those before it were read; returns its text and its last line."""
    text, last = "", b""
    async with app.chat() as response:
        async for line in response.content:
            text += (new := text_of(line))
            last = line.strip() or last
            for _ in new.split():
                taken.release()
            if len(text.split()) >= words:
                break
    return text, last


def ends(taken: asyncio.Semaphore) -> None:
    """Have a server send the rest without waiting."""
    for _ in TOKENS:
        taken.release()


@pytest.mark.parametrize("high_water_bytes", [streaming.HIGH_WATER_BYTES, -1])
async def test_each_token(high_water_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token reaches its client before the next one is made, also one that reads slowly."""
    monkeypatch.setattr(streaming, "HIGH_WATER_BYTES", high_water_bytes)
    taken = asyncio.Semaphore(1)
    async with (
        scripted(one_by_one([BEGIN, *TOKENS, END], taken)) as server,
        serving(upstream(server.url)) as app,
    ):
        text, last = await read(app, taken)

    assert ("".join(WORDS), b"data: [DONE]") == (text, last)


async def test_a_recorder_that_ends_the_answer() -> None:
    """A recorder sees each token once, and the answer ends with its error at the one that it refuses."""
    taken, book = asyncio.Semaphore(1), Counted(most=10)
    async with (
        scripted(one_by_one([BEGIN, *TOKENS, END], taken, end="keep")) as server,
        serving(upstream(server.url)) as app,
    ):
        app.service.accounts.books = (book,)
        text, last = await read(app, taken)
        ends(taken)
        await server.until_gone()

    assert "".join(WORDS[:10]) == text
    assert b"No tokens are left." in last
    assert [*range(1, 12)] == sorted(set(book.seen) - {0})


async def test_what_the_queue_charges() -> None:
    """The queue of a backend counts tokens that pass its answer."""
    taken = asyncio.Semaphore(1)
    async with (
        scripted(one_by_one([BEGIN, *TOKENS], taken, end="reset")) as server,
        serving([PooledBackend(upstream(server.url), "s", queue=QueueSettings(max_in_flight=1))]) as app,
    ):  # fmt: skip
        text, last = await read(app, taken)
        (queue,) = app.service.registry.models["m"].pool.queues

    assert "".join(WORDS) == text
    assert b"error" in last
    assert queue._mean > 0.2 * ANSWER_WEIGHT * len(WORDS)


async def test_an_answer_that_goes_on_elsewhere() -> None:
    """Where a server breaks off in the middle, the next one goes on behind the last token that the client has."""
    taken = asyncio.Semaphore(1)
    cut = one_by_one([BEGIN, *TOKENS[:20]], taken, end="reset")
    rest = one_by_one([BEGIN, *TOKENS[20:], END], taken)
    asked: list[Any] = []

    async def note(exchange: Exchange) -> None:
        asked.append(exchange.json())
        taken.release()
        await rest(exchange)

    async with scripted(cut) as one, scripted(note) as two:
        backends = [upstream(server.url) for server in (one, two)]
        for backend in backends:
            backend.kind = next(kind for kind in KINDS if kind.name == "vLLM")
            backend.capabilities = capabilities(backend.kind, {})
        pool = [PooledBackend(backend, f"s{number}") for number, backend in enumerate(backends)]
        async with serving(pool) as app:
            text, last = await read(app, taken)

    assert ("".join(WORDS), b"data: [DONE]") == (text, last)
    assert "".join(WORDS[:20]) == asked[0]["messages"][-1]["content"]


async def test_a_client_that_leaves() -> None:
    """A client that leaves between two tokens has the server stopped."""
    taken = asyncio.Semaphore(1)
    async with (
        scripted(one_by_one([BEGIN, *TOKENS], taken, end="keep")) as server,
        serving(upstream(server.url)) as app,
    ):
        await read(app, taken, words=20)
        ends(taken)
        await server.until_gone()
        await until(lambda: app.counted("chat.completions", 499) == 1)
