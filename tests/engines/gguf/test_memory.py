"""Tests of unilect.engines.gguf._memory: sizes from heads of many kinds of models, and what is said of them."""

import math
import os
import re
import resource
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import answer, completion, made
from support.models import shaped_gguf, tiny_gguf
from support.servers.appserver import serving
from unilect.config.server import ModelConfig
from unilect.core.errors import BackendUnavailable, MemoryExhausted, ModelTooLarge
from unilect.demo import MODEL
from unilect.engines.gguf import fit
from unilect.engines.gguf._file import GgufHead, read_head
from unilect.engines.gguf._layers import layers
from unilect.engines.gguf._memory import (
    MOST_CHECKPOINTS,
    Needs,
    budget,
    device_summary,
    memory_error,
    memory_warning,
    needs,
    size_error,
)
from unilect.engines.gguf.engine import GgufEngine
from unilect.runtime.memory import MIB, processor_words
from unilect.scheduling.pooled_backend import PooledBackend

GB = 10**9


def head(size_bytes: int = 0, **fields: Any) -> GgufHead:
    """A head with these fields of its architecture; two underscores are a dot."""
    named = {f"x.{name.replace('__', '.')}": value for name, value in fields.items()}
    return GgufHead({"general.architecture": "x"} | named, size_bytes)


PLAIN = {"block_count": 12, "embedding_length": 512, "attention__head_count": 8}


@pytest.mark.parametrize(
    ("fields", "per_token"),
    [
        (PLAIN | {"attention__shared_kv_layers": 4}, 8 * 8 * (64 + 64) * 2),
        (PLAIN, 12 * 8 * (64 + 64) * 2),
        (PLAIN | {"attention__head_count_kv": 2}, 12 * 2 * (64 + 64) * 2),
        (PLAIN | {"attention__head_count_kv": [2] * 6 + [0] * 6}, 6 * 2 * (64 + 64) * 2),
        (PLAIN | {"attention__key_length": 256, "attention__value_length": 128}, 12 * 8 * (256 + 128) * 2),
        (PLAIN | {"attention__kv_lora_rank": 512, "attention__key_length": 576, "attention__head_count_kv": 1}, 12 * 576 * 2),
        ({"block_count": 12}, 0),
        ({}, 0),
    ],
)  # fmt: skip
def test_keys_and_values(fields: dict[str, Any], per_token: int) -> None:
    """Each kind of model has its own size, never more than it takes; what is not known counts for nothing."""
    need = needs(head(**fields), ModelConfig(parallel=3), 1000, embedding=False)

    assert (per_token * 1024, 3 * per_token * 1024) == (need.slot, need.cache)
    assert 0 == need.checkpoint


KEY_AND_VALUE = 8 * (64 + 64) * 2  # bytes of a token in a layer of PLAIN
MAMBA = {
    "ssm__state_size": 16,
    "ssm__inner_size": 256,
    "ssm__conv_kernel": 4,
    "ssm__group_count": 1,
}
STATE = 4 * (3 * (256 + 2 * 16) + 16 * 256)


