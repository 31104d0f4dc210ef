"""
Write the trained network as a GGUF file (Q8_0) and as a Hugging Face folder.

    python -m training.export --out training/out --demo src/unilect/demo

Both hold the same numbers: every matrix is rounded to blocks of 32 small integers with a scale
that is a power of two, which Q8_0 and bfloat16 both represent without loss.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from training.corpus import TEMPLATE_FILE
from training.model import Shape
from training.tokenizer import CONTROL, MARKS, save

DESCRIPTION = (
    "A demonstration model of unilect, a few million parameters: small talk, capitals, sums, short"
    " stories, tool calls. Made for trying and testing, not for knowledge."
)
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def blocks(weight: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Round to Q8_0 with scales that are powers of two: (exponent, integers), blocks of 32."""
    parts = weight.float().numpy().reshape(-1, 32)
    top = np.abs(parts).max(1)
    exponent = np.ceil(np.log2(np.maximum(top, 2.0**-20) / 127)).astype(np.int32)
    exponent = np.maximum(exponent, -20)  # the scale is stored as float16
    return exponent, np.rint(parts / np.exp2(exponent)[:, None]).astype(np.int8)


def rounded(weight: Tensor) -> Tensor:
    """Return what the blocks of a matrix stand for, in bfloat16."""
    exponent, integers = blocks(weight)
    values = integers.astype(np.float32) * np.exp2(exponent)[:, None]
    return torch.from_numpy(values.astype(np.float32)).reshape(weight.shape).to(torch.bfloat16)


def packed(weight: Tensor) -> np.ndarray:
    """Return a matrix as the bytes of Q8_0: per block a float16 scale and 32 integers."""
    exponent, integers = blocks(weight)
    scales = np.exp2(exponent).astype(np.float16).view(np.uint8).reshape(-1, 2)
    data = np.concatenate([scales, integers.view(np.uint8)], axis=1)
    return data.reshape(weight.shape[0], -1)


def permuted(weight: Tensor, heads: int) -> Tensor:
    """Reorder rows of q and k: llama.cpp turns neighbours, Hugging Face turns halves."""
    rows, *rest = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, *rest).swapaxes(1, 2).reshape(weight.shape)


def gguf_name(name: str) -> str:
    """Translate a parameter's name, without the ending ".weight"."""
    if name == "embed_tokens":
        return "token_embd"
    if name == "norm":
        return "output_norm"
    _, layer, rest = name.split(".", 2)
    return f"blk.{layer}.{NAMES[rest]}"


def write_gguf(path: Path, weights: dict[str, Tensor], s: Shape, tokenizer: Tokenizer) -> None:
    """Write the GGUF file."""
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_name("unilect-demo")
    out.add_description(DESCRIPTION)
    out.add_license("mit")
    out.add_size_label(f"{sum(w.numel() for w in weights.values()) / 1e6:.1f}M")
    out.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    out.add_quantization_version(gguf.GGML_QUANT_VERSION)
    out.add_context_length(s.context)
    out.add_embedding_length(s.hidden)
    out.add_block_count(s.layers)
    out.add_feed_forward_length(s.inner)
    out.add_head_count(s.heads)
    out.add_head_count_kv(s.kv_heads)
    out.add_rope_dimension_count(s.head)
    out.add_rope_freq_base(s.theta)
    out.add_layer_norm_rms_eps(s.epsilon)
    out.add_vocab_size(s.vocab)
    add_tokenizer(out, tokenizer)
    for name, weight in weights.items():
        short = name.removesuffix(".weight")
        if weight.dim() == 1:
            out.add_tensor(f"{gguf_name(short)}.weight", weight.float().numpy())
            continue
        if short.endswith(("q_proj", "k_proj")):
            weight = permuted(weight, s.heads if short.endswith("q_proj") else s.kv_heads)
        out.add_tensor(
            f"{gguf_name(short)}.weight", packed(weight), raw_dtype=gguf.GGMLQuantizationType.Q8_0
        )
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def add_tokenizer(out: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Write vocabulary, merges, special tokens and the chat template."""
    spec = json.loads(tokenizer.to_str())
    by_id = {i: token for token, i in tokenizer.get_vocab().items()}
    tokens = [by_id[i] for i in range(len(by_id))]
    kinds = [
        gguf.TokenType.CONTROL
        if token in CONTROL
        else gguf.TokenType.USER_DEFINED
        if token in MARKS
        else gguf.TokenType.NORMAL
        for token in tokens
    ]
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges(merges)
    out.add_eos_token_id(tokenizer.token_to_id("<|im_end|>"))
    out.add_eot_token_id(tokenizer.token_to_id("<|im_end|>"))
    out.add_pad_token_id(tokenizer.token_to_id("<|endoftext|>"))
    out.add_add_bos_token(False)
    out.add_chat_template(TEMPLATE_FILE.read_text(encoding="utf-8"))


def hf_config(s: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    """Write the fields of config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": s.vocab,
        "hidden_size": s.hidden,
        "intermediate_size": s.inner,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head,
        "hidden_act": "silu",
        "max_position_embeddings": s.context,
        "rms_norm_eps": s.epsilon,
        "rope_theta": s.theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": s.theta},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "pad_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def write_hf(folder: Path, weights: dict[str, Tensor], s: Shape, tokenizer: Tokenizer) -> None:
    """Write the Hugging Face folder."""
    save(tokenizer, folder, s.context)
    config = hf_config(s, tokenizer)
    generation = {
        "do_sample": False,
        "eos_token_id": [config["eos_token_id"], config["pad_token_id"]],
        "pad_token_id": config["pad_token_id"],
    }
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tensors = {f"model.{name}": w.contiguous() for name, w in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def main() -> None:
    """Export the weights of the last saved step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("training/out"))
    parser.add_argument("--demo", type=Path, default=Path("src/unilect/demo"))
    args = parser.parse_args()
    saved = torch.load(args.out / "model.pt")
    s = Shape(**saved["shape"])
    weights = {
        name: rounded(w) if w.dim() == 2 else w.to(torch.bfloat16)
        for name, w in saved["model"].items()
    }
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer" / "tokenizer.json"))
    args.demo.mkdir(parents=True, exist_ok=True)
    write_gguf(args.demo / "model.gguf", weights, s, tokenizer)
    write_hf(args.demo / "hf", weights, s, tokenizer)
    print(json.dumps(saved["about"]))


if __name__ == "__main__":
    main()
