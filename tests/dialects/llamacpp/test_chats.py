"""What llama-server's clients ask of a chat beside OpenAI's parameters, on a GGUF model and of llama.cpp's own server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import engine, needs_transformers
from support.backends.llama_server import CONTEXT, llama_server
from support.backends.scripted import HELLO, says, scripted, stream_of
from support.clients.asking import ask
from support.models import tiny_gguf
from support.servers.appserver import HI, App, serving, upstream
from unilect.config.server import ModelConfig
from unilect.engines.gguf.engine import GgufEngine

in_one_loop = pytest.mark.asyncio(loop_scope="module")
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
#: A template that thinks, and asks for two names of its own.
THINKING = (
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n"
    "{%- if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif -%}"
    "{{ m.content }}<|im_end|>\n{%- endfor -%}"
    "{%- if date_string is defined %}[{{ date_string }}]{% endif -%}"
    "{%- if xml_tools %}[xml]{% endif -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and enable_thinking is false -%}<think>\n\n</think>\n\n{%- endif -%}"
    "{%- endif -%}"
)
#: The same, whose prompt has begun the thoughts.
BEGUN = THINKING.replace("assistant\n", "assistant\n<think>\n")
TURN = {"role": "assistant", "content": "He"}
THOUGHT = {"role": "assistant", "content": "", "reasoning_content": "I thi"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[App, str]]:
    """An application in front of a model whose template thinks, and llama.cpp's own server with it."""
    path: Path = tiny_gguf.make(tmp_path_factory.mktemp("gguf") / "tiny.gguf", THINKING)
    model = GgufEngine("tiny", path, ModelConfig(context=CONTEXT, parallel=2))
    await model.start()
    try:
        with llama_server(path) as url:
            async with serving(model) as app:
                yield app, url
    finally:
        await model.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinker() -> AsyncIterator[App]:
    """An application in front of the bundled model, whose prompts begin its thoughts."""
    async with engine(context=CONTEXT, chat_template=BEGUN) as running:
        async with serving(running) as app:
            yield app


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> AsyncIterator[App]:
    """An application in front of the bundled model."""
    async with engine(context=CONTEXT) as running, serving(running) as app:
        yield app


async def post(app: App, path: str = CHAT, **body: Any) -> tuple[int, Any, str]:
    """The status, the answer, and what was ignored."""
    async with app.post(path, **{"messages": HI} | body) as response:
        text = (await response.read()).decode()
        ignored = response.headers.get("X-Unilect-Ignored", "")
    if body.get("stream") and response.status == 200:
        return 200, frames_of(text), ignored
    return response.status, json.loads(text), ignored


def frames_of(text: str) -> list[Any]:
    """The data of a stream's frames."""
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


@in_one_loop
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"chat_template_kwargs": {"date_string": "today"}},
        {"chat_template_kwargs": {"date_string": "today", "xml_tools": True}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"add_generation_prompt": False},
        {"messages": [*HI, TURN]},
        {"messages": [*HI, TURN], "continue_final_message": True, "add_generation_prompt": False},
        {"messages": [*HI, TURN], "continue_final_message": "content", "add_generation_prompt": False},
        {"messages": [*HI, THOUGHT], "continue_final_message": "reasoning_content", "add_generation_prompt": False},
        {"messages": [*HI, THOUGHT], "continue_final_message": True, "add_generation_prompt": False},
    ],
    ids=str,
)  # fmt: skip
async def test_the_same_prompt(both: tuple[App, str], fields: dict[str, Any]) -> None:
    """The names of the template's own, and where the prompt ends, give the reference's prompt; and the chat reads it."""
    app, url = both
    body = {"messages": HI} | fields
    theirs = ask(f"{url}/apply-template", body).body["prompt"]
    status, ours, ignored = await post(app, "/apply-template", **body)
    read = await post(app, **body, max_tokens=1, tokenize=True)
    text = (await post(app, "/detokenize", tokens=read[1]["promptToken"]))[1]["content"]

    assert (200, theirs, "") == (status, ours["prompt"], ignored)
    assert theirs.strip() == text.strip()
    counted = ask(f"{url}{CHAT}/input_tokens", body).body["input_tokens"]
    assert counted == (await post(app, f"{CHAT}/input_tokens", **body))[1]["input_tokens"]
    assert counted == read[1]["usage"]["prompt_tokens"]


