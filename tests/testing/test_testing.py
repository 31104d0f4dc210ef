"""Tests of unilect.testing: every backend of ours keeps the contract, and one that does not is told what it breaks; and of `echo:`."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from support.backends.engine import ENGINES_IN_CI, made
from support.backends.llama_server import llama_server
from support.servers.appserver import serving
from unilect.api.backend import Backend, Batches, Capabilities
from unilect.config.server import Config, ModelConfig
from unilect.core.errors import (
    BackendError,
    BackendUnavailable,
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
    UnsupportedOperation,
)
from unilect.core.events import Finish, Progress, TextDelta, Usage
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import EmbeddingRequest, Embeddings
from unilect.models import sources
from unilect.testing import ContractBroken, answer, chat, check_backend, completion
from unilect.testing.echo import Echo, Options, Scripted


def served(source: str, **config: Any) -> Backend:
    """The backend of a source, as a server would make it."""
    return sources.model("m", ModelConfig(source=source, **config)).pool.members[0].backend


# who keeps it


@pytest.mark.parametrize("engine", ENGINES_IN_CI)
async def test_an_engine(engine: str) -> None:
    """Every engine keeps the contract."""
    await check_backend(lambda: made(engine))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"load_s": 0.01, "tokens_per_s": 10_000.0},
        {"text": "Never " * 20},
        {"answers": [{"text": "Never " * 20}]},
        {"context": 60},
    ],
    ids=str,
)
async def test_an_echo(options: dict[str, Any]) -> None:
    """An echo keeps the contract, whatever its pace is."""
    await check_backend(lambda: served("echo:", options=options))


async def test_an_openai_upstream() -> None:
    """A server of OpenAI's API keeps the contract."""
    async with serving(Echo()) as app:
        await check_backend(lambda: served(f"http://127.0.0.1:{app.port}/v1"))


async def test_a_llamacpp_upstream() -> None:
    """A llama.cpp server keeps the contract."""
    with llama_server() as url:
        await check_backend(lambda: served(f"llamacpp+{url}"))


async def test_a_fastchat_upstream() -> None:
    """A FastChat controller keeps the contract."""
    async with serving(Echo(), Config(fastchat_controller=True)) as app:
        await check_backend(lambda: served(f"fastchat+http://127.0.0.1:{app.port}"))


# who does not


def broken(name: str, function: Any) -> Callable[[], Backend]:
    """An echo of which one method is another, or one attribute has another value."""
    return lambda: type("Broken", (Echo,), {name: function})()  # type: ignore[return-value]


def saying(*batches: Any) -> Any:
    """What generates these batches, and raises those that are errors."""

    async def generate(self: Echo, request: Any) -> Batches:
        for batch in batches:
            if isinstance(batch, Exception):
                raise batch
            yield batch

    return generate


TWO_PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


async def _never(self: Echo) -> None:
    await asyncio.Event().wait()


async def _only_once(self: Echo) -> None:
    self.starts += 1
    if self.starts > 5:  # those of the first life
        raise BackendUnavailable("Gone.")


async def _leave_a_task(self: Echo) -> None:
    self.task = asyncio.create_task(asyncio.Event().wait(), name="forgotten")  # type: ignore[attr-defined]


async def _another_word(self: Echo, request: Any) -> Batches:
    yield [TextDelta("a" if request.stop_words else "ab"), Finish("stop", stop="x"), USED]


async def _detokenize(self: Echo, tokens: list[int]) -> str:
    return "something else"


async def _embed(self: Echo, request: EmbeddingRequest) -> Embeddings:
    return Embeddings([[1.0], [1.0], [2.0]], 3)


