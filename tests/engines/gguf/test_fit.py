"""Tests of unilect.engines.gguf.fit: the context that fits, and what llama.cpp reckons of files that are not loaded."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from support.models import shaped_gguf
from unilect.api.backend import MemoryNeed
from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.demo import MODEL
from unilect.engines.gguf import _dry_run, fit
from unilect.engines.gguf._dry_run import dry_run
from unilect.engines.gguf._memory import Needs
from unilect.engines.gguf.engine import GgufEngine
from unilect.engines.gguf.fit import Room, estimate, longest_context, may_fit, place_need, room_of
from unilect.engines.gguf.head import is_head
from unilect.hub.download import RemoteFile
from unilect.residency.ledger import LEDGER
from unilect.residency.space import Space
from unilect.runtime.gpus import GpuMemory
from unilect.runtime.memory import MIB


def needs_of(weights: int, repacked: int = 0) -> Any:
    """The needs of a model that keeps 10,000 bytes of a token, in one slot, by its context."""
    return lambda context: Needs(weights, 10_000 * context, 1, context, repacked=repacked)


@pytest.mark.parametrize(
    ("weights", "free", "total", "most", "expected"),
    [
        (10**6, 10**12, 10**12, 8192, 8192),
        (10**6, 10**12, 10**12, 999, 999),
        (10**6, 100 * MIB, 10**12, 8192, 4864),
        (10**9, 100 * MIB, 10**12, 8192, 2048),
        (10**9, 100 * MIB, 10**12, 999, 999),
        (10**9, 10**9, 10**12, 8192, 2048),
        (10**9, 10 * MIB, 10**12, 8192, 0),
        (10**9, 10**12, 10**9, 8192, 0),
        (10**9, None, None, 8192, 8192),
    ],
)
def test_the_longest_context(
    weights: int, free: int | None, total: int | None, most: int, expected: int
) -> None:
    """The longest context leaves an eighth of the memory; where the weights have no room beside it, it is the shortest of use, if that can be allocated; else none."""
    assert expected == longest_context(needs_of(weights), most, Room(free, total))


@pytest.mark.parametrize(
    ("options", "free"),
    [
        ({}, 1 + 30 + 10),
        ({"gpu_layers": 0}, 1),
        ({"split_mode": "none"}, 1 + 30),
        ({"split_mode": "none", "main_gpu": 1}, 1 + 10),
        ({"split_mode": "none", "main_gpu": 2}, 1),
        ({"tensor_split": [1, 1]}, 1 + 20),
        ({"tensor_split": [0, 1]}, 1 + 10),
        ({"tensor_split": [3, 1]}, 1 + 40),
    ],
)
def test_the_room_on_gpus(
    options: dict[str, Any], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model has the memory of the GPUs that it may use, as far as its shares of them go."""
    monkeypatch.setattr(fit, "free_bytes", lambda: 1)
    monkeypatch.setattr(fit, "total_bytes", lambda: 2)
    gpus = [GpuMemory(30, 40), GpuMemory(10, 20)]
    monkeypatch.setattr(fit, "gpu_memory", lambda torch: gpus)

    assert free == fit.room_of(ModelConfig(**options)).free


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (400, 200)),
        ({"gpu_layers": -1}, (400, 200)),
        ({"gpu_layers": 99}, (400, 200)),
        ({"gpu_layers": 2}, (200, 100)),  # of five, and what is computed with
        ({"gpu_layers": 0}, ()),
        ({"split_mode": "none"}, (600, 0)),
        ({"split_mode": "none", "main_gpu": 1}, (0, 600)),
        ({"split_mode": "none", "main_gpu": 2}, ()),
        ({"tensor_split": [1, 2]}, (200, 400)),
        ({"tensor_split": [1]}, (600, 0)),
    ],
)
def test_the_need_on_gpus(options: dict[str, Any], expected: tuple[int, ...]) -> None:
    """llama.cpp puts weights and caches of the layers that go there on each GPU, by its memory or its share, and what it computes with; not what it keeps beside."""
    need = Needs(300, 100, 2, 10, repacked=7, work=100, checkpoint=3, prompts=9)
    gpus = [GpuMemory(1, 40), GpuMemory(2, 20)]

    assert expected == place_need(need, ModelConfig(**options), 4, gpus)


