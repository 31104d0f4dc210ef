"""Tests of unilect.cli._try, on servers that run."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from support.backends.engine import answer, chat
from support.common.waiting import until
from unilect.cli._try import choose, place, to_toml, try_command
from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.demo import MODEL
from unilect.engines.command.engine import Address
from unilect.engines.process.tree import read_stat
from unilect.models import sources

LLAMA_SERVER = Path(__file__).parents[2] / "bench" / "llama_server.py"


async def _answers(table: dict[str, Any]) -> str:
    """The answer of a model of a table to a question."""
    config = ModelConfig(**table)
    backend = sources.backend(sources.spec_of("m", config.sources[0], config))
    try:
        found = await answer(backend.generate(chat("What is the capital of France?", max_tokens=16)))  # fmt: skip
        return found.choices[0].text or ""
    finally:
        await backend.aclose()


@pytest.mark.heavy
def test_try(capsys: pytest.CaptureFixture[str]) -> None:
    """A server is found where it listens, measured and asked, and the table that is printed serves it as it stands."""
    import asyncio

    port = _free_port()
    words = [sys.executable, str(LLAMA_SERVER), str(MODEL), str(port), "4", "512", "1"]
    try_command(words, "m", None, ())
    told, _, table = capsys.readouterr().out.partition("\n\n")
    assert "server       llama-server, in OpenAI's protocol" in told
    assert f"listened at  port {port}" in told
    assert "contract     6 of 6 promises hold" in told
    assert "chat         yes, " in told
    models = tomllib.loads(table)["models"]
    assert "Paris" in asyncio.run(_answers(models["m"]))


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize(
    ("words", "found", "placed"),
    [
        (["x", "--port", "80"], Address(80, "", []), ["x", "--port", "{port}"]),
        (["x", "--at=0:80", "8000"], Address(80, "", []), ["x", "--at=0:{port}", "8000"]),
        (["x", "--len", "80", "--port", "80"], Address(80, "", []), ["x", "--len", "80", "--port", "{port}"]),
        (["x", "--len=80", "-Host=h:80"], Address(80, "", []), ["x", "--len=80", "-Host=h:{port}"]),
        (["x", "--uds", "/a.sock"], Address(80, "/a.sock", []), ["x", "--uds", "{socket}"]),
        ([sys.executable, "-m", "unilect", "serve"], Address(80, "", []), [sys.executable, "-m", "unilect", "serve", "--port", "{port}"]),
    ],
)  # fmt: skip
async def test_place(words: list[str], found: Address, placed: list[str]) -> None:
    """Where a command line says the place that a server listens at, it gets a placeholder, else a flag that its help has."""
    assert placed == await place(words, found)


async def test_no_place() -> None:
    """A server that listens where its command line does not say, and cannot be told, is refused with what to write."""
    with pytest.raises(ConfigError, match=r"listens at 80, .* with the placeholder: .*\{port\}$"):
        await place(["true"], Address(80, "", []))


async def test_help_of_a_server(tmp_path: Path) -> None:
    """A command that does not know `--help`, writes without an end and has a process beside itself is killed with it; placeholders in it have values."""
    script = f"sleep 60 & echo $! > {tmp_path}/pid; yes x{{key}}"
    with pytest.raises(ConfigError, match="its --help has no `--port`"):
        await place(["sh", "-c", script, "sh", "{key}"], Address(80, "", []))
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: (stat := read_stat(pid)) is None or stat.is_dead)


@pytest.mark.parametrize(
    ("words", "models", "chosen"),
    [
        (["x", "a/b"], ["m", "a/b"], None),
        (["x", "a/b"], ["c", "a/b"], "a/b"),
        (["x", "--model=a/b"], [], "a/b"),
        (["x", "-m", "a.gguf"], [], "a.gguf"),
        (["x", "y"], [], None),
        (["x", "a/b"], ["only"], None),
    ],
)
def test_choose(words: list[str], models: list[str], chosen: str | None) -> None:
    """Of several models, or where none are listed, the one is taken that the command line names."""
    assert chosen == choose("m", words, models)


@pytest.mark.parametrize("words", [["a", "b c", "{port}"], ["a", "{port}"], ["a", 'x"\\', "\x7f", ""]])  # fmt: skip
def test_table(words: list[str]) -> None:
    """A table is TOML with the words as they are, and a text where they need no quotes."""
    command = tomllib.loads(to_toml("a.b c", {"command": words}))["models"]["a.b c"]["command"]
    assert command == ("a {port}" if words == ["a", "{port}"] else words)


def test_no_command() -> None:
    """Without a command, or with a name that no model can have, it is said what to write."""
    with pytest.raises(ConfigError, match="unilect try -- llama-server"):
        try_command([], None, None, ())
    with pytest.raises(ConfigError, match="--name: a model's name has"):
        try_command(["x"], "a b", None, ())