@pytest.mark.parametrize(
    ("architecture", "fields", "whole", "windowed", "states"),
    [
        ("gemma3", {"attention__sliding_window": 512}, 2, 10, 0),
        ("gemma2", {"attention__sliding_window": 512}, 6, 6, 0),
        ("llama", {"attention__sliding_window": 512}, 12, 0, 0),
        ("new", {"attention__sliding_window": 512}, 2, 10, 0),
        ("new", {"attention__sliding_window": 512, "attention__sliding_window_pattern": [True, False] * 6}, 6, 6, 0),
        ("gemma4", {"attention__sliding_window": 512, "attention__sliding_window_pattern": 3}, 4, 8, 0),
        ("mamba2", MAMBA, 0, 0, 12),
        ("jamba", MAMBA | {"attention__head_count_kv": [0, 8] * 6}, 6, 0, 6),
        ("falcon-h1", MAMBA, 12, 0, 12),
        ("qwen35", MAMBA, 3, 0, 9),
        ("qwen3next", MAMBA | {"full_attention_interval": 3}, 4, 0, 8),
        ("x", MAMBA | {"attention__recurrent_layers": [True] * 6 + [False] * 6}, 6, 0, 6),
        ("nemotron_h", MAMBA | {"attention__head_count_kv": [0, 8, 0] * 4, "feed_forward_length": [0, 0, 9] * 4}, 4, 0, 4),
    ],
)  # fmt: skip
def test_windows_and_states(
    architecture: str, fields: dict[str, Any], whole: int, windowed: int, states: int
) -> None:
    """Layers with a window keep that and a step, layers with a state keep it; a checkpoint holds both, and nothing of the others."""
    named = {f"{architecture}.{name.replace('__', '.')}": value for name, value in (PLAIN | fields).items()}  # fmt: skip
    found = layers(GgufHead({"general.architecture": architecture} | named, 0), "f16", "f16")
    kept = windowed * KEY_AND_VALUE * 768 + states * STATE

    assert found.slot(8192, 64) == whole * KEY_AND_VALUE * 8192 + kept
    assert found.checkpoint(8192, 64) == kept


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"wkv__head_size": 64, "token_shift_count": 2}, 4 * 512 * (64 + 2)),
        ({"shortconv__l_cache": 3}, 4 * 512 * 2),
        ({"kda__head_dim": 32, "ssm__conv_kernel": 4}, 4 * 32 * 8 * (3 * 3 + 32)),
    ],
)
def test_other_states(fields: dict[str, Any], state: int) -> None:
    """The states of other kinds of layers have their own sizes."""
    assert 12 * state == layers(head(**PLAIN, **fields), "f16", "f16").state


def test_weights_that_are_copied() -> None:
    """Weights whose order llama.cpp changes for the processor count twice."""
    file = GgufHead({}, 1000, matrices={2: 3200, 12: 25600, 1: 5000})
    need = needs(file, ModelConfig(), 16, embedding=False)
    copies = 3200 * 18 // 32 + 25600 * 144 // 256

    assert need.repacked == (copies if processor_words() & {"avx2", "asimddp"} else 0)
    assert need.own >= need.repacked


