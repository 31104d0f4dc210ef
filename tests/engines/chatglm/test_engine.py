"""Tests of unilect.engines.chatglm.engine, with chatglm.cpp itself on models that say what they are told to."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import answer, chat, completion, events_of
from support.models import tiny_chatglm
from support.models.tiny_chatglm import AGAIN, need_library
from support.servers.appserver import chunks, serving
from unilect.api.backend import BackendSpec
from unilect.config.server import ModelConfig
from unilect.core.errors import (
    ConfigError,
    ContextLengthExceeded,
    EngineDied,
    InvalidRequest,
)
from unilect.core.events import Finish, Progress, TextDelta, Usage
from unilect.core.requests import Message
from unilect.engines.chatglm import engine as chatglm
from unilect.engines.chatglm.engine import ChatglmEngine
from unilect.models.source_names import name_source
from unilect.models.sources import split

HELLO = ["\n", "Hello", " world", b"\xe4", b"\xbd", b"\xa0", "."]


@asynccontextmanager
async def engine(
    folder: Path, says: Any = HELLO, end: str = tiny_chatglm.EOS, model: Any = None, **config: Any
) -> AsyncIterator[ChatglmEngine]:
    """A started engine of a model that says this."""
    need_library()
    path = tiny_chatglm.write(folder / "model.bin", says, end, **(model or {}))
    backend = ChatglmEngine("tiny", path, ModelConfig(**config))
    try:
        await backend.start()
        yield backend
    finally:
        await backend.aclose()


async def test_answers(tmp_path: Path) -> None:
    """An answer has its text without the newline before it, its real finish and a real count, whole as streamed."""
    async with engine(tmp_path) as model:
        whole = await answer(model.generate(chat()))
        events = await events_of(model.generate(chat(stream=True)))

    assert ("Hello world你.", "stop") == (whole.choices[0].text, whole.choices[0].finish_reason)
    assert 8 == whole.usage.completion_tokens
    assert Progress(0, whole.usage.prompt_tokens) == events[0]
    pieces = [("Hello", 2), (" world", 1), ("你", 1), (".", 1)]  # the newline is the first one's
    assert [TextDelta(text, tokens=tokens) for text, tokens in pieces] == events[1:5]
    assert [Finish("stop"), whole.usage] == events[5:]


async def test_counts_and_tokens(tmp_path: Path) -> None:
    """Prompts are counted as they are read, and a text's tokens give the text again."""
    async with engine(tmp_path) as model:
        for request in (chat("你好 中国"), completion("a b:"), completion([1, 2, 3])):
            usage = (await answer(model.generate(request))).usage
            assert usage.prompt_tokens == await model.count_tokens(request)
        assert 3 == await model.count_tokens([1, 2, 3])
        for text in ("Hello, world!", "中国的首都", "🙂 é", " two  blanks"):
            assert text == await model.detokenize(await model.tokenize(text))
        assert "" == await model.detokenize([366, 2])
        with pytest.raises(InvalidRequest, match="outside the model's vocabulary"):
            await model.detokenize([10_000])


async def test_max_tokens_are_new_tokens(tmp_path: Path) -> None:
    """`max_tokens` counts the answer alone, and an answer that it cut says so."""
    async with engine(tmp_path, model={"context": 64}) as model:
        cut = await answer(model.generate(chat(max_tokens=3)))
        just = await answer(model.generate(chat(max_tokens=8)))

    assert ("Hello world", "length", 3) == (
        cut.choices[0].text,
        cut.choices[0].finish_reason,
        cut.usage.completion_tokens,
    )
    assert "stop" == just.choices[0].finish_reason


async def test_the_context_is_the_end(tmp_path: Path) -> None:
    """An answer ends where the context does, whatever was asked for, and a prompt that fills it is refused."""
    async with engine(tmp_path, ["\n", "a"], AGAIN, context=32) as model:
        for fields in ({}, {"max_tokens": 100_000}):
            usage = (await answer(model.generate(chat("Hi", **fields)))).usage
            assert 32 == usage.prompt_tokens + usage.completion_tokens
        for text in ("x" * 30, "x" * 500):
            with pytest.raises(ContextLengthExceeded, match="32 tokens"):
                await answer(model.generate(chat(text)))


async def test_stop_words(tmp_path: Path) -> None:
    """A stop word across tokens ends the answer before it, and the engine with it."""
    async with engine(tmp_path, ["\n", "ab", "cd", "ef"], AGAIN) as model:
        whole = await answer(model.generate(chat(stop=["bcd", "zz"])))
        plain = await answer(model.generate(completion("a:", stop="de")))

    assert ("a", "stop", 3) == (
        whole.choices[0].text,
        whole.choices[0].finish_reason,
        whole.usage.completion_tokens,
    )
    assert "\nabc" == plain.choices[0].text
    assert ("bcd", "de") == (whole.choices[0].stop, plain.choices[0].stop)


async def test_a_client_that_leaves_frees_the_engine(tmp_path: Path) -> None:
    """An answer whose client has left ends, one that waited for its turn is not begun, and the next is answered."""
    async with engine(
        tmp_path, ["\n", "a"], AGAIN, model={"context": 100_000}, context=100_000
    ) as model:
        endless = model.generate(chat(stream=True))
        await anext(endless)
        waiting = asyncio.ensure_future(anext(model.generate(chat(stream=True))))
        await asyncio.sleep(0)
        following = asyncio.ensure_future(answer(model.generate(chat(max_tokens=2))))
        await asyncio.sleep(0)
        waiting.cancel()
        await endless.aclose()

        async with asyncio.timeout(60):
            assert "a" == (await following).choices[0].text
    assert waiting.cancelled()


