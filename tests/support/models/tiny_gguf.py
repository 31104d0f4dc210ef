"""
A tiny GGUF model with a SentencePiece vocabulary that puts a blank before a text, as Llama 2, Mistral and Phi-3 have it.

Its weights are random: it writes anything that it may, so what comes out right was bound by a grammar. Only single bytes, whose
rows are zero, are as rare as with a real model. Seeded, made in a moment.
"""

import math
import random
import string
import struct
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

WIDTH, HEADS, FEED_FORWARD, CONTEXT = 32, 4, 64, 2048
BLANK = "▁"
_U32, _F32, _BOOL, _STRING, _ARRAY, _I32 = 4, 6, 7, 8, 9, 5
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_FIRST_BYTE = 3  # behind <unk>, <s> and </s>
#: A template that knows tools, as Qwen writes it.
TEMPLATE = (
    "{%- if tools -%}<tool_call>{{ tools | tojson }}</tool_call>{%- endif -%}"
    "{%- for m in messages -%}[{{ m.role }}] {{ m.content }}\n{%- endfor -%}"
    "{%- if add_generation_prompt -%}[assistant] {%- endif -%}"
)


#: The tokens with which Qwen2.5-Coder fills a gap in.
FILL_IN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")


def make(
    path: Path,
    template: str = TEMPLATE,
    pooling: int | None = None,
    marks: Sequence[str] = (),
    ids: Mapping[str, int] | None = None,
    begins: bool = True,
    context: int = CONTEXT,
) -> Path:
    """
    Write the model, and return its path.

    Args:
        marks: Special tokens beside the others, at the end of its vocabulary.
        ids: Ids of tokens that the head tells by these names.
        begins: It reads a token before every prompt.
        context: The tokens that it says it was made for.
    """
    tokens = _vocabulary() + [(mark, _CONTROL) for mark in marks]
    fields = _fields("llama", tokens, template, begins, context=context)
    fields += [_number(f"tokenizer.ggml.{name}_token_id", id) for name, id in (ids or {}).items()]
    if pooling is not None:
        fields.append(_number("llama.pooling_type", pooling))
    _write(path, fields, len(tokens))
    return path


def make_bert_reranker(path: Path, says_so: bool = True) -> Path:
    """
    Write a cross-encoder of one output, and return its path.

    Args:
        says_so: Its head says that it ranks.
    """
    tokens = _vocabulary()
    fields = [
        *_fields("bert", tokens, TEMPLATE),
        *([_number("bert.pooling_type", 4)] if says_so else []),
        _field("bert.attention.layer_norm_epsilon", _F32, struct.pack("<f", 1e-5)),
        _field("bert.attention.causal", _BOOL, b"\0"),
        _number("tokenizer.ggml.token_type_count", 1),
        _number("tokenizer.ggml.seperator_token_id", 2),
        _field("tokenizer.ggml.add_eos_token", _BOOL, b"\1"),
    ]
    shapes = {"token_embd": (WIDTH, len(tokens)), "position_embd": (WIDTH, CONTEXT)}
    shapes["token_types"] = (WIDTH,)
    shapes |= {f"blk.0.attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_up": (WIDTH, FEED_FORWARD), "blk.0.ffn_down": (FEED_FORWARD, WIDTH)}
    shapes |= {"cls": (WIDTH, WIDTH), "cls.output": (WIDTH, 1)}
    every: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        every[f"{name}.weight"] = shape
        if len(shape) > 1 and not name.endswith("_embd"):
            every[f"{name}.bias"] = shape[1:]
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        every |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    _write_tensors(path, fields, every)
    return path