@pytest.mark.parametrize(
    ("checkpoint_mib", "free_mib", "engines", "given", "expected"),
    [
        (1, 8000, 1, None, (MOST_CHECKPOINTS, 1000)),
        (100, 8000, 1, None, (2, 1000)),
        (100, 8000, 1, 0, (2, 0)),
        (100, 8000, 1, 20_000, (2, 20_000)),
        (9000, 8000, 1, None, (1, 1000)),
        (100, 0, 1, None, (1, 0)),
        (100, None, 1, None, (MOST_CHECKPOINTS, 8192)),
        (100, 10**6, 2, None, (MOST_CHECKPOINTS, 4096)),
        (100, 8000, 4, None, (1, 250)),
    ],
)
def test_what_is_remembered(
    checkpoint_mib: int, free_mib: int | None, engines: int, given: int | None, expected: tuple[int, int]
) -> None:  # fmt: skip
    """Idle conversations and checkpoints get an eighth each of what is left, all engines together; one checkpoint is always kept."""
    need = Needs(0, 0, 5, 16, checkpoint=checkpoint_mib * MIB)
    found = budget(need, given, None if free_mib is None else free_mib * MIB, engines)

    assert expected == (found.checkpoints, found.prompts // MIB)
    assert found.grows == (5 * expected[0] * checkpoint_mib + expected[1]) * MIB


def test_what_a_model_takes_is_not_left() -> None:
    """What is remembered is a share of what is left when the model is loaded."""
    need = budget(Needs(1000 * MIB, 250 * MIB, 4, 16), None, 10_000 * MIB)

    assert 1000 * MIB == need.prompts


def test_fewer_bits() -> None:
    """A cache of 8 bits takes about half, and an embedder has one slot."""
    config = ModelConfig(cache_type_k="q8_0", cache_type_v="q8_0")
    need = needs(head(**PLAIN), config, 1024, embedding=True)

    assert 12 * 8 * 128 * 34 // 32 * 1024 == need.cache


@pytest.mark.parametrize(
    "told", [[math.nan] * 12, [math.inf] * 12, [-1.0] * 12, ["x"] * 12, -(2**31), "x"]
)
def test_numbers_of_heads_that_are_none(told: object) -> None:
    """They count for nothing."""
    need = needs(head(**PLAIN | {"attention__head_count_kv": told}), ModelConfig(), 512, False)

    assert 0 == need.slot


@pytest.mark.parametrize(
    ("need", "free", "total", "expected"),
    [
        (Needs(4 * GB, GB, 4, 8192), 9 * GB, 16 * GB, ""),
        (Needs(4 * GB, GB, 4, 8192), None, None, ""),
        (Needs(4 * GB, GB, 4, 8192), 3 * GB, 16 * GB, r"KV cache 4\.0 GB .*3\.0 GB are free.*`context`.*`parallel`.*cache_type_k"),
        (Needs(14 * GB, GB, 4, 8192), 9 * GB, 16 * GB, r"never fit.*weights 14\.0 GB.*has 16\.0 GB\. Lower `context`"),
        (Needs(17 * GB, GB, 4, 8192), 9 * GB, 16 * GB, r"never fit.*has 16\.0 GB\. Take a smaller model"),
        (Needs(0, 0, 256, 9_000_000), None, None, r"2304000000 tokens.*Lower `context` or `parallel`"),
    ],
)  # fmt: skip
def test_what_does_not_fit(need: Needs, free: int | None, total: int | None, expected: str) -> None:
    """What cannot be loaded is told with its name, its sizes, and what to lower; what may be slow is a warning."""
    said = size_error("m", need, total) or memory_error("m", need, free)

    assert bool(expected) == bool(said)
    assert re.search(expected, said)
    assert not said or said.startswith("m")
    assert memory_warning("m", Needs(8 * GB, GB, 4, 8192), 9 * GB).startswith(
        "m: memory is short: weights 8.0"
    )
    assert not memory_warning("m", Needs(4 * GB, GB, 4, 8192), 9 * GB)


def test_the_bundled_model() -> None:
    """The size told for a real file is that of the cache that llama.cpp makes of it."""
    need = needs(read_head(MODEL), ModelConfig(), 2048, embedding=False)

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
        (9_000_000, 100, r"^endless can never fit into the memory of this machine: .* GB.* Lower"),
        (9_000_000, 256, r"^endless: `context` \(9000000\) times `parallel` \(256\)"),
    ],
)
async def test_a_context_that_can_never_fit(
    endless: Path, context: int, parallel: int, expected: str
) -> None:
    """A model that is too large for this machine is refused for good and in words, before a process is started for it."""
    engine = GgufEngine("endless", endless, ModelConfig(context=context, parallel=parallel))
    with pytest.raises(ModelTooLarge, match=expected):
        await engine.start()
    await engine.aclose()

    assert "stopped" == engine.children[0].state


