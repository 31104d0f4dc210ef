"""A Redis server for tests, on a free port of loopback; its program is the system's (`redis-server` of Debian, which `.ci/run` installs)."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import pytest

from support.backends.loopback import free_port

READY = "Ready to accept connections"


@dataclass
class RedisServer:
    """
    A server without a file, unless it is told to save: what it has is gone when it ends.

    Attributes:
        port: Where it listens.
    """

    port: int
    folder: str
    _process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Its URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it; it accepts connections when this returns."""
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", self.folder]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/")
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if READY in line:
                return
        raise AssertionError("".join(lines))

    def stop(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def flush(self) -> None:
        """Forget everything."""
        command = ["redis-cli", "-p", str(self.port), "flushall"]
        assert "OK\n" == subprocess.check_output(command, text=True)

    def save(self) -> None:
        """Write down what it has; it has that, and no more, when it is started again."""
        command = ["redis-cli", "-p", str(self.port), "save"]
        assert "OK\n" == subprocess.check_output(command, text=True)

    def protect(self, password: str) -> None:
        """Answer nobody without this password from now on."""
        command = ["redis-cli", "-p", str(self.port), "config", "set", "requirepass", password]
        assert "OK\n" == subprocess.check_output(command, text=True)

    def forbid(self, command: str) -> None:
        """Refuse a command to everybody from now on."""
        asked = ["redis-cli", "-p", str(self.port), "acl", "setuser", "default", f"-{command}"]
        assert "OK\n" == subprocess.check_output(asked, text=True)

    def freeze(self, frozen: bool = True) -> None:
        """Have it answer nothing for a while, as a network that is gone does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if frozen else signal.SIGCONT)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A server until the block ends; the test is skipped where there is no program, and fails in continuous integration."""
    if shutil.which("redis-server") is None:
        message = "there is no redis-server: install Debian's package, or another"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with TemporaryDirectory(prefix="unilect-redis-") as folder:
        server = RedisServer(free_port(), folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