def make_qwen3_reranker(path: Path) -> Path:
    """Write a reranker of the form that llama.cpp makes of Qwen3-Reranker, and return its path."""
    tokens = _vocabulary()
    rerank = "[system] yes or no?\n[user] {query}\n{document}\n[assistant] "
    fields = [
        *_fields("qwen3", tokens, TEMPLATE),
        _number("qwen3.pooling_type", 4),
        _number("qwen3.attention.key_length", WIDTH // HEADS),
        _number("qwen3.attention.value_length", WIDTH // HEADS),
        _list("qwen3.classifier.output_labels", _STRING, [_text("yes"), _text("no")]),
        _field("tokenizer.chat_template.rerank", _STRING, _text(rerank)),
    ]
    norms = [f"blk.0.attn_{part}_norm" for part in "qk"]
    more = {"cls.output": (WIDTH, 2)} | dict.fromkeys(norms, (WIDTH // HEADS,))
    _write(path, fields, len(tokens), more)
    return path


def make_windowed(path: Path, window: int = 64) -> Path:
    """Write a network of Gemma 3's kind, of whose six layers five see a window only, and return its path."""
    tokens, kind = _vocabulary(), "gemma3"
    fields = [
        *_fields(kind, tokens, TEMPLATE, layers=6),
        _number(f"{kind}.attention.sliding_window", window),
        _number(f"{kind}.attention.key_length", WIDTH // HEADS),
        _number(f"{kind}.attention.value_length", WIDTH // HEADS),
    ]
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (WIDTH, len(tokens)), "output_norm": (WIDTH,)}  # fmt: skip
    for block in (f"blk.{layer}" for layer in range(6)):
        shapes |= {f"{block}.attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}
        shapes |= {f"{block}.ffn_{part}": (WIDTH, FEED_FORWARD) for part in ("gate", "up")}
        shapes[f"{block}.ffn_down"] = (FEED_FORWARD, WIDTH)
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        shapes |= {f"{block}.{norm}": (WIDTH,) for norm in norms}
        shapes |= {f"{block}.attn_{part}_norm": (WIDTH // HEADS,) for part in "qk"}
    _write_tensors(path, fields, {f"{name}.weight": shape for name, shape in shapes.items()})
    return path


def make_projector(path: Path) -> Path:
    """
    Write an encoder of images of 28 by 28 pixels, as LLaVA's are, for a model of `make`, and return its path: that model's `mmproj`.
    """
    size, patch, blocks = 28, 14, 2
    epsilon, thirds = struct.pack("<f", 1e-5), [struct.pack("<f", 0.5)] * 3
    fields = [
        _field("general.architecture", _STRING, _text("clip")),
        _field("clip.projector_type", _STRING, _text("mlp")),
        _field("clip.has_vision_encoder", _BOOL, b"\1"),
        _field("clip.use_gelu", _BOOL, b"\1"),
        _number("clip.vision.image_size", size),
        _number("clip.vision.patch_size", patch),
        _number("clip.vision.embedding_length", WIDTH),
        _number("clip.vision.feed_forward_length", FEED_FORWARD),
        _number("clip.vision.projection_dim", WIDTH),
        _number("clip.vision.block_count", blocks),
        _number("clip.vision.attention.head_count", HEADS),
        _field("clip.vision.attention.layer_norm_epsilon", _F32, epsilon),
        _list("clip.vision.image_mean", _F32, thirds),
        _list("clip.vision.image_std", _F32, thirds),
    ]
    square = (WIDTH, WIDTH)
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (patch, patch, 3, WIDTH),
        "v.position_embd.weight": (WIDTH, (size // patch) ** 2),
    }
    for block in range(blocks):
        name = f"v.blk.{block}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            shapes |= {f"{name}.{part}.weight": square, f"{name}.{part}.bias": (WIDTH,)}
        for part in ("ln1", "ln2"):
            shapes |= {f"{name}.{part}.weight": (WIDTH,), f"{name}.{part}.bias": (WIDTH,)}
        shapes |= {
            f"{name}.ffn_up.weight": (WIDTH, FEED_FORWARD),
            f"{name}.ffn_up.bias": (FEED_FORWARD,),
        }
        shapes |= {
            f"{name}.ffn_down.weight": (FEED_FORWARD, WIDTH),
            f"{name}.ffn_down.bias": (WIDTH,),
        }
    for layer in (0, 2):
        shapes |= {f"mm.{layer}.weight": square, f"mm.{layer}.bias": (WIDTH,)}
    _write_tensors(path, fields, shapes)
    return path


def _vocabulary() -> list[tuple[str, int]]:
    """The tokens, each with its kind."""
    words = [
        "the",
        "and",
        "day",
        "one",
        "cat",
        "sun",
        "a",
        "is",
        "to",
        "on",
        "it",
        "true",
        '":',
        '{"',
    ]
    signs = [*string.ascii_letters, *string.digits, *string.punctuation]
    tokens = [("<unk>", _UNKNOWN), ("<s>", _CONTROL), ("</s>", _CONTROL)]
    tokens += [(f"<0x{byte:02X}>", _BYTE) for byte in range(256)]
    known = [BLANK, *words, *signs, *(BLANK + word for word in (*words, *signs))]
    tokens += [(token, _NORMAL) for token in dict.fromkeys(known)]
    return tokens


def _fields(
    kind: str,
    tokens: list[tuple[str, int]],
    template: str,
    begins: bool = True,
    layers: int = 1,
    context: int = CONTEXT,
) -> list[bytes]:
    """The metadata of a network of this kind."""
    scores = [-float(number) if kind == _NORMAL else 0.0 for number, (_, kind) in enumerate(tokens)]
    return [
        _field("general.architecture", _STRING, _text(kind)),
        _number(f"{kind}.context_length", context),
        _number(f"{kind}.embedding_length", WIDTH),
        _number(f"{kind}.block_count", layers),
        _number(f"{kind}.feed_forward_length", FEED_FORWARD),
        _number(f"{kind}.attention.head_count", HEADS),
        _number(f"{kind}.rope.dimension_count", WIDTH // HEADS),
        _field(f"{kind}.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5)),
        _field("tokenizer.ggml.model", _STRING, _text("llama")),
        _list("tokenizer.ggml.tokens", _STRING, [_text(token) for token, _ in tokens]),
        _list("tokenizer.ggml.scores", _F32, [struct.pack("<f", score) for score in scores]),
        _list("tokenizer.ggml.token_type", _I32, [struct.pack("<i", kind) for _, kind in tokens]),
        _number("tokenizer.ggml.unknown_token_id", 0),
        _number("tokenizer.ggml.bos_token_id", 1),
        _number("tokenizer.ggml.eos_token_id", 2),
        _field("tokenizer.ggml.add_bos_token", _BOOL, b"\1" if begins else b"\0"),
        _field("tokenizer.ggml.add_space_prefix", _BOOL, b"\1"),
        _field("tokenizer.chat_template", _STRING, _text(template)),
    ]


def _write(
    path: Path,
    fields: list[bytes],
    vocabulary: int,
    more: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Write a network of llama's kind; `more` are the shapes of tensors that not every one has."""
    square = (WIDTH, WIDTH)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (WIDTH, vocabulary),
        "output": (WIDTH, vocabulary),
    }
    shapes |= {f"blk.0.attn_{part}": square for part in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{part}": (WIDTH, FEED_FORWARD) for part in ("gate", "up")}
    shapes["blk.0.ffn_down"] = (FEED_FORWARD, WIDTH)
    shapes |= dict.fromkeys(("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"), (WIDTH,))
    shapes |= more or {}
    _write_tensors(path, fields, {f"{name}.weight": shape for name, shape in shapes.items()})


def _write_tensors(path: Path, fields: list[bytes], shapes: Mapping[str, tuple[int, ...]]) -> None:
    dice, tensors, data = random.Random(3), [], b""
    for name, shape in shapes.items():
        count = math.prod(shape)
        norm, spread = name.endswith("norm.weight"), 1.0 if name == "output.weight" else 0.2
        weights = array("f", (1.0 if norm else dice.gauss(0, spread) for _ in range(count)))
        if name == "output.weight":
            weights[WIDTH * _FIRST_BYTE : WIDTH * (_FIRST_BYTE + 256)] = array("f", [0.0]) * (256 * WIDTH)  # fmt: skip
        described = _text(name) + struct.pack("<I", len(shape))
        described += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", 0, len(data))
        tensors.append(described)
        data += weights.tobytes() + b"\0" * (-len(weights) * 4 % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    head += b"".join(fields) + b"".join(tensors)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _field(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _number(name: str, value: int) -> bytes:
    return _field(name, _U32, struct.pack("<I", value))


def _list(name: str, kind: int, values: list[bytes]) -> bytes:
    return _field(name, _ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(values))
