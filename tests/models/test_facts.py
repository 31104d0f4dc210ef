"""Tests of unilect.models.facts."""

from pathlib import Path

import pytest

from support.backends.engine import Spy
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.demo import MODEL
from unilect.engines.gguf.engine import GgufEngine
from unilect.models.facts import kind, line
from unilect.models.model import Model
from unilect.models.sources import registry


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "the bundled model, context 2048, 4 at a time"),
        (
            {"source": str(MODEL), "context": 512, "parallel": 2, "load": "demand"},
            f"GGUF on llama.cpp {MODEL}, context 512, 2 at a time, starts with its first request",
        ),
        (
            {"source": ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1"]},
            "2 x a server of OpenAI's API http://127.0.0.1:1/v1, http://127.0.0.1:2/v1",
        ),
        (
            {"source": ["llamacpp+http://127.0.0.1:1", "fastchat+http://127.0.0.1:2"]},
            "a llama.cpp server and a FastChat controller llamacpp+http://127.0.0.1:1, fastchat+http://127.0.0.1:2",
        ),
    ],
)
def test_a_line(settings: dict[str, object], expected: str) -> None:
    """A model's line says what it runs on, its context, and how many requests it answers at a time."""
    config = Config(models={"m": ModelConfig(**settings)})  # type: ignore[arg-type]

    assert expected == line(registry(config).models["m"], config.models["m"])


def test_a_backend_from_elsewhere() -> None:
    """Of a backend that a worker has brought nothing is said but what it can do."""
    model = Model("m", Spy(GgufEngine("m", MODEL, ModelConfig())))

    assert "a backend" == kind(model)
    assert "a backend, context 2048" == line(model, None)


def test_a_model_without_a_template(tmp_path: Path) -> None:
    """A GGUF file without a chat template is said to answer no chats, unless the configuration gives it one."""
    file = tmp_path / "plain.gguf"
    file.write_bytes(
        MODEL.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_templatf")
    )
    config = Config(
        models={
            "plain": ModelConfig(source=str(file)),
            "given": ModelConfig(source=str(file), chat_template="chatml"),
        }
    )
    models = registry(config).models

    assert not models["plain"].capabilities.chat
    assert models["plain"].capabilities.completions
    assert models["given"].capabilities.chat
    assert "no chat template, so no chat completions" in line(
        models["plain"], config.models["plain"]
    )
