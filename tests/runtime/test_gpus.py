"""Tests of unilect.runtime.gpus, with a library that answers as NVIDIA's does."""

import shutil
import subprocess
from pathlib import Path

import pytest

from unilect.runtime import gpus
from unilect.runtime.gpus import GpuMemory, gpu_memory

SOURCE = """
struct memory { unsigned long long total, free, used; };
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) {
    *device = (void *)((unsigned long long)number + 0x700000000000ull);
    return number == 1 ? 15 : 0;
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *found) {
    unsigned long long number = (unsigned long long)device - 0x700000000000ull;
    found->total = 80000000000ull + number;
    found->free = 70000000000ull + number;
    found->used = 1;
    return 0;
}
"""


def library(folder: Path, init: int) -> str:
    """A library of the driver's, compiled; `init` is what its start returns."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler")
    (folder / "nvml.c").write_text(SOURCE)
    command = [compiler, f"-DINIT={init}", "-shared", "-fPIC", "-o", "nvml.so", "nvml.c"]
    subprocess.run(command, cwd=folder, check=True)
    return str(folder / "nvml.so")


def test_memory_of_gpus(tmp_path: Path) -> None:
    """The memory of each GPU is told by the library of its driver; one that is lost is left out."""
    gb = 10**9

    assert [GpuMemory(70 * gb, 80 * gb), GpuMemory(70 * gb + 2, 80 * gb + 2)] == gpu_memory(library(tmp_path, 0))  # fmt: skip


def test_a_driver_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library is not there, or fails, there are no GPUs, or those that a device stands for are not known."""
    monkeypatch.setattr(gpus, "_NODES", ())
    assert [] == gpu_memory(library(tmp_path, 9))
    assert [] == gpu_memory(str(tmp_path / "none.so"))
    assert [] == gpu_memory("libm.so.6")
    monkeypatch.setattr(gpus, "_NODES", (str(tmp_path),))

    assert gpu_memory(str(tmp_path / "none.so")) is None
