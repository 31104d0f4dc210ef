"""Tests of unilect.runtime.memory, on files as the kernel writes them and on real children."""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.backends.engine import ENGINES_IN_CI, answer, chat, engine, process
from support.backends.tiny_child import Tiny
from unilect.config.server import Config, ModelConfig
from unilect.demo import FOLDER, MODEL
from unilect.engines.transformers.engine import HfEngine
from unilect.models import sources
from unilect.runtime.memory import (
    MIB,
    free_bytes,
    proportional_bytes,
    resident_bytes,
    total_bytes,
)


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


def test_what_a_group_leaves(tmp_path: Path) -> None:
    """The limits of all control groups that a process is in hold, its own and those above it."""
    group = "sys/fs/cgroup/system.slice/x.service"
    files = {
        "proc/self/cgroup": "0::/system.slice/x.service\n",
        f"{group}/memory.max": "3000000\n",
        f"{group}/memory.current": "1000000\n",
        "sys/fs/cgroup/system.slice/memory.max": "max\n",
        "sys/fs/cgroup/system.slice/memory.current": "5\n",
    }

    assert 2_000_000 == free_bytes(written(tmp_path, MACHINE | files))
    assert 3_000_000 == total_bytes(tmp_path)
    above = {"sys/fs/cgroup/system.slice/memory.max": "1000\n"}
    assert 995 == free_bytes(written(tmp_path, above))
    assert 1000 == total_bytes(tmp_path)


@pytest.mark.parametrize("line", ["4:cpu,memory:/docker/x\n0::/\n", "3:memory:/docker/x\n"])
def test_groups_of_version_1(tmp_path: Path, line: str) -> None:
    """Control groups of version 1 limit as those of version 2 do, those above a group, too; one without a limit has a huge number."""
    group = "sys/fs/cgroup/memory/docker"
    files = {
        "proc/self/cgroup": line,
        f"{group}/x/memory.limit_in_bytes": "9223372036854771712\n",
        f"{group}/x/memory.usage_in_bytes": "1000000\n",
        f"{group}/memory.limit_in_bytes": "3000000\n",
        f"{group}/memory.usage_in_bytes": "1500000\n",
        f"{group}/memory.stat": "inactive_file 7\ntotal_inactive_file 100000\n",
    }

    assert 1_600_000 == free_bytes(written(tmp_path, MACHINE | files))
    assert 3_000_000 == total_bytes(tmp_path)


def test_a_container_of_version_1(tmp_path: Path) -> None:
    """A container sees its own group at the top, whatever it is called outside."""
    files = {
        "proc/self/cgroup": "4:memory:/docker/far-away\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "500000\n",
    }

    assert 1_500_000 == free_bytes(written(tmp_path, MACHINE | files))
    assert 2_000_000 == total_bytes(tmp_path)


async def test_the_limit_of_a_child() -> None:
    """A child gets what it said it needs and a margin, and no more; it is the first that the kernel ends."""
    grows = 100 * MIB
    child = Tiny(grows_bytes=grows)
    try:
        await child.process.start()
        assert ["ate"] == await child.ask(f"eat {grows // MIB + 500}")
        assert ["no memory"] == await child.ask("eat 800")
        assert ["hello"] == await child.ask("say hello")
        assert "1000" == Path(f"/proc/{child.process.pid}/oom_score_adj").read_text().strip()
        assert 1 == child.process.starts
    finally:
        await child.aclose()


@pytest.mark.parametrize("kind", ENGINES_IN_CI)
async def test_the_limit_of_an_engine(kind: str) -> None:
    """An engine's child may allocate what its settings call for, not what the machine has, and answers within that."""
    async with engine(kind, parallel=2, cache_ram_mib=16) as model:
        pid = process(model).pid
        assert pid is not None
        limit, _ = resource.prlimit(pid, resource.RLIMIT_DATA)
        said = Path(f"/proc/{pid}/status").read_text()
        taken = int(said.split("VmData:")[1].split()[0]) * 1024
        more = 2048 * MIB if kind == "hf" else 0
        assert 600 * MIB < limit - taken < 1100 * MIB + more
        assert "Paris" in (
            (await answer(model.generate(chat("What is the capital of France?")))).choices[0].text
            or ""
        )


def test_this_machine() -> None:
    """Where there is a /proc, some memory is free."""
    free = free_bytes()

    assert (free is not None and free > MIB) == Path("/proc/meminfo").exists()


def test_the_bundled_model_remembers_little() -> None:
    """The bundled model leaves the memory to models that need it, unless it was set; others are told how many they are."""
    models = {
        "demo": ModelConfig(),
        "set": ModelConfig(cache_ram_mib=5),
        "file": ModelConfig(source=str(MODEL)),
    }
    registry = sources.registry(Config(models=models))
    engines = [one.pool.members[0].backend for one in registry.models.values()]
    told = [engine._generator.process._settings("")["cache_ram_mib"] for engine in engines]

    assert [64, 5, None] == told
    assert [3] * 3 == [engine._generator.process._settings("")["engines"] for engine in engines]


def test_progress_of_a_model_that_still_loads() -> None:
    """Weights that have all been read are not the whole of loading: progress does not stand at its end."""
    told: list[float] = []
    model = HfEngine("x", FOLDER / "hf", ModelConfig(), on_progress=told.append)
    model._server._report(told.append, os.getpid())
    model._server._report(told.append, 0)

    assert [0.9, 0.0] == told


def test_shared_pages_count_once() -> None:
    """Two processes that map one file are counted with half of its pages each, and with all of them as what is resident."""
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(64 * MIB)
        code = (
            "import mmap, sys; m = mmap.mmap(int(sys.argv[1]), 0, prot=mmap.PROT_READ); "
            "sum(m[:: mmap.PAGESIZE]); print('mapped', flush=True); input()"
        )
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(file.fileno())],
                pass_fds=[file.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(2)
        ]
        try:
            for each in processes:
                assert each.stdout is not None
                assert b"mapped\n" == each.stdout.readline()
            parts = [proportional_bytes(each.pid) for each in processes]
            wholes = [resident_bytes(each.pid) for each in processes]
        finally:
            for each in processes:
                each.communicate(b"\n")
    assert all(32 * MIB < part < 50 * MIB for part in parts)
    assert all(64 * MIB < whole for whole in wholes)
    assert 0 == proportional_bytes(processes[0].pid)
