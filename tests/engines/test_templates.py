"""Chat templates that refuse a conversation, or cannot be used: what every endpoint says of them, on both engines."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from inprocess import Site, site

from support.backends.engine import ENGINES_IN_CI
from support.models import tiny_gguf
from unilect.config.server import Config, ModelConfig
from unilect.demo import FOLDER

SAYS = (
    "{%- for m in messages -%}[{{ m.role }}] {{ m.content or '' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}[assistant] {%- endif -%}"
)
WORDS = "A user begins, or /else: user/assistant/..."
REFUSES = (
    f"{{%- if messages[0].content == 'NO' -%}}{{{{ raise_exception('{WORDS}') }}}}{{%- endif -%}}"
)
#: With a mark of gpt-oss, for which llama.cpp has a handler of its own, that tells a refusal in another way; and the word `tools`.
TEMPLATES = [REFUSES + SAYS, REFUSES + SAYS + "{#- tools: <|channel|>analysis -#}"]
REFUSED = [{"role": "user", "content": "NO"}, {"role": "assistant", "content": "A"}, {"role": "user", "content": "U"}]  # fmt: skip
TOOL = {"type": "function", "function": {"name": "get_it", "parameters": {"type": "object", "properties": {}}}}  # fmt: skip
_TRIES = 6  # refusals; five failures in a row take a backend out


@asynccontextmanager
async def serving(engine: str, template: str, folder: Path) -> AsyncIterator[Site]:
    """A server of a model that brings this template."""
    if engine == "gguf":
        source = str(tiny_gguf.make(folder / "m.gguf", template=template))
    else:
        shutil.copytree(FOLDER / "hf", folder / "m")
        (folder / "m" / "chat_template.jinja").write_text(template)
        source = f"hf:{folder / 'm'}"
    config = Config(port=0, models={"m": ModelConfig(source=source)}, log_level="error")
    async with site(config) as running:
        yield running


async def asked(running: Site, path: str, **body: Any) -> tuple[int, Any]:
    """The status of an answer, and its JSON."""
    async with running.client.post(running.url + path, json={"model": "m"} | body) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize("engine", ENGINES_IN_CI)
@pytest.mark.parametrize("template", TEMPLATES)
async def test_a_refused_conversation(engine: str, template: str, tmp_path: Path) -> None:
    """It is a 400 with the template's own words at every endpoint, whole and streamed, and no mark against the model."""
    advice = "Send what it takes: other roles, or another order."
    told = f"the model's chat template refuses them: {WORDS} {advice}"
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": REFUSED}),
        ("/v1/chat/completions", {"messages": REFUSED, "stream": True}),
        ("/v1/messages", {"messages": REFUSED, "max_tokens": 2}),
        ("/v1/messages/count_tokens", {"messages": REFUSED}),
        ("/apply-template", {"messages": REFUSED}),
    ]
    async with serving(engine, template, tmp_path) as running:
        for path, body in bodies:
            status, said = await asked(running, path, **body)
            assert (400, "messages") == (status, said["error"]["param"]), path
            assert f"`messages`: {told}" == said["error"]["message"]
        status, said = await asked(running, "/v1/responses", input=REFUSED)
        assert (400, f"`input`: {told}") == (status, said["error"]["message"])
        for _ in range(_TRIES):
            status, said = await asked(running, "/api/chat", messages=REFUSED, stream=False)
            assert (400, f"`messages`: {told}") == (status, said["error"])
        taken = await asked(running, "/v1/chat/completions", messages=REFUSED[2:], max_tokens=1)

    assert 200 == taken[0]


@pytest.mark.parametrize("engine", ENGINES_IN_CI)
async def test_a_template_that_speaks_of_tools(engine: str, tmp_path: Path) -> None:
    """Where it has the word and shows no tools, they are emulated: the model is told of them."""
    async with serving(engine, SAYS + "{#- tools -#}", tmp_path) as running:
        status, said = await asked(running, "/apply-template", messages=REFUSED[1:], tools=[TOOL])

    assert 200 == status
    assert "get_it" in said["prompt"]


@pytest.mark.parametrize("engine", ENGINES_IN_CI)
async def test_a_template_that_cannot_be_compiled(engine: str, tmp_path: Path) -> None:
    """The model completes texts, and a chat is told why it cannot be answered, also after the engine was started anew."""
    async with serving(engine, "{% nothing %}" + SAYS, tmp_path) as running:
        for _ in range(2):
            completed = await asked(running, "/v1/completions", prompt="a", max_tokens=1)
            assert 200 == completed[0]
            for path in ("/v1/chat/completions", "/v1/messages/count_tokens"):
                status, said = await asked(running, path, messages=REFUSED)
                assert 400 == status
                assert "its chat template cannot be used (" in said["error"]["message"]
                assert "nothing" in said["error"]["message"]
            await running.registry.get(None).pool.members[0].backend.aclose()
