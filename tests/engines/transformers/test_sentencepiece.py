"""The transformers engine on a SentencePiece vocabulary that puts a blank before a text, as Llama 2, Mistral and Phi-3 have it."""

import asyncio
import json
import string
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from support.backends.engine import TRIES, answer, chat
from support.models.tiny_gguf import BLANK, TEMPLATE
from support.models.torchside import need
from unilect.config.server import ModelConfig
from unilect.engines.transformers.engine import HfEngine

need("torch", "transformers", "llguidance", "safetensors")
pytestmark = [pytest.mark.heavy, pytest.mark.asyncio(loop_scope="module")]
ARGUMENTS = {
    "type": "object",
    "properties": {
        "day": {"enum": ["Monday", "one day"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "sure": {"type": "boolean"},
    },
    "required": ["day", "count"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "plan", "parameters": ARGUMENTS}}


def make(folder: Path) -> Path:
    """A model with random weights, and its tokenizer as that of Llama 2 is written."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    words = ["the", "day", "one", "Mon", "a", "to", "true", '":', '{"']
    signs = [*string.ascii_letters, *string.digits, *string.punctuation]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [BLANK, *words, *signs, *(BLANK + word for word in (*words, *signs))]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    replaced = {"type": "Replace", "pattern": {"String": BLANK}, "content": " "}
    blank = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": tokens[number], "special": True} | special
            for number in range(3)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": BLANK}, blank]},
        "decoder": {
            "type": "Sequence",
            "decoders": [
                replaced,
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocabulary, "merges": []},
    }  # fmt: skip
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    settings |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HfEngine]:
    """The engine on such a model."""
    engine = HfEngine(
        "tiny", make(tmp_path_factory.mktemp("model")), ModelConfig(context=512, parallel=32)
    )
    await engine.start()
    yield engine
    await engine.aclose()


async def test_calls_are_forced(model: HfEngine) -> None:
    """A required call comes every time at temperature 1, whole and streamed, with arguments that satisfy its schema."""
    fields = {"temperature": 1, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
    wholes = await asyncio.gather(
        *(
            answer(model.generate(chat("Hi", seed=seed, stream=bool(seed % 2), **fields)))
            for seed in range(TRIES)
        )
    )

    for whole in wholes:
        [choice] = whole.choices
        [call] = choice.tool_calls
        assert ("plan", "tool_calls") == (call.name, choice.finish_reason)
        jsonschema.validate(json.loads(call.arguments), ARGUMENTS)


async def test_schemas(model: HfEngine) -> None:
    """An answer satisfies its schema."""
    wanted = {"type": "json_object", "schema": ARGUMENTS}
    whole = await answer(model.generate(chat(temperature=1, seed=1, response_format=wanted)))

    jsonschema.validate(json.loads(whole.choices[0].text or ""), ARGUMENTS)
