"""
GGUF files of many architectures, with the tensors that llama.cpp asks for and zeros in them: for what they take, not for what they say.

The weights are holes in the file, which takes no place on the disk until they are read, and the page cache's place then.

Source: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-model.cpp (the tensors of each architecture)
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.models import tiny_gguf as tiny

WIDTH, FFN, HEADS, KV_HEADS, HEAD, LAYERS, TOKENS = 512, 2048, 8, 2, 64, 8, 32_000
_F32, _F16 = 0, 1
#: Numbers in a block of a type, and its bytes.
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 8: (32, 34), 12: (256, 144)}
Shapes = dict[str, tuple[int, ...]]


def make(path: Path, kind: str, weights: int = _F16) -> Path:
    """
    Write a file of an architecture, and return its path.

    Args:
        weights: The type of its matrices.
    """
    shapes, fields = _network(kind)
    vocabulary = tiny._vocabulary()
    vocabulary += [(f"w{number}", tiny._NORMAL) for number in range(len(vocabulary), TOKENS)]
    written = [
        tiny._field("general.architecture", tiny._STRING, tiny._text(kind)),
        *(_value(f"{kind}.{name}", value) for name, value in fields.items()),
        *_words(vocabulary),
    ]
    _write(path, written, shapes, weights)
    return path


def _network(kind: str) -> tuple[Shapes, dict[str, Any]]:
    """The tensors of an architecture, and the fields of its head."""
    fields: dict[str, Any] = {
        "context_length": 32_768,
        "embedding_length": WIDTH,
        "block_count": LAYERS,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": HEAD,
    }
    shapes: Shapes = {
        "token_embd.weight": (WIDTH, TOKENS),
        "output.weight": (WIDTH, TOKENS),
        "output_norm.weight": (WIDTH,),
    }
    for layer in range(LAYERS):
        block, change = _BLOCKS.get(kind, _llama)(layer)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
        fields |= change
    if kind in ("gemma2", "gemma3", "cohere2"):
        del shapes["output.weight"]
    if kind == "starcoder2":
        shapes["output_norm.bias"] = (WIDTH,)
    return shapes, fields


def _attention(bias: bool = False, norms: bool = False) -> Shapes:
    shapes: Shapes = {
        "attn_q.weight": (WIDTH, HEADS * HEAD),
        "attn_k.weight": (WIDTH, KV_HEADS * HEAD),
        "attn_v.weight": (WIDTH, KV_HEADS * HEAD),
        "attn_output.weight": (HEADS * HEAD, WIDTH),
    }
    if bias:
        shapes |= {
            "attn_q.bias": (HEADS * HEAD,),
            "attn_k.bias": (KV_HEADS * HEAD,),
            "attn_v.bias": (KV_HEADS * HEAD,),
        }
    return shapes | (
        {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)} if norms else {}
    )


def _norms(*names: str) -> Shapes:
    return {f"{name}.weight": (WIDTH,) for name in names}


_GATED: Shapes = {
    "ffn_gate.weight": (WIDTH, FFN),
    "ffn_up.weight": (WIDTH, FFN),
    "ffn_down.weight": (FFN, WIDTH),
}


def _llama(layer: int) -> tuple[Shapes, dict[str, Any]]:
    return _attention() | _norms("attn_norm", "ffn_norm") | _GATED, {}


def _qwen2(layer: int) -> tuple[Shapes, dict[str, Any]]:
    return _attention(bias=True) | _norms("attn_norm", "ffn_norm") | _GATED, {}


def _pangu(layer: int) -> tuple[Shapes, dict[str, Any]]:
    shapes, fields = _qwen2(layer)
    return shapes | {"attn_output.bias": (WIDTH,)}, fields


def _qwen3(layer: int) -> tuple[Shapes, dict[str, Any]]:
    return _attention(norms=True) | _norms("attn_norm", "ffn_norm") | _GATED, {}


def _qwen3moe(layer: int) -> tuple[Shapes, dict[str, Any]]:
    experts, inner = 8, 256
    shapes = {
        "ffn_gate_inp.weight": (WIDTH, experts),
        "ffn_gate_exps.weight": (WIDTH, inner, experts),
        "ffn_up_exps.weight": (WIDTH, inner, experts),
        "ffn_down_exps.weight": (inner, WIDTH, experts),
    }
    fields = {"expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": inner}
    return _attention(norms=True) | _norms("attn_norm", "ffn_norm") | shapes, fields


def _gemma(layer: int, norms: bool) -> Shapes:
    four = _norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    return _attention(norms=norms) | four | _GATED


def _gemma2(layer: int) -> tuple[Shapes, dict[str, Any]]:
    return _gemma(layer, False), {"attention.sliding_window": 1024}


def _gemma3(layer: int) -> tuple[Shapes, dict[str, Any]]:
    return _gemma(layer, True), {"attention.sliding_window": 1024}


def _cohere2(layer: int) -> tuple[Shapes, dict[str, Any]]:
    fields = {"attention.sliding_window": 1024, "logit_scale": 1.0}
    fields["attention.layer_norm_epsilon"] = 1e-5
    return _attention() | _norms("attn_norm") | _GATED, fields


def _phi3(layer: int) -> tuple[Shapes, dict[str, Any]]:
    shapes = {
        "attn_qkv.weight": (WIDTH, (HEADS + 2 * KV_HEADS) * HEAD),
        "attn_output.weight": (WIDTH, WIDTH),
        "ffn_up.weight": (WIDTH, 2 * FFN),
        "ffn_down.weight": (FFN, WIDTH),
    }
    fields = {"rope.scaling.original_context_length": 32_768}
    return shapes | _norms("attn_norm", "ffn_norm"), fields


def _olmo2(layer: int) -> tuple[Shapes, dict[str, Any]]:
    whole = {"attn_q_norm.weight": (HEADS * HEAD,), "attn_k_norm.weight": (KV_HEADS * HEAD,)}
    return _attention() | whole | _norms("post_attention_norm", "post_ffw_norm") | _GATED, {}


def _starcoder2(layer: int) -> tuple[Shapes, dict[str, Any]]:
    shapes = _attention(bias=True) | _norms("attn_norm", "ffn_norm")
    shapes |= {"attn_norm.bias": (WIDTH,), "ffn_norm.bias": (WIDTH,)}
    shapes |= {"ffn_up.weight": (WIDTH, FFN), "ffn_down.weight": (FFN, WIDTH)}
    shapes |= {"ffn_up.bias": (FFN,), "ffn_down.bias": (WIDTH,), "attn_output.bias": (WIDTH,)}
    return shapes, {"attention.layer_norm_epsilon": 1e-5}


def _deepseek2(layer: int) -> tuple[Shapes, dict[str, Any]]:
    rank, rope, nope = 128, 32, 32
    shapes = {
        "attn_q_a.weight": (WIDTH, rank),
        "attn_q_a_norm.weight": (rank,),
        "attn_q_b.weight": (rank, HEADS * (nope + rope)),
        "attn_kv_a_mqa.weight": (WIDTH, rank + rope),
        "attn_kv_a_norm.weight": (rank,),
        "attn_k_b.weight": (nope, rank, HEADS),
        "attn_v_b.weight": (rank, HEAD, HEADS),
        "attn_output.weight": (HEADS * HEAD, WIDTH),
    }
    fields = {
        "attention.q_lora_rank": rank,
        "attention.kv_lora_rank": rank,
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": HEAD,
        "rope.dimension_count": rope,
        "leading_dense_block_count": LAYERS,
        "expert_count": 0,
        "expert_used_count": 0,
        "expert_feed_forward_length": 256,
        "expert_shared_count": 1,
        "vocab_size": TOKENS,
    }
    return shapes | _norms("attn_norm", "ffn_norm") | _GATED, fields


def _mamba_layer() -> Shapes:
    inner, state, groups, heads = 1024, 64, 1, 16
    return {
        "ssm_in.weight": (WIDTH, 2 * inner + 2 * groups * state + heads),
        "ssm_conv1d.weight": (4, inner + 2 * groups * state),
        "ssm_conv1d.bias": (inner + 2 * groups * state,),
        "ssm_dt.bias": (heads,),
        "ssm_a": (1, heads),
        "ssm_d": (1, heads),
        "ssm_norm.weight": (inner // groups, groups),
        "ssm_out.weight": (inner, WIDTH),
    }


_SSM = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 1024,
    "ssm.state_size": 64,
    "ssm.time_step_rank": 16,
    "ssm.group_count": 1,
}


def _mamba2(layer: int) -> tuple[Shapes, dict[str, Any]]:
    return _mamba_layer() | _norms("attn_norm"), _SSM


def _granitehybrid(layer: int) -> tuple[Shapes, dict[str, Any]]:
    attends = [number % 4 == 3 for number in range(LAYERS)]
    fields = _SSM | {"attention.head_count_kv": [KV_HEADS * one for one in attends]}
    fields |= dict.fromkeys(("attention.scale", "logit_scale", "residual_scale"), 1.0)
    mixed = _attention() if attends[layer] else _mamba_layer()
    return mixed | _norms("attn_norm", "ffn_norm") | _GATED, fields


_BLOCKS = {
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "cohere2": _cohere2,
    "phi3": _phi3,
    "olmo2": _olmo2,
    "starcoder2": _starcoder2,
    "deepseek2": _deepseek2,
    "mamba2": _mamba2,
    "granitehybrid": _granitehybrid,
}

#: The architectures that are made here, and known to the formula.
KINDS = ("llama", *_BLOCKS)
_BLOCKS |= {"pangu-embedded": _pangu, "dream": _llama}


def _value(name: str, value: Any) -> bytes:
    if isinstance(value, list):
        return tiny._list(name, tiny._I32, [struct.pack("<i", one) for one in value])
    if isinstance(value, float):
        return tiny._field(name, tiny._F32, struct.pack("<f", value))
    return tiny._number(name, value)


def _words(vocabulary: list[tuple[str, int]]) -> list[bytes]:
    texts = [tiny._text(text) for text, _ in vocabulary]
    kinds = [struct.pack("<i", kind) for _, kind in vocabulary]
    return [
        tiny._field("tokenizer.ggml.model", tiny._STRING, tiny._text("llama")),
        tiny._list("tokenizer.ggml.tokens", tiny._STRING, texts),
        tiny._list("tokenizer.ggml.scores", tiny._F32, [struct.pack("<f", 0.0)] * len(texts)),
        tiny._list("tokenizer.ggml.token_type", tiny._I32, kinds),
        tiny._number("tokenizer.ggml.bos_token_id", 1),
        tiny._number("tokenizer.ggml.eos_token_id", 2),
    ]


def _write(path: Path, fields: list[bytes], shapes: Mapping[str, tuple[int, ...]], kind: int) -> None:  # fmt: skip
    tensors, size = b"", 0
    for name, shape in shapes.items():
        is_matrix = len(shape) > 1 and not name.rpartition(".")[0].endswith(
            ("ssm_conv1d", "ssm_norm", "ssm_a", "ssm_d", "ffn_gate_inp")
        )
        is_matrix = is_matrix and not name.endswith(("ssm_a", "ssm_d"))
        own = kind if is_matrix else _F32
        numbers, bytes_each = BLOCKS[own]
        tensors += tiny._text(name) + struct.pack("<I", len(shape))
        tensors += struct.pack(f"<{len(shape)}QIQ", *shape, own, size)
        size += -(-math.prod(shape) // numbers * bytes_each // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(fields)) + b"".join(fields) + tensors
    path.write_bytes(head + b"\0" * (-len(head) % 32))
    with path.open("ab") as file:
        file.truncate(-(-len(head) // 32) * 32 + size)
