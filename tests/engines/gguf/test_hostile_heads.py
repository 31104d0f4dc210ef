"""
GGUF files whose head somebody has changed, as our reader, llama.cpp and a whole server take them.

`UNILECT_HOSTILE=5000` changes so many heads, gives llama.cpp all that our reader takes, and prints what became of them.
"""

import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.backends.engine import THOROUGH
from support.common.effort import effort_s
from support.models import tiny_gguf
from support.models.hostile_heads import changed
from support.servers.serving import serve
from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.engines.gguf._file import _Reader
from unilect.engines.gguf.engine import GgufEngine
from unilect.runtime.memory import MIB, resident_bytes

ALL = "UNILECT_HOSTILE" in os.environ
COUNT = int(os.environ.get("UNILECT_HOSTILE", "5000" if THOROUGH else "500"))
LOADED = COUNT if ALL else 60 if THOROUGH else 12
SECONDS = 0.25  # of the processor, for our reader
MOST_BYTES = 64 * MIB  # that our reader may leave behind
#: Of a llama.cpp that loads a model of 174 KB; it takes some 100 MiB for a sound one.
MOST_RESIDENT_KIB = 2 * 1024 * 1024
LONGEST_S = 25.0

Taken = list[tuple[int, dict[str, Any]]]


class Files:
    """Files with the tiny model's data, and heads that were changed."""

    def __init__(self, folder: Path) -> None:
        self.whole = tiny_gguf.make(folder / "whole.gguf").read_bytes()
        self._folder = folder
        reader = _Reader(self.whole, len(self.whole))
        reader.head()
        self.head = self.whole[: reader._at]

    def path(self, number: int) -> Path:
        """The file of a number."""
        path = self._folder / f"{number}.gguf"
        path.write_bytes(changed(self.head, number) + self.whole[len(self.head) :])
        return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Makes the files."""
    return Files(tmp_path_factory.mktemp("gguf"))


def settings_of(path: Path) -> dict[str, Any] | None:
    """The settings that a child gets for a file, or None where our reader refuses it with a sentence that names it."""
    try:
        engine = GgufEngine("m", path, ModelConfig())
        settings = [child._settings("") for child in engine.children]
        json.dumps(settings)
    except ConfigError as error:
        assert str(path) in str(error)
        assert str(error).endswith(".")
        return None
    return settings[0]


@pytest.fixture(scope="module")
def taken(files: Files) -> Taken:
    """The numbers of the files that our reader takes, each with the settings that a child gets."""
    found: Taken = []
    before, worst = resident_bytes(os.getpid()), 0.0
    gc.freeze()  # a look at all that a process of tests holds takes a second
    try:
        for number in range(COUNT):
            path = files.path(number)
            worst = max(worst, effort_s(lambda path=path: settings_of(path), SECONDS))
            if (settings := settings_of(path)) is None:
                path.unlink()
            else:
                found.append((number, settings))
    finally:
        gc.unfreeze()
    assert worst < SECONDS
    assert resident_bytes(os.getpid()) - before < MOST_BYTES
    if ALL:
        print(f"\n{COUNT} heads, {len(found)} taken, the slowest {worst * 1000:.1f} ms")
    return found


def test_our_reader(files: Files, taken: Taken) -> None:
    """Each changed head is refused with a sentence that names the file, or taken, soon and within bounds; most are refused."""
    assert GgufEngine("m", files.path(-1).with_name("whole.gguf"), ModelConfig())
    assert COUNT // 20 < len(taken) < COUNT // 2


@pytest.fixture(scope="module")
def child() -> Iterator["subprocess.Popen[str]"]:
    """The process that loads files."""
    command = [sys.executable, str(Path(tiny_gguf.__file__).with_name("loading_child.py"))]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def told(child: "subprocess.Popen[str]", settings: dict[str, Any]) -> Any:
    """What became of a file in a fork of the process."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(settings) + "\n")
    child.stdin.flush()
    return json.loads(child.stdout.readline())


def outcome(one: Any) -> str:
    """What became of it, in a word."""
    if one["code"]:
        return f"died ({one['code']})"
    return "answered" if one.get("answered") else "ready" if "ready" in one else "failed"


@pytest.mark.timeout(0 if ALL else 180)
def test_llama_cpp(files: Files, taken: Taken, child: "subprocess.Popen[str]") -> None:
    """llama.cpp serves each head that our reader takes, refuses it or dies with a word, within bounds of time and memory."""
    seen = Counter[str]()
    for number, settings in taken[:LOADED]:
        one = told(child, settings)
        seen[outcome(one)] += 1
        assert one["seconds"] < LONGEST_S, (number, one)
        assert one["resident_kib"] < MOST_RESIDENT_KIB, (number, one)
        assert outcome(one) in ("answered", "ready") or one.get("failed") or one["words"], number
    assert "answered" == outcome(told(child, taken[0][1] | {"path": str(files.path(0).with_name("whole.gguf"))}))  # fmt: skip
    assert seen["answered"]
    if ALL:
        print(f"\n{dict(seen)}")


@pytest.mark.heavy
def test_a_server(files: Files, taken: Taken, child: "subprocess.Popen[str]") -> None:
    """A server whose models have such files says of each why it does not start, or answers; it lives, and so does its other model."""
    chosen: dict[str, int] = {}
    for number, settings in taken[:60]:
        if len(chosen) == 3:
            break
        chosen.setdefault(outcome(told(child, settings)).partition(" ")[0], number)
    assert {"answered", "failed", "died"} == set(chosen)
    tables = [f'[models.{name}]\nsource = "{files.path(number)}"\nload = "demand"\n' for name, number in chosen.items()]  # fmt: skip
    config = "\n".join(['[models.good]\nsource = "demo:"\n', *tables])
    answers = {}
    with serve(config=config) as server, httpx2.Client(timeout=60) as client:

        def ask(model: str) -> Any:
            body = {"model": model, "max_tokens": 3, "messages": [{"role": "user", "content": "a"}]}
            return client.post(f"{server.url}/chat/completions", json=body)

        for name in chosen:
            answers[name] = ask(name)
            began = time.monotonic()
            assert 200 == ask("good").status_code
            assert time.monotonic() - began < 5
        assert Path(f"/proc/{server.pid}").exists()

    assert 200 == answers["answered"].status_code
    for name in ("failed", "died"):
        assert 503 == answers[name].status_code
        error = answers[name].json()["error"]
        assert len(error["message"]) > 30, error
