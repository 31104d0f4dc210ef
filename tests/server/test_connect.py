"""Tests of unilect.server._connect: the lines of clients as the page asks for them, by real requests."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from server.test_admin import Operated, operated
from unilect.web.connect.clients import CLIENTS
from unilect.web.connect.lines import MAX_MODELS, PLACEHOLDER, Model, Server

KEY = {"Authorization": "Bearer sk-client"}
URL = "https://models.example/below"
_TEXT = "".join(f'[models.m{number}]\nsource = "echo:"\n' for number in range(MAX_MODELS + 5))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(tmp_path_factory: Any) -> AsyncIterator[Operated]:
    """A server with a key and more models than a client is told of."""
    folder: Path = tmp_path_factory.mktemp("clients")
    async with operated(folder, _TEXT, "api_keys = ['sk-client']\n") as one:
        yield one


async def _ask(server: Operated, **query: str) -> tuple[int, Any]:
    url = f"{server.url}/page/clients"
    async with server.client.get(url, params=query, headers=KEY) as response:
        return response.status, await response.json()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_lines_of_each_client(server: Operated) -> None:
    """Each client's lines are those of the command, for the address that is asked for, with the chosen model first and a place for the key."""
    _, listed = await _ask(server, url=f"{URL}/v1/", model="m7")
    names = ["m7", *(f"m{number}" for number in range(MAX_MODELS) if number != 7)]
    described = Server(f"{URL}/v1", tuple(Model(name) for name in names), needs_key=True)

    assert [f"m{number}" for number in range(MAX_MODELS + 5)] == listed["models"]
    assert [(name, one.title) for name, one in CLIENTS.items()] == [
        (one["name"], one["title"]) for one in listed["clients"]
    ]
    assert listed["lines"] is None
    for name, client in CLIENTS.items():
        _, told = await _ask(server, url=f"{URL}/v1/", model="m7", client=name)
        lines = client.lines(described, {})
        assert [block._asdict() for block in lines.blocks] == told["lines"]["blocks"]
        assert (list(lines.notes), bool(lines.files)) == (
            told["lines"]["notes"],
            told["lines"]["writes"],
        )
        assert PLACEHOLDER in str(told)
        assert "sk-client" not in str(told)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({}, "url"),
        ({"url": "javascript:alert(1)"}, "url"),
        ({"url": "http://me:pw@host/v1"}, "url"),
        ({"url": "http://host/v1?api_key=sk-0123456789abcdef"}, "url"),
        ({"url": "http://host:99999/v1"}, "url"),
        ({"url": "http://" + "a@" * 3000}, "url"),
        ({"url": URL, "model": "m"}, "model"),
        ({"url": URL, "model": "<" * 2000}, "model"),
        ({"url": URL, "client": "<" * 2000}, "client"),
    ],
)
async def test_refused(server: Operated, query: dict[str, str], param: str) -> None:
    """What is no address of a server, holds credentials, or names no model is refused, with the parameter."""
    status, told = await _ask(server, **query)

    assert (400, param) == (status, told["error"]["param"])
    assert "pw@" not in str(told)
    assert len(str(told)) < 1000


@pytest.mark.asyncio(loop_scope="module")
async def test_names_of_models_need_a_key(server: Operated) -> None:
    """Who has no key gets no lines, since models are in them."""
    async with server.client.get(f"{server.url}/page/clients", params={"url": URL}) as response:
        assert 401 == response.status
        assert "m7" not in await response.text()
