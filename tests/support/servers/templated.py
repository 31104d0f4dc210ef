"""
Servers of tiny models that bring chat templates of others, on both engines, and what they are told and answer.

A GGUF model is made and started for each template, which takes 0.2 s. A transformers model takes seconds to start, so one is given a
template after another, and is told of each what a start would tell.
"""

import copy
import json
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import msgspec
from inprocess import Site, site
from msgspec import Struct

from support.models import tiny_gguf
from support.models.published import chat_templates
from support.models.talks import PING, TALKS, WEATHER, user
from unilect.api.backend import Capabilities
from unilect.config.server import Config, ModelConfig, StoreConfig
from unilect.demo import FOLDER
from unilect.engines.transformers.engine import HfEngine

_TOKENS = 4  # of each answer
_AT_ONCE = 12  # models in one server
#: A status, and the body as text.
Told: TypeAlias = tuple[int, str]
#: Numbers and nothing as every Jinja writes them; white space at the end of a text is trimmed in several ways.
SIMPLE = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "你好 <&> ö",
        "parameters": {
            "type": "object",
            "properties": {"é": {"type": "number", "description": "x", "minimum": 0.5}},
        },
    },
}
SPOKEN = TALKS | {
    "non-ASCII": {"messages": [user("Größe 你好 😀 <b>&\"'\\ \u2028 \t.")], "tools": [SIMPLE]},
    "prefill": {"messages": TALKS["prefill"]["messages"]},
}
#: Conversations with earlier calls, and the words that their prompts have.
CALLED = {
    "one call": ("Weather?", "get_weather", "Köln", "3 degrees.", "Thanks"),
    "two calls": ("Weather?", "get_weather", "Köln", "rain", "ping", "pong"),
}
_CONTEXT = 16384  # the tools of some templates take thousands of tokens
_COMMAND = [sys.executable, str(Path(__file__).with_name("templated_child.py"))]


class Model(Struct):
    """
    What one template has led to on one engine.

    Attributes:
        can: What the model can do.
        prompts: The prompt of each conversation, and of those with calls also without tools.
        answers: By the endpoint and the conversation.
        state: Of the model, after all of them.
    """

    can: Capabilities
    prompts: dict[str, Told]
    answers: dict[str, Told]
    state: str

    def prompt(self, talk: str) -> str | None:
        """The prompt of a conversation; None where the template refuses it."""
        status, text = self.prompts[talk]
        return str(json.loads(text)["prompt"]) if status == 200 else None


Engines: TypeAlias = dict[str, dict[str, Model]]


def _config_of(models: dict[str, ModelConfig]) -> Config:
    """A server whose responses are stored in its memory."""
    return Config(port=0, models=models, store=StoreConfig(url="sqlite://"), log_level="error")


@asynccontextmanager
async def gguf_models(folder: Path, templates: Mapping[str, str]) -> AsyncIterator[Site]:
    """Serve a GGUF model for each template, named like it."""
    models = {}
    for name, text in templates.items():
        file = tiny_gguf.make(folder / f"{name}.gguf", template=text, context=_CONTEXT)
        models[name] = ModelConfig(source=str(file), threads=1, parallel=1)
    async with site(_config_of(models)) as running:
        yield running


@asynccontextmanager
async def transformers_model(folder: Path) -> AsyncIterator[Site]:
    """Serve one transformers model, to which `use` gives a template."""
    shutil.copytree(FOLDER / "hf", folder)
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"max_position_embeddings": _CONTEXT, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(settings))
    config = ModelConfig(source=f"hf:{folder}", threads=1, context=_CONTEXT, batch=2048)
    with patch("unilect.engines.transformers.engine.python_command", lambda module: _COMMAND):
        async with site(_config_of({"m": config})) as running:
            yield running


async def use(running: Site, template: str) -> None:
    """Have the model of `transformers_model` use a template, as if it had been started with it."""
    engine = running.registry.get(None).pool.members[0].backend
    assert isinstance(engine, HfEngine)
    said = await engine._server.value("template", template)
    engine._server.process._ready = msgspec.msgpack.decode(said)
    engine._is_known = False
    await engine.start()


