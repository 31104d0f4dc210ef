"""Tests of unilect.dialects.messages._models: the list of models for Anthropic's clients."""

from typing import Any

import pytest

from support.servers.appserver import App, serving_models
from unilect.config.server import Config
from unilect.core.errors import InvalidRequest
from unilect.dialects.messages._models import page
from unilect.http.client import HttpServer
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.upstreams.openai.backend import OpenAIUpstream

VERSION = {"anthropic-version": "2023-06-01"}


def registry() -> Registry:
    """A model with an alias, on a server that nobody asks."""
    backend = OpenAIUpstream(HttpServer("http://127.0.0.1:1"), "theirs")
    return Registry([Model("m", backend, aliases=["claude-x"], created=7)])


async def get(app: App, path: str, **headers: str) -> tuple[int, Any]:
    """The status and the JSON of a GET."""
    async with app.session.get(f"http://127.0.0.1:{app.port}{path}", headers=headers) as response:
        return response.status, await response.json()


async def test_a_header_tells_the_lists_apart() -> None:
    """The same URL is Anthropic's list with its version's header, and OpenAI's without."""
    async with serving_models(Config(), registry()) as app:
        for path in ("/v1/models", "/models"):
            status, ours = await get(app, path, **VERSION)
            assert 200 == status
            assert ["m", "claude-x"] == [card["id"] for card in ours["data"]]
            assert (False, "m", "claude-x") == (ours["has_more"], ours["first_id"], ours["last_id"])
            assert "list" == (await get(app, path))[1]["object"]
        status, card = await get(app, "/v1/models/claude-x", **VERSION)
        missing, error = await get(app, "/v1/models/none", **VERSION)
        wrong, refused = await get(app, "/v1/models?limit=0", **VERSION)

    assert (200, "model", "claude-x", "1970-01-01T00:00:07Z", "active") == (
        status,
        card["type"],
        card["id"],
        card["created_at"],
        card["lifecycle"],
    )
    assert (404, "not_found_error") == (missing, error["error"]["type"])
    assert (400, "limit") == (wrong, refused["error"]["param"])


@pytest.mark.parametrize(
    ("query", "shown", "more"),
    [
        ({}, "abcd", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"after_id": "d"}, "", False),
    ],
)
def test_pages(query: dict[str, str], shown: str, more: bool) -> None:
    """A page has at most `limit` models, after one or before one, and says whether there are more."""
    told = page([{"id": name} for name in "abcd"], query)

    assert (shown, more) == ("".join(card["id"] for card in told["data"]), told["has_more"])
    assert (told["first_id"], told["last_id"]) == ((shown[0], shown[-1]) if shown else (None, None))


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "x"}, {"limit": "9999999"}, {"after_id": "z"}]
)
def test_wrong_pages(query: dict[str, str]) -> None:
    """A limit that is none, and an id that no model has, are refused by name."""
    with pytest.raises(InvalidRequest) as caught:
        page([{"id": "a"}], query)
    assert caught.value.param == next(iter(query))
