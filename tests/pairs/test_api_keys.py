"""API keys with what else a server does: reloads, running streams, metrics, stored responses, answers that outlive their clients."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.backends.scripted import Exchange, answer, scripted
from support.common.waiting import until
from support.servers.reloading import Reloadable
from support.servers.serving import Server, serve
from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.cli._keys import create, revoke
from unilect.store.database import Database
from unilect.store.keys import KeyStore
from unilect.store.ledger import Ledger

MODELS = """
[models.m]
source = "echo:"
options = { text = "hello" }
[models.slow]
source = "echo:"
options = { text = "%s", tokens_per_s = 20.0, context = 4096 }
""" % ("y" * 1000)
HI = [{"role": "user", "content": "Hi"}]


class Site(Reloadable):
    """
    A server with keys of a store, its admin API, and another process that changes the same store.

    Attributes:
        theirs: The keys, as the other process has them.
        client, admin: For its address, and for its admin API.
    """

    client: aiohttp.ClientSession
    admin: aiohttp.ClientSession

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "unilect.toml")
        self.database = Database(f"sqlite:///{folder / 'keys.db'}")
        self.theirs = KeyStore(self.database)

    async def create(self, name: str, **given: Any) -> str:
        """The secret of a new key, which the other process creates."""
        secret = new_secret()
        await self.theirs.create(name, id_of(secret) or "", digest(secret), **given)
        return secret

    async def ask(
        self, secret: str | None, path: str = "/v1/chat/completions", **body: Any
    ) -> tuple[int, str, Any]:
        """The status, the text and the headers of an answer: to a chat where no path says otherwise, to a GET without a body."""
        if path == "/v1/chat/completions":
            body = {"model": "m", "messages": HI} | body
        method, sent = ("POST", {"json": body}) if body else ("GET", {})
        async with self.client.request(
            method, f"{self.url}{path}", headers=_bearer(secret), **sent
        ) as response:
            return response.status, await response.text(), response.headers

    async def operate(self, method: str, path: str, **body: Any) -> Any:
        """What the admin API answers."""
        async with self.admin.request(method, f"http://localhost{path}", json=body) as response:
            assert response.status < 300, await response.text()
            return await response.json()

    async def stream(self, secret: str, **body: Any) -> aiohttp.ClientResponse:
        """A stream that has begun, of a model that takes long."""
        body = {"model": "slow", "messages": HI, "stream": True} | body
        response = await self.client.post(
            f"{self.url}/v1/chat/completions", json=body, headers=_bearer(secret)
        )
        await _more(response)
        return response


@asynccontextmanager
async def site(
    folder: Path, options: str = "", models: str = MODELS, first: str = "ann"
) -> AsyncIterator[tuple[Site, str]]:
    """A server whose store had one key at its start, and that key."""
    (folder / "unilect.toml").write_text(text_of(options, models))
    made = Site(folder)
    secret = await made.create(first)
    async with made.running():
        place = await made.listener.listen_for_admin(made.reloader)
        assert place is not None
        connector = aiohttp.UnixConnector(place)
        async with aiohttp.ClientSession() as client, aiohttp.ClientSession(connector=connector) as admin:  # fmt: skip
            made.client, made.admin = client, admin
            yield made, secret
    await made.database.aclose()


def text_of(options: str = "", models: str = MODELS) -> str:
    """The text of a file."""
    return f"port = 0\n{options}\n[store]\nurl = 'sqlite:///keys.db'\n[admin]\nlisten = './admin.sock'\n{models}"


def wait_for(server: Server, line: str) -> None:
    """Wait until the log of a server, which another thread writes, has a line."""
    until_s = time.monotonic() + 20
    while not re.search(line, server.log.read_text()):
        assert time.monotonic() < until_s, server.log.read_text()
        time.sleep(0.01)


async def _more(response: aiohttp.ClientResponse) -> None:
    """Wait for more text of a stream."""
    while b'"content":"y' not in await response.content.readuntil(b"\n\n"):
        assert not response.content.at_eof()


def _bearer(secret: str | None) -> dict[str, str]:
    return {} if secret is None else {"Authorization": f"Bearer {secret}"}


async def test_keys_that_change_while_a_server_is_reloaded(tmp_path: Path) -> None:
    """While a reload waits for another server, a key that is revoked lets nobody in and one that is created does, and so it is afterwards."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def list_models(exchange: Exchange) -> None:
        asked.set()
        await go_on.wait()
        await exchange.send(answer(json.dumps({"data": [{"id": "far"}]}).encode()))

    async with scripted(list_models) as upstream, site(tmp_path) as (server, ann):
        bob = await server.create("bob")
        assert 200 == (await server.ask(bob))[0]
        server.write(text_of() + f'[models.all]\nsource = "{upstream.url}"\nmodel = "*"\n')
        reloading = asyncio.create_task(server.reloader.reload("a test"))
        await asked.wait()
        await server.theirs.revoke("bob")
        eve = await server.create("eve")
        await server.listener.look()
        during = [(await server.ask(one))[0] for one in (ann, bob, eve)]
        assert not reloading.done()
        go_on.set()
        await reloading
        assert "far" in server.registry.models
        after = [(await server.ask(one))[0] for one in (ann, bob, eve)]
    assert [200, 401, 200] == during == after


