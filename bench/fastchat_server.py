#!/usr/bin/env python3
"""
FastChat on one folder: its controller, one model worker and its API server, until this process is killed. What bench/hf.py compares
unilect with.

Short prompts stay short (its conversation template `raw`), and every token is a chunk of its own. The worker has one core, as
unilect's engine has one thread: it answers each request in a thread of its own, and would use them all.

usage: fastchat_server.py FOLDER PORT DTYPE     with the Python of an environment that has FastChat
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

LOGS = tempfile.gettempdir()  # it writes logs wherever it is


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(module: str, port: int, *words: str) -> str:
    """Start one of its processes; its address, once it listens."""
    command = [sys.executable, "-m", f"fastchat.serve.{module}", "--port", str(port)]
    pinned = ["taskset", "-c", "0"] if module == "model_worker" else []
    subprocess.Popen(
        [*pinned, *command, "--host", "127.0.0.1", *words],
        cwd=LOGS,
        env=os.environ | {"LOGDIR": LOGS},
    )
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return f"http://127.0.0.1:{port}"
        time.sleep(0.1)


def wait_for_worker(controller: str) -> None:
    """Wait until the controller knows a model."""
    while True:
        request = urllib.request.Request(f"{controller}/list_models", data=b"", method="POST")
        with urllib.request.urlopen(request) as response:
            if json.load(response)["models"]:
                return
        time.sleep(0.1)


def main(folder: str, port: str, dtype: str) -> None:
    """Serve until killed."""
    controller = start("controller", free_port())
    worker = free_port()
    address = ["--controller-address", controller]
    words = ["--worker-address", f"http://127.0.0.1:{worker}", "--model-names", "m"]
    words += ["--model-path", folder, "--device", "cpu", "--dtype", dtype]
    start(
        "model_worker", worker, *address, *words, "--conv-template", "raw", "--stream-interval", "1"
    )
    wait_for_worker(controller)
    start("openai_api_server", int(port), *address)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(*sys.argv[1:])
