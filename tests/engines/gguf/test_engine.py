"""Tests of unilect.engines.gguf.engine beyond test_contract.py, on the bundled model and llama.cpp itself."""

from contextlib import aclosing
from pathlib import Path

import pytest

from unilect.config.server import ModelConfig
from unilect.core.errors import BackendUnavailable, ConfigError
from unilect.core.events import Answer, Fold
from unilect.core.requests import ChatRequest, CompletionRequest, Message
from unilect.demo import FOLDER, MODEL
from unilect.engines.gguf.engine import GgufEngine
from unilect.engines.process._crash_blame import Ticket
from unilect.templates import chat as templates

PIRATE = str(FOLDER / "lora-pirate.gguf")


async def answer(engine: GgufEngine, text: str, **fields: object) -> Answer:
    """The engine's greedy answer to one message."""
    request = ChatRequest(messages=[Message("user", text)], temperature=0, **fields)  # type: ignore[arg-type]
    folding = Fold()
    async for batch in engine.generate(request):
        folding.add(batch)
    return folding.answer()


def engine(**settings: object) -> GgufEngine:
    """An engine for the bundled model."""
    return GgufEngine("demo", MODEL, ModelConfig(**settings))  # type: ignore[arg-type]


def test_a_scale_that_is_no_number() -> None:
    """An adapter's scale is a number."""
    with pytest.raises(ConfigError, match="much"):
        engine(lora=[f"{PIRATE}=much"])


@pytest.mark.parametrize("name", ["oai-like-2023", "gemma", "one_shot", "chatglm", "glm-4"])
async def test_a_named_format_in_llama_cpp(name: str) -> None:
    """llama.cpp makes of a named format the same prompt as we do."""
    talk = [Message("system", "S."), Message("user", "U1"), Message("assistant", "A1"), Message("user", "U2")]  # fmt: skip
    model = engine(chat_template=name)
    try:
        prompt = templates.find(name).render(talk)
        expected = await model.count_tokens(CompletionRequest(prompt=prompt))
        assert expected == await model.count_tokens(ChatRequest(messages=talk))
    finally:
        await model.aclose()


async def test_a_named_format_brings_its_stop_words() -> None:
    """An answer ends where the format's next turn would begin, as well as at the request's own words."""
    model, question = engine(), "What is the capital of France?"
    try:
        whole = (await answer(model, question)).choices[0].text or ""
        model._stop = [whole.split()[2]]
        texts = [
            (await answer(model, question, stop=stop)).choices[0].text
            for stop in (None, whole.split()[1])
        ]
    finally:
        await model.aclose()

    first, second, third, _ = whole.split(maxsplit=3)
    assert [f"{first} {second} ", f"{first} "] == texts, third


def test_folder_and_missing_file(tmp_path: Path) -> None:
    """A folder, and a file that is not there, are told as such."""
    with pytest.raises(ConfigError, match="is a folder"):
        GgufEngine("x", tmp_path, ModelConfig())
    with pytest.raises(ConfigError, match="no file"):
        GgufEngine("x", tmp_path / "x.gguf", ModelConfig())


async def test_a_file_that_is_gone(tmp_path: Path) -> None:
    """A model whose file was removed since it was configured is told with the path to the operator, and without it to a client."""
    path = tmp_path / "m.gguf"
    path.write_bytes(MODEL.read_bytes())
    engine = GgufEngine("m", path, ModelConfig(context=512))
    path.unlink()
    try:
        with pytest.raises(BackendUnavailable) as caught:
            await engine.start()
    finally:
        await engine.aclose()

    assert "The model's file is no longer on its server." == caught.value.message
    assert f"There is no file {path} any more." in caught.value.for_operator


async def test_an_architecture_that_llama_cpp_does_not_know(tmp_path: Path) -> None:
    """A model that is newer than the installed llama.cpp is told with its file, its architecture and the two ways to serve it."""
    head, rest = MODEL.read_bytes().split(b"tokenizer.", 1)
    path = tmp_path / "new.gguf"
    path.write_bytes(head.replace(b"llama", b"lamma") + b"tokenizer." + rest)
    model = GgufEngine("new", path, ModelConfig())
    try:
        with pytest.raises(BackendUnavailable) as raised:
            await model.start()
    finally:
        await model.aclose()

    assert raised.value.message.startswith(
        f"{path} has the architecture `lamma`, which the installed"
    )
    assert "`pip install -U xllamacpp`" in raised.value.message
    assert "from a newer llama-server" in raised.value.message


@pytest.mark.parametrize(("mib", "remembers"), [(64, True), (0, False)])
async def test_what_has_no_slot(mib: int, remembers: bool) -> None:
    """A conversation whose slot another took is remembered where `cache_ram_mib` has room for it, and else read again."""
    model = engine(parallel=1, cache_ram_mib=mib)
    first, other = ("Tell me a story about a " + animal * 40 for animal in ("dog ", "cat "))
    try:
        await answer(model, first, max_tokens=8)
        await answer(model, other, max_tokens=8)
        again = await answer(model, first, max_tokens=8)
    finally:
        await model.aclose()

    assert again.usage is not None
    assert remembers == (again.usage.cached_tokens > 40)


async def test_a_request_that_waits_in_its_slot() -> None:
    """A request whose slot is at work has been taken up, whatever is told of it; one that is in no slot has not."""
    model = engine(parallel=2)
    request = CompletionRequest(
        prompt="Once", max_tokens=400, ignore_eos=True, stream=True, temperature=0
    )
    lost = Ticket("")
    try:
        await model.start()
        async with aclosing(model.generate(request)) as batches:
            async for _ in batches:
                [(slot, ticket)] = model._slots.tickets.items()
                ticket.acked_at = 0.0
                model._slots.tickets[1 - slot] = lost
                await model._generator._ask()
                break
    finally:
        await model.aclose()

    assert ticket.acked_at > 0
    assert 0 == lost.acked_at
