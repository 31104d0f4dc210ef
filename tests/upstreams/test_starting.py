"""Tests of how servers elsewhere are asked what they are, by many requests at once."""

import asyncio
from typing import Any

import pytest

from unilect.core.errors import BackendUnavailable
from unilect.http.client import HttpServer
from unilect.upstreams.llamacpp.backend import LlamaCppUpstream
from unilect.upstreams.openai.backend import OpenAIUpstream

MADE = [
    pytest.param(lambda server: OpenAIUpstream(server, "m"), id="openai"),
    pytest.param(LlamaCppUpstream, id="llamacpp"),
]


class Asked:
    """
    Stands in for what an upstream learns of its server.

    Attributes:
        times: How often it was asked.
        begun: It has been.
        go: Lets it fail.
    """

    def __init__(self) -> None:
        self.times = 0
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> float:
        """Fail, once it may."""
        self.times += 1
        self.begun.set()
        await self.go.wait()
        raise BackendUnavailable("nobody is there")


@pytest.mark.parametrize("made", MADE)
async def test_a_server_that_is_down(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests that wait for a server that cannot be reached are told by one attempt, whoever of them leaves; the next tries anew."""
    upstream, asked = made(HttpServer("http://127.0.0.1:9/v1")), Asked()
    monkeypatch.setattr(upstream, "_learn", asked)
    left, *others = (asyncio.create_task(upstream.start()) for _ in range(20))
    await asked.begun.wait()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    asked.go.set()
    ended = await asyncio.gather(*others, return_exceptions=True)
    once = asked.times
    with pytest.raises(BackendUnavailable, match="nobody is there"):
        await upstream.start()
    await upstream.aclose()

    assert [BackendUnavailable] * 19 == [type(error) for error in ended]
    assert (1, 2) == (once, asked.times)


@pytest.mark.parametrize("made", MADE)
async def test_stopping_while_a_server_is_asked(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a server when its model is stopped is told so."""
    upstream, asked = made(HttpServer("http://127.0.0.1:9/v1")), Asked()
    monkeypatch.setattr(upstream, "_learn", asked)
    waiting = asyncio.create_task(upstream.start())
    await asked.begun.wait()
    await upstream.aclose()

    with pytest.raises(BackendUnavailable, match="was stopped"):
        await waiting
