"""Tests of unilect.dialects.rerank: each form of the call over HTTP, in front of a backend that counts words."""

from collections.abc import AsyncIterator
from io import BytesIO
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from aiohttp import ClientSession
from hypothesis import strategies as st

from support.common.properties import given
from support.servers.appserver import App, serving, serving_models
from unilect.api.backend import Backend, Capabilities
from unilect.config.server import Config
from unilect.core.errors import ContextLengthExceeded, InvalidRequest
from unilect.core.ranking import MAX_DOCUMENTS, Ranking, RerankRequest
from unilect.dialects.rerank import TextsRequest, best_first, decode, encode, left_out
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.testing.echo import Echo

QUERY = "capital of france"
DOCUMENTS: list[Any] = ["Berlin", "Paris is the capital of France", {"text": "x"}]
PATHS = ["/v1/rerank", "/rerank", "/v2/rerank", "/v1/reranking", "/reranking", "/v1/rerank/"]
LONG = "long"  # of this document the end is not read


class Words(Backend):
    """
    A reranker that counts the words that a document shares with the query.

    Attributes:
        asked: The requests, in order.
    """

    capabilities = Capabilities(chat=False, completions=False, embeddings=False, rerank=True)

    def __init__(self) -> None:
        self.asked: list[RerankRequest] = []

    async def start(self) -> None:
        """It is always ready."""

    async def aclose(self) -> None:
        """It leaves nothing behind."""

    async def rerank(self, request: RerankRequest) -> Ranking:
        """The part of the query's words that each document has."""
        self.asked.append(request)
        words = request.query.lower().split()
        texts = [text.lower().split() for text in request.texts]
        cut = [place for place, text in enumerate(texts) if text == [LONG]]
        if cut and request.truncate is False:
            where = f"documents[{cut[0]}]"
            raise ContextLengthExceeded(f"`{where}` is too long.", param=where)
        scores = [sum(word in text for word in words) / len(words) for text in texts]
        return Ranking(scores, sum(map(len, texts)), cut)


in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def words() -> Words:
    """The backend behind `app`."""
    return Words()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(words: Words) -> AsyncIterator[App]:
    """A server of a reranker `m`, and a chat model `chat`."""
    registry = Registry([Model("m", words), Model("chat", Echo())])  # type: ignore[arg-type]
    async with serving_models(Config(), registry) as running:
        yield running


async def ranked(app: App, path: str = "/v1/rerank", **body: Any) -> tuple[int, Any, Any]:
    """The status, the body and the headers of an answer."""
    asked = {"query": QUERY, "documents": DOCUMENTS} | body
    asked = {name: value for name, value in asked.items() if value is not None}
    async with app.post(path, **asked) as response:
        return response.status, await response.json(), response.headers


@in_one_loop
@pytest.mark.parametrize("path", PATHS)
async def test_best_first(app: App, path: str) -> None:
    """The best `top_n` documents come first, with their places and scores from 0 to 1, at each URL."""
    status, body, _ = await ranked(app, path, model="m", top_n=2)

    results = [(one["index"], one["relevance_score"]) for one in body["results"]]
    assert (200, [(1, 1.0), (0, 0.0)]) == (status, results)
    assert ("list", "m", {"prompt_tokens": 8, "total_tokens": 8}) == (
        body["object"],
        body["model"],
        body["usage"],
    )
    assert body["id"].startswith("rerank-")
    version = "2" if path.startswith("/v2") else "1"
    assert version == body["meta"]["api_version"]["version"]
    assert all(one.keys() == {"index", "relevance_score"} for one in body["results"])


@in_one_loop
async def test_documents_given_back(app: App) -> None:
    """`return_documents` gives each document back as an object with its text."""
    _, body, _ = await ranked(app, return_documents=True)

    told = [one["document"] for one in body["results"]]
    assert [{"text": DOCUMENTS[1]}, {"text": "Berlin"}, {"text": "x"}] == told


@in_one_loop
async def test_more_than_there_are(app: App) -> None:
    """A `top_n` above the number of documents gives all of them."""
    _, body, _ = await ranked(app, top_n=99)

    assert 3 == len(body["results"])


@in_one_loop
@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
async def test_texts(app: App, path: str) -> None:
    """TEI's form, with `texts`, is answered by a list of places and scores, the best first."""
    texts = ["Berlin", "Paris is the capital of France"]
    _, plain, _ = await ranked(app, path, documents=None, texts=texts)
    _, told, _ = await ranked(app, path, documents=None, texts=texts, return_text=True)

    assert [{"index": 1, "score": 1.0}, {"index": 0, "score": 0.0}] == plain
    assert [texts[1], texts[0]] == [one["text"] for one in told]
    _, best, _ = await ranked(app, path, documents=None, texts=texts, top_n=1)
    assert plain[:1] == best