async def test_a_context_that_does_not_fit_now(
    endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model for which there is no room now is refused for now, with the memory that is free, and before a process is started for it."""
    monkeypatch.setattr(fit, "free_bytes", lambda: 50 * MIB)
    engine = GgufEngine("endless", endless, ModelConfig(context=99_000, parallel=1))
    with pytest.raises(BackendUnavailable, match=r"does not fit into memory: .* 52 MB are free") as told:  # fmt: skip
        await engine.start()
    await engine.aclose()

    assert 503 == told.value.status
    assert "stopped" == engine.children[0].state


async def test_a_file_that_can_never_fit(tmp_path: Path) -> None:
    """A request to a model that can never fit is told so each time, as an error that no retry mends, and goes to the fallback where there is one."""
    file = tmp_path / "large.gguf"
    file.write_bytes(MODEL.read_bytes())
    os.truncate(file, 10**12)
    large, small = (PooledBackend(GgufEngine("large", one, ModelConfig())) for one in (file, MODEL))
    async with serving([large]) as app:
        for _ in range(3):
            async with app.chat() as response:
                said = await response.json()
                assert (500, "model_too_large") == (response.status, said["error"]["code"])
                assert "can never fit" in said["error"]["message"]
                assert "weights 1000.0 GB" in said["error"]["message"]
                assert "Retry-After" not in response.headers
                assert "false" == response.headers["x-should-retry"]
    async with serving([large], fallback=[small]) as app:
        async with app.chat(max_tokens=2) as response:
            assert 200 == response.status
        await small.aclose()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("llama", 1), ("llama", 8), ("llama", 2), ("qwen2", 1), ("qwen3", 8), ("qwen3moe", 1), ("gemma2", 1), ("gemma3", 8),
        ("cohere2", 1), ("phi3", 1), ("olmo2", 12), ("starcoder2", 1), ("deepseek2", 1), ("mamba2", 1), ("granitehybrid", 1),
    ],
)  # fmt: skip
async def test_what_is_told_is_what_is_taken(kind: str, weights: int, tmp_path: Path) -> None:
    """The memory told for a file of any architecture and type of weights, from its head alone, is what its process has once it is loaded."""
    path = shaped_gguf.make(tmp_path / "m.gguf", kind, weights)
    engine = GgufEngine("m", path, ModelConfig(context=8192, parallel=4, gpu_layers=0))
    told = engine.memory_need().ready
    try:
        await engine.start()
        taken = engine.children[0].resident_memory_bytes
    finally:
        await engine.aclose()

    assert abs(told - taken) < max(20 * MIB, 0.03 * taken), (told / MIB, taken / MIB)


@pytest.mark.parametrize("layers", [99, -1])
async def test_layers_without_a_gpu(layers: int) -> None:
    """Layers on a GPU, where llama.cpp has none, are refused with the option's name and what to do."""
    engine = made("gguf", gpu_layers=layers)
    with pytest.raises(BackendUnavailable, match=r"demo: gpu_layers: .* no GPU.*unilect docs gpu"):
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
    assert re.fullmatch(
        r"demo: on the CPU, 2 threads; weights 4 MB, KV cache 524 MB \(`context` 2048 x `parallel` 100\); "
        r"\d+ MB when loaded, at most .* GB with .* of idle conversations \(`cache_ram_mib`\)",
        told[0],
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
    assert expected == device_summary(head(**PLAIN), gpus, layers, 3)


async def test_an_engine_without_memory() -> None:
    """A request for which llama.cpp finds no memory is told 503 with the sizes, and is answered by the next engine."""
    engine = made("gguf", parallel=1, cache_ram_mib=0)
    asked = completion("Once upon a time there was a cat. " * 40, max_tokens=2)
    try:
        await engine.start()
        pid = engine._generator.process.pid
        assert pid is not None
        said = Path(f"/proc/{pid}/status").read_text()
        taken = int(said.split("VmData:")[1].split()[0]) * 1024
        resource.prlimit(pid, resource.RLIMIT_DATA, (taken, taken))
        with pytest.raises(MemoryExhausted, match=r"weights 4 MB.*at most") as told:
            await answer(engine.generate(asked))
        found = await answer(engine.generate(asked))
    finally:
        await engine.aclose()

    assert 503 == told.value.status
    assert 2 == found.usage.completion_tokens


async def test_a_conversation_that_goes_back(tmp_path: Path) -> None:
    """A model with a window reads an answer that is made again from a checkpoint on, and not from its beginning."""
    path = tiny_gguf.make_windowed(tmp_path / "windowed.gguf")
    engine = GgufEngine("windowed", path, ModelConfig(parallel=1, cache_ram_mib=0))
    text = "the cat is on it and the sun is one day to a cat. " * 20
    try:
        await engine.start()
        first = await answer(engine.generate(completion(text, max_tokens=400, ignore_eos=True)))
        again = await answer(engine.generate(completion(text, max_tokens=1)))
    finally:
        await engine.aclose()

    assert first.usage.prompt_tokens > 200
    assert again.usage.cached_tokens >= first.usage.prompt_tokens - 64 - 4


async def test_memory_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of an engine is known before its start, from its file alone, and better once it has been loaded, also to other servers."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    engine = made("gguf")
    told = [engine.memory_need()]
    try:
        await engine.start()
        taken = engine.children[0].resident_memory_bytes
        told += [engine.memory_need(), made("gguf").memory_need()]
    finally:
        await engine.aclose()
    told.append(made("gguf", context=1024).memory_need())

    assert [False, True, True, False] == [one.measured for one in told]
    assert abs(told[0].ready - taken) < 20 * MIB
    assert all(abs(one.ready - taken) < 0.02 * taken for one in told[1:3])
    assert all(one.grows > 0 for one in told)
    assert told[3].ready < told[0].ready
