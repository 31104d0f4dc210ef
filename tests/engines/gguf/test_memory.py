"""Tests of unilect.engines.gguf._memory: sizes from heads of many kinds of models, and what is said of them."""

import re
from pathlib import Path
from typing import Any

import pytest

from engine import made
from unilect.config.server import ModelConfig
from unilect.demo import MODEL
from unilect.engines.gguf._file import GgufHead, read_head
from unilect.engines.gguf._memory import Needs, complaint, doubt, needs, where
from unilect.engines.gguf.engine import GgufEngine
from unilect.errors import BackendUnavailable

GB = 10**9


def head(size_bytes: int = 0, **fields: Any) -> GgufHead:
    """A head with these fields of its architecture; two underscores are a dot."""
    named = {f"x.{name.replace('__', '.')}": value for name, value in fields.items()}
    return GgufHead({"general.architecture": "x"} | named, size_bytes)


PLAIN = {"block_count": 12, "embedding_length": 512, "attention__head_count": 8}


@pytest.mark.parametrize(
    ("fields", "per_token"),
    [
        (PLAIN, 12 * 8 * (64 + 64) * 2),
        (PLAIN | {"attention__head_count_kv": 2}, 12 * 2 * (64 + 64) * 2),
        (PLAIN | {"attention__head_count_kv": [2] * 6 + [0] * 6}, 6 * 2 * (64 + 64) * 2),
        (PLAIN | {"attention__key_length": 256, "attention__value_length": 128}, 12 * 8 * (256 + 128) * 2),
        (PLAIN | {"attention__sliding_window": 512}, 2 * 8 * (64 + 64) * 2),
        (PLAIN | {"attention__kv_lora_rank": 512, "attention__key_length": 576, "attention__head_count_kv": 1}, 12 * 576 * 2),
        (PLAIN | {"ssm__state_size": 16}, 0),
        (PLAIN | {"ssm__state_size": 16, "attention__head_count_kv": [0, 2] * 6}, 6 * 2 * (64 + 64) * 2),
        ({"block_count": 12}, 0),
        ({}, 0),
    ],
)  # fmt: skip
def test_keys_and_values(fields: dict[str, Any], per_token: int) -> None:
    """Each kind of model has its own size, never more than it takes; what is not known counts for nothing."""
    need = needs(head(**fields), Path("x.gguf"), ModelConfig(parallel=3), 1000, embedding=False)

    assert (per_token * 1000, 3 * per_token * 1000) == (need.slot, need.cache)


def test_fewer_bits() -> None:
    """A cache of 8 bits takes about half, and an embedder has one slot."""
    config = ModelConfig(cache_type_k="q8_0", cache_type_v="q8_0")
    need = needs(head(**PLAIN), Path("x.gguf"), config, 1024, embedding=True)

    assert 12 * 8 * 128 * 34 // 32 * 1024 == need.cache


def test_a_file_in_parts(tmp_path: Path) -> None:
    """All parts of a file count."""
    for number in (1, 2, 3):
        (tmp_path / f"m-{number:05}-of-00003.gguf").write_bytes(b"x" * 10 * number)
    first = tmp_path / "m-00001-of-00003.gguf"

    assert 60 == needs(head(10), first, ModelConfig(), 16, embedding=False).weights


