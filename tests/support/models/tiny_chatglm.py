"""
A chatglm.cpp model of a few hundred kilobytes that says what a test tells it to say, run by the real library.

Its layers add nothing, so a token alone decides which comes next: the output's row of each token to be said looks like the
embedding of the token before it. What is said begins after `<|assistant|>`, and after a colon for plain completions and ChatGLM2.

Source: https://github.com/li-plus/chatglm.cpp/blob/main/chatglm_cpp/convert.py (the file),
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto (the tokenizer in it)
"""

import importlib.util
import itertools
import os
import random
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

HIDDEN, HEADS, INTERMEDIATE = 64, 2, 32
SURE = 20.0  # the logit of the token that is to come; others are near 0
_CHARACTERS = [chr(code) for code in range(33, 127)] + ["▁", *"你好中国北京"]
_SPECIAL = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop", "system", "user", "assistant", "observation")  # fmt: skip
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
EOS, USER, OBSERVATION = "</s>", "<|user|>", "<|observation|>"
AGAIN = "again"  # the last token over and over
_COLON_END = "<0x9A>"  # the last byte of a Chinese colon, with which ChatGLM2's prompts end


def need_library() -> None:
    """Skip what runs the library where it is not installed; continuous integration has to have it."""
    if importlib.util.find_spec("chatglm_cpp") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("chatglm-cpp is not installed", pytrace=False)
        pytest.skip("chatglm-cpp is not installed; scripts/extras builds it")


def write(
    path: Path,
    says: Sequence[str | bytes],
    end: str = EOS,
    *,
    context: int = 512,
    instead: str | None = None,
    family: int = 3,
) -> Path:
    """
    Write a model.

    Args:
        says: Its answer's tokens, none of them twice; bytes are tokens that are one byte of a character.
        end: The token after them, or AGAIN.
        instead: A token that comes as likely as the first, and is followed like it.
        family: 3 for ChatGLM3, 2 for ChatGLM2.
    """
    said = [_byte(item) if isinstance(item, bytes) else item.replace(" ", "▁") for item in says]
    other = [] if instead is None else [instead.replace(" ", "▁")]
    pieces = _pieces([piece for piece in [*said, *other] if not piece.startswith("<0x")])
    ids = {piece: id for id, piece in enumerate(pieces)}
    special = {f"<|{name}|>": len(ids) + n for n, name in enumerate(_SPECIAL)}
    chain = [ids[piece] for piece in said]
    starts = (special["<|assistant|>"], ids[":"], ids[_COLON_END])
    follows = dict.fromkeys(starts, chain[0]) | dict(itertools.pairwise(chain))
    follows[chain[-1]] = chain[-1] if end == AGAIN else (ids | special)[end]
    pairs = [*follows.items(), *((before, ids[piece]) for piece in other for before in starts)]
    pairs += [(ids[piece], follows[chain[0]]) for piece in other]
    vocabulary = len(ids) + len(_SPECIAL) + 7  # real models have a padding, too
    with path.open("wb") as file:
        file.write(b"ggml" + struct.pack("<2i", family, 2))
        head = (vocabulary, HIDDEN, HEADS, 1, 1, INTERMEDIATE)
        file.write(struct.pack("<7if", 0, *head, 1e-5))
        file.write(struct.pack("<ifiii", 0, 10000.0, context, ids[EOS], 0))
        proto = _tokenizer(pieces)
        file.write(struct.pack("<i", len(proto)) + proto)
        for name, shape, values in _tensors(vocabulary, pairs):
            file.write(struct.pack("<i", len(name)) + name.encode())
            file.write(struct.pack(f"<{len(shape) + 2}i", len(shape), *shape, 0))
            file.write(b"\0" * (-file.tell() % 16))
            file.write(values.tobytes())
    return path


def _tensors(
    vocabulary: int, pairs: list[tuple[int, int]]
) -> list[tuple[str, tuple[int, ...], "array[float]"]]:
    dice = random.Random(0)
    embeddings = [[dice.choice((-1.0, 1.0)) for _ in range(HIDDEN)] for _ in range(vocabulary)]
    output = [[0.0] * HIDDEN for _ in range(vocabulary)]
    for before, after in pairs:
        for i, value in enumerate(embeddings[before]):
            output[after][i] += SURE / HIDDEN * value
    group = HIDDEN + 2 * (HIDDEN // HEADS)
    zeros = {
        "self_attention.query_key_value.weight": (group, HIDDEN),
        "self_attention.query_key_value.bias": (group,),
        "self_attention.dense.weight": (HIDDEN, HIDDEN),
        "mlp.dense_h_to_4h.weight": (2 * INTERMEDIATE, HIDDEN),
        "mlp.dense_4h_to_h.weight": (HIDDEN, INTERMEDIATE),
    }
    ones = array("f", [1.0] * HIDDEN)
    layer = "transformer.encoder.layers.0."
    tensors = [("transformer.embedding.word_embeddings.weight", (vocabulary, HIDDEN), _flat(embeddings))]  # fmt: skip
    for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
        tensors.append((layer + name, (HIDDEN,), ones))
    for name, shape in zeros.items():
        size = shape[0] * (shape[1] if len(shape) == 2 else 1)
        tensors.append((layer + name, shape, array("f", [0.0] * size)))
    tensors.append(("transformer.encoder.final_layernorm.weight", (HIDDEN,), ones))
    tensors.append(("transformer.output_layer.weight", (vocabulary, HIDDEN), _flat(output)))
    return tensors


def _flat(rows: list[list[float]]) -> "array[float]":
    return array("f", [value for row in rows for value in row])


def _pieces(words: list[str]) -> list[str]:
    begin = ["<unk>", "<s>", EOS, *(_byte(bytes([value])) for value in range(256)), *_CHARACTERS]
    return begin + [word for word in words if word not in begin]


def _byte(value: bytes) -> str:
    return f"<0x{value[0]:02X}>"


def _tokenizer(pieces: list[str]) -> bytes:
    """A sentencepiece model: BPE with bytes for what it does not know, a blank before every text, no blank ever dropped."""
    proto = b""
    for id, piece in enumerate(pieces):
        kind = _UNKNOWN if id == 0 else _CONTROL if id < 3 else _BYTE if id < 259 else _NORMAL
        proto += _field(1, _field(1, piece.encode()) + b"\x15" + struct.pack("<f", -id) + _number(3, kind))  # fmt: skip
    proto += _field(2, _number(3, 2) + _number(35, 1))
    return proto + _field(3, _field(1, b"identity") + _number(3, 1) + _number(4, 0) + _number(5, 1))


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
