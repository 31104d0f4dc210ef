"""Tests of unilect.engines.process.child_process: starting, stopping and losing a real child."""

import asyncio
import fcntl
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from support.backends.tiny_child import Tiny
from support.common.waiting import until
from unilect.core.errors import BackendUnavailable
from unilect.engines.process import _restarts
from unilect.engines.process import child_process as _process
from unilect.engines.process.child_process import ChildProcess

#: Says ready, then draws a bar of progress that has no end of line, and dies when it was read.
_TALKER = """
import json, sys
sys.stdin.readline()
print(json.dumps({"ready": {"ok": True}}), flush=True)
sys.stderr.write("=" * 3_000_000)
sys.stderr.write("\\nthe last word\\n")
"""


@pytest.mark.asyncio
async def test_a_line_without_an_end_stops_nobody() -> None:
    """What a child writes is read on, however long its lines are, so that it can go on and its death is seen."""
    child = ChildProcess(
        "talker",
        [sys.executable, "-c", _TALKER],
        lambda path: json.loads("{}"),
        start_timeout_s=60,
    )
    try:
        await child.start()
        watcher = child._watcher
        assert watcher is not None
        await watcher
        assert "the last word" == child._stderr_tail._lines[-1]
    finally:
        await child.aclose()


class _Late(ChildProcess):
    """A child whose first word is heard when it is gone, as on a machine that has much else to do."""

    async def _handshake(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        await process.wait()
        return await super()._handshake(process)


@pytest.mark.asyncio
async def test_a_child_that_dies_as_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that is gone when its word is heard was never ready: the start fails, the next one waits, and no folder is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = 'print(\'{"ready": {"ok": true}}\', flush=True)'
    child = _Late("brief", [sys.executable, "-c", code], lambda path: {}, start_timeout_s=20)

    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="ended while it loaded"):
            await child.start()
    assert (0, 2) == (child.starts, child.restarts.failures)
    assert [] == list(tmp_path.iterdir())
    await child.aclose()


