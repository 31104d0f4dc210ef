"""
LiteLLM's proxy in front of a server of ours, as a process of its own.

It takes some ten seconds of processor time to start, so it is started before it is needed, and waited for when it is.
"""

import json
import os
import subprocess
import threading
from pathlib import Path

from support.backends.loopback import free_port
from support.common import environments
from support.common.environments import Recipe
from support.servers.serving import KEY, Server

LITELLM = Recipe(("litellm[proxy]>=1.106",))
START_TIMEOUT_S = 120.0


class Proxy:
    """
    A proxy that starts.

    Args:
        behind: The server that it is in front of.
        folder: Where its configuration is written.

    Attributes:
        key: What its clients must send.
    """

    key = "sk-0123456789abcdef0123456789abcdef"

    def __init__(self, behind: Server, folder: Path) -> None:
        python = environments.python("litellm", LITELLM)
        params = {"model": "openai/demo", "api_base": behind.url, "api_key": KEY, "max_retries": 0}
        config = {"model_list": [{"model_name": "demo", "litellm_params": params}]}
        (folder / "config.yaml").write_text(json.dumps(config))
        self._port = free_port()
        command = [python.with_name("litellm"), "--config", "config.yaml", "--host", "127.0.0.1"]
        self._process = subprocess.Popen(
            [*command, "--port", str(self._port), "--telemetry", "False"],
            cwd=folder,
            env=os.environ
            | {"LITELLM_MASTER_KEY": self.key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: list[str] = []
        self._up = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def url(self) -> str:
        """Its base URL, once it answers."""
        assert self._up.wait(START_TIMEOUT_S), "".join(self._lines[-20:])
        assert self._process.poll() is None, "".join(self._lines[-20:])
        return f"http://127.0.0.1:{self._port}/v1"

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        """Read its log to the end: a full pipe would stop it."""
        assert self._process.stdout is not None
        with self._process.stdout as log:
            for line in log:
                self._lines.append(line)
                if "Uvicorn running on" in line:
                    self._up.set()
        self._up.set()
