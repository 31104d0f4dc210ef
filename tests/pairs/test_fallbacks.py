"""Fallbacks with what else knows of models: limits, prices, the ledger, failover and streams."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from ledger_clients import rows_of

from support.servers.listening import Listening, listening
from unilect.config.limits import Limits
from unilect.config.model import ModelConfig, Price
from unilect.config.server import Config
from unilect.config.store import StoreConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "sk-of-one"
CHEAP, DEAR = Price(prompt=1.0, completion=2.0), Price(prompt=1000.0, completion=2000.0)
WHOLE = "The other model says so."


class Gate:
    """A server, and a client with a key; its ledger has each request."""

    def __init__(self, server: Listening, store: str) -> None:
        self._server, self._store = server, store

    async def chat(self, model: str, **body: Any) -> tuple[int, str, aiohttp.ClientResponse]:
        """The status, the text and the answer itself of a chat."""
        body |= {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
        async with self._server.request(KEY, "/v1/chat/completions", **body) as answer:
            return answer.status, await answer.text(), answer

    async def rows(self, id: str) -> list[dict[str, Any]]:
        """What the ledger has of a request."""
        rows = await asyncio.to_thread(rows_of, self._store)
        return [row for row in rows if row["id"].endswith(f".{id}")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gate]:
    """One for all tests: `down` and `begins` cannot end an answer, and have `other` as their fallback, which is dear and nearly unusable."""
    store = f"sqlite:///{Path(tmp_path_factory.mktemp('gate')) / 'unilect.db'}"

    def echo(text: str, price: Price | None = CHEAP, count: int = 1, **options: Any) -> ModelConfig:
        return ModelConfig(
            source=["echo:"] * count,
            options={"text": text, "context": 4096} | options,
            fallback=None if text == WHOLE else "other",
            price=price,
            limits=Limits(tokens_per_day=1 if text == WHOLE else 400),
        )

    config = Config(
        port=0,
        api_keys=[KEY],
        store=StoreConfig(url=store, keys=False, ledger="required"),
        models={
            "down": echo("down", failing_starts=10**6),
            "breaks": echo("breaks", count=2, failing_answers=10**6),
            "begins": echo("begins", count=2, failing_answers=10**6, breaks_after=3),
            "other": echo(WHOLE, DEAR),
        },
    )
    async with listening(config) as server:
        yield Gate(server, store)


async def test_fallbacks_and_limits(gate: Gate) -> None:
    """An answer of the fallback counts against the limits of the model that was asked for, once, and against none of the fallback's own."""
    used, status, text = 0, 200, ""
    for _ in range(100):
        status, text, answer = await gate.chat("down", max_tokens=40)
        if status != 200:
            break
        assert "other" == answer.headers["X-Unilect-Fallback"]
        (row,) = await gate.rows(answer.headers["X-Request-Id"])
        used += row["prompt"] + row["completion"]
        assert ("down", len(WHOLE)) == (row["model"], row["completion"])
        assert row["cost"] == row["prompt"] * 1 + row["completion"] * 2
    own, _, _ = await gate.chat("other", max_tokens=40)

    assert (429, 429) == (status, own)
    assert used > 100
    told = re.search(r"tokens_per_day of this model is 400: (\d+) are used", text)
    assert told is not None, text
    assert used == int(told[1])


async def test_fallbacks_and_failover_and_streams(gate: Gate) -> None:
    """A stream whose backends all break before its first text is the fallback's alone, whole, told once and charged once."""
    _, text, answer = await gate.chat("breaks", stream=True, max_tokens=40)
    said = "".join(re.findall(r'"content":"(.*?)"', text))
    (row,) = await gate.rows(answer.headers["X-Request-Id"])

    assert (200, "other") == (answer.status, answer.headers["X-Unilect-Fallback"])
    assert (WHOLE, 1) == (said, text.count("[DONE]"))
    assert ("breaks", len(WHOLE)) == (row["model"], row["completion"])


async def test_fallbacks_and_streams_that_have_begun(gate: Gate) -> None:
    """A stream that breaks after its first text ends with an error, and neither another backend nor the fallback says a word in it."""
    _, text, answer = await gate.chat("begins", stream=True, max_tokens=40)
    said = "".join(re.findall(r'"content":"(.*?)"', text))
    (row,) = await gate.rows(answer.headers["X-Request-Id"])

    assert "X-Unilect-Fallback" not in answer.headers
    assert ("beg", 1) == (said, text.count('"error"'))
    assert ("begins", 3) == (row["model"], row["completion"])
