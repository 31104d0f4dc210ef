"""
The memory of a transformers model, from the settings of its child, without torch.
"""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from unilect.api.backend import MemoryNeed
from unilect.config.model import ModelConfig
from unilect.core.errors import ModelTooLarge
from unilect.engines.process.loads import Load, LoadRecorder, load_key
from unilect.engines.transformers.model.folder import read_folder
from unilect.engines.transformers.settings import child_settings
from unilect.runtime.gpus import GpuMemory, gpu_memory
from unilect.runtime.memory import MIB, processor_words, total_bytes

#: Bytes of a number in each `dtype` on a processor.
WIDTHS = {"auto": 4, "float32": 4, "bfloat16": 2, "float16": 2}
#: Of each of several GPUs; answers need memory beside the layers.
FOR_WEIGHTS = 0.8
_NARROW = {"8bit": 1.0, "4bit": 0.5}
_PROCESS = 390 * MIB  # Python, torch and transformers
_STEP = 2 * 2**30  # what a step computes, at most
#: The settings that change what a child takes of memory.
_TAKEN_BY = ("context", "parallel", "batch", "dtype", "device", "quantize", "generates", "ranks", "cache_ram_mib", "merge")  # fmt: skip


def load_recorder(settings: dict[str, Any]) -> LoadRecorder:
    """Return what measures the loads of a folder with the settings of its child; on a GPU nobody sees all that it takes."""
    told = {name: settings[name] for name in _TAKEN_BY}
    told |= {name: _version(name) for name in ("torch", "transformers")}
    paths = sorted(Path(settings["path"]).glob("*.safetensors"))
    return LoadRecorder(load_key(paths, told), 0, lambda said: said["device"] == "cpu")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


class Estimate(NamedTuple):
    """The memory that a folder would take: the type of its weights, the tokens of a request, what it takes, and the longest context that fits."""

    quantization: str
    context: int
    need: MemoryNeed
    longest: int


def estimate(path: Path, config: ModelConfig, total: int | None) -> Estimate:
    """
    Estimate the memory of a folder on a processor, of which its configuration and the heads of its weights are enough.

    Args:
        total: Bytes of memory; None where nobody knows.

    Raises:
        ConfigError: It holds no model, or a setting is wrong.
    """
    folder = read_folder(path)
    settings = child_settings(folder, config, None, text="", threads=1, merge=[], engines=1)
    need = need_of(settings, load_recorder(settings).known)
    longest = folder.context
    per_token = settings["cache_values"] * WIDTHS[settings["dtype"]] * config.most_parallel
    if total is not None and per_token:
        longest = max(0, min(longest, (total - need.ready) // per_token))
    dtype = str(folder.text_config.get("dtype") or folder.text_config.get("torch_dtype") or "-")
    return Estimate(dtype, settings["context"], need, longest if longest >= 1 else 0)


def need_of(settings: dict[str, Any], known: Load | None) -> MemoryNeed:
    """
    Return the memory that a child takes with these settings.

    Args:
        known: What was measured before.
    """
    need = reckon_need(settings)
    if known is None:
        return need
    return MemoryNeed(known.ready, max(known.grown, need.grows), measured=True)


def reckon_need(settings: dict[str, Any]) -> MemoryNeed:
    """
    Reckon the memory that a child takes with these settings.

    Args:
        settings: As `child_settings` makes them.
    """
    dtype = settings["dtype"]
    width = WIDTHS[dtype]
    packs = width == 4 or (dtype == "bfloat16" and "avx512_bf16" in processor_words())
    weights = weight_bytes(settings, width, on_processor=True, packs=packs)
    remembered = 2 * settings["context"]  # tokens of cached prompts
    return MemoryNeed(_PROCESS + int(weights), grows_bytes(settings, width, remembered))


def gpu_need(settings: dict[str, Any], gpus: Sequence[GpuMemory]) -> tuple[int, ...]:
    """
    Reckon the weights, keys and values that a child has on each GPU where all have room, as `devices.resolve` chooses them.

    Args:
        settings: As `child_settings` makes them.
        gpus: Those that torch computes on.
    """
    device, width = (
        settings["device"],
        2 if settings["dtype"] == "auto" else WIDTHS[settings["dtype"]],
    )
    weights = weight_bytes(settings, width, on_processor=False, packs=False)
    tokens = settings["context"] * settings["parallel"]
    if device == "cpu" or not gpus:
        return ()
    if device == "auto":
        parts = accumulate(FOR_WEIGHTS * one.total for one in gpus)
        count = next((n for n, part in enumerate(parts, 1) if weights <= part), len(gpus))
        chosen = set(range(count))
    else:
        chosen = {int(number) for number in (device.partition(":")[2] or "0").split(",")}
    each = int((weights + tokens * settings["cache_values"] * width) / len(chosen))
    return tuple(each if number in chosen else 0 for number in range(len(gpus)))


def require_room(name: str, need: MemoryNeed, device: str) -> None:
    """
    Check that a model can be loaded on this machine at all; on a GPU only its child knows.

    Args:
        device: The option.

    Raises:
        ModelTooLarge: It can never fit.
    """
    total = total_bytes()
    if total is None or need.ready <= total or (device != "cpu" and gpu_memory() != []):
        return
    raise ModelTooLarge(
        f"{name} can never fit into the memory of this machine: loaded it takes {need.ready / 1e9:.1f} GB, and there are "
        f'{total / 1e9:.1f} GB. Use `dtype = "bfloat16"`, `quantize`, or a smaller model.'
    )


def weight_bytes(settings: dict[str, Any], width: int, *, on_processor: bool, packs: bool) -> float:
    """
    Return the bytes of the weights when they have been loaded.

    Only linear layers get narrower, and with bitsandbytes not the output. On a processor an output that shares the embeddings'
    weights gets its own, in the order or the bits that are quickest there.

    Args:
        width: Bytes of a number.
        packs: Linear layers get the order that is quickest.
    """
    narrow = _NARROW.get(settings["quantize"] or "", width)
    count = settings["size_bytes"] / settings["stored_bytes"]
    wide = min(count, settings["embedding_values"])
    if on_processor:
        own = settings["generates"] and settings["tied"] and packs
        count += wide if own else 0
    elif not settings["tied"]:
        wide = min(count, wide * 2)
    return float(wide * width + (count - wide) * narrow)


def grows_bytes(settings: dict[str, Any], width: int, remembered: int) -> int:
    """
    Estimate the bytes that come while it answers on a processor: keys and values, twice since they move when they grow, and intermediates.

    Args:
        width: Bytes of a number.
        remembered: Tokens of cached prompts.
    """
    tokens = settings["context"] * settings["parallel"] + remembered
    return int(2 * tokens * settings["cache_values"] * width) + _STEP
