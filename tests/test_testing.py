"""Tests of unilect.testing: every backend of ours keeps the contract, and one that does not is told what it breaks; and of `echo:`."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from appserver import serving
from engine import ENGINES_IN_CI, made
from llama_server import llama_server
from unilect.backend import Backend, Batches, Capabilities, embeds
from unilect.config.server import Config, ModelConfig
from unilect.errors import (
    BackendError,
    BackendUnavailable,
    ConfigError,
    InvalidRequest,
    UnsupportedOperation,
)
from unilect.events import Finish, Progress, TextDelta, Usage
from unilect.requests import EmbeddingRequest, Embeddings
from unilect.routing import sources
from unilect.testing import ContractBroken, answer, chat, check_backend, completion
from unilect.testing.echo import Echo, Options


def served(source: str, **config: Any) -> Backend:
    """The backend of a source, as a server would make it."""
    return sources.model("m", ModelConfig(source=source, **config)).pool.members[0].backend


# who keeps it


@pytest.mark.parametrize("engine", ENGINES_IN_CI)
async def test_an_engine(engine: str) -> None:
    """Every engine keeps the contract."""
    await check_backend(lambda: made(engine))


@pytest.mark.parametrize(
    "options", [{}, {"load_s": 0.01, "tokens_per_s": 10_000.0}, {"text": "Never " * 20}], ids=str
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
        embeds(echo)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"options": {"load": 3}}, "models.m.options.load: unknown option; did you mean `load_s`?"),
        ({"options": {"load_s": -1}}, "models.m.options.load_s: expected a number from 0 to 3600, found -1."),
        ({"context": 512}, "models.m: context: applies to GGUF models, transformers models and chatglm.cpp models; it has no effect on echo:; leave it out."),
        ({"source": "demo:", "options": {"a": 1}}, "models.m: options: applies to `echo:` and backends of plugins; it has no effect on demo:; leave it out."),
    ],
)  # fmt: skip
def test_wrong_options(config: dict[str, Any], told: str) -> None:
    """An option that an echo does not have is told by name, with the nearest that it has, and so is one that others do not have."""
    with pytest.raises(ConfigError) as caught:
        sources.model("m", ModelConfig(**{"source": "echo:"} | config))

    assert told == str(caught.value)


@pytest.mark.parametrize("name", ["response_format", "grammar", "tools"])
async def test_an_echo_is_honest(name: str) -> None:
    """A form that an echo cannot keep to is refused, also where the model is set to report what it ignores."""
    values = {
        "response_format": {"type": "json_object"},
        "grammar": 'root ::= "a"',
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    async with serving(Echo(), unsupported="report" if name != "tools" else "refuse") as app:
        async with app.chat(**{name: values[name]}) as response:
            body = await response.json()

    assert (400, name) == (response.status, body["error"]["param"])
