"""Tests of unilect.server._openapi."""

import re
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.core.errors import UnilectError
from unilect.core.requests import RAW_FIELDS
from unilect.models.registry import Registry
from unilect.server._openapi import docs_page, openapi
from unilect.server.app import all_routes
from unilect.web.route import Route
from unilect.web.site import Site

ROUTES = all_routes(Site(Service(Registry([]), Accounts(Metrics()))))
DOCUMENT: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(openapi(ROUTES)))


def schema(name: str) -> Draft202012Validator:
    """The validator for a component."""
    resolved = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return Draft202012Validator(resolved)


def test_every_route_is_documented() -> None:
    """The document has every route with its method, and no other."""
    told = {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}

    assert {(route.method, re.sub(r":[^}]*", "", route.path)) for route in ROUTES} == told


def test_operations() -> None:
    """Every operation has an id of its own, a summary, and answers."""
    operations = [item for path in DOCUMENT["paths"].values() for item in path.values()]

    ids = [operation["operationId"] for operation in operations]
    assert sorted(set(ids)) == sorted(ids)
    assert all(operation["summary"] and "200" in operation["responses"] for operation in operations)


@pytest.mark.parametrize(
    ("path", "operation_id"),
    [
        ("/v1/chat/completions", "create_chat_completion"),
        ("/v1/completions", "create_completion"),
        ("/v1/embeddings", "create_embedding"),
        ("/v1/models", "list_models"),
        ("/v1/models/{model}", "retrieve_model"),
    ],
)
def test_operation_ids(path: str, operation_id: str) -> None:
    """Operations are named as OpenAI names them."""
    ids = [item["operationId"] for item in DOCUMENT["paths"][path].values()]

    assert [operation_id] == ids


def test_tags() -> None:
    """Operations are grouped by API, those that most clients speak first, and each belongs to one group."""
    names = [one["name"] for one in DOCUMENT["tags"]]
    operations = [item for path in DOCUMENT["paths"].values() for item in path.values()]

    assert "OpenAI's API" == names[0]
    assert all([name] == sorted({name} & set(names)) for one in operations for name in one["tags"])
    assert all(1 == len(one["tags"]) for one in operations)
    assert ["OpenAI's API"] == DOCUMENT["paths"]["/v1/models"]["get"]["tags"]


def test_security() -> None:
    """Every operation but the public ones needs the key."""
    public = {
        path
        for path, item in DOCUMENT["paths"].items()
        if any(operation.get("security") == [] for operation in item.values())
    }

    assert [{"key": []}] == DOCUMENT["security"]
    assert {route.path for route in ROUTES if route.public} == public


def test_schemas() -> None:
    """Every schema is a sound one, every reference leads somewhere, and nothing of ours is shown."""
    text = msgspec.json.encode(DOCUMENT).decode()
    components = DOCUMENT["components"]["schemas"]

    for component in components.values():
        Draft202012Validator.check_schema(component)
    for reference in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert reference in components
    assert RAW_FIELDS not in text


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ChatRequest", {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}),
        ("ChatRequest", {"messages": [{"role": "user", "content": "Hi"}], "unknown": 1}),
        ("CompletionRequest", {"prompt": ["a", "b"], "stop": "x"}),
        ("EmbeddingRequest", {"input": [1, 2]}),
    ],
)
def test_bodies_that_are_sound(name: str, body: dict[str, Any]) -> None:
    """A body that is taken is sound by the document too."""
    schema(name).validate(body)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ChatRequest", {}),
        ("ChatRequest", {"messages": []}),
        ("ChatRequest", {"messages": [{"role": "user", "content": "Hi"}], "temperature": 3}),
        ("CompletionRequest", {"prompt": "a", "n": 0}),
        ("EmbeddingRequest", {"input": "a", "encoding_format": "x"}),
    ],
)
def test_bodies_that_are_not(name: str, body: dict[str, Any]) -> None:
    """A body that is refused is refused by the document too."""
    with pytest.raises(ValidationError):
        schema(name).validate(body)


def test_errors_are_sound() -> None:
    """The envelope of an error is what the document says."""
    schema("Error").validate(UnilectError("No.", param="n").envelope())


def shown(*routes: Route) -> str:
    """The page for people of some routes, or of all."""
    listed = routes or tuple(ROUTES)
    return docs_page(listed, openapi(listed), True, "")


def test_the_page() -> None:
    """The page for people lists every path, escaped, with no script and nothing from elsewhere."""
    page = shown()
    evil = shown(Route("GET", "/<x>", ROUTES[0].handler, summary="<script>"))

    assert all(re.sub(r":[^}]*", "", route.path) in page for route in ROUTES)
    assert "<script" not in page + evil
    assert "http://" not in page.replace("https://", "http://")
    assert "/&lt;x&gt;" in evil


def test_the_order_of_the_page() -> None:
    """OpenAI's API comes first on the page, then the others that are in use, what other packages bring, and the older servers' last."""
    theirs = Route("GET", "/x", ROUTES[0].handler, dialect="someones")
    titles = re.findall("<h2>([^<]*)", shown(*reversed(ROUTES), theirs))

    assert [
        *("OpenAI&#x27;s API", "OpenAI&#x27;s Responses and conversations"),
        *("Anthropic&#x27;s Messages", "Ollama&#x27;s API", "Reranking", "This server", "someones"),
        *("llama.cpp&#x27;s server", "FastChat", "ChatGLM"),
    ] == titles


def test_a_url_is_shown_once() -> None:
    """A URL stands once on the page: an older alias beside it, and what it does for requests with a header."""
    page = shown()

    assert 1 == page.count("<code>/v1/models</code>")
    assert "<code>/v1/models</code><br>also <code>/models</code>" in page
    (row,) = re.findall(
        r"<tr><td>GET<td><code>/v1/models</code>.*?</tr>", page.replace("</td>", "")
    )
    assert "with the header <code>anthropic-version</code>: List the models, for Anthropic" in row


def test_the_parameters_of_a_route() -> None:
    """The page has the fields of each body in words: what they are, their bounds, and which are required, those first."""
    (route,) = [route for route in ROUTES if route.path == "/v1/chat/completions"]
    rows = re.findall("<tr><td><code>(.*?)</code></td><td>(.*?)</td><td>(.*?)</td>", shown(route))
    kinds = {name: kind for name, kind, _ in rows}

    assert ("messages", "required") == (rows[0][0], rows[0][2])
    assert "string" == kinds["model"]
    assert "integer, 1 to 16" == kinds["n"]
    assert "number, 0 to 2" == kinds["temperature"]
    assert "string or list of string" == kinds["stop"]
    assert "integer" == kinds["seed"]
    assert "&quot;high&quot; or &quot;low&quot; or " in kinds["reasoning_effort"]
    assert len(DOCUMENT["components"]["schemas"]["ChatRequest"]["properties"]) == len(rows)
