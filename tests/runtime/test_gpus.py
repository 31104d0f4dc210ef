"""Tests of unilect.runtime.gpus, with a library that answers as NVIDIA's does."""

import shutil
import subprocess
from pathlib import Path

import pytest

from unilect.residency.budget import find_budget
from unilect.runtime import gpus
from unilect.runtime.gpus import GpuMemory, gpu_memory, nvidia_memory

SOURCE = """
#include <stdio.h>
struct memory { unsigned long long total, free, used; };
int nvmlInit_v2(void) { return INIT; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **device) {
    *device = (void *)((unsigned long long)number + 0x700000000000ull);
    return number == 1 ? 15 : 0;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    snprintf(text, size, "GPU-%llu", (unsigned long long)device - 0x700000000000ull);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *found) {
    unsigned long long number = (unsigned long long)device - 0x700000000000ull;
    found->total = 80000000000ull + number;
    found->free = 70000000000ull + number;
    found->used = 1;
    return 0;
}
"""
GB = 10**9
ONE, OTHER = GpuMemory(70 * GB, 80 * GB, "GPU-0"), GpuMemory(70 * GB + 2, 80 * GB + 2, "GPU-2")


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
    assert [ONE, OTHER] == nvidia_memory(library(tmp_path, 0))


def test_a_driver_that_fails(tmp_path: Path) -> None:
    """Where the library is not there, or fails, there are no GPUs."""
    assert [] == nvidia_memory(library(tmp_path, 9))
    assert [] == nvidia_memory(str(tmp_path / "none.so"))
    assert [] == nvidia_memory("libm.so.6")


def test_gpus_that_nothing_computes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With llama.cpp's usual wheel and no torch for GPUs, those that are there count nothing: a picture's GPU, or NVIDIA's."""
    monkeypatch.setattr(gpus, "_torch_has_gpus", lambda: False)
    monkeypatch.setattr(gpus, "_NODES", (str(tmp_path),))
    assert [] == gpu_memory()
    assert find_budget() is not None
    monkeypatch.setattr(gpus, "_LIBRARY", library(tmp_path, 0))

    assert [] == gpu_memory()


def test_who_computes_on_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's driver tells what llama.cpp or torch may use; of another maker's GPUs llama.cpp, or nobody."""
    monkeypatch.setattr(gpus, "_NODES", (str(tmp_path),))
    monkeypatch.setattr(gpus, "_torch_has_gpus", lambda: True)
    assert gpu_memory() is None
    assert [] == gpu_memory(torch=False)
    monkeypatch.setattr(gpus, "_llama_gpus", lambda: (GpuMemory(1, 2),))
    assert [GpuMemory(1, 2)] == gpu_memory(torch=False)
    assert gpu_memory(llama=False) is None
    monkeypatch.setattr(gpus, "_llama_gpus", lambda: None)
    assert gpu_memory(torch=False) is None
    monkeypatch.setattr(gpus, "_LIBRARY", library(tmp_path, 0))

    assert [ONE, OTHER] == gpu_memory() == gpu_memory(llama=False)
    monkeypatch.setattr(gpus, "_torch_has_gpus", lambda: False)
    assert [] == gpu_memory(llama=False)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1,0", [OTHER, ONE]),
        ("GPU-2", [OTHER]),
        ("0, 7, 1", [ONE]),
        ("", []),
        ("-1", []),
        (f"{'9' * 5000}", []),
        ("MIG-1/2/3", None),
    ],
)
def test_visible_gpus(
    visible: str, expected: list[GpuMemory] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what CUDA_VISIBLE_DEVICES shows counts, up to the first word that is no GPU; of a part of one nobody tells."""
    monkeypatch.setattr(gpus, "_llama_gpus", lambda: (ONE,))
    monkeypatch.setattr(gpus, "nvidia_memory", lambda library: [ONE, OTHER])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert expected == gpu_memory()
