"""nginx and HAProxy in front of a server, for tests; their programs are Debian's packages `nginx-light` and `haproxy`, which `.ci/run` installs."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support.backends.loopback import free_port

START_TIMEOUT_S = 30.0
#: A proxy gives up a client that sends half a request after so long, so that each conversation ends by itself.
PATIENCE_MS = 500
#: They take what they can: more of what is ambiguous then reaches the server behind. Connections to it are used again.
_NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error;
events {{ worker_connections 512; }}
http {{
  log_format one '$upstream_addr $upstream_status';
  access_log {folder}/log one;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  client_header_timeout {ms}ms; client_body_timeout {ms}ms; keepalive_timeout {ms}ms; lingering_close off;
  client_max_body_size 0; ignore_invalid_headers off; underscores_in_headers on; merge_slashes off; large_client_header_buffers 8 256k;
  upstream behind {{ server 127.0.0.1:{behind}; keepalive 4; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host 127.0.0.1;
      proxy_request_buffering {buffering}; proxy_next_upstream off;
    }}
  }}
}}
"""
_HAPROXY = """
global
  log stdout len 65535 format raw local0
  tune.bufsize 262144
defaults
  mode http
  log global
  log-format "%s %ST"
  timeout connect 5s
  timeout server 2s
  timeout client {ms}ms
  timeout http-request {ms}ms
  timeout http-keep-alive {ms}ms
  retries 0
frontend front
  bind 127.0.0.1:{port}
  {lenient}
  default_backend behind
backend behind
  http-reuse always
  http-request set-header Host 127.0.0.1
  server one 127.0.0.1:{behind}
"""
KINDS = ("nginx", "nginx, unbuffered", "haproxy", "haproxy, lenient")


@dataclass
class Proxy:
    """
    A proxy that accepts connections.

    Attributes:
        port: Where it listens.
    """

    port: int
    _log: Path

    def counted(self) -> tuple[int, int]:
        """How many requests it has passed on, and how many of these were answered by the server behind it."""
        told = map(str.split, self._log.read_text("latin-1").splitlines())
        passed = [line[-1] for line in told if line and line[0] not in ("-", "<NOSRV>")]
        return len(passed), sum(status not in _OWN for status in passed)


#: What a proxy says by itself where the server behind it did not answer.
_OWN = {"-", "-1", "0", "408", "499", "502", "503", "504"}


@contextmanager
def proxy(kind: str, behind: int) -> Iterator[Proxy]:
    """
    A proxy before a port of loopback, until the block ends; the test is skipped where there is no program, and fails in
    continuous integration.

    Args:
        kind: One of `KINDS`.
    """
    program = _program(kind.partition(",")[0])
    with TemporaryDirectory(prefix="unilect-proxy-") as name:
        folder, port = Path(name), free_port()
        lenient = "option accept-invalid-http-request" if "lenient" in kind else ""
        text = (_NGINX if "nginx" in kind else _HAPROXY).format(
            folder=folder,
            port=port,
            behind=behind,
            ms=PATIENCE_MS,
            buffering="off" if "unbuffered" in kind else "on",
            lenient=lenient,
        )
        (folder / "conf").write_text(text)
        command = (
            [program, "-p", name, "-e", f"{name}/error", "-c", f"{name}/conf"]
            if "nginx" in kind
            else [program, "-db", "-f", f"{name}/conf"]
        )
        with (folder / "log").open("ab") as log, (folder / "stderr").open("wb") as stderr:
            process = subprocess.Popen(command, stdout=log, stderr=stderr, cwd="/")
        try:
            _until_open(port, process, folder)
            yield Proxy(port, folder / "log")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        message = f"there is no {name}: install Debian's package, or another"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return found


def _until_open(port: int, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Wait until somebody listens."""
    ends = time.monotonic() + START_TIMEOUT_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        assert process.poll() is None, (folder / "stderr").read_text()
        assert time.monotonic() < ends
        time.sleep(0.02)