A, END, USED = TextDelta("a"), Finish("stop"), Usage(1, 1)
BROKEN: dict[str, tuple[str, Any, str]] = {
    "no finish": ("generate", saying([A], [USED]), "Of the choices {0} ended set()."),
    "two finishes": ("generate", saying([A, END, END, USED]), "came after its Finish"),
    "text after the end": ("generate", saying([A, END], [A, USED]), "came after its Finish"),
    "no usage": ("generate", saying([A, END]), "The last event was [Finish("),
    "two usages": ("generate", saying([A, END, USED], [USED]), "There were two Usages."),
    "an empty batch": ("generate", saying([A], [], [END, USED]), "A batch was empty."),
    "nothing": ("generate", saying(), "The last event was []."),
    "another choice": ("generate", saying([A, TextDelta("b", 1), END, USED]), "Of the choices {0, 1} ended {0}."),
    "an error of Python's": ("generate", saying([A], ValueError("odd")), "ValueError('odd')"),
    "no limit": ("generate", saying([A, A, A, END, Usage(1, 3)]), "Of 2 there were 3."),
    "more pieces than tokens": ("generate", saying([Progress(1, 1), A, A, END, USED]), "Pieces of 2 tokens, and Usage("),
    "another prompt": ("generate", saying([Progress(1, 9)], [A, END, USED]), "[Progress(processed=1, total=9"),
    "another stop word": ("generate", _another_word, "It says that 'x' ended it."),
    "no stop words": ("generate", saying([TextDelta("abcdefgh")], [END, USED]), "'efgh' is in 'abcdefgh'."),
    "a start that never ends": ("start", _never, "It did not come to an end within 1 s."),
    "a start that works once": ("start", _only_once, "BackendUnavailable('Gone.')"),
    "a task that is left": ("check", _leave_a_task, "There are the tasks ['forgotten']."),
    "other tokens": ("detokenize", _detokenize, "They give 'something else'."),
    "other vectors": ("embed", _embed, "Equal inputs differ."),
    "a parameter": ("capabilities", Capabilities(parameters={"tempo": "native"}), "There is no parameter `tempo`."),
    "a support": ("capabilities", Capabilities(parameters={"stop": "yes"}), "`stop` is 'yes'."),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_broken_is_told(name: str) -> None:
    """A backend that breaks a rule is told which, and how."""
    attribute, value, expected = BROKEN[name]
    with pytest.raises(ContractBroken) as caught:
        await check_backend(broken(attribute, value), limit_s=1.0)

    assert expected in str(caught.value)
    for task in asyncio.all_tasks():
        if task.get_name() == "forgotten":
            task.cancel()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.5, 0.1], "Of 3 documents there are 2 scores."),
        ([0.5, 1.1, 0.5], "The scores are [0.5, 1.1, 0.5]."),
        ([0.5, 0.1, 0.4], "Equal documents differ."),
    ],
)
async def test_a_broken_ranking_is_told(scores: list[float], expected: str) -> None:
    """A backend that ranks, and has too few scores, or scores that are no probabilities or differ for equal documents, is told so."""

    class Broken(Echo):
        capabilities = msgspec.structs.replace(Echo.capabilities, rerank=True)

        async def rerank(self, request: RerankRequest) -> Ranking:
            return Ranking(scores, 3)

    with pytest.raises(ContractBroken) as caught:
        await check_backend(Broken, limit_s=5.0)

    assert expected in str(caught.value)


# the echo


async def test_what_an_echo_says() -> None:
    """It says the last message or the prompt, or the text of its source or options, and counts characters."""
    says = [
        (served("echo:"), chat("Hello, 世界!"), "Hello, 世界!"),
        (served("echo:"), completion([104, 105]), "hi"),
        (served("echo:"), chat("a,b,c", stop=["x", ",b"]), "a"),
        (served("echo:"), chat(messages=[{"role": "user", "content": TWO_PARTS}]), "a\nb"),
        (served("echo:Good day"), chat("Hi"), "Good day"),
        (served("echo:Good day", options={"text": "Bye"}), chat("Hi"), "Bye"),
    ]
    for backend, request, text in says:
        found = await answer(backend.generate(request))
        assert (text, "stop") == (found.choices[0].text, found.choices[0].finish_reason)
        assert len(text) == found.usage.completion_tokens
    cut = await answer(served("echo:").generate(chat("Hello!", max_tokens=2)))
    assert ("He", "length") == (cut.choices[0].text, cut.choices[0].finish_reason)


async def test_an_echo_that_plays_a_part() -> None:
    """It says the first answer whose `when` was told since its last one, by the user or a tool; else what it says without answers."""
    answers = [
        {"when": "go", "text": "1"},
        {"when": "went", "text": "2"},
        {"when": "go", "text": "never"},
    ]
    echo = served("echo:lost", options={"answers": answers})
    went = [{"role": "assistant", "content": "1"}, {"role": "user", "content": "It went well."}]
    says: list[tuple[list[dict[str, Any]], str]] = [
        ([{"role": "user", "content": "Please go."}], "1"),
        ([{"role": "user", "content": "go"}, {"role": "user", "content": "now"}], "1"),
        ([{"role": "user", "content": "go"}, *went, {"role": "system", "content": "go"}], "2"),
        ([{"role": "system", "content": "go"}, {"role": "user", "content": "stay"}], "lost"),
        ([{"role": "user", "content": "go"}, {"role": "assistant", "content": "go"}], "lost"),
    ]
    for messages, text in says:
        found = await answer(echo.generate(chat(messages=messages)))
        assert text == found.choices[0].text
    assert "2" == (await answer(echo.generate(completion("It went")))).choices[0].text
    always = served("echo:", options={"answers": [{"text": "any"}]})
    assert "any" == (await answer(always.generate(chat("go")))).choices[0].text


async def test_an_echo_with_a_context() -> None:
    """An answer is cut where the context is full, and a prompt that leaves no room for one is refused with both numbers."""
    echo = served("echo:Good day", options={"context": 7})
    cut = await answer(echo.generate(chat("Hi")))
    with pytest.raises(ContextLengthExceeded) as caught:
        await answer(echo.generate(chat("Hello!!")))

    assert 7 == echo.capabilities.context
    assert ("Good ", "length") == (cut.choices[0].text, cut.choices[0].finish_reason)
    assert (7, 7) == (caught.value.prompt_tokens, caught.value.context)


