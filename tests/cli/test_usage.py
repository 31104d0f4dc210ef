"""Tests of `unilect usage` and GET /v1/usage: a real server, two keys of its store, and what they have used."""

import asyncio
import csv
import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.common.ledger_rows import row
from support.servers import commands
from support.servers.postgresql import POSTGRESQL
from support.servers.serving import Server, serve
from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.store.database import Database
from unilect.store.keys import KeyStore
from unilect.store.ledger import Ledger

CONFIG = """
[store]
url = "{url}"
[models.a]
source = "echo:"
price = {{ prompt = 100, completion = 200 }}
[models.b]
source = "echo:"
"""
Run = Callable[..., str]


class Place:
    """
    A store with the keys ann and bob.

    Attributes:
        config: The text of its configuration.
        secrets: The keys, by their names.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.config = CONFIG.format(url=url)
        self.file = folder / "unilect.toml"
        self.file.write_text(self.config)
        self.secrets = {name: new_secret() for name in ("ann", "bob")}
        asyncio.run(self._fill(url))

    async def _fill(self, url: str) -> None:
        """The keys, and a request of long ago."""
        database = Database(url)
        for name, secret in self.secrets.items():
            await KeyStore(database).create(name, id_of(secret) or "", digest(secret))
        ledger = Ledger(database)
        old = row(at=time.time() - 60 * 86_400, key="key-12345678", model="a", cost=7)
        await ledger.write([old])
        await ledger.aclose()
        await database.aclose()

    def run(self, *args: str, code: int = 0) -> str:
        """What the command prints: on stdout, or on stderr where it fails."""
        done = commands.run("usage", *args, "--config", self.file, code=code)
        return (done.stderr if code else done.stdout).strip()

    def ask(self, server: Server, name: str, path: str, **body: Any) -> tuple[int, Any]:
        """The status and the body of a request of a key."""
        headers = {
            "Authorization": f"Bearer {self.secrets[name]}",
            "Content-Type": "application/json",
        }
        data = json.dumps(body).encode() if body else None
        try:
            with urllib.request.urlopen(
                urllib.request.Request(server.url + path, data, headers), timeout=30
            ) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def chat(self, server: Server, name: str, model: str, text: str) -> None:
        """A chat of a key."""
        messages = [{"role": "user", "content": text}]
        status, _ = self.ask(server, name, "/chat/completions", model=model, messages=messages)
        assert 200 == status


@pytest.fixture(scope="module", params=["sqlite", POSTGRESQL])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A store of each kind."""
    folder = tmp_path_factory.mktemp("usage")
    if request.param == "sqlite":
        return Place(folder, f"sqlite:///{folder / 'unilect.db'}")
    return Place(folder, request.getfixturevalue("server_of_postgresql").new_database())


@pytest.fixture(scope="module")
def server(place: Place) -> Iterator[Server]:
    """A server of which ann and bob have asked something."""
    with serve(config=place.config) as server:
        place.chat(server, "ann", "a", "Hello")
        place.chat(server, "ann", "a", "Hi")
        place.chat(server, "ann", "b", "Hello")
        place.chat(server, "bob", "a", "Hey")
        status, _ = place.ask(
            server, "bob", "/chat/completions", model="a", messages=[], temperature="x"
        )
        assert 400 == status
        yield server


def line(
    key: str | None,
    model: str | None,
    requests: int,
    tokens: int,
    cost: float = 0.0,
    day: bool = True,
) -> dict[str, Any]:
    """A line of what was used; an echo has as many tokens as its prompt."""
    return {
        "key": key,
        "model": model,
        "day": time.strftime("%Y-%m-%d", time.gmtime()) if day else None,
        "requests": requests,
        "prompt_tokens": tokens,
        "completion_tokens": tokens,
        "total_tokens": 2 * tokens,
        "cost": cost,
    }


def test_the_command(place: Place, server: Server) -> None:
    """The command tells what every key has used, while the server runs, by the parts and since the time that are asked for."""
    whole = [line("ann", "a", 2, 7, 0.0021), line("ann", "b", 1, 5), line("bob", "a", 1, 3, 0.0009)]
    assert whole == json.loads(place.run("--json"))
    by_key = [line("ann", None, 3, 12, 0.0021, False), line("bob", None, 1, 3, 0.0009, False)]
    assert by_key == json.loads(place.run("--json", "--by", "key", "--since", "1h"))
    old = json.loads(place.run("--json", "--by", "model,key", "--since", "90d"))[-1]
    assert ("key-12345678", "a", None, 1, 3, 0.000007) == (
        old["key"],
        old["model"],
        old["day"],
        old["requests"],
        old["total_tokens"],
        old["cost"],
    )

    rows = list(csv.DictReader(io.StringIO(place.run("--csv", "--by", "model"))))
    assert [("", "a", "", "3", "20"), ("", "b", "", "1", "10")] == [
        (one["key"], one["model"], one["day"], one["requests"], one["total_tokens"]) for one in rows
    ]
    table = place.run("--by", "key").splitlines()
    assert ["KEY", "REQUESTS", "PROMPT", "COMPLETION", "TOTAL", "COST"] == table[0].split()
    assert ["ann", "3", "12", "12", "24", "0.002100"] == table[1].split()


def test_names_that_are_formulas(tmp_path: Path) -> None:
    """A spreadsheet that opens the CSV takes no name for a formula."""
    made = Place(tmp_path, f"sqlite:///{tmp_path / 'unilect.db'}")
    names = ("=1+1", "+1", "-1", "@sum(a1)", "a=1")

    async def fill() -> None:
        database = Database(f"sqlite:///{tmp_path / 'unilect.db'}")
        ledger = Ledger(database)
        await ledger.write([row(at=time.time(), model=name) for name in names])
        await ledger.aclose()
        await database.aclose()

    asyncio.run(fill())
    rows = csv.DictReader(io.StringIO(made.run("--csv", "--by", "model")))
    assert {"'=1+1", "'+1", "'-1", "'@sum(a1)", "a=1"} == {one["model"] for one in rows}
    assert {*names} == {one["model"] for one in json.loads(made.run("--json", "--by", "model"))}


def test_mistakes(place: Place) -> None:
    """What is wrong with a flag is told by its name."""
    assert "--by: 'owner' is not known; expected some of key, model, day" in place.run(
        "--by", "owner", code=1
    )
    assert "--since: 'x' is neither" in place.run("--since", "x", code=1)
    assert "--json: cannot be combined" in place.run("--json", "--csv", code=1)


def test_the_route(place: Place, server: Server) -> None:
    """GET /v1/usage tells a key what it has used itself, and nothing of others."""
    whole = {"object": "list", "data": [line("ann", "a", 2, 7, 0.0021), line("ann", "b", 1, 5)]}
    assert (200, whole) == place.ask(server, "ann", "/usage")
    only = {"object": "list", "data": [line("bob", None, 1, 3, 0.0009, False)]}
    assert (200, only) == place.ask(server, "bob", "/usage?by=key&since=7d")
    for query in ("by=owner", "since=never", "by=", "by=key&by=day", "since=9999-01-01", "key=bob"):
        status, body = place.ask(server, "ann", f"/usage?{query}")
        assert (400, query.partition("=")[0]) == (status, body["error"]["param"])


@pytest.mark.heavy
def test_no_ledger() -> None:
    """A server that records nothing says so."""
    with (
        serve("e=echo:") as server,
        pytest.raises(urllib.error.HTTPError) as raised,
    ):
        urllib.request.urlopen(f"{server.url}/usage", timeout=30)
    assert 501 == raised.value.code
    assert "records no usage" in json.load(raised.value)["error"]["message"]