@in_one_loop
async def test_names_that_a_template_does_not_ask_for(both: tuple[App, str]) -> None:
    """What the template has no place for is named, whole and streamed; the others are kept."""
    app, _ = both
    kwargs = {"date_string": "today", "documents_too": [1], "thinking": True}
    status, told, ignored = await post(app, "/apply-template", chat_template_kwargs=kwargs)
    _, _, streamed = await post(app, chat_template_kwargs={"a b": 1}, max_tokens=1, stream=True)

    assert (200, True) == (status, "[today]" in told["prompt"])
    assert "chat_template_kwargs.documents_too, chat_template_kwargs.thinking" == ignored
    assert "chat_template_kwargs.a%20b" == streamed


@in_one_loop
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, None),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": "thoughts"}, "continue_final_message"),
        ({"messages": [*HI, TURN], "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"messages": [*HI, TURN], "continue_final_message": "reasoning_content"}, "continue_final_message"),
        ({"reasoning_format": "other"}, "reasoning_format"),
        ({"thinking_budget_tokens": -2}, "thinking_budget_tokens"),
        ({"thinking_budget_tokens": 4}, "thinking_budget_tokens"),
    ],
    ids=str,
)  # fmt: skip
async def test_what_is_refused(
    both: tuple[App, str], fields: dict[str, Any], param: str | None
) -> None:
    """What would replace the conversation, leave a message out, or do nothing (a budget, on such a vocabulary) is refused by name."""
    status, told, _ = await post(both[0], **fields)

    assert 400 == status, told
    assert param is None or param == told["error"]["param"]


@in_one_loop
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", ["none", "auto", "deepseek", None])
async def test_how_thoughts_are_told(both: tuple[App, str], form: str | None, stream: bool) -> None:
    """Thoughts are apart from the answer, or in its text as the model wrote them, as the reference tells them."""
    app, url = both
    body: dict[str, Any] = {"messages": HI, "max_tokens": 60, "stream": stream, "grammar": r'root ::= "<think>\nab\n</think>\n\nsun"'}  # fmt: skip
    body |= {} if form is None else {"reasoning_format": form}

    def told(frames: list[Any], part: str) -> tuple[str, str]:
        said = [one["choices"][0].get(part, {}) for one in frames if one["choices"]]
        texts = ["".join(one.get(n) or "" for one in said) for n in ("content", "reasoning_content")]  # fmt: skip
        return texts[0], texts[1].strip()

    part = "delta" if stream else "message"
    answer = ask(f"{url}{CHAT}", body)
    theirs = frames_of(answer.text) if stream else [answer.body]
    status, ours, ignored = await post(app, **body)

    assert (200, "") == (status, ignored), ours
    assert told(theirs, part) == told(ours if stream else [ours], part)
    assert ("<think>" in told(theirs, part)[0]) == (form == "none")


async def with_a_budget(app: App, budget: int) -> None:
    """Thoughts of a model that never ends them must end after so many tokens, and its answer must go on."""
    fields = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}
    endless = (await post(app, **fields))[1]["choices"][0]["message"]
    _, body, ignored = await post(app, **fields, thinking_budget_tokens=budget)
    message = body["choices"][0]["message"]
    thought = message.get("reasoning_content") or ""
    count = len((await post(app, "/tokenize", content=thought))[1]["tokens"])

    assert ("", "") == (endless["content"] or "", ignored)
    assert budget == count
    assert endless["reasoning_content"].startswith(thought)
    assert message["content"]