async def test_an_echo_that_fails() -> None:
    """So many starts fail, and so many answers break off after so many tokens; the next ones do not."""
    echo = Echo(Options(failing_starts=2, failing_answers=1, breaks_after=3))
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="failing_starts"):
            await echo.start()
    await echo.start()
    told: list[str] = []
    with pytest.raises(BackendError, match="failing_answers"):
        async for (event,) in echo.generate(chat("Hello!")):
            told.append(event.text if isinstance(event, TextDelta) else "")

    assert "Hel" == "".join(told)
    assert "Hello!" == (await answer(echo.generate(chat("Hello!")))).choices[0].text


async def test_what_an_echo_cannot_do() -> None:
    """What is no text is refused by name, and so are ids that are no characters."""
    echo = served("echo:")
    image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    with pytest.raises(InvalidRequest) as caught:
        await answer(echo.generate(chat(messages=[{"role": "user", "content": image}])))
    assert "messages[0].content" == caught.value.param
    for token in (2**30, 0xD800):
        with pytest.raises(InvalidRequest):
            await echo.detokenize([token])
    with pytest.raises(UnsupportedOperation):
        await echo.embed(EmbeddingRequest(model="m", input="Hi"))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"options": {"load": 3}}, "models.m.options.load: unknown option; did you mean `load_s`?"),
        ({"options": {"load_s": -1}}, "models.m.options.load_s: expected a number from 0 to 3600, found -1."),
        ({"options": {"answers": [{"when": "a"}]}}, "models.m.options.answers[1].text: is missing; expected text."),
        ({"options": {"answers": [{"text": "a", "after": "b"}]}}, "models.m.options.answers[1].after: unknown option; known: text, when."),
        ({"options": {"answers": "a"}}, 'models.m.options.answers[1]: expected a table, found "a".'),
        ({"context": 512}, "models.m: context: applies to GGUF models, transformers models, chatglm.cpp models, servers by `command` and programs such as vLLM; it has no effect on echo:; leave it out."),
        ({"source": "demo:", "options": {"a": 1}}, "models.m: options: applies to `echo:` and backends of plugins; it has no effect on demo:; leave it out."),
    ],
)  # fmt: skip
def test_wrong_options(config: dict[str, Any], told: str) -> None:
    """An option that an echo does not have is told by name, with the nearest that it has, and so is one that others do not have."""
    with pytest.raises(ConfigError) as caught:
        sources.model("m", ModelConfig(**{"source": "echo:"} | config))

    assert told == str(caught.value)


async def test_an_echo_is_honest() -> None:
    """A form that an echo cannot keep to is refused, also where the model is set to report what it ignores."""
    async with serving(Echo(), unsupported="report") as app:
        async with app.chat(grammar='root ::= "a"') as response:
            refused = await response.json()
        async with app.chat(response_format={"type": "json_object"}) as response:
            violated = await response.json()

    assert ("grammar", "constraint_violated") == (refused["error"]["param"], violated["error"]["code"])  # fmt: skip


async def test_an_echo_uses_a_tool() -> None:
    """An echo with answers thinks, says something, calls a tool twice at once, and goes on with a result, so that agents are tested without a model."""
    call = '<tool_call>{{"name": "f", "arguments": {{"a": {}}}}}</tool_call>'
    answers = [
        Scripted(when="begin", text=f"<think>Hm.</think>Look:\n{call.format(1)}\n{call.format(2)}"),
        Scripted(when="found it", text="Done."),
    ]
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "begin"}]
    async with serving(Echo(Options(answers=answers))) as app:
        async with app.chat(tools=tools, stream=False, messages=messages) as response:
            said = (await response.json())["choices"][0]["message"]
        results = ("found it", "nothing")
        for one, result in zip(said["tool_calls"], results, strict=True):
            messages.append({"role": "tool", "tool_call_id": one["id"], "content": result})
        messages.insert(1, said)
        async with app.chat(tools=tools, stream=False, messages=messages) as response:
            last = (await response.json())["choices"][0]["message"]

    assert ("Hm.", "Look:") == (said["reasoning_content"], said["content"])
    assert ['{"a": 1}', '{"a": 2}'] == [one["function"]["arguments"] for one in said["tool_calls"]]
    assert "Done." == last["content"]


async def test_an_echo_calls() -> None:
    """An echo whose text is a call calls the tool, so that clients of tools are tested without a model."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with serving(Echo(Options(text='{"name": "f", "arguments": {"a": 1}}'))) as app:
        async with app.chat(tools=tools, stream=False) as response:
            choice = (await response.json())["choices"][0]

    (call,) = choice["message"]["tool_calls"]
    assert ("tool_calls", {"name": "f", "arguments": '{"a": 1}'}) == (choice["finish_reason"], call["function"])  # fmt: skip