@in_one_loop
async def test_texts_that_are_too_long(app: App) -> None:
    """In TEI's form a text that is too long is refused by its own name, unless `truncate` has it cut and named."""
    status, refused, _ = await ranked(app, "/rerank", documents=None, texts=["a", LONG])
    _, cut, headers = await ranked(app, "/rerank", documents=None, texts=["a", LONG], truncate=True)

    error = refused["error"]
    assert (400, "texts[1]", "context_length_exceeded") == (status, error["param"], error["code"])
    assert "`texts[1]`" in error["message"]
    assert (2, "texts%5B1%5D%3Acut") == (len(cut), headers["X-Unilect-Ignored"])


@in_one_loop
async def test_a_document_that_is_cut(app: App) -> None:
    """A document of which the end was not read is named, in the header and in the body."""
    status, body, headers = await ranked(app, documents=["a", LONG])

    assert (200, ["documents[1]:cut"]) == (status, body["unilect"]["ignored"])
    assert "documents%5B1%5D%3Acut" == headers["X-Unilect-Ignored"]


@in_one_loop
async def test_what_a_backend_is_told(app: App, words: Words) -> None:
    """The backend gets the texts, and what bounds them."""
    await ranked(app, max_tokens_per_doc=7, raw_scores=True, truncate=True)

    last = words.asked[-1]
    assert ["Berlin", "Paris is the capital of France", "x"] == last.texts
    assert (7, True, True) == (last.max_tokens_per_doc, last.raw_scores, last.truncate)


@in_one_loop
async def test_names_what_is_left_out(app: App) -> None:
    """Fields that no backend knows, of the body and of its documents, are named."""
    _, body, _ = await ranked(
        app, documents=["a", {"text": "b", "title": "c", "image": None}], priority=3
    )

    assert ["documents[].title", "priority"] == body["unilect"]["ignored"]


@in_one_loop
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", [{"documents": DOCUMENTS}, {"texts": ["a"], "documents": None}])
async def test_a_chat_model(app: App, path: str, fields: dict[str, Any]) -> None:
    """A model that ranks nothing answers 501, and says what to do."""
    status, body, _ = await ranked(app, path, model="chat", **fields)

    assert (501, "unsupported_operation") == (status, body["error"]["code"])
    assert "The model `chat` is no reranker" in body["error"]["message"]
    assert "Use a model that does" in body["error"]["message"]


@in_one_loop
async def test_an_unknown_model(app: App) -> None:
    """A model that there is not is 404."""
    status, body, _ = await ranked(app, model="none")

    assert (404, "model_not_found") == (status, body["error"]["code"])