@pytest.mark.parametrize(
    ("need", "free", "total", "expected"),
    [
        (Needs(4 * GB, GB, 4, 8192), 9 * GB, 16 * GB, ""),
        (Needs(4 * GB, GB, 4, 8192), None, None, ""),
        (Needs(4 * GB, GB, 4, 8192), 3 * GB, 16 * GB, r"KV cache 4\.0 GB .*3\.0 GB are free.*`context`.*`parallel`.*cache_type_k"),
        (Needs(14 * GB, GB, 4, 8192), 9 * GB, 16 * GB, r"weights 14\.0 GB.*has 16\.0 GB"),
        (Needs(0, 0, 256, 9_000_000), None, None, r"2304000000 tokens.*Lower `context` or `parallel`"),
    ],
)  # fmt: skip
def test_what_does_not_fit(need: Needs, free: int | None, total: int | None, expected: str) -> None:
    """What cannot be loaded is told with its name, its sizes, and what to lower; what may be slow is a warning."""
    said = complaint("m", need, free, total)

    assert bool(expected) == bool(said)
    assert re.search(expected, said)
    assert not said or said.startswith("m")
    assert doubt("m", Needs(8 * GB, GB, 4, 8192), 9 * GB).startswith(
        "m: memory is short: weights 8.0"
    )
    assert not doubt("m", Needs(4 * GB, GB, 4, 8192), 9 * GB)


def test_the_bundled_model() -> None:
    """The size told for a real file is that of the cache that llama.cpp makes of it."""
    need = needs(read_head(MODEL), MODEL, ModelConfig(), 2048, embedding=False)

    assert (MODEL.stat().st_size, 5 * 2 * 128 * 2 * 2048) == (need.weights, need.slot)


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """The bundled model, whose file says that it was trained with ten million tokens."""
    data, name = MODEL.read_bytes(), b"llama.context_length"
    at = data.index(name) + len(name) + 4
    file = tmp_path / "endless.gguf"
    file.write_bytes(data[:at] + (10_000_000).to_bytes(4, "little") + data[at + 4 :])
    return file


@pytest.mark.parametrize(
    ("context", "parallel", "expected"),
    [
        (9_000_000, 100, r"^endless does not fit into memory: .* GB.* are free\. Lower"),
        (9_000_000, 256, r"^endless: `context` \(9000000\) times `parallel` \(256\)"),
    ],
)
async def test_a_context_that_does_not_fit(
    endless: Path, context: int, parallel: int, expected: str
) -> None:
    """A model that is too large for this machine is refused in words, before llama.cpp tries."""
    engine = GgufEngine("endless", endless, ModelConfig(context=context, parallel=parallel))
    with pytest.raises(BackendUnavailable, match=expected):
        await engine.start()
    await engine.aclose()


@pytest.mark.parametrize("layers", [99, -1])
async def test_layers_without_a_gpu(layers: int) -> None:
    """Layers on a GPU, where llama.cpp has none, are refused with the option's name and what to do."""
    engine = made("gguf", gpu_layers=layers)
    with pytest.raises(BackendUnavailable, match=r"demo: gpu_layers: .* no GPU.*gguf\.md"):
        await engine.start()
    await engine.aclose()


async def test_what_is_told_at_start(caplog: pytest.LogCaptureFixture) -> None:
    """The start says once where a model runs and what it takes, also with many requests at a time."""
    caplog.set_level("INFO")
    engine = made("gguf", parallel=100, gpu_layers=0, threads=2)
    for _ in range(2):
        await engine.start()
        await engine.aclose()
    told = [record.getMessage() for record in caplog.records if "KV cache" in record.getMessage()]

    assert 1 == len(told)
    assert (
        "demo: on the CPU, 2 threads; weights 4 MB, KV cache 524 MB (`context` 2048 x `parallel` 100)"
        == told[0]
    )


@pytest.mark.parametrize(
    ("gpus", "layers", "expected"),
    [
        ([], None, "the CPU, 3 threads"),
        (["H200"], None, "H200, as many of 13 layers as fit"),
        (["H200", "H200"], -1, "H200, H200, 13 of 13 layers"),
        (["H200"], 5, "H200, 5 of 13 layers"),
        (["H200"], 99, "H200, 13 of 13 layers"),
        (["H200"], 0, "the CPU, 3 threads (H200 not used: `gpu_layers` is 0)"),
    ],
)
def test_where_it_runs(gpus: list[str], layers: int | None, expected: str) -> None:
    """The devices and the layers on them are told; a GPU that is not used is named."""
    assert expected == where(head(**PLAIN), gpus, layers, 3)
