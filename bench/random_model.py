#!/usr/bin/env python3
"""
A model of random weights in the shape of a real one: llama architecture, about 64 million parameters (WIDTH 1536: 474), ChatML.

As GGUF it is Q8_0; as a folder of transformers it is the same shape and the same kind of weights in float32.

It says nothing sensible, at the speed of one that does. The vocabulary is a byte-level BPE trained on words that are made up
here from syllables, so nothing is downloaded. Everything is seeded: the same file is made on every machine. The rows of the
special tokens and of the single bytes are zero, so the likeliest token is never one of them: an answer does not end before
`max_tokens`, and every token is a text of its own.

usage: bench/random_model.py PATH.gguf | FOLDER [WIDTH]     takes about 20 s; needs gguf, numpy, safetensors and tokenizers
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY, CONTEXT = 32_000, 4096
LAYERS, WIDTH = 16, int(sys.argv[2]) if len(sys.argv) > 2 else 512
HEADS, KV_HEADS, FEED_FORWARD = WIDTH // 64, WIDTH // 128, WIDTH * 11 // 4
SPECIAL = ["<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def made_up_words(count: int, seed: int = 1) -> list[str]:
    """Words of two to four syllables, none of which means anything on purpose."""
    dice = random.Random(seed)
    onsets, vowels = ["", *"bcdfghjklmnprstvwz", "br", "ch", "st", "tr"], ["a", "e", "i", "o", "u"]
    endings = ["", "", "n", "r", "s", "t", "l", "nd", "st"]
    syllables = [a + b + c for a in onsets for b in vowels for c in endings]
    return ["".join(dice.choices(syllables, k=dice.randint(2, 4))) for _ in range(count)]


def sentences(words: list[str], count: int, seed: int = 2) -> Iterator[str]:
    """Lines of words; some words are said far more often than others, as in a language."""
    dice = random.Random(seed)
    for _ in range(count):
        places = [int(len(words) * dice.random() ** 3) for _ in range(12)]
        yield " ".join(words[place] for place in places) + "."


def train_tokenizer() -> Tokenizer:
    """A byte-level BPE of VOCABULARY tokens, split as GPT-2 does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(made_up_words(60_000), 60_000), trainer)
    return tokenizer


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """The vocabulary, the merges and the template."""
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [kinds.CONTROL if token in SPECIAL else kinds.NORMAL for token in tokens]
    )
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)


def add_weights(writer: gguf.GGUFWriter, vocabulary: int) -> int:
    """
    Random tensors, matrices as Q8_0.

    Returns:
        The number of parameters.
    """
    dice, parameters = np.random.default_rng(3), 0
    kv_width = WIDTH // HEADS * KV_HEADS
    layer = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (kv_width, WIDTH),
        "attn_v": (kv_width, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (FEED_FORWARD, WIDTH),
        "ffn_up": (FEED_FORWARD, WIDTH),
        "ffn_down": (WIDTH, FEED_FORWARD),
        "attn_norm": (WIDTH,),
        "ffn_norm": (WIDTH,),
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (vocabulary, WIDTH)}
    for number in range(LAYERS):
        shapes |= {f"blk.{number}.{name}": shape for name, shape in layer.items()}
    shapes["output_norm"] = (WIDTH,)
    for name, shape in shapes.items():
        parameters += int(np.prod(shape))
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
            continue
        values = dice.standard_normal(shape, dtype=np.float32) * shape[1] ** -0.5
        if name == "token_embd":
            values[: len(SPECIAL) + 256] = 0
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    return parameters


def make(path: Path) -> None:
    """Write the model; whole or not at all."""
    tokenizer = train_tokenizer()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(unfinished, "llama")
    writer.add_name("random-64m")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    add_tokenizer(writer, tokenizer)
    parameters = add_weights(writer, tokenizer.get_vocab_size())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.rename(path)
    size_mb = path.stat().st_size / 2**20
    print(
        f"{path}: {parameters / 1e6:.1f} M parameters, {tokenizer.get_vocab_size()} tokens, {size_mb:.0f} MB"
    )


def make_folder(path: Path) -> None:
    """Write the model as transformers reads it; the config.json comes last, so a folder that has one is whole."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(path / "tokenizer.json"))
    names = {
        "attn_q": ("self_attn.q_proj", (WIDTH, WIDTH)),
        "attn_k": ("self_attn.k_proj", (WIDTH // HEADS * KV_HEADS, WIDTH)),
        "attn_v": ("self_attn.v_proj", (WIDTH // HEADS * KV_HEADS, WIDTH)),
        "attn_output": ("self_attn.o_proj", (WIDTH, WIDTH)),
        "ffn_gate": ("mlp.gate_proj", (FEED_FORWARD, WIDTH)),
        "ffn_up": ("mlp.up_proj", (FEED_FORWARD, WIDTH)),
        "ffn_down": ("mlp.down_proj", (WIDTH, FEED_FORWARD)),
        "attn_norm": ("input_layernorm", (WIDTH,)),
        "ffn_norm": ("post_attention_layernorm", (WIDTH,)),
    }
    size, dice = tokenizer.get_vocab_size(), np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (size, WIDTH),
        "model.norm": (WIDTH,),
    }
    for number in range(LAYERS):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in names.values()}
    tensors = {
        f"{name}.weight": np.ones(shape, np.float32)
        if len(shape) == 1
        else dice.standard_normal(shape, dtype=np.float32) * np.float32(shape[1] ** -0.5)
        for name, shape in shapes.items()
    }
    tensors["model.embed_tokens.weight"][: len(SPECIAL) + 256] = 0
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    said = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[1],
        "pad_token": SPECIAL[1],
        "chat_template": CHATML,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(said))
    end = tokenizer.token_to_id(SPECIAL[1])
    (path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": end, "do_sample": False})
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": WIDTH,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_id": end,
        "dtype": "float32",
    }
    (path / "config.json").write_text(json.dumps(config))
    print(f"{path}: {sum(t.size for t in tensors.values()) / 1e6:.1f} M parameters")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (make if target.suffix == ".gguf" else make_folder)(target)