async def test_the_last_configured_key_goes_while_the_store_has_keys(tmp_path: Path) -> None:
    """A server that was started with a key of its file alone does not become open when a reload takes that away and the store has one by then."""
    (tmp_path / "unilect.toml").write_text(text_of('api_keys = ["sk-a"]'))
    server = Site(tmp_path)
    async with server.running(), aiohttp.ClientSession() as server.client:
        secret = await server.create("ann")
        assert [200, 200, 401] == [(await server.ask(one))[0] for one in (secret, "sk-a", None)]
        server.write(text_of())
        await server.reloader.reload("a test")
        assert [200, 401, 401] == [(await server.ask(one))[0] for one in (secret, "sk-a", None)]
        await server.theirs.delete("ann")
        await server.reloader.reload("a test")
        assert 401 == (await server.ask(None))[0]
    await server.database.aclose()


@pytest.mark.parametrize("by", ["a key", "a reload"])
async def test_an_open_server_begins_to_record(tmp_path: Path, by: str) -> None:
    """A server without keys and limits records nothing, and each request from the moment on at which its store has a key, or a reload brings a budget."""
    (tmp_path / "unilect.toml").write_text(text_of())
    server = Site(tmp_path)
    async with server.running(), aiohttp.ClientSession() as server.client:
        assert 200 == (await server.ask(None))[0]
        assert not (tmp_path / "keys.db").exists()
        if by == "a key":
            await server.create("ann")
            await server.listener.look()
        else:
            server.write(text_of() + "[limits]\ntokens_per_day = 100_000\n")
            await server.reloader.reload("a test")
        assert 200 == (await server.ask(None))[0]
        (found,) = await Ledger(server.database).sums()
        assert ("anonymous", "m", 1) == (found.key, found.model, found.requests)
    await server.database.aclose()


@pytest.mark.heavy
def test_keys_that_are_created_for_an_open_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that was started without keys locks nobody out when the first is created, and says so as the command does; told to, it asks for keys at once."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def status(server: Server, secret: str | None) -> int:
        async def ask() -> int:
            async with (
                aiohttp.ClientSession(headers=_bearer(secret)) as client,
                client.get(f"{server.url}/models") as response,
            ):
                return response.status

        return asyncio.run(ask())

    with serve("m=echo:", env={"XDG_DATA_HOME": str(tmp_path)}) as server:
        create(None, False, name="ann")
        ann, told = capsys.readouterr()
        assert f"{server.root} (pid {server.pid}) was started without keys and goes on without;" in told  # fmt: skip
        assert [200, 200] == [status(server, one) for one in (None, ann.strip())]
        wait_for(server, "this server goes on without asking for them")

        create(None, False, name="bob", require=True)
        bob, told = capsys.readouterr()
        assert f"{server.root} (pid {server.pid}) asks for keys." in told
        secrets = (None, ann.strip(), bob.strip())
        assert [401, 200, 200] == [status(server, one) for one in secrets]
        wait_for(server, "every request needs an API key from now on")

    for name in ("ann", "bob"):
        revoke(None, name, False)
    with serve("m=echo:", env={"XDG_DATA_HOME": str(tmp_path)}) as server:
        wait_for(server, "WARNING every request needs an API key, and none works: .* `unilect keys create NAME` makes one")  # fmt: skip
        assert 401 == status(server, None)