@in_one_loop
async def test_says_who_ranks(app: App) -> None:
    """GET /v1/models/{model} says which model ranks."""
    bodies = [await app.get(f"/v1/models/{name}") for name in ("m", "chat")]

    assert [True, False] == [msgspec.json.decode(body)["unilect"]["rerank"] for _, body in bodies]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"documents": []}, "documents"),
    ({"documents": ["x"] * (MAX_DOCUMENTS + 1)}, "documents"),
    ({"documents": "x"}, "documents"),
    ({"documents": [1]}, "documents[0]"),
    ({"documents": None}, "documents"),
    ({"documents": ["a", {"title": "b"}]}, "documents[1].text"),
    ({"documents": ["a", {"text": "b", "image": "data:image/png;base64,"}]}, "documents[1].image"),
    ({"documents": [{"image": "data:image/png;base64,"}]}, "documents[0].image"),
    ({"query": None}, "query"),
    ({"query": ""}, "query"),
    ({"query": {"image": "x"}}, "query"),
    ({"top_n": 0}, "top_n"),
    ({"top_n": "2"}, "top_n"),
    ({"max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    ({"rank_fields": ["title"]}, "rank_fields"),
    ({"temperature": 0.5}, "temperature"),
    ({"texts": [], "documents": None}, "texts"),
    ({"texts": [{"text": "a"}], "documents": None}, "texts[0]"),
    ({"texts": ["a"], "documents": None, "truncation_direction": "Left"}, "truncation_direction"),
]


@in_one_loop
@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_bodies_that_are_refused(app: App, fields: dict[str, Any], param: str) -> None:
    """A body that is wrong is refused by the name of its field."""
    status, body, _ = await ranked(app, "/rerank", **fields)

    assert (400, param) == (status, body["error"]["param"])


@pytest.mark.parametrize(
    "fields",
    [
        {"documents": ["x"] * MAX_DOCUMENTS},
        {"documents": [""]},
        {"rank_fields": ["text"]},
        {"rank_fields": []},
        {"rank_fields": None, "top_n": None, "return_documents": None},
    ],
)
def test_bodies_that_are_taken(fields: dict[str, Any]) -> None:
    """As many documents as there may be, an empty one, and fields that ask for nothing are taken."""
    request = decode(msgspec.json.encode({"query": "a", "documents": ["a"]} | fields))

    assert isinstance(request, RerankRequest)
    assert request.texts == fields.get("documents", ["a"])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_order(scores: list[float]) -> None:
    """Whatever the scores, they fall, each place is there once, and equal ones keep their order."""
    places = best_first(scores)

    assert sorted(scores, reverse=True) == [scores[place] for place in places]
    assert sorted(places) == list(range(len(scores)))
    assert all(
        first < second for first, second in pairwise(places) if scores[first] == scores[second]
    )


def test_names_are_bounded() -> None:
    """However many names the fields of documents have, a few are told."""
    document = {"text": "a"} | {f"f{number}": number for number in range(1000)}
    request = decode(msgspec.json.encode({"query": "a", "documents": [document] * 9}))

    assert isinstance(request, RerankRequest)
    assert 32 == len(left_out(request))


def test_scores_are_numbers() -> None:
    """A score that is a whole number is written as a number with a point, as strict clients want it."""
    request = RerankRequest(query="a", documents=["b"])
    body = encode(request, Ranking([1.0], 3), "m")

    assert b'"relevance_score":1.0' in body


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
FIELDS = [
    "model", "query", "documents", "texts", "top_n", "return_documents", "max_tokens_per_doc", "rank_fields", "raw_scores",
    "truncate", "truncation_direction", "return_text", "text", "image", "user",
]  # fmt: skip
SOUND: dict[str, Any] = {"query": "a", "documents": ["a", {"text": "b"}], "top_n": 1}


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6), st.booleans())
def test_any_body(fields: dict[str, Any], mutated: bool) -> None:
    """Any body is a request, or refused as the client's mistake."""
    body = msgspec.json.encode((SOUND | fields) if mutated else fields)
    try:
        request = decode(body)
    except InvalidRequest as error:
        assert error.message
        return
    if isinstance(request, TextsRequest):
        assert request.texts
    else:
        assert len(request.texts) == len(request.documents)
        left_out(request)


@in_one_loop
@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"query":"a","documents":["a"', b"\xef\xbb\xbf" + msgspec.json.encode(SOUND), b"\xff"],
)  # fmt: skip
async def test_bodies_that_are_no_objects(app: App, body: bytes) -> None:
    """A body that is no JSON object is 400; a byte order mark before one does no harm."""
    url = f"http://127.0.0.1:{app.port}/rerank"
    async with app.session.post(url, data=body) as response:
        assert (200 if body.startswith(b"\xef\xbb\xbf") else 400) == response.status


@in_one_loop
async def test_the_largest_body(app: App) -> None:
    """A body of nearly 16 MiB in two thousand documents is answered, in order."""
    documents = ["x " * 4000 + ("france" if place == 77 else "y") for place in range(2000)]
    asked = msgspec.json.encode({"query": QUERY, "documents": documents, "top_n": 1})
    url = f"http://127.0.0.1:{app.port}/v1/rerank"
    async with app.session.post(url, data=BytesIO(asked)) as response:
        body = await response.json()

    assert (200, 77) == (response.status, body["results"][0]["index"])


async def test_a_backend_without_the_method() -> None:
    """A backend that says that it ranks, and has no such method, is 501."""

    class Liar(Echo):
        capabilities = Capabilities(rerank=True)

    async with serving(Liar()) as running:
        status, body, _ = await ranked(running)

    assert (501, "unsupported_operation") == (status, body["error"]["code"])


async def test_is_counted() -> None:
    """Requests are counted by their endpoint and status."""
    async with serving(Words()) as running:  # type: ignore[arg-type]
        await ranked(running)
        await ranked(running, query="")
        async with ClientSession() as other:
            url = f"http://127.0.0.1:{running.port}/v2/rerank"
            async with other.post(url, json={"query": "a", "documents": ["a"]}) as response:
                assert 200 == response.status

        assert 2.0 == running.counted("rerank", 200)