def test_the_need_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine needs of a GPU what its file and settings say, and nothing without one, or where no layer is to be there; the sum is the same."""
    gpus = list[GpuMemory]()
    monkeypatch.setattr(fit, "gpu_memory", lambda torch: gpus)

    def need(layers: int | None = None) -> MemoryNeed:
        config = ModelConfig(context=2048, gpu_layers=layers, repack=False)
        return GgufEngine("m", MODEL, config).memory_need()

    without = need()
    gpus += [GpuMemory(10**9, 10**10)]
    whole, half = need(), need(2)

    assert () == without.gpus == need(0).gpus
    assert (without.ready, without.grows) == (whole.ready, whole.grows)
    assert MODEL.stat().st_size < whole.gpus[0] < whole.ready
    assert 0 < half.gpus[0] < whole.gpus[0]


def test_a_context_that_nobody_has_set(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A context that nobody has set is lowered to fit what is free, or would be without other models, and that is told; one that is set is not; without any room it is as usual, and refused."""
    path = shaped_gguf.make(tmp_path / "m.gguf", "llama")
    monkeypatch.setattr(fit, "free_bytes", lambda: 250 * MIB)
    lowered = GgufEngine("m", path, ModelConfig(parallel=4)).capabilities.context
    assert [f"m: its `context` is {lowered} and its `parallel` 4 instead of 8192 and 4, for which there is no memory. Set them for other sizes."] == [
        record.getMessage() for record in caplog.records
    ]  # fmt: skip
    own = GgufEngine("m", path, ModelConfig(context=8000, parallel=4)).capabilities.context
    monkeypatch.setitem(LEDGER.claims, "other", Space(300 * MIB))
    assert 8192 == GgufEngine("m", path, ModelConfig()).capabilities.context
    monkeypatch.delitem(LEDGER.claims, "other")
    monkeypatch.setattr(fit, "free_bytes", lambda: MIB)

    assert (True, 8000) == (2048 <= lowered < 8192, own)
    assert 8192 == GgufEngine("m", path, ModelConfig()).capabilities.context
    assert 1 == len(caplog.records)


