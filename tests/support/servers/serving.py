"""
A real `unilect serve`, for tests: a process of its own, on a free port, in a folder of its own.

It knows the command line and the start screen, and nothing of what is inside.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEY = "sk-test"
START_TIMEOUT_S = 60.0  # a model is loaded by then, on a machine that does other things too
STOP_TIMEOUT_S = 60.0
_GREETING = "unilect answers at "
_FURTHER = "and at "


@dataclass(frozen=True)
class Server:
    """
    A server that answers.

    Attributes:
        url: Its base URL for OpenAI's clients, `http://127.0.0.1:PORT/v1`.
        pid: Its process.
        log: The file that its stderr goes to.
        further: The base URLs of its further addresses.
    """

    url: str
    pid: int
    log: Path
    further: tuple[str, ...] = ()

    @property
    def root(self) -> str:
        """Its URL without `/v1`."""
        return self.url.removesuffix("/v1")

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.root.rpartition(":")[2])


@contextmanager
def serve(
    *args: str,
    config: str | None = None,
    env: Mapping[str, str] | None = None,
    command: Sequence[str] = ("serve",),
    python: Path | str = sys.executable,
    killed: bool = False,
) -> Iterator[Server]:
    """
    Run `unilect serve` until the block ends; it must then end by itself, with exit code 0.

    Args:
        args: Arguments after `serve`; `--port 0` is added.
        command: Instead of `serve`.
        config: The text of a TOML file to serve with.
        env: Variables for its environment; no other `UNILECT_*` reaches it.
        python: The interpreter, where it is another.
        killed: The test kills it within the block.

    Raises:
        RuntimeError: It did not start; the message holds its log.
    """
    with tempfile.TemporaryDirectory(prefix="unilect-test-") as folder:
        log = Path(folder) / "stderr"
        line = [str(python), "-m", "unilect", *command, *args, "--port", "0"]
        if config is not None:
            (Path(folder) / "unilect.toml").write_text(config)
            line += ["--config", "unilect.toml"]
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                line,
                cwd=folder,
                env=_environment({"XDG_DATA_HOME": folder} | dict(env or {})),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        try:
            url, *further = _urls(process, log)
            server = Server(url, process.pid, log, tuple(further))
        except BaseException:
            process.kill()
            process.communicate()
            raise
        try:
            yield server
        finally:
            _stop(process, log, -signal.SIGKILL if killed else 0)


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("UNILECT_")}
    return ours | dict(more or {})


def _urls(process: "subprocess.Popen[str]", log: Path) -> list[str]:
    """The URLs of the start screen's first lines, which are printed when the server answers."""
    assert process.stdout is not None
    too_late = threading.Timer(START_TIMEOUT_S, process.kill)
    too_late.start()
    line = process.stdout.readline()
    too_late.cancel()
    if line.startswith("{"):  # one line of the log as JSON
        urls: list[str] = json.loads(line)["urls"]
        return [f"{url}/v1" for url in urls]
    if not line.startswith(_GREETING):
        raise RuntimeError(f"the server did not start: {line!r}\n{log.read_text()[-4000:]}")
    urls = [line.removeprefix(_GREETING).strip()]
    while (line := process.stdout.readline().strip()).startswith(_FURTHER):
        urls.append(line.removeprefix(_FURTHER).partition(" ")[0])
    return urls


def _stop(process: "subprocess.Popen[str]", log: Path, code: int) -> None:
    if process.poll() is None and not code:
        process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert code == process.returncode, log.read_text()[-4000:]
