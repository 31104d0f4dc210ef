"""Tests of unilect.dialects.ollama._models: what clients of Ollama learn of the models, and what they cannot do with them."""

import asyncio
import json
from datetime import datetime
from typing import Any

import pytest

from support.backends.engine import ENGINES_IN_CI, engine, made
from support.backends.scripted import answer, says, scripted
from support.clients.asking import ask
from support.clients.ollamaside import SAY, post, rows_of
from support.servers.appserver import App, serving, serving_models, upstream
from support.servers.serving import serve
from unilect.config.server import Config
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.testing.echo import Echo


async def got(app: App, path: str) -> Any:
    """The answer to a GET."""
    status, body = await app.get(path)
    assert 200 == status
    return json.loads(body)


@pytest.mark.parametrize("kind", ENGINES_IN_CI)
async def test_what_a_model_is(kind: str) -> None:
    """A model's context is the one that is served, under its architecture's name, and its numbers are those of its files."""
    async with engine(kind, context=1024) as running, serving(running, created=86400) as app:
        _, shown, _ = await post(app, "/api/show")
        [listed] = (await got(app, "/api/tags"))["models"]
        await post(app, "/api/chat", messages=[])
        [loaded] = (await got(app, "/api/ps"))["models"]

    info = shown["model_info"]
    family = info["general.architecture"]
    assert (1024, 256) == (info[f"{family}.context_length"], info[f"{family}.embedding_length"])
    assert 3_900_000 < info["general.parameter_count"] < 4_100_000
    texts = ("license", "modelfile", "parameters", "template")
    assert {str} == {type(shown[name]) for name in texts}
    assert ["completion", "tools"] == shown["capabilities"] == listed["capabilities"]
    details = listed["details"]
    assert ("llama", ["llama"], "4.0M") == (
        details["family"],
        details["families"],
        details["parameter_size"],
    )
    assert {str} == {type(details[name]) for name in details if name != "families"}
    assert "1970-01-02T00:00:00Z" == listed["modified_at"] == shown["modified_at"]
    assert ("m:latest", "m:latest", 64) == (listed["name"], listed["model"], len(listed["digest"]))
    assert listed["size"] > 1_000_000
    assert (1024, listed["digest"]) == (loaded["context_length"], loaded["digest"])


async def test_what_is_not_known() -> None:
    """What a backend does not know is told as a neutral value of the right type, and a context that is not known is left out."""
    async with serving(Echo()) as app:
        _, shown, _ = await post(app, "/api/show")
        [listed] = (await got(app, "/api/tags"))["models"]

    assert {"general.architecture": "unknown", "general.basename": "m", "general.parameter_count": 0} == shown["model_info"]  # fmt: skip
    assert ("", "unknown", "", "", 0) == (
        *(listed["details"][name] for name in ("format", "family", "parameter_size")),
        listed["details"]["quantization_level"],
        listed["size"],
    )


async def test_the_parameters_of_a_model() -> None:
    """A model's defaults are its parameters, and lines of its modelfile."""
    async with serving(Echo(), defaults={"temperature": 0.5, "stop": ["a"]}) as app:
        _, shown, _ = await post(app, "/api/show", model=None, name="m:latest", verbose=True)

    assert 'temperature 0.5\nstop ["a"]' == shown["parameters"]
    assert shown["modelfile"].startswith("FROM m:latest\nPARAMETER temperature 0.5")


async def test_a_model_of_a_server_behind() -> None:
    """A server behind is asked before its model is described, and its models are not counted as loaded here."""
    models = answer(json.dumps({"data": [{"id": "theirs", "max_model_len": 4096}]}).encode())
    async with scripted(says(models)) as server:
        async with serving(upstream(server.url), runs_locally=False) as app:
            status, shown, _ = await post(app, "/api/show")
            loaded = await got(app, "/api/ps")

    assert (200, []) == (status, loaded["models"])
    assert "completion" in shown["capabilities"]


@pytest.mark.parametrize(
    ("names", "asked", "found"),
    [
        (["m"], "m:latest", "m"),
        (["m:latest"], "m", "m:latest"),
        (["m", "m:latest"], "m", "m"),
        (["org/m:7b"], "org/m:7b", "org/m:7b"),
        (["M"], "m", None),
    ],
)
async def test_names(names: list[str], asked: str, found: str | None) -> None:
    """A name without a tag is one with `:latest`, and case counts."""
    registry = Registry(Model(name, Echo()) for name in names)
    async with serving_models(Config(), registry) as app:
        status, shown, _ = await post(app, "/api/show", model=asked)
        listed = [one["name"] for one in (await got(app, "/api/tags"))["models"]]

    assert {name if ":" in name else f"{name}:latest" for name in names} == set(listed)
    if found is None:
        assert (404, {"error": f"model '{asked}' not found"}) == (status, shown)
    else:
        assert (200, found) == (status, shown["model_info"]["general.basename"])


@pytest.mark.parametrize("configured", [600, None])
async def test_how_long_a_model_stays(configured: int | None) -> None:
    """`keep_alive` says when a model is stopped: later, never, or as configured after it was stopped."""
    async with serving(Echo(), idle_stop_s=configured) as app:

        async def stays(**fields: Any) -> Any:
            status, body, _ = await post(app, "/api/chat", messages=[], **fields)
            assert 200 == status, body
            now = datetime.fromisoformat(body["created_at"])
            [one] = (await got(app, "/api/ps"))["models"]
            if one["expires_at"].startswith("9999"):
                return None
            return round((datetime.fromisoformat(one["expires_at"]) - now).total_seconds(), -1)

        assert configured == await stays()
        assert 3600 == await stays(keep_alive="1h")
        assert 3600 == await stays()
        assert None is await stays(keep_alive=-1)
        assert 300 == await stays(keep_alive=300)
        assert 5400 == await stays(keep_alive="1h30m")
        assert None is await stays(keep_alive="-1m")
        await post(app, "/api/generate", prompt="", keep_alive=0)
        assert configured == await stays()


