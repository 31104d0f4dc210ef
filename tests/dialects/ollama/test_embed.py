"""Tests of unilect.dialects.ollama._embed on the bundled model."""

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import ENGINES_IN_CI, Spy, engine
from support.clients.ollamaside import post
from support.servers.appserver import App, serving
from unilect.testing.echo import Echo

in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES_IN_CI)
async def app(request: pytest.FixtureRequest) -> AsyncIterator[App]:
    """An application in front of the bundled model on each engine."""
    async with engine(request.param) as running, serving(running) as serves:
        yield serves


def length(vector: list[float]) -> float:
    """The length of a vector."""
    return math.sqrt(sum(x * x for x in vector))


@in_one_loop
async def test_embeddings(app: App) -> None:
    """Several texts give as many vectors of unit length, in order; one text gives one."""
    status, two, ignored = await post(
        app, "/api/embed", input=["a dog", "b"], options={"num_ctx": 9}
    )
    _, one, _ = await post(app, "/api/embed", input="a dog", keep_alive=300)

    assert (200, "", "m", 2, 1) == (
        status,
        ignored,
        two["model"],
        len(two["embeddings"]),
        len(one["embeddings"]),
    )
    assert one["embeddings"][0] == pytest.approx(two["embeddings"][0], abs=1e-3)
    assert 1 == pytest.approx(length(two["embeddings"][1]))
    assert two["prompt_eval_count"] > one["prompt_eval_count"] > 0
    assert two["total_duration"] >= two["load_duration"] >= 0


@in_one_loop
async def test_dimensions(app: App) -> None:
    """`dimensions` keeps the first numbers, of unit length again; more than there are is refused."""
    _, short, _ = await post(app, "/api/embed", input="a", dimensions=8)
    status, body, _ = await post(app, "/api/embed", input="a", dimensions=60000)

    assert (8, 400) == (len(short["embeddings"][0]), status)
    assert 1 == pytest.approx(length(short["embeddings"][0]))
    assert "`dimensions`" in body["error"]


@in_one_loop
async def test_older_embeddings(app: App) -> None:
    """The older call gives one vector, and none for no text."""
    _, one, _ = await post(app, "/api/embeddings", prompt="a dog")
    _, none, _ = await post(app, "/api/embeddings", prompt="")

    assert (["embedding"], {"embedding": []}) == (list(one), none)
    assert 256 == len(one["embedding"])


@in_one_loop
@pytest.mark.parametrize("given", ["", []])
async def test_no_text(app: App, given: Any) -> None:
    """No text has no embedding."""
    status, body, _ = await post(app, "/api/embed", input=given)

    assert (200, []) == (status, body["embeddings"])


@in_one_loop
@pytest.mark.parametrize("given", [None, 5, [5], {"a": "b"}, ["a", None]])
async def test_inputs_that_are_refused(app: App, given: Any) -> None:
    """An input that is no text is refused in the words that clients look for."""
    status, body, _ = await post(app, "/api/embed", input=given)

    assert 400 == status
    assert body["error"].startswith("invalid input type")


@pytest.mark.heavy(but=1)
@in_one_loop
@pytest.mark.parametrize("many", [3_000, 60_000])
async def test_texts_beyond_the_context(app: App, many: int) -> None:
    """A text beyond the context is cut at its end, which is named, however long it is; with `truncate: false` it is refused."""
    long = "dogs and cats " * many
    status, body, ignored = await post(app, "/api/embed", input=["a", long])
    refused, told, _ = await post(app, "/api/embed", input=["a", long], truncate=False)
    _, short, _ = await post(app, "/api/embed", input="a")

    assert (200, "truncated", 400) == (status, ignored, refused)
    assert body["embeddings"][0] == pytest.approx(short["embeddings"][0], abs=1e-3)
    assert 2000 < body["prompt_eval_count"] <= 2048 + short["prompt_eval_count"]
    assert "2048" in told["error"]


async def test_a_model_that_embeds_nothing() -> None:
    """A model that embeds nothing says so, and is not asked."""
    spy = Spy(Echo())
    async with serving(spy) as app:
        status, body, _ = await post(app, "/api/embed", input="a")

    assert 400 == status
    assert "does not answer embeddings" in body["error"]
