"""
The memory of GPUs, in a process that has none of their libraries.

A GPU counts only where something that is installed computes on it: llama.cpp, whose usual wheel is for the processor alone, or torch.
NVIDIA's tell their memory through the library of their driver; others as llama.cpp sees them, once.

Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars (CUDA_VISIBLE_DEVICES)
"""

import ctypes
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

from unilect.runtime.child_environment import child_environment

_NODES = ("/dev/nvidia0", "/dev/kfd", "/dev/dri")  # NVIDIA's, AMD's, and any that draws
_LIBRARY = "libnvidia-ml.so.1"
_LLAMA = "unilect.engines.gguf._gpu_child"
_ASK_S = 20.0  # some tenths of a second are usual; a driver may wake up
_UUID_BYTES = 96


class GpuMemory(NamedTuple):
    """The bytes of one GPU, and the identifier that its driver has for it."""

    free: int
    total: int
    uuid: str = ""


class _Memory(ctypes.Structure):
    """The answer of nvmlDeviceGetMemoryInfo."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def gpu_memory(torch: bool = True, llama: bool = True) -> list[GpuMemory] | None:
    """
    Return the memory of the GPUs that models can be computed on, none where there are none; None where one of them does not tell.

    Args:
        torch, llama: By transformers, and by llama.cpp.
    """
    told = nvidia_memory(_LIBRARY)
    if not told and not any(Path(node).exists() for node in _NODES):
        return []
    own = _llama_gpus() if llama else ()
    if own == () and not (torch and _torch_has_gpus()):
        return []
    if told:
        return _choose_visible(told, child_environment().get("CUDA_VISIBLE_DEVICES"))
    return list(own) if own else None


@cache
def _llama_gpus() -> tuple[GpuMemory, ...] | None:
    """Ask llama.cpp for its GPUs, in a process of its own: to load it takes 100 MB. None where it does not answer."""
    command = [sys.executable, "-m", _LLAMA]
    try:
        told = subprocess.check_output(
            command,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_ASK_S,
        )
        sizes = msgspec.json.decode(told, type=list[tuple[int, int]])
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        return None
    return tuple(GpuMemory(free, total) for free, total in sizes)


@cache
def _torch_has_gpus() -> bool:
    """Return True if a torch is installed that was built for GPUs."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    folder = Path(spec.origin).parent / "lib"
    return any((folder / f"libtorch_{name}.so").exists() for name in ("cuda", "hip"))


def nvidia_memory(library: str) -> list[GpuMemory]:
    """Ask NVIDIA's library; none where it is not there, or fails."""
    try:
        return _ask(_open(library))
    except (OSError, AttributeError):  # no library, or an older one
        return []


@cache  # to open it takes a driver that sleeps up to a second, and a server's start asks once for each model
def _open(library: str) -> ctypes.CDLL:
    """
    Open NVIDIA's library, for as long as this process runs.

    Raises:
        OSError, AttributeError: It is not there, or fails. The next call tries again: the driver may be loaded by then.
    """
    nvml = ctypes.CDLL(library)
    if nvml.nvmlInit_v2() != 0:
        raise OSError("the driver is not there")
    return nvml


def _ask(nvml: ctypes.CDLL) -> list[GpuMemory]:
    count, found = ctypes.c_uint(), list[GpuMemory]()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    for number in range(count.value):
        device, memory = ctypes.c_void_p(), _Memory()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(device)) != 0:
            continue  # one that is lost
        uuid = ctypes.create_string_buffer(_UUID_BYTES)
        nvml.nvmlDeviceGetUUID(device, uuid, ctypes.c_uint(_UUID_BYTES))
        if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0:
            found.append(
                GpuMemory(memory.free, memory.total, uuid.value.decode("ascii", "replace"))
            )
    return found


def _choose_visible(gpus: list[GpuMemory], visible: str | None) -> list[GpuMemory] | None:
    """
    Choose the GPUs that CUDA shows: by their numbers or the beginnings of their identifiers, up to the first that is none.

    Args:
        visible: The variable.

    Returns:
        None where it names a part of a GPU, whose memory nobody tells here.
    """
    if visible is None:
        return gpus
    found = list[GpuMemory]()
    for word in map(str.strip, visible.split(",")):
        if word.startswith("MIG"):
            return None
        named = [one for one in gpus if word and one.uuid.startswith(word)]
        if word.isdecimal():
            named = gpus[int(word[:9]) :]
        if not named:
            break
        found.append(named[0])
    return found
