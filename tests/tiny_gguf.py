"""
A tiny GGUF model with a SentencePiece vocabulary that puts a blank before a text, as Llama 2, Mistral and Phi-3 have it.

Its weights are random: it writes anything that it may, so what comes out right was bound by a grammar. Only single bytes, whose
rows are zero, are as rare as with a real model. Seeded, made in a moment.
"""

import random
import string
import struct
from array import array
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


def make(path: Path, template: str = TEMPLATE, pooling: int | None = None) -> Path:
    """Write the model, and return its path."""
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
    scores = [-float(number) if kind == _NORMAL else 0.0 for number, (_, kind) in enumerate(tokens)]
    fields = [
        _field("general.architecture", _STRING, _text("llama")),
        _number("llama.context_length", CONTEXT),
        _number("llama.embedding_length", WIDTH),
        _number("llama.block_count", 1),
        _number("llama.feed_forward_length", FEED_FORWARD),
        _number("llama.attention.head_count", HEADS),
        _number("llama.rope.dimension_count", WIDTH // HEADS),
        _field("llama.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5)),
        _field("tokenizer.ggml.model", _STRING, _text("llama")),
        _list("tokenizer.ggml.tokens", _STRING, [_text(token) for token, _ in tokens]),
        _list("tokenizer.ggml.scores", _F32, [struct.pack("<f", score) for score in scores]),
        _list("tokenizer.ggml.token_type", _I32, [struct.pack("<i", kind) for _, kind in tokens]),
        _number("tokenizer.ggml.unknown_token_id", 0),
        _number("tokenizer.ggml.bos_token_id", 1),
        _number("tokenizer.ggml.eos_token_id", 2),
        _field("tokenizer.ggml.add_bos_token", _BOOL, b"\1"),
        _field("tokenizer.ggml.add_space_prefix", _BOOL, b"\1"),
        _field("tokenizer.chat_template", _STRING, _text(template)),
    ]
    if pooling is not None:
        fields.append(_number("llama.pooling_type", pooling))
    _write(path, fields, len(tokens))
    return path


def _write(path: Path, fields: list[bytes], vocabulary: int) -> None:
    square = (WIDTH, WIDTH)
    shapes = {"token_embd": (WIDTH, vocabulary), "output": (WIDTH, vocabulary)}
    shapes |= {f"blk.0.attn_{part}": square for part in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{part}": (WIDTH, FEED_FORWARD) for part in ("gate", "up")}
    shapes["blk.0.ffn_down"] = (FEED_FORWARD, WIDTH)
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    dice, tensors, data = random.Random(3), [], b""
    for name, shape in [*shapes.items(), *((name, (WIDTH,)) for name in norms)]:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        norm, spread = len(shape) == 1, 1.0 if name == "output" else 0.2
        weights = array("f", (1.0 if norm else dice.gauss(0, spread) for _ in range(count)))
        if name == "output":
            weights[WIDTH * _FIRST_BYTE : WIDTH * (_FIRST_BYTE + 256)] = array("f", [0.0]) * (256 * WIDTH)  # fmt: skip
        described = _text(f"{name}.weight") + struct.pack("<I", len(shape))
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