async def serve_all(folder: Path) -> Engines:
    """Serve all templates on both engines, and ask each model everything."""
    templates, gguf, transformers = chat_templates(), dict[str, Model](), dict[str, Model]()
    names = list(templates)
    for at in range(0, len(names), _AT_ONCE):
        some = {name: templates[name] for name in names[at : at + _AT_ONCE]}
        async with gguf_models(folder, some) as running:
            for name in some:
                gguf[name] = await asked(running, name, names.index(name))
    async with transformers_model(folder / "hf") as running:
        for name in names:
            await use(running, templates[name])
            transformers[name] = await asked(running, "m", names.index(name) + 1)
    return {"gguf": gguf, "transformers": transformers}


async def asked(running: Site, name: str, number: int) -> Model:
    """
    Ask a model everything.

    Args:
        number: Every other answer is streamed: of odd numbers those that are whole of even ones. The engines take turns,
            so each template's answer to a conversation is whole on one of them and streamed on the other.
    """

    async def ask(path: str, **body: Any) -> Told:
        async with running.client.post(running.url + path, json={"model": name} | body) as answer:
            return answer.status, await answer.text()

    prompts, answers = dict[str, Told](), dict[str, Told]()
    for place, talk in enumerate(SPOKEN):
        body, stream = body_of(talk), (place + number) % 2 == 1
        prompts[talk] = await ask("/apply-template", **body)
        answers[f"chat {talk} {stream}"] = await ask(
            "/v1/chat/completions", **body, max_tokens=_TOKENS, stream=stream
        )
    for talk in CALLED:
        messages = body_of(talk)["messages"]
        prompts[f"{talk}, no tools"] = await ask("/apply-template", messages=messages)
    answers["forced"] = await ask("/v1/chat/completions", **FORCED)
    for place, (path, body) in enumerate(ELSEWHERE.items()):
        stream = (place + number) % 2 == 1
        answers[f"{path} {stream}"] = await ask(path, **body, stream=stream)
    model = running.registry.get(name)
    return Model(model.capabilities, prompts, answers, model.state)


def body_of(talk: str) -> dict[str, Any]:
    """The body of a conversation, as a client sends it."""
    names = copy.deepcopy(SPOKEN[talk])
    body = {name: names.pop(name) for name in ("messages", "tools") if name in names}
    for turn in body["messages"]:
        for call in turn.get("tool_calls", ()):
            given = call["function"]["arguments"]
            call["function"]["arguments"] = json.dumps(given, ensure_ascii=False)
    return body | ({"chat_template_kwargs": names} if names else {})


#: A call that must come, and can only be one; without thoughts, which a random model does not end.
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FORCED: dict[str, Any] = {
    "messages": [user("Go.")],
    "tools": [{"type": "function", "function": {"name": "ping", "parameters": _NOTHING}}],
    "tool_choice": "required",
    "max_tokens": 200,
    "chat_template_kwargs": {"enable_thinking": False},
}


def declared(tool: dict[str, Any], schema: str) -> dict[str, Any]:
    """A tool as the newer APIs have it; its schema is called so."""
    function = dict(tool["function"])
    return {schema: function.pop("parameters"), **function}


#: One conversation in the forms of the other APIs.
ELSEWHERE: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        "max_tokens": _TOKENS,
        "system": "Be brief.",
        "messages": [
            user("Weather?"),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "ping", "input": {}}]},
            user([{"type": "tool_result", "tool_use_id": "toolu_1", "content": "pong"}]),
        ],
        "tools": [declared(tool, "input_schema") for tool in (WEATHER, PING)],
    },
    "/v1/responses": {
        "max_output_tokens": 16,
        "instructions": "Be brief.",
        "input": [
            user("Weather?"),
            {"type": "function_call", "call_id": "call_1", "name": "ping", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "pong"},
        ],
        "tools": [{"type": "function", **declared(tool, "parameters")} for tool in (WEATHER, PING)],
    },
}  # fmt: skip
