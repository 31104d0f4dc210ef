"""Random mixtures of requests that end in every way, with reloads meanwhile: what clients have, rows and counters tell the same."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rigged import Rig, rig

from support.common.waiting import until
from unilect.core.errors import BackendUnavailable, RequestCancelled, StoreUnavailable
from unilect.store.records import LedgerRow

_LIMITS = """
[limits]
tokens_per_day = 900000
tokens_per_month = 9000000
money_per_day = 100.0
parallel = 30
"""


def models(**odd: Any) -> str:
    """Tables of models: one behind a queue, one of two backends that break, and its fallback; some may be left out."""
    price = odd.get("price", 1.0)
    queued = f"""
[models.queued]
source = "echo:"
max_in_flight = 2
max_queue = 5
price = {{ prompt = {price}, completion = 2.0 }}
[models.queued.options]
text = "{"y" * 40}"
tokens_per_s = 400.0
context = 400
"""
    breaking = f"""
[models.breaking]
source = ["echo:", "echo:"]
fallback = "quick"
price = {{ prompt = 3.0, completion = {price} }}
[models.breaking.options]
text = "{"z" * 30}"
tokens_per_s = 600.0
failing_answers = 12
breaks_after = 7
"""
    quick = '[models.quick]\nsource = "echo:"\nprice = { prompt = 1.0, completion = 1.0 }\n'
    return "\n".join([quick, queued, "" if odd.get("without") else breaking, _LIMITS])


class Client:
    """
    Sends random requests.

    Attributes:
        whole: By the ids of requests, the tokens of those that were answered whole.
        ends: How requests ended.
    """

    def __init__(self, server: Rig, seed: int) -> None:
        self._server, self._random = server, random.Random(seed)
        self.whole: dict[str, tuple[int, int]] = {}
        self.ends = Counter[str]()

    def _any(self) -> tuple[str, dict[str, Any]]:
        """A path and a body."""
        chance = self._random
        text, stream = "x" * chance.randint(1, 60), chance.random() < 0.6
        chat, most = [{"role": "user", "content": text}], chance.choice([None, 1, 10, 50])
        limit: dict[str, Any] = {} if most is None else {"max_tokens": most}
        if chance.random() < 0.1:
            limit["stop"] = ["yyyyyyyyyy"]
        if chance.random() < 0.1:
            limit["n"] = 3
        if stream:
            limit["stream_options"] = {"include_usage": True}
        path, body = chance.choice(
            [
                ("/v1/chat/completions", {"messages": chat} | limit),
                ("/v1/completions", {"prompt": text} | limit),
                ("/v1/messages", {"messages": chat, "max_tokens": most or 20}),
                ("/v1/responses", {"input": text, "max_output_tokens": most or 16}),
                ("/api/chat", {"messages": chat, "options": {"num_predict": most or 30}}),
            ]
        )
        return path, {
            "model": chance.choice(["queued", "breaking", "quick"]),
            "stream": stream,
        } | body

    async def ask(self) -> None:
        """Send a request, and have it end somehow."""
        path, body = self._any()
        headers = {"Authorization": f"Bearer {self._random.choice(['one', 'two'])}"}
        end = self._random.choice(["whole", "whole", "left", "ended"])
        task = asyncio.create_task(self._read(path, body, headers))
        if end != "whole":
            await asyncio.wait({task}, timeout=self._random.choice([0.0, 0.002, 0.01, 0.03, 0.08]))
        if end == "left":
            task.cancel()
        elif end == "ended" and self._server.requests:
            context = self._random.choice(list(self._server.requests.values()))
            context.end(RequestCancelled("ended"))
        with suppress(asyncio.CancelledError):
            self.ends[how := await task] += 1
            if how == "503":  # as clients do
                await asyncio.sleep(0.1)

    async def _read(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> str:
        """How an answer ended."""
        async with self._server.client.post(
            self._server.url + path, json=body, headers=headers
        ) as got:
            told = await got.text()
            if got.status != 200:
                assert got.status in (403, 404, 429, 502, 503), (got.status, told)
                return str(got.status)
            usage = _usage(told)
            if usage is None:
                return "broken"
            self.whole[got.headers["X-Request-Id"]] = usage
            return "whole"


_NAMES = ("prompt_tokens", "input_tokens", "prompt_eval_count"), ("completion_tokens", "output_tokens", "eval_count")  # fmt: skip


def _usage(told: str) -> tuple[int, int] | None:
    """The tokens that the end of a whole answer tells; None of one that broke."""
    lines = [
        line.removeprefix("data: ") for line in told.splitlines() if "{" in line or "[DONE]" in line
    ]
    frames = [msgspec.json.decode(line) for line in lines if line.startswith("{")]
    ends = (
        "[DONE]",
        '"message_stop"',
        '"response.completed"',
        '"response.incomplete"',
        '"done":true',
    )
    if len(frames) != 1 and not any(end in told for end in ends):
        return None
    found: dict[str, int] = {}
    for frame in frames:
        for place in (frame, frame.get("response") or {}, frame.get("message") or {}):
            if isinstance(place, dict):
                found |= place.get("usage") or {}
                found |= {name: place[name] for names in _NAMES for name in names if name in place}
    sums = [
        next((found[name] for name in names if found.get(name) is not None), None)
        for names in _NAMES
    ]
    prompt, completion = sums
    assert prompt is not None, told
    return prompt, completion or 0


def _nothing_left(server: Rig) -> bool:
    """Whether no request has left anything behind that runs, waits or is held."""
    known = [*server.registry.models.values(), *server.registry.leaving]
    journal = server.ledger._journal
    assert journal is not None
    return (
        not server.requests
        and not any(held for _, held in server.counters("").values())
        and not any(model.in_use for model in known)
        and not any(one.outstanding for model in known for one in model.pool.members)
        and not any(len(queue) or queue._running for model in known for queue in model.pool.queues)
        and len(journal._free) == len(journal._maps) * 256 - 1
    )


async def _reload(server: Rig) -> None:
    """Change prices, and take a model out and in again."""
    for odd in ({"price": 5.0}, {"without": True}, {"price": 2.0}, {}):
        await server.reload(models(**odd))
        await asyncio.sleep(0.05)


async def _lose(server: Rig) -> None:
    """Have the ledger be away for a while, twice; some of what it was to write then is written."""
    writer = server.ledger.writer
    write = writer._write

    async def fails(rows: Sequence[LedgerRow]) -> None:
        if len(rows) % 2:  # the commit's end is not known
            await write(rows)
        raise StoreUnavailable("away")

    for _ in range(2):
        await asyncio.sleep(0.2)
        writer._write = fails
        await asyncio.sleep(0.1)
        writer._write = write


async def _operate(server: Rig, chance: random.Random) -> None:
    """Stop and drain models, and load them again; one that was taken out meanwhile cannot be."""
    for _ in range(12):
        known = list(server.registry.models.values())
        chance.choice(known).set_keep_alive(0)
        chance.choice(known).drain()
        await asyncio.sleep(0.02)
        errors = await asyncio.gather(*(one.start() for one in known), return_exceptions=True)
        for model, error in zip(known, errors, strict=True):
            assert error is None or (model.closed and isinstance(error, BackendUnavailable))


def _summed(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    """What rows say that keys have used, by the names of counters without their day."""
    sums = Counter[str]()
    for row in rows:
        sums[f"key:{row['key']}/tokens_per_day"] += row["prompt"] + row["completion"]
        sums[f"key:{row['key']}/money_per_day"] += row["cost"]
    return sums


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize("seed", range(int(os.environ.get("UNILECT_TEST_MIXTURES", "2"))))
async def test_every_end(tmp_path: Path, seed: int) -> None:
    """However requests of every API end, and whatever is changed meanwhile: rows tell what whole answers have, sum up to what budgets count, and nothing is left."""
    async with rig(tmp_path, models()) as server:
        client = Client(server, seed)

        async def send() -> None:
            for _ in range(12):
                await client.ask()

        others = _reload(server), _lose(server), _operate(server, random.Random(seed))
        await asyncio.gather(*others, *(send() for _ in range(12)))
        await until(lambda: _nothing_left(server))
        await server.ledger.writer.settle()
        rows = await server.rows(len(client.whole))

        by_id = {row["id"].partition(".")[2]: row for row in rows}
        assert len(by_id) == len(rows)
        found = {id: (by_id[id]["prompt"], by_id[id]["completion"]) for id in client.whole}
        assert client.whole == found
        assert {200} == {by_id[id]["status"] for id in client.whole}
        counted = {
            name.rpartition("/")[0]: used
            for name, (used, _) in server.counters("_per_day/").items()
        }
        assert _summed(rows) == Counter(counted)
        assert 0 == await server.metric("unilect_requests_waiting{")
        assert 0 == await server.metric("unilect_requests_running{")
        assert {"whole", "broken", "403"} <= client.ends.keys()
