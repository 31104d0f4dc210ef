"""
The memory that a GGUF model needs, from the header of its file: logged at start, and checked before loading.

The sizes are at least what llama.cpp takes, so that nothing is refused which would run: layers with a window count for as little as
they may, and what is not known for nothing.

Source: https://github.com/ggml-org/llama.cpp/blob/master/src/llama-kv-cache.cpp
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from unilect.engines.gguf._layers import cells, layers, number
from unilect.runtime.memory import MIB, processor_words

if TYPE_CHECKING:  # the child needs neither, and is to start soon
    from unilect.config.model import ModelConfig
    from unilect.engines.gguf._file import GgufHead

MAX_CELLS = 2**31 - 1  # llama.cpp counts the tokens of all requests in an int32
STEP = 64  # tokens that are read at once on a CPU: a prompt can be given up between two steps, and no larger one reads faster
MOST_CHECKPOINTS = 8  # those of the last two or three turns
_SHARE = 8  # of what is left, for idle conversations, and as much for checkpoints
_MOST_MIB = 8192  # llama.cpp's own, of idle conversations
_PROCESS = 40 * MIB  # Python, llama.cpp and its server
_TOKEN = 160  # bytes of each token in the vocabulary
#: Bytes of a weight in the types that llama.cpp copies into an order that suits the processor, by the processor's word for what that needs.
_REPACKED = {
    "avx2": {2: 18 / 32, 12: 144 / 256, 20: 18 / 32, 39: 17 / 32},
    "avx512f": {10: 84 / 256},
    "asimddp": {2: 18 / 32, 8: 34 / 32, 12: 144 / 256, 13: 176 / 256, 14: 210 / 256, 20: 18 / 32, 39: 17 / 32},
}  # fmt: skip


class Needs(Struct, frozen=True):
    """
    The memory that a model takes, in bytes.

    Attributes:
        weights: Its files, which are mapped.
        slot: The keys, values and state of one request with the whole context.
        parallel: How many of these there are.
        context: Their length in tokens.
        repacked: Weights that are copied beside the files.
        work: What is calculated with, adapters and projector.
        checkpoint: One checkpoint of a slot; 0 for a model that needs none.
        checkpoints: How many each slot keeps.
        prompts: Idle conversations, at most.
        words: The vocabulary, which `work` has, too.
    """

    weights: int
    slot: int
    parallel: int
    context: int
    repacked: int = 0
    work: int = 0
    checkpoint: int = 0
    checkpoints: int = 1
    prompts: int = 0
    words: int = 0

    @property
    def cache(self) -> int:
        """All keys and values."""
        return self.slot * self.parallel

    @property
    def own(self) -> int:
        """The bytes that are allocated while the model loads."""
        return self.cache + self.repacked + self.work

    @property
    def loaded(self) -> int:
        """The bytes of the process once the model is loaded."""
        return self.weights + self.own + _PROCESS

    @property
    def grows(self) -> int:
        """The bytes that come while it answers, at most."""
        return self.checkpoint * self.checkpoints * self.parallel + self.prompts

    def with_draft(self, draft: "Needs") -> "Needs":
        """Return the needs together with those of a draft model, which has as many requests of the same length."""
        names = ("weights", "slot", "repacked", "work", "checkpoint", "words")
        both = {name: getattr(self, name) + getattr(draft, name) for name in names}
        return msgspec.structs.replace(self, **both)


def needs(head: "GgufHead", config: "ModelConfig", context: int, embedding: bool) -> Needs:
    """Reckon the memory of a file with these settings, before `budget`."""
    kept = layers(head, config.cache_type_k, config.cache_type_v)
    parallel = 1 if embedding else config.most_parallel
    step = context if embedding else min(512, max(config.batch or STEP, parallel))
    wide = max(number(head, "feed_forward_length"), number(head, "expert_feed_forward_length"))
    work = step * (12 * number(head, "embedding_length") + 8 * wide + 2 * cells(context))
    work += 24 * step * number(head, "ssm.inner_size") + 2 * kept.widest * parallel
    words = (4 * parallel + _TOKEN) * head.vocabulary
    from unilect.config.paths import adapter_of  # the child does without
    from unilect.engines.gguf._draft import draft_of
    from unilect.engines.gguf._file import read_model

    beside = [adapter_of(text)[0] for text in config.lora]
    beside += [config.mmproj] if config.mmproj and not embedding else []
    takes = Needs(
        weights=head.size_bytes,
        slot=kept.slot(context, step),
        parallel=parallel,
        context=context,
        repacked=_count_repacked(head) if config.gpu_layers in (None, 0) and config.repack else 0,
        work=work + words + sum(Path(file).stat().st_size for file in beside),
        words=words,
        checkpoint=0 if embedding else kept.checkpoint(context, step),
    )
    draft = None if embedding else draft_of(config)
    if draft is None:
        return takes
    alone = msgspec.structs.replace(config, speculative=None, draft_max=None, lora=[], mmproj=None)
    return takes.with_draft(needs(read_model(draft), alone, context, embedding=False))


def budget(
    need: Needs,
    cache_ram_mib: int | None,
    free: int | None,
    engines: int = 1,
    memory: int | None = None,
) -> Needs:
    """
    Return the needs with what may be remembered beside the slots: a share of what is left where the model is loaded, unless somebody says.

    Args:
        cache_ram_mib: The option.
        free: Bytes that are free, before it is loaded; None where nobody knows.
        engines: How many engines share that.
        memory: What they may take together, if the operator says.
    """
    free = memory if free is None or (memory is not None and memory < free) else free
    left = None if free is None else max(0, free - need.own - need.weights)
    share = _MOST_MIB // engines
    share = share if left is None else min(share, left // (_SHARE * engines) // MIB)
    prompts = share if cache_ram_mib is None else cache_ram_mib
    all_at_once = max(1, need.checkpoint * need.parallel)
    count = max(1, min(MOST_CHECKPOINTS, share * MIB // all_at_once))
    return msgspec.structs.replace(need, checkpoints=count, prompts=max(0, prompts) * MIB)


def size_error(name: str, need: Needs, total: int | None) -> str:
    """
    Return the reason why a model can never be loaded on this machine, with what to change; empty where it may.

    Args:
        total: Bytes of memory, free or not, of GPUs too; None where unknown.
    """
    tokens = need.context * need.parallel
    if tokens > MAX_CELLS:
        return (
            f"{name}: `context` ({need.context}) times `parallel` ({need.parallel}) is {tokens} tokens, more than the "
            f"{MAX_CELLS} that llama.cpp can hold. Lower `context` or `parallel`."
        )
    if total is None or need.cache + need.weights <= total:
        return ""
    can = "Take" if need.weights > total else "Lower `context` or `parallel`, or take"
    return (
        f"{name} can never fit into the memory of this machine: {describe(need)}, and it has {_gigabytes(total)}. {can} a smaller model "
        "or one with fewer bits."
    )


def memory_error(name: str, need: Needs, free: int | None, reserved: int = 0) -> str:
    """
    Return the reason why a model cannot be loaded now, with what to change; empty where it can.

    Args:
        free: Bytes that are free, of GPUs too; None where unknown.
        reserved: Free bytes that other models take which are being loaded.
    """
    if free is None or need.cache + need.repacked <= free - reserved:
        return ""
    others = f", of which other models that start now take {_gigabytes(reserved)}"
    return (
        f"{name} does not fit into memory: {describe(need)}, and {_gigabytes(free)} are free{others if reserved else ''}. Lower `context` or `parallel`, "
        'or set `cache_type_k` and `cache_type_v` to "q8_0".'
    )


def memory_warning(name: str, need: Needs, free: int | None) -> str:
    """Return a warning about a model that can be loaded but lacks memory; empty where there is none."""
    free = None if free is None else max(0, free)
    if free is None or need.own + need.weights <= free:
        return ""
    return (
        f"{name}: memory is short: {describe(need)}, and {_gigabytes(free)} are free. Its weights are read from the disk again and "
        "again, which is slow. Lower `context` or `parallel`, or take a smaller model."
    )


def describe(need: Needs) -> str:
    """Return the sizes in words."""
    return (
        f"weights {_gigabytes(need.weights)}, KV cache {_gigabytes(need.cache)} "
        f"(`context` {need.context} x `parallel` {need.parallel})"
    )


def describe_most(need: Needs) -> str:
    """Return the sizes in words, with what may be remembered beside the slots."""
    parts = [f"{_gigabytes(need.prompts)} of idle conversations (`cache_ram_mib`)"]
    if need.checkpoint:
        count = f"{need.checkpoints} for each slot"
        parts.append(f"{_gigabytes(need.grows - need.prompts)} of checkpoints ({count})")
    return f"{describe(need)}; {_gigabytes(need.loaded)} when loaded, at most {_gigabytes(need.loaded + need.grows)} with {' and '.join(parts)}"


def device_summary(head: "GgufHead", gpus: list[str], layers: int | None, threads: int) -> str:
    """
    Describe the device that a model runs on, in words.

    Args:
        gpus: The names of llama.cpp's GPUs.
        layers: The option `gpu_layers`.
    """
    if not gpus or layers == 0:
        unused = f" ({', '.join(gpus)} not used: `gpu_layers` is 0)" if gpus else ""
        return f"the CPU, {threads} thread{'s' if threads > 1 else ''}{unused}"
    every = number(head, "block_count") + 1  # the output counts as one
    if layers is None:
        return f"{', '.join(gpus)}, as many of {every} layers as fit"
    part = every if layers == -1 else min(every, layers)
    return f"{', '.join(gpus)}, {part} of {every} layers"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _count_repacked(head: "GgufHead") -> int:
    """Return bytes of the weights that llama.cpp copies on this processor."""
    words = processor_words()
    sizes = {
        kind: size for word in words & _REPACKED.keys() for kind, size in _REPACKED[word].items()
    }
    return int(sum(count * sizes.get(kind, 0.0) for kind, count in head.matrices.items()))
