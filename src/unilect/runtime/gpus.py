"""
The memory of GPUs, in a process that has none of their libraries: NVIDIA's tell it through the library of their driver.

Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

_NODES = ("/dev/nvidia0", "/dev/kfd", "/dev/dri")  # NVIDIA's, AMD's, and any that draws
_LIBRARY = "libnvidia-ml.so.1"


class GpuMemory(NamedTuple):
    """The bytes of one GPU."""

    free: int
    total: int


class _Memory(ctypes.Structure):
    """The answer of nvmlDeviceGetMemoryInfo."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def gpu_memory(library: str = _LIBRARY) -> list[GpuMemory] | None:
    """Return the memory of all GPUs of this machine, none where it has none; None where there may be GPUs that do not tell."""
    if found := _read(library):
        return found
    return None if any(Path(node).exists() for node in _NODES) else []


def _read(library: str) -> list[GpuMemory]:
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
        if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0:
            found.append(GpuMemory(memory.free, memory.total))
    return found