@pytest.mark.asyncio
async def test_a_process_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system refuses is an error with its reason, for which another backend can be asked; no folder is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = ChildProcess("none", [str(tmp_path / "none")], lambda path: {}, start_timeout_s=60)

    with pytest.raises(BackendUnavailable, match="cannot be started: No such file"):
        await child.start()
    assert [] == list(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(BackendUnavailable, match="cannot be started: No such file"):
        await child.start()
    await child.aclose()


def spawned(log: Path) -> int:
    """How often a child that writes this log was started."""
    return log.read_text().count("spawn") if log.exists() else 0


async def test_a_start_outlives_who_caused_it(tmp_path: Path) -> None:
    """Requests that give up while a model loads do not start it over: one start serves whoever is left."""
    gate, log = tmp_path / "gate", tmp_path / "log"
    child = Tiny(gate=str(gate), log=str(log))
    for _ in range(3):
        impatient = asyncio.create_task(child.ask("say hello"))
        await until(lambda: spawned(log) == 1)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
    waiting = [asyncio.create_task(child.ask(f"say {n}")) for n in range(3)]
    gate.touch()

    assert [["0"], ["1"], ["2"]] == await asyncio.gather(*waiting)
    assert 1 == spawned(log)
    await child.aclose()


@pytest.mark.parametrize(
    ("load", "words", "reason"),
    [
        ("fail", "", "the file is broken"),
        ("die", "", "crashed (SIGSEGV)"),
        ("die", "E llama: error: no such tensor\n[Inferior 1 (process 7) detached]", "error: no such tensor"),
    ],
)  # fmt: skip
async def test_a_child_that_dies_while_it_loads(
    tmp_path: Path, load: str, words: str, reason: str
) -> None:
    """Everybody who waits for a start that fails is told at once, and why, by one start."""
    log = tmp_path / "log"
    child = Tiny(load=load, log=str(log), words=words)
    asked = [asyncio.create_task(child.ask("say hello")) for _ in range(20)]
    told = await asyncio.gather(*asked, return_exceptions=True)
    await child.aclose()

    assert {BackendUnavailable} == {type(error) for error in told}
    assert all(reason in str(error) for error in told), told
    assert 1 == spawned(log)


async def test_starts_that_fail_are_not_repeated_for_each_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where starts have failed for a while, requests are told the reason and when to come again, and start nothing."""
    monkeypatch.setattr(_restarts, "_LONGEST_WAIT_S", 0.4)
    log = tmp_path / "log"
    child = Tiny(load="fail", log=str(log))
    told = []
    for _ in range(10):
        with pytest.raises(BackendUnavailable, match="the file is broken") as caught:
            await child.ask("say hello")
        told.append(caught.value.retry_after_s)
    child.settings.clear()
    child.process.restarts.ended_at -= 60  # the pause is over
    answer = await child.ask("say hello")
    await child.aclose()

    assert 2 == spawned(log)
    assert [None] * 2 == told[:2]
    assert all(told[2:])
    assert ["hello"] == answer


async def test_a_start_that_takes_too_long(tmp_path: Path) -> None:
    """A child that does not become ready in its time is ended, and the option is named."""
    child = Tiny(start_timeout_s=0.3, gate=str(tmp_path / "gate"))
    with pytest.raises(BackendUnavailable, match="start_timeout_s"):
        await child.process.start()
    assert child.process._process is None
    await child.aclose()


@pytest.mark.parametrize("state", ["stopped", "loading", "ready", "stopping", "died", "failed"])
async def test_stopping_in_each_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """A child can be stopped whatever it is doing; nothing is left of it, and it can be started again."""
    monkeypatch.setattr(_restarts, "FIRST_PAUSE_S", 0.01)
    gate = tmp_path / "gate"
    settings: dict[str, Any] = {"gate": str(gate)} if state == "loading" else {}
    child = Tiny(load="fail" if state == "failed" else None, **settings)
    starting = None
    if state == "loading":
        starting = asyncio.create_task(child.process.start())
        await until(lambda: child.process._process is not None)
    elif state == "failed":
        with pytest.raises(BackendUnavailable):
            await child.process.start()
    elif state != "stopped":
        await child.process.start()
    if state == "died":
        pause = child.process._pause  # that is what it is until this is over
        monkeypatch.setattr(child.process, "_pause", asyncio.Event().wait)
        child.kill()
        await child.until("died")
    stopping = asyncio.create_task(child.aclose()) if state == "stopping" else None
    while stopping is not None and child.process.state == "ready":
        await asyncio.sleep(0)  # it may stop within a millisecond
    assert state == child.process.state
    folder = child.process._folder
    process = child.process._process
    await child.aclose()

    assert "stopped" == child.process.state
    assert process is None or process.returncode is not None
    assert folder is None or not folder.exists()
    if starting is not None:
        with pytest.raises(BackendUnavailable, match="was stopped"):
            await starting
    if stopping is not None:
        await stopping
    child.settings.clear()
    if state == "died":
        monkeypatch.setattr(child.process, "_pause", pause)
    assert ["hello"] == await child.ask("say hello")
    await child.aclose()


class _Prompt(ChildProcess):
    """A child that is stopped in the step of the event loop in which its first word has come, and before that is read."""

    stop: asyncio.Task[None] | None = None

    async def _handshake(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        ready = await super()._handshake(process)
        if self.stop is None:
            self.stop = asyncio.create_task(self.aclose())
            await asyncio.sleep(0)
        return ready


async def test_a_stop_as_it_is_ready() -> None:
    """A child that is stopped just as it becomes ready is stopped, and is no death after which it would come back."""
    code = """read settings; echo '{"ready": {"ok": true}}'; exec sleep 600"""
    child = _Prompt("prompt", ["/bin/sh", "-c", code], lambda path: {}, start_timeout_s=60)
    with pytest.raises(BackendUnavailable, match="was stopped"):
        await child.start()
    assert child.stop is not None
    await child.stop

    assert ("stopped", 0, 0, None) == (child.state, child.starts, child.deaths, child._reviving)
    assert {"ok": True} == await child.start()
    await child.aclose()


def test_a_stop_while_a_failed_start_is_cleaned_up(tmp_path: Path) -> None:
    """A child that is stopped while what is left of a failed start is cleaned up can be started again."""
    holder = tmp_path / "holder"

    async def stop_and_start() -> list[str]:
        child = Tiny(load="fail", holder=str(holder))
        starting = asyncio.create_task(child.process.start())
        await until(lambda: child.process._process is not None)
        process = child.process._process
        assert process is not None
        await until(lambda: process.returncode is not None)
        await asyncio.sleep(0)  # the start waits for the watcher, which reads stderr to its end
        stopping = asyncio.create_task(child.aclose())
        await until(lambda: child.process.state == "stopping")
        await asyncio.sleep(0)
        holder.touch()
        await stopping
        with pytest.raises(BackendUnavailable, match="was stopped"):
            await starting
        child.settings.clear()
        said = await child.ask("say hello")
        await child.aclose()
        return said

    # as the server: asyncio's own processes have ended once their pipes have, too
    assert ["hello"] == uvloop.run(stop_and_start())


async def test_the_first_death_costs_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a single death in ten minutes a child is started again at once, and after the second one there is a pause."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    child = Tiny()
    await child.process.start()
    with monkeypatch.context() as patched:
        patched.setattr(_process.asyncio, "sleep", noted)
        for life in (2, 3):
            child.kill()
            while child.process.starts < life:
                await sleep(0.01)
    await child.aclose()

    first, second = pauses
    assert 0.0 == first
    assert 0.0 < second <= _restarts.FIRST_PAUSE_S


async def test_a_death_that_a_request_sees_first(tmp_path: Path) -> None:
    """A death counts, also where a request wants the child before all that it wrote has been read."""
    holder = tmp_path / "holder"
    child = Tiny(holder=str(holder))
    await child.process.start()
    process = child.process._process
    assert process is not None
    child.kill()
    await until(lambda: process.returncode is not None)
    asked = asyncio.create_task(child.ask("say hello"))
    await until(lambda: child.process._starting is not None and not child.process._starting.done())
    await asyncio.sleep(0)
    holder.touch()
    answer = await asked
    assert 1 == child.process.processes
    assert 1_000_000 < child.process.resident_memory_bytes
    deaths = len(child.process.restarts.deaths)
    await child.aclose()

    assert ["hello"] == answer
    assert 1 == deaths == child.process.deaths
    assert (2, 0, 0, 0) == (
        child.process.starts,
        child.process.hangs,
        child.process.processes,
        child.process.resident_memory_bytes,
    )


async def test_a_child_that_is_taken_apart_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is ending is waited for, however long its memory takes to be given back; one that serves is not."""
    monkeypatch.setattr(_process, "_DYING_S", 0.0)
    child = Tiny()
    await child.process.start()
    assert not await child.process.has_ended(1)
    real, ending = child.process._process, _Ending()
    child.process._process = cast(Any, ending)
    asked = asyncio.create_task(child.process.has_ended(1))
    await ending.waited_for.wait()
    assert not asked.done()
    ending.reap()
    assert await asked
    child.process._process = real
    await child.aclose()
    assert await child.process.has_ended(1)


class _Ending:
    """
    A process that has ended, and is not reaped before `reap`.

    Attributes:
        waited_for: Somebody waits for it, and not for the first time.
    """

    def __init__(self) -> None:
        self.pid = os.posix_spawn("/bin/true", ["true"], {})
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.returncode: int | None = None
        self.waited_for, self._reaped = asyncio.Event(), asyncio.Event()
        self._waits = 0

    def reap(self) -> None:
        """Let it go."""
        self.returncode = os.waitpid(self.pid, 0)[1]
        self._reaped.set()

    async def wait(self) -> None:
        """Wait until it is reaped."""
        self._waits += 1
        if self._waits > 1:
            self.waited_for.set()
        await self._reaped.wait()


async def test_a_start_while_it_stops() -> None:
    """Whoever wants a child from the moment on in which it is told to stop gets the next one."""
    child = Tiny()
    await child.process.start()
    stopping = asyncio.create_task(child.aclose())
    await asyncio.sleep(0)
    answer = await child.ask("say hello")
    await stopping
    lives = child.process.starts
    await child.aclose()

    assert ["hello"] == answer
    assert 2 == lives


async def test_cleaners_spare_the_folder() -> None:
    """The folder of the socket is locked, which cleaners of temporary files heed, and is there for nobody else."""
    child = Tiny()
    await child.process.start()
    folder = child.process._folder
    assert folder is not None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert 0o700 == folder.stat().st_mode & 0o777
    finally:
        os.close(descriptor)
        await child.aclose()
