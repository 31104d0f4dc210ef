"""
The memory that a GGUF model needs, from the header of its file: logged at start, and checked before loading.

The sizes are at least what llama.cpp takes, so that nothing is refused which would run: layers with a window count for as little as
they may, and what is not known for nothing.

Source: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-kv-cache.cpp
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:  # the child needs neither, and is to start soon
    from unilect.config.model import ModelConfig
    from unilect.engines.gguf._file import GgufHead

MAX_CELLS = 2**31 - 1  # llama.cpp counts the tokens of all requests in an int32
_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32, "q4_0": 18 / 32,
}  # fmt: skip
_WINDOWED = 6  # of so many layers one sees the whole context, in the model with the most windows
_SPLIT = re.compile(r"^(.*)-00001-of-(\d{5})\.gguf$")


class Needs(Struct, frozen=True):
    """
    What a model takes.

    Attributes:
        weights: Bytes of its files, which are mapped.
        slot: Bytes of the keys and values of one request with the whole context.
        parallel: How many of these there are.
        context: Their length in tokens.
    """

    weights: int
    slot: int
    parallel: int
    context: int

    @property
    def cache(self) -> int:
        """Bytes of all keys and values."""
        return self.slot * self.parallel


def needs(
    head: "GgufHead", path: Path, config: "ModelConfig", context: int, embedding: bool
) -> Needs:
    """What a file takes with these settings."""
    per_token = 0.0
    for heads in _kv_heads(head):
        key, value = _width(head, "key"), _width(head, "value")
        per_token += heads * (
            key * _BYTES[config.cache_type_k] + value * _BYTES[config.cache_type_v]
        )
    parallel = 1 if embedding else config.parallel
    return Needs(_size(path, head.size_bytes), int(per_token * context), parallel, context)


def complaint(
    name: str, need: Needs, free: int | None, total: int | None, reserved: int = 0
) -> str:
    """
    Why a model cannot be loaded, with what to change; empty where it can.

    Args:
        free: Bytes that are free, of GPUs too; None where nobody knows.
        total: Bytes that there are.
        reserved: Bytes of those that are free which other models take that are being loaded.
    """
    tokens = need.context * need.parallel
    if tokens > MAX_CELLS:
        return (
            f"{name}: `context` ({need.context}) times `parallel` ({need.parallel}) is {tokens} tokens, more than the "
            f"{MAX_CELLS} that llama.cpp can hold. Lower `context` or `parallel`."
        )
    sizes = told(need)
    if free is not None and need.cache > free - reserved:
        others = f", of which other models that start now take {_gigabytes(reserved)}"
        return (
            f"{name} does not fit into memory: {sizes}, and {_gigabytes(free)} are free{others if reserved else ''}. Lower `context` or `parallel`, "
            'or set `cache_type_k` and `cache_type_v` to "q8_0".'
        )
    if total is not None and need.cache + need.weights > total:
        return (
            f"{name} does not fit into memory: {sizes}, and the machine has {_gigabytes(total)}. Lower `context` or "
            "`parallel`, or take a smaller model or one with fewer bits."
        )
    return ""


def doubt(name: str, need: Needs, free: int | None) -> str:
    """What the operator should know of a model that can be loaded; empty where there is nothing."""
    free = None if free is None else max(0, free)
    if free is None or need.cache + need.weights <= free:
        return ""
    return (
        f"{name}: memory is short: {told(need)}, and {_gigabytes(free)} are free. Its weights are read from the disk again and "
        "again, which is slow. Lower `context` or `parallel`, or take a smaller model."
    )


def told(need: Needs) -> str:
    """The sizes in words."""
    return (
        f"weights {_gigabytes(need.weights)}, KV cache {_gigabytes(need.cache)} "
        f"(`context` {need.context} x `parallel` {need.parallel})"
    )


def where(head: "GgufHead", gpus: list[str], layers: int | None, threads: int) -> str:
    """
    Where a model runs, in words.

    Args:
        gpus: What llama.cpp has.
        layers: The option `gpu_layers`.
    """
    if not gpus or layers == 0:
        unused = f" ({', '.join(gpus)} not used: `gpu_layers` is 0)" if gpus else ""
        return f"the CPU, {threads} thread{'s' if threads > 1 else ''}{unused}"
    every = _number(head, "block_count") + 1  # the output counts as one
    if layers is None:
        return f"{', '.join(gpus)}, as many of {every} layers as fit"
    part = every if layers == -1 else min(every, layers)
    return f"{', '.join(gpus)}, {part} of {every} layers"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _kv_heads(head: "GgufHead") -> list[float]:
    """Heads of keys and values, layer by layer; a layer whose size is not known counts for none."""
    layers = _number(head, "block_count")
    if _field(head, "ssm.state_size") is not None or _field(head, "wkv.head_size") is not None:
        given = _field(head, "attention.head_count_kv")
        return [float(one) for one in given] if isinstance(given, list) else []
    given = _field(head, "attention.head_count_kv")
    if given is None:
        given = _field(head, "attention.head_count")
    if isinstance(given, list):
        heads = [float(one) for one in given]
    else:
        heads = [float(given)] * layers if isinstance(given, int) else []
    windowed = _field(head, "attention.sliding_window") or _field(head, "attention.chunk_size")
    return heads[::_WINDOWED] if windowed else heads


def _width(head: "GgufHead", what: str) -> float:
    """Numbers in a key, or a value, of one head."""
    if what == "value" and _field(head, "attention.kv_lora_rank") is not None:
        return 0.0  # kept within the keys
    given = _number(head, f"attention.{what}_length")
    heads = _field(head, "attention.head_count")
    most = max(heads, default=0) if isinstance(heads, list) else heads
    if given or not isinstance(most, int) or most < 1:
        return float(given)
    return _number(head, "embedding_length") / most


def _field(head: "GgufHead", name: str) -> Any:
    return head.fields.get(f"{head.architecture}.{name}")


def _number(head: "GgufHead", name: str) -> int:
    value = _field(head, name)
    return value if isinstance(value, int) and value > 0 else 0


def _size(path: Path, size: int) -> int:
    """Bytes of a file and of those that it is split into."""
    match = _SPLIT.match(path.name)
    if match is None:
        return size
    parts = (
        path.with_name(f"{match[1]}-{number:05}-of-{match[2]}.gguf")
        for number in range(2, int(match[2]) + 1)
    )
    return size + sum(part.stat().st_size for part in parts if part.is_file())
