"""
The process of `tiny_child`: the real child's side around a server of one line a connection.

`say X` is answered with X. `begin` is answered with a line, and then with nothing; `wait` with nothing at all. `die` ends the process,
`starve` does for want of memory, as C++ does, `stop` halts it, `eat N` takes N MiB and is answered with `ate` or `no memory`.
"""

import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from unilect.engines.process import child

_eaten: list[Any] = []


def _serve(settings: dict[str, Any]) -> dict[str, Any]:
    if log := settings.get("log"):
        with Path(log).open("a") as file:
            file.write("spawn\n")
    if gate := settings.get("gate"):  # loads until the file is there
        while not Path(gate).exists():
            time.sleep(0.005)
    if holder := settings.get("holder"):  # keeps stderr open until the file is there
        loop = f"while [ ! -e '{holder}' ]; do sleep 0.01; done"
        subprocess.Popen(["/bin/sh", "-c", loop], stdin=subprocess.DEVNULL)
    if words := settings.get("words"):
        print(words, file=sys.stderr, flush=True)
    match settings.get("load"):
        case "die":
            signal.raise_signal(signal.SIGSEGV)
        case "fail":
            raise ValueError("the file is broken")
    server = socket.socket(socket.AF_UNIX)
    server.bind(settings["socket_path"])
    server.listen(64)
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    return {"grows_bytes": settings["grows_bytes"]} if "grows_bytes" in settings else {}


def _accept(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection, connection.makefile("rw") as stream:
        verb, _, rest = stream.readline().strip().partition(" ")
        match verb:
            case "say":
                stream.write(f"{rest}\n")
            case "begin" | "wait":
                if verb == "begin":
                    stream.write("a piece\n")
                    stream.flush()
                stream.readline()
            case "die":
                signal.raise_signal(signal.SIGABRT)
            case "starve":
                words = "terminate called after throwing an instance of 'std::bad_alloc'"
                print(words, file=sys.stderr, flush=True)
                signal.raise_signal(signal.SIGABRT)
            case "stop":
                signal.raise_signal(signal.SIGSTOP)
            case "eat":
                try:
                    _eaten.append(bytearray(int(rest.split()[0]) * 2**20))
                    stream.write("ate\n")
                except MemoryError:
                    stream.write("no memory\n")
        stream.write(".\n")


if __name__ == "__main__":
    child.run(_serve)
