"""Tests of unilect.engines.fetched: models of the hub, whose files come when they are started."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import answer, chat
from support.backends.leases import acquire
from support.common.waiting import until
from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.core.errors import BackendUnavailable, ConfigError
from unilect.demo import MODEL
from unilect.hub import download as hub
from unilect.hub.transfer import OnProgress
from unilect.models import sources


def models(*names: str) -> Any:
    """Models of the hub, not started."""
    tables = {name: ModelConfig(source=f"gguf:org/repo/{name}.gguf") for name in names}
    return sources.registry(Config(models=tables))


async def test_models_are_fetched_when_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched for a model before it is started; several are fetched side by side, each once, and answer; their memory is known from then on."""
    fetched: list[str] = []
    both = threading.Barrier(2)

    def fetch(location: str, on_progress: OnProgress, *_: object) -> Path:
        both.wait(60)
        on_progress(0.5, 10)
        fetched.append(location)
        return MODEL

    monkeypatch.setattr(hub, "local_file", fetch)
    registry = models("a", "b")
    backend = registry.get("b").pool.members[0].backend
    before, needs = list(fetched), [backend.memory_need()]
    try:
        await registry.start(["a", "b", "a"])
        needs.append(backend.memory_need())
        said = await answer(registry.get("b").pool.members[0].backend.generate(chat(max_tokens=2)))
    finally:
        await registry.aclose()

    assert ([], ["org/repo/a.gguf", "org/repo/b.gguf"]) == (before, sorted(fetched))
    assert said.choices[0].text
    assert (None, True) == (needs[0], needs[1].ready > MODEL.stat().st_size)


async def test_a_model_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """All who wait for a model that cannot be fetched are told by one attempt, the operator with the reason; the next start tries anew."""
    tries: list[str] = []

    def fetch(location: str, on_progress: OnProgress, *_: object) -> Path:
        tries.append(location)
        if len(tries) > 1:
            return MODEL
        raise ConfigError("the hub is away")

    monkeypatch.setattr(hub, "local_file", fetch)
    registry = models("a")
    backend = registry.get("a").pool.members[0].backend
    try:
        starts = await asyncio.gather(*(backend.start() for _ in range(5)), return_exceptions=True)
        await backend.start()
    finally:
        await registry.aclose()

    assert [BackendUnavailable] * 5 == [type(error) for error in starts]
    assert {"models.a: the hub is away"} == {error.reason for error in starts}
    assert "hub is away" not in str(starts[0])
    assert 2 == len(tries)


async def test_a_download_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is stopped while its files come is told so, and no more of them comes."""
    begun, ended = threading.Event(), threading.Event()

    def fetch(location: str, on_progress: OnProgress, *_: object) -> Path:
        begun.set()
        try:
            while True:
                on_progress(0.1)
        finally:
            ended.set()

    monkeypatch.setattr(hub, "local_file", fetch)
    registry = models("a")
    backend = registry.get("a").pool.members[0].backend
    starting = asyncio.create_task(backend.start())
    await until(begun.is_set)
    await registry.aclose()
    with pytest.raises(BackendUnavailable, match="was stopped"):
        await starting
    await until(ended.is_set)


async def test_a_model_that_is_taken_out_while_its_files_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that a reload takes out is not fetched any more: who waits for it is told at once; one that a reload changes goes on."""
    begun, ended = threading.Event(), threading.Event()

    def fetch(location: str, on_progress: OnProgress, *_: object) -> Path:
        begun.set()
        try:
            while True:
                on_progress(0.1)
        finally:
            ended.set()

    monkeypatch.setattr(hub, "local_file", fetch)
    registry = models("a", "b")
    a = registry.get("a")
    waiting = [asyncio.create_task(acquire(a)), asyncio.create_task(a.start())]
    await until(begun.is_set)
    registry.swap([registry.get("b")])
    found = await asyncio.gather(*waiting, return_exceptions=True)
    await until(ended.is_set)

    assert [BackendUnavailable] * 2 == [type(error) for error in found]
    assert "a: was taken out while its files were fetched" in caplog.text
    await until(lambda: a.gone)

    begun.clear()
    b = registry.get("b")
    start = asyncio.create_task(b.start())
    await until(begun.is_set)
    registry.swap([models("b").get("b")])
    assert (False, False) == (b.closed, start.done())
    await registry.aclose()
    with pytest.raises(BackendUnavailable):
        await start


def test_what_is_here_is_looked_at_at_once(tmp_path: Path) -> None:
    """A local file that is no model is told where the model is made, before anything is started."""
    file = tmp_path / "x.gguf"
    file.write_bytes(b"no model")
    with pytest.raises(ConfigError, match=r"models\.m"):
        sources.registry(Config(models={"m": ModelConfig(source=str(file))}))
