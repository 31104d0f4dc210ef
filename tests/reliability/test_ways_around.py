"""Ways around limits: whatever API is called, what is made is counted, as the ledger has it, and it is never more than was reserved."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from ledger_clients import rows_of

from unilect.api.backend import Backend, Batches, Capabilities
from unilect.api.parameters.support import declare_support, names
from unilect.config.limits import LimitsConfig
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.core.events import Finish, Progress, TextDelta, Usage
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Embeddings
from unilect.limits import counters
from unilect.limits import limiter as limits_module
from unilect.limits.counters import Claim, MemoryCounters
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.server.listener import Listener
from unilect.testing.echo import Echo, Options

KEY = "sk-of-one"
TEXT = "x" * 20
SAID = [{"role": "user", "content": TEXT}]
CHAT = {"messages": SAID}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object", "required": ["a"]}}}  # fmt: skip


class Plain(Backend):
    """A backend without tools, formats and a tokenizer: it says the same text, and counts bytes of prompts and letters of answers."""

    capabilities = Capabilities(
        parameters=declare_support(names("max_tokens temperature seed stop logprobs"), ("n", "best_of", "echo")),
        fans_out=True,
        context=4096,
        embeddings=True,
        rerank=True,
        tool_form="hermes",
    )  # fmt: skip

    async def start(self) -> None:
        """Nothing to do."""

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Say a text, slowly."""
        prompt = _bytes(request.messages if isinstance(request, ChatRequest) else request.prompts)
        yield [Progress(prompt, prompt)]
        count = min(40, 40 if request.token_limit is None else request.token_limit)
        for _ in range(count):
            yield [TextDelta("y")]
            await asyncio.sleep(0.001)
        yield [Finish("stop"), Usage(prompt, count)]

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """A vector for each text."""
        return Embeddings([[1.0, 0.0] for _ in request.inputs], _bytes(request.inputs))

    async def rerank(self, request: RerankRequest) -> Ranking:
        """A score for each document, of which the query is read each time."""
        pairs = [request.query + text for text in request.texts]
        return Ranking([0.5] * len(pairs), _bytes(pairs))

    async def aclose(self) -> None:
        """Nothing to do."""


def _bytes(texts: Sequence[Any]) -> int:
    return sum(len(text.encode()) if isinstance(text, str) else len(str(getattr(text, "content", text)).encode()) for text in texts)  # fmt: skip


class Recording(MemoryCounters):
    """Counters that tell what was held and what was used of the tokens of a day."""

    settled: list[tuple[int, int]]

    def __init__(self) -> None:
        super().__init__()
        Recording.settled = []

    async def settle(self, request: str, claims: Sequence[Claim], used: Sequence[int]) -> None:
        """As of the counters, noted."""
        await super().settle(request, claims, used)
        self.settled += [(one.need, units) for one, units in zip(claims, used, strict=True) if "tokens_per_day" in one.name]  # fmt: skip