@in_one_loop
@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_told_twice(both: tuple[App, str], stream: bool) -> None:
    """With `deepseek-legacy` thoughts are apart, and in the text as the model wrote them."""
    app, _ = both
    grammar = r'root ::= "<think>\nab\n</think>\n\nsun"'
    body = {"max_tokens": 60, "stream": stream, "grammar": grammar, "reasoning_format": "deepseek-legacy"}  # fmt: skip
    status, answer, ignored = await post(app, **body)
    frames = answer if stream else [answer]
    said = [one["choices"][0].get("delta" if stream else "message", {}) for one in frames if one["choices"]]  # fmt: skip
    text, thought = ["".join(one.get(name) or "" for one in said) for name in ("content", "reasoning_content")]  # fmt: skip

    assert (200, "") == (status, ignored), answer
    assert ("<think>\nab\n</think>\n\nsun", "ab") == (text, thought.strip())


@in_one_loop
@pytest.mark.parametrize("budget", [0, 4, 8])
async def test_a_budget_for_thoughts(thinker: App, budget: int) -> None:
    """Thoughts end after so many tokens, and the answer goes on."""
    await with_a_budget(thinker, budget)


@in_one_loop
async def test_a_budget_of_messages(thinker: App, plain: App) -> None:
    """`thinking.budget_tokens` of the Messages API is the same budget, named by a model that cannot think only."""
    fields = {"max_tokens": 30, "temperature": 0, "thinking": {"type": "enabled", "budget_tokens": 4}}  # fmt: skip
    _, body, ignored = await post(thinker, "/v1/messages", **fields)
    thought, answer = body["content"]
    ids = (await post(thinker, "/tokenize", content=thought["thinking"]))[1]["tokens"]
    _, _, named = await post(plain, "/v1/messages", **fields)

    assert ("thinking", "text", 4, "") == (thought["type"], answer["type"], len(ids), ignored)
    assert "thinking.budget_tokens" == named


@needs_transformers
async def test_a_budget_on_transformers() -> None:
    """The transformers engine ends thoughts as a GGUF model does."""
    async with engine("hf", context=CONTEXT, chat_template=BEGUN) as running:
        async with serving(running) as app:
            for budget in (0, 4, 8):
                await with_a_budget(app, budget)
            bound = SCHEMA | {"additionalProperties": False}
            schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": bound}}
            _, body, _ = await post(app, max_tokens=40, thinking_budget_tokens=4, response_format=schema)  # fmt: skip
    message = body["choices"][0]["message"]

    assert json.loads(message["content"])["a"] in (1, 2)
    assert message["reasoning_content"]


async def test_settings_for_thoughts() -> None:
    """A model's defaults say how thoughts are told and when they end, and a request may say otherwise."""
    defaults = {"reasoning_format": "none", "thinking_budget_tokens": 4}
    fields = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    async with engine(context=CONTEXT, chat_template=BEGUN) as running:
        async with serving(running, defaults=defaults) as app:
            text = (await post(app, **fields))[1]["choices"][0]["message"]["content"]
            apart = await post(
                app, **fields, reasoning_format="deepseek", thinking_budget_tokens=-1
            )

    assert text.startswith("<think>")
    assert "</think>" in text
    assert "" == apart[1]["choices"][0]["message"]["content"]


@in_one_loop
@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "x"}, "schema": SCHEMA},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_schemas_as_llama_server_has_them(
    plain: App, path: str, form: dict[str, Any]
) -> None:
    """A schema beside `type`, or without a name, binds the answer."""
    prompt = {} if path == CHAT else {"prompt": "JSON:"}
    async with plain.post(path, **prompt, max_tokens=60, response_format=form) as response:
        answer = await response.json()
    choice = answer["choices"][0]

    assert json.loads(choice.get("text") or choice["message"]["content"])["a"] in (1, 2)


