"""FastChat itself, from PyPI, in an environment of its own: its controller, its worker on the bundled model, its API server."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.backends.loopback import free_port
from support.common import environments
from support.common.environments import Recipe
from unilect import demo

#: the newest release, and the newest of what it was written for: with pydantic 2 its streams are empty, with transformers 5
#: its worker ends; torch comes from where pip finds a build for processors
RECIPE = Recipe(
    (
        "fschat[model_worker]==0.2.36",
        "transformers<5",
        "peft<0.18",
        "pydantic<2",
        "fastapi<0.110",
    ),
    pip=("torch==2.13.0",),
)
MODEL = Path(demo.__file__).parent / "hf"
READY = "Uvicorn running on"
STOP_TIMEOUT_S = 10.0


class Process:
    """
    One of its processes.

    Attributes:
        url: Where it listens.
        log: The file with what it says.
    """

    def __init__(self, folder: Path, module: str, *args: str, **urls: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder / f"{module}-{port}"
        self._folder.mkdir()
        python = environments.python("fastchat", RECIPE)
        command = [str(python), "-m", f"fastchat.serve.{module}", "--host", "127.0.0.1"]
        command += ["--port", str(port), *args]
        for name, url in urls.items():
            command += [f"--{name.replace('_', '-')}", url or self.url]
        self._process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=os.environ | {"LOGDIR": str(self._folder), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self) -> str:
        """Its URL, once it listens."""
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if READY in line:
                self._drain()
                return self.url
        raise RuntimeError("".join(said)[-4000:])

    def stop(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # its heart-beat threads keep it alive
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _drain(self) -> None:
        """What it says from now on is read by a thread, and dropped: a full pipe would stop it."""
        assert self._process.stdout is not None
        stdout = self._process.stdout
        threading.Thread(target=lambda: [None for _ in stdout], daemon=True).start()


@contextmanager
def stopping() -> Iterator[Callable[[Process], Process]]:
    """A place to put processes, which are ended with the block."""
    processes: list[Process] = []

    def keep(process: Process) -> Process:
        processes.append(process)
        return process

    try:
        yield keep
    finally:
        for process in processes:
            process.stop()