class Gateway:
    """A server with an echo, `m`, and a plain backend, `p`; a key has all limits."""

    def __init__(
        self, url: str, store: str, client: aiohttp.ClientSession, listener: Listener
    ) -> None:
        self.url, self.store, self.client, self._listener = url, store, client, listener

    def made(self) -> int:
        """How many tokens of answers running requests have so far."""
        meters = [one.meter for one in self._listener._requests.values()]
        return sum(meter.usage.completion_tokens for meter in meters if meter is not None)

    async def ask(self, path: str, key: str | None = KEY, **body: Any) -> tuple[int, str]:
        """The status and the text of an answer."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with self.client.post(f"{self.url}{path}", json=body, headers=headers) as answer:
            return answer.status, await answer.text()

    async def charged(self) -> tuple[list[tuple[int, int]], list[int]]:
        """What was held and used of each request, and what the ledger has of each, once nothing runs."""
        await self._listener._store.ledger.read_usage(0.0)  # now there are tables
        rows = await asyncio.to_thread(rows_of, self.store)
        return Recording.settled, [row["prompt"] + row["completion"] for row in rows]


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    """A server on loopback."""
    for module in (counters, limits_module):
        monkeypatch.setattr(module, "MemoryCounters", Recording)
    store = f"sqlite:///{tmp_path / 'unilect.db'}"
    config = Config(
        port=0,
        api_keys=[KEY],
        limits=LimitsConfig(tokens_per_day=10**6, requests_per_minute=1000, parallel=50),
        models={name: ModelConfig(source="echo:") for name in ("m", "p")},
        store=StoreConfig(url=store, keys=False),
        fastchat_register="http://127.0.0.1:9",
    )
    echo = Echo(Options(text="y" * 30, context=4096, tokens_per_s=3000.0))
    registry = Registry([Model("m", echo), Model("p", Plain())])
    listener = Listener(config, registry)
    try:
        (url,) = await listener.listen()
        async with aiohttp.ClientSession() as client:
            yield Gateway(url, store, client, listener)
    finally:
        await listener.aclose()
        await registry.aclose()


WAYS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"model": "m", **CHAT}),
    ("/v1/chat/completions", {"model": "m", "max_tokens": -1, **CHAT}),
    ("/v1/chat/completions", {"model": "m", "max_tokens": 1, "max_completion_tokens": 25, **CHAT}),
    ("/v1/chat/completions", {"model": "m", "max_tokens": 0, **CHAT}),
    ("/v1/chat/completions", {"model": "m", "n": 5, "max_tokens": 30, **CHAT}),
    ("/v1/chat/completions", {"model": "m", "n": 5, "stream": True, **CHAT}),
    ("/v1/chat/completions", {"model": "p", "tools": [TOOL], **CHAT}),
    ("/v1/chat/completions", {"model": "p", "tools": [TOOL], "tool_choice": "required", "max_tokens": 40, **CHAT}),
    ("/v1/chat/completions", {"model": "p", "tools": [TOOL], "tool_choice": "required", "stream": True, **CHAT}),
    ("/v1/chat/completions", {"model": "p", "response_format": SCHEMA, "max_tokens": 40, **CHAT}),
    ("/v1/completions", {"model": "m", "prompt": [TEXT, TEXT[:7]], "n": 2, "max_tokens": 30}),
    ("/v1/completions", {"model": "p", "prompt": TEXT, "best_of": 6, "max_tokens": 30}),
    ("/v1/completions", {"model": "m", "prompt": TEXT, "echo": True, "max_tokens": 0}),
    ("/v1/completions", {"model": "m", "prompt": [1, 2, 3], "max_tokens": 9}),
    ("/v1/engines/p/embeddings", {"input": [TEXT, TEXT]}),
    ("/v1/embeddings", {"model": "p", "input": TEXT}),
    ("/v1/rerank", {"model": "p", "query": "who", "documents": [TEXT, TEXT, "z"]}),
    ("/v1/responses", {"model": "m", "input": TEXT}),
    ("/v1/responses", {"model": "m", "input": TEXT, "background": True, "stream": True}),
    ("/v1/responses/compact", {"model": "m", "input": TEXT}),
    ("/v1/messages", {"model": "m", "max_tokens": 25, **CHAT}),
    ("/api/chat", {"model": "m", "stream": False, "options": {"num_predict": -2}, **CHAT}),
    ("/api/generate", {"model": "m", "prompt": TEXT, "options": {"num_predict": -1}}),
    ("/api/embed", {"model": "p", "input": [TEXT, TEXT]}),
    ("/api/embeddings", {"model": "p", "prompt": TEXT}),
    ("/completion", {"model": "m", "prompt": TEXT, "n_predict": -1}),
    ("/", {"prompt": TEXT}),
    ("/worker_generate", {"model": "m", "prompt": TEXT}),
    ("/worker_generate_stream", {"model": "m", "prompt": TEXT, "max_new_tokens": 20}),
    ("/worker_get_embeddings", {"model": "p", "input": [TEXT]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), WAYS, ids=lambda one: one if isinstance(one, str) else "-".join(one))  # fmt: skip
async def test_it_is_counted(path: str, body: dict[str, Any], gateway: Gateway) -> None:
    """Every call that has a model make or read something is counted, like its row of the ledger, and within what was reserved."""
    status, told = await gateway.ask(path, None if path.startswith("/worker") else KEY, **body)
    settled, rows = await gateway.charged()
    is_held = body.get("tool_choice") == "required" or "response_format" in body
    assert status == (422 if is_held else 200), told
    assert [used for _, used in settled] == rows
    assert 1 == len(rows)
    ((need, used),) = settled
    made = body.get("n", body.get("best_of", 1)) * body.get("max_tokens", 1)
    assert max(3, made if made > 1 else 0) <= used <= need
    if is_held:
        assert used >= 3 * (40 + len(TEXT))  # three answers were made, and none was valid


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"model": "p", "tools": [TOOL], "tool_choice": "required", **CHAT}),
        ("/v1/chat/completions", {"model": "p", "response_format": SCHEMA, **CHAT}),
        ("/v1/completions", {"model": "p", "prompt": TEXT, "best_of": 6, "max_tokens": 40}),
    ],
    ids=["tools", "format", "best_of"],
)  # fmt: skip
async def test_who_leaves(path: str, body: dict[str, Any], gateway: Gateway) -> None:
    """Of an answer that is held back until it is whole, what was made is counted when its client leaves before."""
    asked = asyncio.create_task(gateway.ask(path, **body))
    async with asyncio.timeout(20):
        while gateway.made() < 5:
            await asyncio.sleep(0)
        asked.cancel()
        while not Recording.settled or not (charged := await gateway.charged())[1]:
            await asyncio.sleep(0.01)
    settled, rows = charged
    assert [used for _, used in settled] == rows
    ((need, used),) = settled
    assert used <= need
    (row,) = rows_of(gateway.store)
    assert row["prompt"] >= len(TEXT)
    assert 5 <= row["completion"] < 100  # not all that would have been made


async def test_nothing_is_made(gateway: Gateway) -> None:
    """Calls that have nothing made reserve a token at most, use none, and leave no row."""
    for path, body in (
        ("/v1/messages/count_tokens", {"model": "m", **CHAT}),
        ("/v1/responses/input_tokens", {"model": "m", "input": TEXT}),
        ("/tokenize", {"model": "m", "content": TEXT}),
        ("/api/chat", {"model": "m", "messages": []}),
        ("/v1/conversations", {"items": [{"type": "message", **SAID[0]}]}),
    ):
        status, told = await gateway.ask(path, **body)
        assert 200 == status, told
    assert [(1, 0)] * 4 == Recording.settled