@in_one_loop
@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {}}, "response_format.json_schema"),
        ({"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": SCHEMA}}, "response_format.schema"),
        ({"type": "json_schema", "schema": 5}, "response_format.schema"),
    ],
    ids=str,
)  # fmt: skip
async def test_schemas_that_are_none(
    both: tuple[App, str], form: dict[str, Any], param: str
) -> None:
    """A format without a schema, or with two, is refused by name; the reference answers free text."""
    status, told, _ = await post(both[0], response_format=form)

    assert (400, param) == (status, told["error"]["param"])


async def test_a_schema_reaches_an_upstream_in_openais_words() -> None:
    """A server of OpenAI's API gets the schema where it looks for it, with a name."""
    async with scripted(says(stream_of(HELLO))) as server, serving(upstream(server.url)) as app:
        await post(app, response_format={"type": "json_schema", "schema": SCHEMA})
        asked = json.loads(server.requests[-1].body)["response_format"]

    assert {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}} == asked


@in_one_loop
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/completion"])
async def test_progress(both: tuple[App, str], path: str) -> None:
    """A stream tells how far the prompt has been read, and the clock of each token, as the reference does."""
    app, url = both
    words = " ".join(["day"] * 100)
    prompt = {"messages": [{"role": "user", "content": words}]} if path == CHAT else {"prompt": words}  # fmt: skip
    body = {"max_tokens": 3, "temperature": 0, "ignore_eos": True, "stream": True, "cache_prompt": False, "return_progress": True, "timings_per_token": True} | prompt  # fmt: skip
    theirs = frames_of(ask(f"{url}{path}", body | {"n_predict": 3}).text)
    async with app.session.post(f"http://127.0.0.1:{app.port}{path}", json=body) as response:
        ignored, ours = response.headers.get("X-Unilect-Ignored"), frames_of(await response.text())

    def read(frames: list[Any]) -> list[tuple[int, int, int]]:
        told = [one["prompt_progress"] for one in frames if "prompt_progress" in one]
        return [(one["processed"], one["total"], one["cache"]) for one in told]

    def clock(frames: list[Any]) -> list[int]:
        told = [one["timings"] for one in frames if "timings" in one]
        return sorted({one["predicted_n"] for one in told} - {0})

    assert ignored is None
    assert 1 < len(read(theirs))
    assert read(theirs) == read(ours)
    assert clock(theirs) == clock(ours) == [1, 2, 3]
    for frame in ours if path != "/completion" else ():
        assert 1 == len(frame["choices"])


@in_one_loop
async def test_no_progress_unasked(both: tuple[App, str]) -> None:
    """Who does not ask is told nothing of it; a whole answer has the engine's clock."""
    frames = (await post(both[0], max_tokens=3, stream=True))[1]
    whole = (await post(both[0], max_tokens=3, ignore_eos=True, return_progress=True))[1]

    assert not any("prompt_progress" in frame for frame in frames)
    assert 3 == whole["timings"]["predicted_n"]
    assert "prompt_progress" not in whole


@in_one_loop
async def test_the_first_frame_of_progress_begins_the_answer(both: tuple[App, str]) -> None:
    """The role is in a choice's first delta and only there."""
    frames = (await post(both[0], max_tokens=3, stream=True, return_progress=True))[1]

    assert "prompt_progress" in frames[0]
    assert [True] + [False] * (len(frames) - 1) == ["role" in one["choices"][0]["delta"] for one in frames]  # fmt: skip


async def test_backends_without_progress_name_it() -> None:
    """A backend that tells no progress has it named as ignored; its text is the same."""
    async with engine("gguf", context=CONTEXT) as running:
        refused = dict(running.capabilities.parameters) | {"return_progress": "refused"}
        running.capabilities = type(running.capabilities)(parameters=refused, context=CONTEXT)
        async with serving(running) as app:
            status, _, ignored = await post(app, max_tokens=2, return_progress=True)

    assert (200, "return_progress") == (status, ignored)
