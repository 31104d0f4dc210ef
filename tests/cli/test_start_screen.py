"""Tests of unilect.cli._start_screen."""

import asyncio
from pathlib import Path

import pytest

from unilect.cli._start_screen import example_call, start_screen
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.demo import FOLDER, MODEL
from unilect.models.facts import line
from unilect.models.sources import registry


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A model without a chat template."""
    file = tmp_path / "plain.gguf"
    file.write_bytes(
        MODEL.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_templatf")
    )
    return file


def test_the_example_is_of_a_model_that_chats(plain: Path) -> None:
    """The example asks the first model that can chat; where none can, it is one that the first model can answer."""
    tables = {"plain": ModelConfig(source=str(plain)), "chats": ModelConfig()}
    both = registry(Config(models=tables)).models
    alone = registry(Config(models={"plain": tables["plain"]})).models

    assert "chats" == example_call(both.values()).body["model"]
    call = example_call(alone.values())
    assert ("completions", "plain") == (call.path, call.body["model"])
    screen = start_screen("http://127.0.0.1:8000", Config(), call)
    assert "curl http://127.0.0.1:8000/v1/completions" in screen
    assert ".completions.create(model='plain'" in screen


def test_another_machine() -> None:
    """A server that listens everywhere shows an address to type on another machine, and one on loopback none."""
    call = example_call([])
    everywhere = start_screen("http://0.0.0.0:8000", Config(), call).splitlines()

    assert "unilect answers at http://127.0.0.1:8000/v1" == everywhere[0]
    assert everywhere[1].startswith("         and for other machines at http://")
    assert everywhere[1].endswith(":8000/v1")
    assert "0.0.0.0" not in everywhere[1]
    assert "other machines" not in start_screen("http://127.0.0.1:8000", Config(), call)


def test_what_is_beside_the_weights() -> None:
    """A model's line shows its adapters."""
    tables = {"m": ModelConfig(source=str(MODEL), lora=[f"{FOLDER / 'lora-pirate.gguf'}=0.5"])}
    models = registry(Config(models=tables)).models

    assert "LoRA lora-pirate.gguf" in line(models["m"], tables["m"])


def test_a_server_that_does_not_answer() -> None:
    """A model's line shows where its server is, without credentials, and after a start in vain that it does not answer, so that the example asks another one."""
    tables = {"far": ModelConfig(source="http://me:secret@127.0.0.1:1/v1")}
    found = registry(Config(models=tables))
    before = line(found.models["far"], tables["far"])

    async def start() -> str:
        try:
            await found.models["far"].pool.start()
            near = registry(Config(models={"near": ModelConfig()})).models.values()
            assert "near" == example_call([*found.models.values(), *near]).body["model"]
            return line(found.models["far"], tables["far"])
        finally:
            await found.aclose()

    after = asyncio.run(start())
    assert "a server of OpenAI's API http://***@127.0.0.1:1/v1" == before
    assert f"{before}, does not answer now" == after
