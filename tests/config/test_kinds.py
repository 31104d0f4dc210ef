"""Tests of unilect.config.kinds, through the registry that checks every model."""

import re
from pathlib import Path
from typing import Any

import pytest

import unilect
from support.backends.engine import needs_transformers
from unilect.config.kinds import ENGINES, KIND_OF, KINDS, UPSTREAMS
from unilect.config.model import ModelConfig, check_options
from unilect.config.server import Config
from unilect.core.errors import ConfigError
from unilect.demo import FOLDER, MODEL
from unilect.models.sources import registry

SOURCES = {
    "demo": "demo:",
    "gguf": str(MODEL),
    "hf": str(FOLDER / "hf"),
    "openai": "http://127.0.0.1:9/v1",
    "llamacpp": "llamacpp+http://127.0.0.1:9",
    "fastchat": "fastchat+http://127.0.0.1:9",
}
DECLARED = ModelConfig.declared
#: A function that reads options for its backend.
OF_THE_QUEUE = {"max_in_flight"}  # is read where requests wait for a backend
OF_THE_FLEET = {"replicas", "resources", "accelerator"}  # are read in fleet/
OF_THE_PLACE = {"pin", "memory", "while_loading"}  # are read where models get their places
READ_BY = {
    "server_at(": "config.api_key config.api_key_header config.reuse_connections (",
    "context_of(": "config.context (",
    "config.most_parallel": "config.parallel",
}


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("demo", {"dtype": "float32"}, "dtype: applies to transformers models"),
        ("gguf", {"device": "cpu"}, "device: applies to transformers models"),
        ("gguf", {"quantize": "8bit"}, "quantize: applies to transformers models"),
        ("gguf", {"trust_remote_code": True}, "trust_remote_code: applies to transformers models"),
        ("gguf", {"allow_pickle": True}, "allow_pickle: applies to transformers models"),
        ("gguf", {"tokenizer": "folder"}, "tokenizer: applies to transformers models"),
        (
            "gguf",
            {"api_key": "k"},
            "api_key: applies to OpenAI-compatible servers, llama.cpp servers, servers by `command` and",
        ),
        pytest.param(
            "hf", {"mmproj": "x.gguf"}, "mmproj: applies to GGUF models", marks=needs_transformers
        ),
        pytest.param(
            "hf", {"gpu_layers": 0}, "gpu_layers: applies to GGUF models", marks=needs_transformers
        ),
        pytest.param(
            "hf",
            {"cache_type_k": "q8_0"},
            "cache_type_k: applies to GGUF models",
            marks=needs_transformers,
        ),
        (
            "openai",
            {"context": 512},
            "context: applies to GGUF models, transformers models, chatglm.cpp models, servers by `command` and",
        ),
        (
            "openai",
            {"parallel": 8},
            "parallel: applies to GGUF models, transformers models, servers by `command` and programs such as vLLM",
        ),
        ("openai", {"chat_template": "chatml"}, "chat_template: applies to GGUF models"),
        ("llamacpp", {"lora": ["x.gguf"]}, "lora: applies to GGUF models"),
        (
            "llamacpp",
            {"whole_answers": "whole"},
            "whole_answers: applies to OpenAI-compatible servers",
        ),
        ("fastchat", {"gpu_layers": 3}, "gpu_layers: applies to GGUF models"),
        ("fastchat", {"api_key": "k"}, "api_key: applies to OpenAI-compatible servers"),
    ],
)
def test_an_option_without_an_effect(kind: str, settings: dict[str, Any], said: str) -> None:
    """An option that a model of this kind has not is refused by name, with what it is for and where it stands."""
    config = Config(models={"m": ModelConfig(source=SOURCES[kind], **settings)})
    with pytest.raises(ConfigError) as raised:
        registry(config)

    assert str(raised.value).startswith(f"models.m: {said}")
    assert str(raised.value).endswith(f"has no effect on {SOURCES[kind]}; leave it out.")


def test_a_default_is_not_set() -> None:
    """An option at its default asks for nothing."""
    given = ModelConfig(
        source=SOURCES["openai"], embedding_batch=32, lora=[], dtype="auto", defaults={}
    )

    assert ["m"] == list(registry(Config(models={"m": given})).models)


def test_options_of_replicas() -> None:
    """How many requests a replica takes, and how long its start may take, is asked of any model with replicas."""
    check_options("m", ModelConfig(replicas=2, parallel=2, start_timeout_s=9), {"echo:": "echo"})
    with pytest.raises(ConfigError, match="parallel: applies to"):
        check_options("m", ModelConfig(parallel=2), {"echo:": "echo"})


def test_options_of_one_of_several_sources() -> None:
    """An option that one source of a model has is for that one, and is refused where none has it."""
    sources = [SOURCES["openai"], SOURCES["demo"]]
    both = ModelConfig(source=sources, parallel=2, api_key="k")

    assert ["m"] == list(registry(Config(models={"m": both})).models)
    with pytest.raises(ConfigError, match=r"dtype: .* on http://127.0.0.1:9/v1 or demo:"):
        registry(Config(models={"m": ModelConfig(source=sources, dtype="float32")}))


def test_backends_from_outside() -> None:
    """Which options a backend from outside the tree has, it knows itself."""
    check_options("m", ModelConfig(dtype="float32", gpu_layers=3), {"mine:x": "mine"})


def test_kinds() -> None:
    """Every kind is one of a scheme and has options of its own, and every option is for kinds that there are."""
    assert KINDS.keys() == set(KIND_OF.values())
    assert KINDS.keys() == {kind for option in DECLARED.values() for kind in option.kinds}


@pytest.mark.parametrize("kind", [*ENGINES, *UPSTREAMS])
def test_the_table_is_true(kind: str) -> None:
    """A backend reads the options that are for its kind, and no others."""
    rooms = "engines" if kind in ENGINES else "upstreams"
    folder = Path(unilect.__file__).parent / rooms / {"hf": "transformers"}.get(kind, kind)
    files = [
        folder / f"{name}.py"
        for name in (
            "engine",
            "source",
            "backend",
            "_settings",
            "settings",
            "_memory",
            "_saved",
            "_kept",
            "model/folder",
        )
    ]
    code = "".join(file.read_text() for file in files if file.exists())
    for call, reads in READ_BY.items():
        code = code.replace(call, reads)
    read = set(re.findall(r"(?<!unilect\.)config\.(\w+)", code)) & {
        name for name, option in DECLARED.items() if option.kinds
    }

    assert (
        read
        == {name for name, option in DECLARED.items() if kind in option.kinds}
        - OF_THE_QUEUE
        - OF_THE_FLEET
        - OF_THE_PLACE
    )