async def test_keys_for_metrics_that_a_reload_replaces(tmp_path: Path) -> None:
    """No client's key reads the metrics, in which all keys are; a key for them does, until a reload has replaced it."""
    options = 'metrics_per_key = true\nmetrics_keys = ["sk-{}"]'
    async with site(tmp_path, options.format("a")) as (server, ann):
        assert 200 == (await server.ask(ann))[0]
        before = [await server.ask(one, "/metrics") for one in (ann, "sk-a", "sk-b")]
        server.write(text_of(options.format("b")))
        await server.reloader.reload("a test")
        after = [await server.ask(one, "/metrics") for one in (ann, "sk-a", "sk-b")]
    assert [403, 200, 401] == [status for status, *_ in before]
    assert [403, 401, 200] == [status for status, *_ in after]
    assert f'unilect_key_requests_total{{key="key_{ann[3:11]}"' in after[2][1]


async def test_responses_of_a_key_that_is_rotated(tmp_path: Path) -> None:
    """What a key has stored is read with its new secret, and with no other key: neither before nor once it is deleted and another has its name."""
    async with site(tmp_path) as (server, ann):
        bob = await server.create("bob")
        _, text, _ = await server.ask(ann, "/v1/responses", model="m", input="Hi")
        path = f"/v1/responses/{json.loads(text)['id']}"
        turned = await server.operate("POST", "/keys/ann/rotate", overlap_s=0)
        statuses = [(await server.ask(one, path))[0] for one in (ann, turned["key"], bob)]
        await server.operate("DELETE", "/keys/ann")
        again = await server.operate("POST", "/keys", name="ann")
        statuses += [(await server.ask(one, path))[0] for one in (turned["key"], again["key"])]
    assert [401, 200, 404, 401, 404] == statuses


async def test_an_answer_that_another_key_would_rejoin(tmp_path: Path) -> None:
    """The answer of a key whose client has left is rejoined by the same request of that key, with its new secret too, and not of another."""
    async with site(tmp_path, "rejoin_s = 30.0") as (server, ann):
        bob = await server.create("bob")
        body = {"model": "slow", "stream": True, "max_tokens": 20}
        (await server.stream(ann, max_tokens=20)).close()
        rejoin = server.listener._inflight
        await until(lambda: rejoin.held)
        turned = await server.operate("POST", "/keys/ann/rotate", overlap_s=0)
        _, _, of_bob = await server.ask(bob, **body)
        _, text, of_ann = await server.ask(turned["key"], **body)
    assert "X-Unilect-Rejoined" not in of_bob
    assert "X-Unilect-Rejoined" in of_ann
    assert "[DONE]" in text


async def test_a_stream_of_a_key_that_is_revoked(tmp_path: Path) -> None:
    """When the admin API has revoked a key, its streams have ended with the reason, and no new request is let in; streams of other keys go on."""
    async with site(tmp_path) as (server, ann):
        bob = await server.create("bob")
        streams = [await server.stream(one) for one in (ann, bob)]
        await server.operate("POST", "/keys/ann/revoke")
        assert 401 == (await server.ask(ann))[0]
        ended = await streams[0].text()
        await _more(streams[1])
        streams[1].close()
    assert "it has been revoked." in ended
    assert "[DONE]" not in ended
