"""Where keys, limits, ledger, queue, retries, reload and admin API meet: real requests to a server with all of them."""

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from rigged import TOP, rig

from support.backends.scripted import DONE, Exchange, answer, chunked, delta, frames, scripted
from support.common.waiting import until
from support.servers.appserver import upstream
from unilect.api.backend import Batches
from unilect.core.errors import RequestCancelled
from unilect.models.model import Model
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo

PRICED = "price = { prompt = 1.0, completion = 1.0 }\n"


def slow(*more: str) -> str:
    """The table of a model that says 40 characters in two seconds."""
    lines = ["[models.m]", 'source = "echo:"', *more]
    return "\n".join(
        [*lines, "[models.m.options]", f'text = "{"y" * 40}"', "tokens_per_s = 20.0", ""]
    )


def saying(tokens: int, prompt: int = 3) -> Callable[[Exchange], Any]:
    """A script of a server that says so many words, whatever it is asked for."""
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    words = [delta(content="word ") for _ in range(abs(tokens))]
    told = frames(delta(role="assistant", content=""), *words, delta(finish="stop"), {"choices": [], "usage": usage}, DONE)  # fmt: skip

    async def script(exchange: Exchange) -> None:
        await exchange.send(chunked([told]))
        exchange.close()

    return script


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_is_too_long(tmp_path: Path, stream: bool) -> None:
    """An answer that a key's limits end is the end of that request only: no other backend is asked, and none rests for others."""
    async with scripted(saying(400)) as one, scripted(saying(400)) as other:
        model = Model("m", [PooledBackend(upstream(one.url)), PooledBackend(upstream(other.url))])
        async with rig(tmp_path, "[limits]\ntokens_per_day = 100000\n", [model]) as server:
            status, told = await server.ask(max_tokens=5, stream=stream)
            assert (429, "insufficient_quota") == (status, told["error"]["code"])
            assert 1 == len(one.requests) + len(other.requests)
            assert [0, 0] == [member.breaker.cooldown_s(0) for member in model.pool.members]
            status, _ = await server.ask("two", max_tokens=500)
            assert 200 == status


@pytest.mark.heavy
async def test_another_price_meanwhile(tmp_path: Path) -> None:
    """A request costs what its model cost when it came, in the ledger and in budgets, also where the model is gone since."""
    budget = "[limits]\nmoney_per_day = 1.0\n"
    dear = PRICED.replace("1.0", "1000.0")
    async with rig(tmp_path, slow(PRICED) + budget) as server:
        other = '[models.n]\nsource = "echo:"\nprice = { completion = 1.0 }\n'
        for text in (slow(dear) + budget, other + budget):
            async with server.post(model="m", stream=True) as answer:
                await answer.content.readany()
                await server.reload(text)
                await answer.read()
            await server.reload(slow(PRICED) + budget)
        rows = await server.rows(2)
    assert [50, 50] == [row["cost"] for row in rows]
    assert [(100, 0)] == list(server.counters("money_per_day").values())


async def test_ended_while_its_key_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is ended before anybody knows whose it is gets its answer, too."""
    looked, goes_on = asyncio.Event(), asyncio.Event()
    async with rig(tmp_path, slow()) as server:
        keys = server.listener._known
        assert keys is not None

        async def key(*_: Any) -> Any:
            looked.set()
            await goes_on.wait()

        monkeypatch.setattr(keys, "key", key)
        asking = asyncio.create_task(server.ask("ul_other"))
        await looked.wait()
        (context,) = server.requests.values()
        context.end(RequestCancelled("ended"))
        status, told = await asking
        assert (RequestCancelled.status, "ended") == (status, told["error"]["message"])
        assert not server.requests


async def test_a_client_that_leaves_before_its_row(tmp_path: Path) -> None:
    """Of a client that leaves while its row is written the metrics tell 499, and nothing of a flaw."""
    goes_on, writing = asyncio.Event(), asyncio.Event()
    async with rig(tmp_path, '[models.m]\nsource = "echo:"\n') as server:
        assert (200, 10) == ((await server.ask())[0], 10)
        writer = server.ledger.writer
        write = writer._write

        async def late(rows: Any) -> None:
            writing.set()
            await goes_on.wait()
            await write(rows)

        writer._write = late
        asking = asyncio.create_task(server.ask())
        await writing.wait()
        asking.cancel()
        await until(lambda: not server.requests)
        goes_on.set()
        line = 'unilect_requests_total{endpoint="chat.completions",model="m",status='
        assert 0 == await server.metric(line + '"500"}')
        assert 1 == await server.metric(line + '"499"}')
        await server.rows(2)


async def test_what_waits_is_in_flight(tmp_path: Path) -> None:
    """Requests that wait for a place of their model are told among those in flight."""
    async with rig(tmp_path, slow("max_in_flight = 1")) as server:
        async with server.post(stream=True) as answer:
            await answer.content.readany()
            other = asyncio.create_task(server.ask("two", max_tokens=1))
            await until(lambda: any(one.state == "queued" for one in server.requests.values()))
            states = ("reading", "queued", "waiting", "answering")
            found = [await server.metric(f'unilect_requests_in_flight{{state="{state}"}}') for state in states]  # fmt: skip
            assert [1, 1, 0, 1] == found
        await other


async def test_counts_below_zero(tmp_path: Path) -> None:
    """A server that tells counts below zero gives nobody tokens back."""
    async with scripted(saying(-5, -1000)) as theirs:
        model = Model("m", [PooledBackend(upstream(theirs.url))])
        async with rig(tmp_path, "[limits]\ntokens_per_day = 100000\n", [model]) as server:
            status, _ = await server.ask(max_tokens=50)
            assert 200 == status
            (row,) = await server.rows(1)
            (counter,) = server.counters("tokens_per_day").values()
            assert counter == (row["prompt"] + row["completion"], 0)
            assert 0 <= counter[0]


@pytest.mark.parametrize("stream", [True, False])
async def test_models_of_a_server(tmp_path: Path, stream: bool) -> None:
    """The price and the limits of a table that stands for all models of a server hold for each of them."""

    async def script(exchange: Exchange) -> None:
        models = {"object": "list", "data": [{"id": "a", "object": "model"}]}
        if exchange.head.startswith(b"GET /v1/models"):
            await exchange.send(answer(json.dumps(models).encode()))
        elif exchange.head.startswith(b"POST /v1/chat"):
            await saying(30, 20)(exchange)
        else:
            await exchange.send(answer(b"{}", "404 Not Found"))

    text = (
        '[models.far]\nsource = "http://127.0.0.1:{}/v1"\nmodel = "*"\nlimits = {{ tokens_per_day = 9000 }}\n'
        "price = {{ prompt = 1.0, completion = 2.0 }}\n[limits]\nmoney_per_day = 1.0\n"
    )
    async with scripted(script) as theirs, rig(tmp_path, text.format(theirs.port)) as server:
        async with server.post(model="a", stream=stream, max_tokens=30) as said:
            assert 200 == said.status
            await said.read()
        (row,) = await server.rows(1)
        assert [(80, 0)] == list(server.counters("money_per_day").values())
        assert (50, 80) == (row["prompt"] + row["completion"], row["cost"])
        assert [(50, 0)] == list(server.counters("model:a/tokens_per_day").values())


async def test_totals_that_are_read_while_a_row_is_written(tmp_path: Path) -> None:
    """What a request has used counts once, also where the ledger's totals are read between its row and its end."""
    limited = '[models.m]\nsource = "echo:"\n[limits]\ntokens_per_day = 1000\n'
    async with rig(tmp_path, limited) as server:
        await server.ask()  # the totals have been read
        writer = server.ledger.writer
        write = writer._write

        async def then_read(rows: Any) -> None:
            await write(rows)
            await server.limits.seed()

        writer._write = then_read
        await server.ask()
        rows = await server.rows(2)
        assert [20, 20] == [row["prompt"] + row["completion"] for row in rows]
        assert [(40, 0)] == list(server.counters("tokens_per_day").values())


