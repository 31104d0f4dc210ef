"""Tests of unilect.dialects.llamacpp._props and of `meta` in the list of models, beside llama.cpp's own server."""

import json
from pathlib import Path
from typing import Any

from support.backends.engine import engine, made, needs_transformers
from support.backends.llama_server import CONTEXT, llama_server
from support.backends.scripted import HELLO, says, scripted, stream_of
from support.clients.asking import ask
from support.models import tiny_gguf
from support.servers.appserver import App, serving, upstream
from unilect.config.server import ModelConfig
from unilect.engines.gguf.engine import GgufEngine
from unilect.http.client import HttpServer
from unilect.upstreams.llamacpp.backend import LlamaCppUpstream, raise_for

SAME = ("chat_template", "chat_template_caps", "modalities", "bos_token", "eos_token", "model_ftype", "total_slots")  # fmt: skip


async def get(app: App, path: str) -> Any:
    """The answer to a GET."""
    status, body = await app.get(path)
    assert 200 == status, body
    return json.loads(body)


async def test_the_same_facts() -> None:
    """A GGUF model tells what llama.cpp's server does: settings, context, template, vocabulary, sizes; and no path."""
    with llama_server() as url:
        theirs, models = ask(f"{url}/props").body, ask(f"{url}/v1/models").body
        fronted = LlamaCppUpstream(HttpServer(url, raise_for=raise_for))
        async with engine(context=CONTEXT, parallel=2) as running, serving(running) as app:
            ours, listed = await get(app, "/props"), await get(app, "/v1/models")
        async with serving(fronted, runs_locally=False) as app:
            passed = await get(app, "/props")
        await fronted.aclose()
    settings = theirs["default_generation_settings"]

    for told in (ours, passed):
        assert {name: theirs[name] for name in SAME} == {name: told[name] for name in SAME}
        assert settings["params"] == told["default_generation_settings"]["params"]
        assert CONTEXT == settings["n_ctx"] == told["default_generation_settings"]["n_ctx"]
        assert not told.keys() & {"model_path", "media_marker"}
    assert models["data"][0]["meta"] == listed["data"][0]["meta"]


async def test_a_models_defaults_are_effective() -> None:
    """What a model's requests are given by default stands among the settings, by llama.cpp's names."""
    defaults = {"temperature": 0.25, "max_tokens": 7, "repetition_penalty": 1.5}
    async with engine(context=CONTEXT) as running:
        async with serving(running, defaults=defaults, aliases=["other"]) as app:
            params = (await get(app, "/props"))["default_generation_settings"]["params"]
            listed = (await get(app, "/v1/models"))["data"][0]

    assert (0.25, 7, 7, 1.5) == tuple(params[n] for n in ("temperature", "max_tokens", "n_predict", "repeat_penalty"))  # fmt: skip
    assert ["m", "other"] == listed["aliases"]


async def test_a_model_that_sleeps(tmp_path: Path) -> None:
    """A model that has not been started is not started to be described: its file says its template and its sizes."""
    path = tiny_gguf.make(tmp_path / "tiny.gguf")
    model = GgufEngine("tiny", path, ModelConfig(context=CONTEXT, parallel=3))
    async with serving(model) as app:
        told, meta = await get(app, "/props"), (await get(app, "/v1/models"))["data"][0]["meta"]
        async with app.post("/completion", prompt="sun", n_predict=1) as response:
            assert 200 == response.status
        awake = await get(app, "/props")
        whole = (await get(app, "/v1/models"))["data"][0]["meta"]
    await model.aclose()

    assert (True, False) == (told["is_sleeping"], awake["is_sleeping"])
    assert (tiny_gguf.TEMPLATE, 3) == (told["chat_template"], told["total_slots"])
    assert awake["chat_template"] == told["chat_template"]
    assert meta["n_ctx_train"] == whole["n_ctx_train"]
    assert meta["n_embd"] == whole["n_embd"] == tiny_gguf.WIDTH
    assert meta["n_params"] == whole["n_params"]


@needs_transformers
async def test_on_transformers() -> None:
    """Of a model of transformers what its folder says is told."""
    backend = made("hf", context=CONTEXT)
    async with serving(backend) as app:
        told, meta = await get(app, "/props"), (await get(app, "/v1/models"))["data"][0]["meta"]

    assert (CONTEXT, CONTEXT) == (told["default_generation_settings"]["n_ctx"], meta["n_ctx"])
    assert (256, 2048) == (meta["n_embd"], meta["n_ctx_train"])


async def test_a_server_that_tells_nothing() -> None:
    """Of a server elsewhere that says nothing of its model nothing is made up."""
    async with scripted(says(stream_of(HELLO))) as server:
        async with serving(upstream(server.url), runs_locally=False) as app:
            meta = (await get(app, "/v1/models"))["data"][0]["meta"]

    assert {None} == set(meta.values())