async def test_one_after_the_other(tmp_path: Path) -> None:
    """Many requests at a time are all answered, each with its own text."""
    async with engine(tmp_path) as model:
        answers = await asyncio.gather(
            *(answer(model.generate(chat(max_tokens=n + 1))) for n in range(8))
        )

    assert [n + 1 for n in range(8)] == [one.usage.completion_tokens for one in answers]


async def test_an_engine_that_dies(tmp_path: Path) -> None:
    """An answer that was begun is told as broken, and the next request finds another engine."""
    async with engine(
        tmp_path, ["\n", "a"], AGAIN, model={"context": 100_000}, context=100_000
    ) as model:
        assert model._child.process.pid is not None
        with pytest.raises(EngineDied):
            async with aclosing(model.generate(chat(stream=True))) as batches:
                async for _ in batches:
                    with_pid = model._child.process.pid
                    with suppress(ProcessLookupError):  # it was killed before
                        if with_pid is not None:
                            os.kill(with_pid, signal.SIGKILL)
        after = await answer(model.generate(chat(max_tokens=2)))

    assert "a" == after.choices[0].text


async def test_nothing_ends_the_engine(tmp_path: Path) -> None:
    """What the library would end its process over never reaches it."""
    wrong: list[Any] = [
        chat("x" * 1000),
        completion([10_000]),
        completion([[]]),
        completion([2**31 - 1]),
        chat().changed(messages=[Message("system", "x")]),
        chat().changed(messages=[Message("assistant", "x")]),
        chat().changed(messages=[Message("user", "x"), Message("assistant", "y")]),
    ]
    async with engine(tmp_path, model={"context": 128}) as model:
        pid = model._child.process.pid
        for request in wrong:
            with pytest.raises(InvalidRequest):
                await answer(model.generate(request))
        assert 0 == (await answer(model.generate(chat(max_tokens=0)))).usage.completion_tokens
        for text in ("", "\0", "<|assistant|>", "\ud7ff", "\U0010ffff"):
            await answer(model.generate(chat(text)))
            await answer(model.generate(completion(text or [0])))

        assert pid == model._child.process.pid


async def test_through_the_server(tmp_path: Path) -> None:
    """Behind the server: `n` answers, an answer of no tokens, refusals by name, and no embeddings."""
    async with engine(tmp_path) as model:
        async with serving(model) as app:
            async with app.chat(temperature=0, n=3, stream=False) as response:
                choices = (await response.json())["choices"]
            async with app.chat(max_tokens=0, stream=False) as response:
                empty = await response.json()
            async with app.chat(temperature=0) as response:
                streamed = await chunks(response)
            async with app.chat(seed=1) as response:
                refused = (response.status, (await response.json())["error"]["param"])
            async with app.post("/v1/embeddings", input="x") as response:
                embeddings = (response.status, (await response.json())["error"]["param"])

    assert ["Hello world你."] * 3 == [choice["message"]["content"] for choice in choices]
    assert ("", "length") == (
        empty["choices"][0]["message"]["content"],
        empty["choices"][0]["finish_reason"],
    )
    assert 0 == empty["usage"]["completion_tokens"]
    assert "[DONE]" == streamed[-1]
    assert (400, "seed") == refused
    assert (400, "model") == embeddings


async def test_chatglm2(tmp_path: Path) -> None:
    """A ChatGLM2 model answers rounds, has its punctuation told once it is settled, and takes no tools."""
    says = ["a", ",", "中", "!"]
    async with engine(tmp_path, says, model={"family": 2}) as model:
        events = await events_of(model.generate(chat("Hi", stream=True)))

        assert "refused" == model.capabilities.parameters["tools"]
    assert [TextDelta(text) for text in ("a", "，中", "！")] == events[1:4]
    assert isinstance(events[-1], Usage)
    assert 5 == events[-1].completion_tokens


async def test_the_library_keeps_to_its_threads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The library was built so that its threads can be limited, or the log says that it was not."""
    with caplog.at_level(logging.WARNING, "unilect"):
        async with engine(tmp_path):
            pass

    assert [] == caplog.records


def test_wrong_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong file or context is told before anything is started, and so is a missing library, with what to do."""
    path = tiny_chatglm.write(tmp_path / "m.bin", ["a"], context=64)
    with pytest.raises(ConfigError, match="no file"):
        ChatglmEngine("m", tmp_path / "missing.bin", ModelConfig())
    with pytest.raises(ConfigError, match="context: 65 exceeds"):
        ChatglmEngine("m", path, ModelConfig(context=65))
    monkeypatch.setattr(chatglm, "LIBRARY", "no_such_library")
    spec = BackendSpec("m", "chatglm", str(path), ModelConfig(), 1, lambda what, part: None)
    with pytest.raises(
        ConfigError, match=r"CMAKE_POLICY_VERSION_MINIMUM=3\.5 .*pip install \S+\[chatglm\]"
    ):
        chatglm.backend(spec)


def test_sources() -> None:
    """A model is named after its file."""
    assert ("chatglm", "a/b.bin") == split("chatglm:a/b.bin")
    assert ("chatglm3-ggml", "chatglm:a/chatglm3-ggml.bin") == name_source(
        "chatglm:a/chatglm3-ggml.bin"
    )