@pytest.mark.parametrize("limit", ["tokens_per_day = 70", "money_per_day = 0.00003"])
async def test_a_budget_that_is_used_up(tmp_path: Path, limit: str) -> None:
    """Requests of a key whose budget is used up cost their model nothing: it counts no prompt for them, and is not loaded."""
    table = '[models.m]\nsource = "echo:"\nprice = { completion = 1.0 }\n[limits]\n'
    async with rig(tmp_path, table + limit) as server:
        backend = server.registry.models["m"].pool.members[0].backend
        assert isinstance(backend, Echo)
        said = [{"role": "user", "content": "x" * 30}]
        statuses = [(await server.ask(messages=said, max_tokens=30))[0] for _ in range(2)]
        assert [200, 429] == statuses
        await backend.aclose()
        before = backend.starts
        for more in ({"max_tokens": 30}, {"max_tokens": 71}, {}):
            status, told = await server.ask(messages=said, **more)
            assert (429, "insufficient_quota") == (status, told["error"]["code"])
        assert before == backend.starts
        status, _ = await server.ask("two", messages=said, max_tokens=30)
        assert 200 == status


FORM = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize("end", ["told", "left", "left at once"])
async def test_answers_that_are_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Answers that are made again, since none is valid, are in the ledger and count against budgets, also where nobody gets one, as far as they were made."""
    model = (
        '[models.m]\nsource = "echo:"\n[models.m.options]\ntext = "nonono"\ntokens_per_s = 40.0\n'
    )
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": FORM}}
    async with rig(tmp_path, model + "[limits]\ntokens_per_day = 100000\n") as server:
        backend = server.registry.models["m"].pool.members[0].backend
        assert isinstance(backend, Echo)
        generate, made = backend.generate, 0

        async def counted(request: Any) -> Batches:
            nonlocal made
            async with aclosing(generate(request)) as batches:
                async for batch in batches:
                    made += sum(event.tokens for event in batch)
                    yield batch

        monkeypatch.setattr(backend, "generate", counted)
        asking = asyncio.create_task(server.ask(max_tokens=50, response_format=form))
        if end == "told":
            assert 422 == (await asking)[0]
            statuses, least, most = (422,), 18, 18
        else:
            statuses, least, most = (499, 422), 7 if end == "left" else 1, 18
            await until(lambda: made >= least)
            asking.cancel()
        (row,) = await server.rows(1)
        assert row["status"] in statuses
        assert least <= row["completion"] <= most
        assert row["prompt"] >= (10 if end == "left at once" else 20)
        (counter,) = server.counters("tokens_per_day").values()
        assert counter == (row["prompt"] + row["completion"], 0)


@pytest.mark.heavy
async def test_a_key_that_the_configuration_drops(tmp_path: Path) -> None:
    """A reload without a key ends what runs with it, and nothing else."""
    async with (
        rig(tmp_path, slow()) as server,
        server.post("one", stream=True) as dropped,
        server.post("two", stream=True) as kept,
    ):
        await asyncio.gather(dropped.content.readany(), kept.content.readany())
        await server.reload(slow(), TOP.replace("'one', ", ""))
        told = await dropped.text()
        assert "it has been revoked" in told
        assert "[DONE]" not in told
        assert "[DONE]" in await kept.text()
        assert 401 == (await server.ask("one"))[0]
        assert [200, 401] == sorted(row["status"] for row in await server.rows(2))