async def test_a_model_is_unloaded_after_its_time() -> None:
    """A model that the operator loads at the start, and never stops, is unloaded when the time is over that a request said."""
    backend = made("gguf")
    async with serving(backend) as app:
        await post(app, "/api/chat", messages=[], keep_alive="10ms")
        while (await got(app, "/api/ps"))["models"] or backend._generator.process.pid is not None:
            await asyncio.sleep(0)

        assert "load" == (await post(app, "/api/chat", messages=[]))[1]["done_reason"]


async def test_pulling() -> None:
    """A model that is served is there, in a stream and whole; any other is not fetched, in the words that clients look for."""
    async with serving(Echo()) as app:
        async with app.post("/api/pull", model="m") as response:
            assert [{"status": "success"}] == await rows_of(response)
        _, whole, _ = await post(app, "/api/pull", model="m:latest")
        async with app.post("/api/pull", name="other") as response:
            [row] = await rows_of(response)
            status = response.status
        refused, body, _ = await post(app, "/api/pull", model="other")

    assert {"status": "success"} == whole
    assert (200, 404) == (status, refused)
    assert row["error"].startswith("pull model manifest: file does not exist")
    assert row == body


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("DELETE", "/api/delete", {"model": "m"}, 501),
        ("DELETE", "/api/delete", {"name": "none"}, 404),
        ("POST", "/api/copy", {"source": "m", "destination": "n"}, 501),
        ("POST", "/api/copy", {"source": "none", "destination": "n"}, 404),
        ("POST", "/api/create", {"model": "n", "from": "m"}, 501),
        ("POST", "/api/push", {"model": "m"}, 501),
        ("POST", "/api/blobs/sha256:00", {}, 501),
        ("POST", "/api/show", {}, 400),
        ("POST", "/api/show", {"model": 5}, 400),
        ("POST", "/api/nothing", {}, 404),
        ("GET", "/api/chat", None, 405),
        ("GET", "/api/v1/nothing", None, 404),
    ],
)
async def test_what_is_refused(method: str, path: str, body: Any, status: int) -> None:
    """What changes models, and URLs that are none, are refused in Ollama's form: a text under `error`."""
    async with serving(Echo()) as app:
        url = f"http://127.0.0.1:{app.port}{path}"
        async with app.session.request(method, url, json=body) as response:
            said = await response.json()

    assert status == response.status
    assert [("error", str)] == [(name, type(value)) for name, value in said.items()]


async def test_keys() -> None:
    """A missing key is told in Ollama's form, too; OpenAI's URLs keep OpenAI's."""
    async with serving(Echo(), Config(api_keys=["sk-test-test"])) as app:
        status, body = await app.get("/api/tags")
        other, theirs = await app.get("/v1/models")

    assert (401, 401) == (status, other)
    assert str is type(json.loads(body)["error"])
    assert dict is type(json.loads(theirs)["error"])


async def test_the_neighbours() -> None:
    """A URL below a route of another dialect has the errors of that dialect, though it stands under /api."""
    async with serving(Echo()) as app:
        status, body = await app.get("/api/v1/chat/completions")

    assert 405 == status
    assert "message" in json.loads(body)["error"]


@pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags"])
async def test_heads(path: str) -> None:
    """HEAD is answered without a body wherever clients look whether Ollama is there."""
    async with serving(Echo(), Config(dialect="ollama")) as app:
        async with app.session.head(f"http://127.0.0.1:{app.port}{path}") as response:
            assert (200, b"") == (response.status, await response.read())


async def test_the_greeting() -> None:
    """On an address of Ollama's a program is told that Ollama is running, and a browser gets the page; elsewhere nothing changes."""
    async with serving(Echo(), Config(dialect="ollama")) as app:
        program = await app.get("/")
        url, headers = f"http://127.0.0.1:{app.port}/", {"Accept": "text/html"}
        async with app.session.get(url, headers=headers) as response:
            page = await response.text()
    async with serving(Echo()) as app:
        elsewhere = await app.get("/")
        version = await got(app, "/api/version")

    assert (200, b"Ollama is running") == program
    assert "<title>unilect</title>" in page
    assert "/v1/models" == json.loads(elsewhere[1])["models"]
    assert (0, 6, 4) <= tuple(map(int, version["version"].split(".")))


def test_the_command() -> None:
    """`unilect compat ollama` greets as Ollama does, and answers its clients with the bundled model."""
    with serve(command=("compat", "ollama")) as server:
        greeting = ask(f"{server.root}/")
        answered = ask(
            f"{server.root}/api/chat", {"model": "demo", "messages": SAY, "stream": False}
        )
        named = ask(
            f"{server.root}/api/generate",
            {
                "model": "demo",
                "prompt": "x",
                "stream": False,
                "options": {"num_predict": 1, "y": 1},
            },
        )

    assert "Ollama is running" == greeting.text
    assert answered.body["message"]["content"]
    assert "options.y" == named.headers["X-Unilect-Ignored"]