@pytest.mark.parametrize(
    ("options", "fits", "expected"),
    [
        ({}, (8192, 4), (8192, 4)),
        ({}, (8192, 3), (8192, 3)),
        ({}, (8192, 1), (8192, 1)),
        ({}, (4096, 1), (4096, 1)),
        ({"context": 4096}, (4096, 2), (4096, 2)),
        ({"context": 16_384}, (16_384, 1), (16_384, 1)),
        ({"context": 16_384}, (8192, 1), (16_384, 1)),
        ({"parallel": 3}, (2304, 3), (2304, 3)),
        ({"parallel": 3, "context": 4096}, (4096, 1), (4096, 3)),
    ],
)
async def test_requests_at_a_time_that_nobody_has_set(
    options: dict[str, Any],
    fits: tuple[int, int],
    expected: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Requests at a time that nobody has set are as many as have the context that is set, or usual, in what is free; a shorter one has only one alone."""
    path = shaped_gguf.make(tmp_path / "m.gguf", "llama")
    config = ModelConfig(context=fits[0], parallel=fits[1], gpu_layers=0)
    need = (await estimate(path, config, Room(None, None))).need.ready
    monkeypatch.setattr(fit, "free_bytes", lambda: need * 8 // 7 + MIB)
    can = GgufEngine("m", path, ModelConfig(gpu_layers=0, **options)).capabilities
    told = await estimate(path, ModelConfig(gpu_layers=0, **options), room_of(config))

    assert expected == (can.context, can.slots) == (told.context, told.parallel)


def test_the_head_says_if_it_fits(tmp_path: Path) -> None:
    """A model that is elsewhere fits where `estimate` says so of its head, with what it grows to; the size alone counts where it has no head."""
    config, path = (
        ModelConfig(context=2048, parallel=1),
        shaped_gguf.make(tmp_path / "m.gguf", "llama"),
    )
    need = asyncio.run(estimate(path, config, Room(None, None))).need.ready
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(1000))

    def fits(path: Path, memory: int) -> bool:
        size = path.stat().st_size
        file = RemoteFile(
            f"org/repo/{path.name}", size, True, tmp_path, lambda report: path, "", True
        )
        return may_fit(config, [file], memory)

    assert need + MIB < path.stat().st_size + 512 * MIB
    sizes = (MIB, need - 1, need + MIB)
    assert [False, False, False, True] == [fits(path, memory) for memory in (*sizes, 2 * need)]
    assert [False, True] == [fits(tmp_path / "bad.gguf", memory * MIB) for memory in (500, 520)]


def settings(path: Path) -> dict[str, Any]:
    """The settings of the child for a file."""
    engine = GgufEngine("m", path, ModelConfig(context=2048, gpu_layers=0))
    return engine.children[0]._settings("")


async def test_a_dry_run() -> None:
    """llama.cpp reckons what is reckoned here, and what it copies, to some mebibytes."""
    own = settings(MODEL)
    found = await dry_run(own)

    assert found is not None
    assert (own["needs"]["slot"], own["needs"]["parallel"]) == (found.slot, found.parallel)
    assert abs(found.work - own["needs"]["work"]) < 8 * MIB


@pytest.mark.heavy
@pytest.mark.parametrize("kind", list(shaped_gguf.KINDS))
async def test_dry_runs(kind: str, tmp_path: Path) -> None:
    """llama.cpp reckons for every architecture what is reckoned here."""
    own = settings(shaped_gguf.make(tmp_path / "m.gguf", kind, 2))
    found = await dry_run(own)

    assert found is not None
    own = own["needs"]
    assert abs(found.slot - own["slot"]) < MIB
    assert abs(found.repacked - own["repacked"]) < 2 * MIB
    assert abs(found.work - own["work"]) < 8 * MIB


async def test_dry_runs_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What llama.cpp cannot read, and what takes too long, is not known; no process is left."""
    before = _children()
    unknown = tmp_path / "unknown.gguf"
    unknown.write_bytes(MODEL.read_bytes().replace(b"llama", b"lamma"))
    assert await dry_run(settings(unknown)) is None
    monkeypatch.setattr(_dry_run, "LIMIT_S", 0.01)

    assert await dry_run(settings(MODEL)) is None
    assert _children() <= before


def _children() -> set[str]:
    return {*Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


async def test_an_architecture_that_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an architecture that is not known here llama.cpp is asked at its first start, and what it says is kept for the next."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    path = shaped_gguf.make(tmp_path / "m.gguf", "dream")  # which keeps no keys and values
    made = [GgufEngine("m", path, ModelConfig(context=2048)) for _ in range(2)]
    before = made[0].memory_need()
    await made[0]._needs[False].require_room()
    after, later = made[0].memory_need(), made[1].memory_need()

    assert before.ready - after.ready > 20 * MIB
    assert (after.ready, False) == (later.ready, later.measured)


@pytest.mark.parametrize("kind", ["llama", pytest.param("dream", marks=pytest.mark.heavy)])
async def test_an_estimate_of_a_head(kind: str, tmp_path: Path) -> None:
    """The head of a file tells as much as the whole file, also of an architecture that is not known here."""
    path = shaped_gguf.make(tmp_path / "whole.gguf", kind)
    size, head = path.stat().st_size, tmp_path / "m.gguf"
    data = path.read_bytes()[: 2**21]
    ends = [end for end in range(2**18, 2**21, 2**18) if _is_head(head, data[:end], size)]
    head.write_bytes(data[: ends[0]])
    os.truncate(head, size)
    config, room = ModelConfig(parallel=2), Room(400 * MIB, 10**9)
    told, of_head = [await estimate(one, config, room) for one in (path, head)]

    assert told == of_head
    assert 8192 == told.context
    assert told.longest == 32_768 if kind == "dream" else 20_000 < told.longest < 25_000


def _is_head(path: Path, data: bytes, size: int) -> bool:
    path.write_bytes(data)
    return is_head(path, size)


async def test_an_estimate_that_cannot_be_made(tmp_path: Path) -> None:
    """A file that is no model, and a context that the model was not made for, are mistakes."""
    (tmp_path / "m.gguf").write_bytes(b"x" * 100)
    room = Room(10**9, 10**9)
    with pytest.raises(ConfigError, match="not a valid GGUF file"):
        await estimate(tmp_path / "m.gguf", ModelConfig(), room)
    with pytest.raises(ConfigError, match="exceeds the model's maximum context"):
        await estimate(MODEL, ModelConfig(context=10**6), room)
