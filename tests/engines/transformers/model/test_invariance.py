"""Tests of unilect.engines.transformers.model.invariance: models of many kinds answer beside others as alone, or are refused by name."""

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from support.models.torchside import Asked, need, running

need("torch", "transformers")

from support.models.tiny_hf import CONTEXT, Tiny, generated
from unilect.engines.transformers.batch.loop import BatchLoop

pytestmark = pytest.mark.heavy

_GPT2 = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512}
_WIDE = {"intermediate_size": 128, "num_key_value_heads": 2}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_WINDOW = {"sliding_window": 24}
_HEADS = {"head_dim": 16}
KINDS: dict[str, dict[str, Any]] = {
    "bloom": {"n_layer": 4, "n_head": 4},
    "deepseek_v3": _WIDE
    | {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "falcon": {"alibi": True, "new_decoder_architecture": False, "multi_query": False},
    "gemma3_text": _WIDE | _HEADS | _WINDOW,
    "gpt2": _GPT2,
    "gpt_neo": {
        "num_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 24,
    },
    "gpt_neox": {"intermediate_size": 128},
    "gpt_oss": _WIDE | _HEADS | _WINDOW | _EXPERTS,
    "llama4_text": _WIDE
    | _HEADS
    | {
        "attention_chunk_size": 32,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 128,
    },
    "mistral": _WIDE | _WINDOW,
    "mixtral": _WIDE | _EXPERTS,
    "mpt": {"d_model": 64, "n_layers": 4, "n_heads": 4, "max_seq_len": 512},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64, "init_std": 0.3},
    "phi": _WIDE,
    "qwen3": _WIDE | _HEADS,
}
REFUSED: dict[str, dict[str, Any]] = {
    "bart": {
        "d_model": 64,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 128,
        "init_std": 0.3,
        "is_decoder": True,
        "is_encoder_decoder": False,
    },
    "bert": {"intermediate_size": 128},
    "mamba": {"state_size": 8},
    "openai-gpt": _GPT2,
    "rwkv": {"attention_hidden_size": 64},
}


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_generate(kind: str, tmp_path: Path) -> None:
    """Prompts of all lengths, some of them known in part, are answered beside each other as alone."""
    tiny = Tiny(tmp_path, kind, **KINDS[kind])
    rng = random.Random(7)
    model = tiny.loaded()
    known = tiny.text(rng, 120)
    lengths = [(100, 30), (0, 50), (50, 27), (0, 1), (0, 33), (119, 49), (0, 250), (60, 5)]
    prompts = [known[:count] + tiny.text(rng, more) for count, more in lengths]
    loop = BatchLoop(model, parallel=6, context=CONTEXT, chunk=32, remember=2048)
    with running(loop):
        Asked(known, 1).answer(loop)
        gate = threading.Event()
        loop.call(gate.wait)  # all of them come at once
        asked = [Asked(prompt, 16) for prompt in prompts]
        for one in asked:
            loop.submit(one.job)
        gate.set()
        answers = [one.wait() for one in asked]

    expected = [
        generated(tiny.model, prompt, min(16, CONTEXT - len(prompt)), model.stop_ids)
        for prompt in prompts
    ]
    assert expected == answers
    assert len({tuple(answer) for answer in answers}) > 5


@pytest.mark.parametrize("how", [{}, {"quantize": "8bit"}, {"dtype": "bfloat16"}], ids=str)
def test_distances_by_columns(how: dict[str, str], tmp_path: Path) -> None:
    """MPT's distances count masked columns too, so that its prompts are read one by one, in any number of bits."""
    assert Tiny(tmp_path, "mpt", **KINDS["mpt"]).loaded(**how).windowed


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_would_answer_otherwise_are_refused(kind: str, tmp_path: Path) -> None:
    """A model whose answers depend on the rows beside them is not loaded, and the message names its kind."""
    tiny = Tiny(tmp_path, kind, **REFUSED[kind])

    with pytest.raises(ValueError, match=rf"\b{kind} models are not supported"):
        tiny.loaded()
