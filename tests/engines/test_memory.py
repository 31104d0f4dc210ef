"""Tests of unilect.engines._memory, on files as the kernel writes them."""

from pathlib import Path

import pytest

from unilect.engines._gguf_child import cache_ram_mib
from unilect.engines._memory import MIB, free_bytes


def written(root: Path, files: dict[str, str]) -> Path:
    """A root with these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n"}
CONTAINER = {
    "sys/fs/cgroup/memory.current": "900000\n",
    "sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 100000\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        (MACHINE, 4_096_000),
        (MACHINE | CONTAINER | {"sys/fs/cgroup/memory.max": "max\n"}, 4_096_000),
        (MACHINE | CONTAINER | {"sys/fs/cgroup/memory.max": "1000000\n"}, 200_000),
        (MACHINE | CONTAINER | {"sys/fs/cgroup/memory.max": "9000000\n"}, 4_096_000),
        (MACHINE | CONTAINER | {"sys/fs/cgroup/memory.max": "1000\n"}, 0),
    ],
)
def test_what_is_free(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    """The machine's free memory, or what a container's limit leaves where that is less; files that can be dropped are free."""
    assert expected == free_bytes(written(tmp_path, files))


def test_this_machine() -> None:
    """Where there is a /proc, some memory is free."""
    free = free_bytes()

    assert (free is not None and free > MIB) == Path("/proc/meminfo").exists()


@pytest.mark.parametrize(
    ("given", "free_mib", "expected"),
    [
        (None, 8000, 1000),
        (None, 10**6, 8192),
        (None, None, 8192),
        (0, 8000, 0),
        (20_000, 1, 20_000),
    ],
)
def test_the_prompt_cache_of_llama_cpp(
    given: int | None, free_mib: int | None, expected: int
) -> None:
    """It is as large as it was set, else an eighth of what is free, and never more than llama.cpp itself would take."""
    assert expected == cache_ram_mib(given, None if free_mib is None else free_mib * MIB)
