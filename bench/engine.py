#!/usr/bin/env python3
"""
What unilect costs a model: tokens per second and time to the first token of one GGUF file, served in three ways.

* `unilect serve` with 32 places and one thread,
* the same llama.cpp server directly (bench/llama_server.py: same wheel, same settings, no unilect in front),
* llama-cpp-python's server, which answers one request at a time.

Beside them the CPU time of each token, of the whole server and of unilect's gateway without its engine: other work on the machine
hardly changes it.

The model has random weights (bench/random_model.py; 64 million parameters, Q8_0) and is made on first use. The load is streamed
chat completions of exactly 64 tokens each, with short prompts of which no two are the same, from 1, 8 and 32 clients at once; every
client sends its requests one after the other. All servers are up at the same time and take turns; the median of the rounds
counts. An answer that has not 64 tokens (its usage says; where the server gives none, its pieces) ends the bench.

usage: bench/engine.py [--rounds 5] [--only NAME ...]
llama-cpp-python is built from source in an environment of its own (needs a C++ compiler and cmake; about 3 minutes).
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from types import MappingProxyType

import aiohttp
import processes
import report

HERE = Path(__file__).parent
MODEL = processes.CACHE / "random-64m-q8.gguf"
WIDTH = 512
TOKENS, CONTEXT, PARALLEL, THREADS = 64, 512, 32, 1
LLAMA_CPP_PYTHON = ("llama-cpp-python", "llama-cpp-python[server]")
REQUESTS = {1: 6, 8: 2, 32: 1}  # clients -> requests of each


@dataclass(frozen=True)
class Contestant:
    """One server, where it listens."""

    name: str
    command: Sequence[str | Path]
    port: int
    model: str = "m"
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Figures:
    """One load."""

    tokens_per_s: float
    first_token_ms: float
    cpu_us: float  # for a token, the whole server
    gateway_cpu_us: float | None  # for a token, without the engine; None where there is no gateway


def model(width: int = WIDTH) -> Path:
    """The file of a model of this width; made where it does not exist yet."""
    file = MODEL if width == WIDTH else MODEL.with_name(f"random-width-{width}-q8.gguf")
    if not file.exists():
        python = processes.environment("model", "gguf", "numpy", "safetensors", "tokenizers")
        subprocess.run([python, HERE / "random_model.py", file, str(width)], check=True)
    return file


def contestants(wanted: Sequence[str]) -> list[Contestant]:
    """The servers whose names have one of the wanted parts."""
    ports = [processes.free_port() for _ in range(3)]
    path = model()
    serve = [
        processes.unilect(),
        "serve",
        f"m={path}",
        "--port",
        ports[0],
        "--log-level",
        "warning",
    ]
    serve += ["--parallel", PARALLEL, "--context", CONTEXT, "--threads", THREADS]
    direct = [sys.executable, HERE / "llama_server.py", path, ports[1], PARALLEL, CONTEXT, THREADS]
    peer: list[object] = []
    if any(name in "llama-cpp-python" for name in wanted):
        python = processes.environment(*LLAMA_CPP_PYTHON)
        peer = [python, "-m", "llama_cpp.server", "--model", path, "--port", ports[2]]
        peer += ["--n_ctx", CONTEXT, "--n_threads", THREADS, "--n_threads_batch", THREADS]
        peer += ["--interrupt_requests", "false"]
    commands = {"unilect": serve, "llama-server": direct, "llama-cpp-python": peer}
    return [
        Contestant(name, [str(part) for part in command], port)
        for (name, command), port in zip(commands.items(), ports, strict=True)
        if any(part in name for part in wanted)
    ]


def request(number: int, model: str = "m") -> bytes:
    """A chat request with words of its own."""
    dice = random.Random(number)
    words = ["".join(dice.choices("abdegiklmnoprstu", k=dice.randint(2, 6))) for _ in range(2)]
    fields = {
        "model": model,
        "messages": [{"role": "user", "content": " ".join(words)}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(fields).encode()


async def one_answer(session: aiohttp.ClientSession, port: int, body: bytes) -> float:
    """
    Read one streamed answer.

    Returns:
        Seconds to its first text.

    Raises:
        RuntimeError: It has not as many tokens as were asked for.
    """
    begin, first_s, pieces, usage, finish = time.perf_counter(), 0.0, 0, None, None
    async with session.post(f"http://127.0.0.1:{port}/v1/chat/completions", data=body) as response:
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                finish = choice.get("finish_reason") or finish
                if choice.get("delta", {}).get("content"):
                    pieces += 1
                    first_s = first_s or time.perf_counter() - begin
    tokens = usage["completion_tokens"] if usage else pieces
    if tokens != TOKENS or finish != "length" or not first_s:
        raise RuntimeError(f"port {port}: {tokens} tokens, {response.status}, finish {finish}")
    return first_s


async def load(one: Contestant, clients: int, requests: int, number: int) -> tuple[float, float]:
    """
    Clients at once, each with its requests one after the other; `number` makes the prompts new.

    Returns:
        Tokens per second, and the median time to the first one in seconds.
    """
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

        async def client(place: int) -> list[float]:
            numbers = [(number * 100 + place) * 100 + turn for turn in range(requests)]
            bodies = [request(each, one.model) for each in numbers]
            return [await one_answer(session, one.port, body) for body in bodies]

        begin = time.perf_counter()
        firsts = await asyncio.gather(*(client(place) for place in range(clients)))
        taken_s = time.perf_counter() - begin
    tokens = clients * requests * TOKENS
    return tokens / taken_s, median(chain.from_iterable(firsts))


def loaded(one: Contestant, pid: int, clients: int, requests: int, number: int) -> Figures:
    """One load, and what the server's processes spent on it."""
    gateway = one.name.startswith("unilect")
    before, before_gateway = processes.cpu_s(pid), processes.cpu_s(pid, children=False)
    tokens_per_s, first_s = asyncio.run(load(one, clients, requests, number))
    spent_s = processes.cpu_s(pid) - before
    gateway_s = processes.cpu_s(pid, children=False) - before_gateway
    us = 1e6 / (clients * requests * TOKENS)
    return Figures(tokens_per_s, first_s * 1e3, spent_s * us, gateway_s * us if gateway else None)


def measure(
    all: list[Contestant],
    rounds: int,
    beside: Callable[[int], None] | None = None,
    settle_s: float = 20.0,
    loads: Mapping[int, int] = MappingProxyType(REQUESTS),
) -> dict[str, dict[int, list[Figures]]]:
    """
    All loads of all contestants, by name and number of clients.

    Args:
        beside: Called with the number of clients in each round, when all have had that load; for what is no server.
        settle_s: How long to wait, after a load, until its server has nothing left to do.
        loads: Numbers of clients, and of the requests of each.
    """
    found: dict[str, dict[int, list[Figures]]] = {
        one.name: {clients: [] for clients in loads} for one in all
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        up = []
        for one in all:
            log = folder / f"{one.name}.log"
            process = processes.running(
                one.command, port=one.port, log=log, environment=dict(one.environment)
            )
            pid = stack.enter_context(process)
            processes.wait_until_ready(one.port, "/v1/chat/completions", request(0, one.model))
            up.append((one, pid))
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            turn = number % len(up)
            for clients, requests in loads.items():
                for one, pid in up[turn:] + up[:turn]:
                    found[one.name][clients].append(loaded(one, pid, clients, requests, number + 1))
                    processes.settle(pid, settle_s)  # what it does afterwards is not the next one's
                if beside is not None:
                    beside(clients)
    return found


TITLES = {
    "tokens_per_s": "tokens/s",
    "first_token_ms": "first token, ms",
    "cpu_us": "CPU us for a token, whole server",
    "gateway_cpu_us": "CPU us for a token, unilect's gateway alone",
}


def show(found: dict[str, dict[int, list[Figures]]], ours_name: str = "unilect") -> None:
    """A table for each figure: medians, and ratios of unilect to the others within the rounds."""
    columns = ["server", *(f"{clients} streams" for clients in REQUESTS)]
    ours = found.get(ours_name)
    for what, title in TITLES.items():
        rows: list[list[object]] = []
        for name, loads in found.items():
            taken = [[getattr(one, what) for one in loads[count]] for count in REQUESTS]
            if taken[0][0] is not None:
                rows.append([name, *map(median, taken)])
            if ours is None or name == ours_name or taken[0][0] is None:
                continue
            own = [[getattr(one, what) for one in ours[count]] for count in REQUESTS]
            pairs = [zip(mine, its, strict=True) for mine, its in zip(own, taken, strict=True)]
            ratios = [median(mine / its for mine, its in pair) for pair in pairs]
            rows.append([f"{ours_name} / {name}", *(f"{ratio:.2f}x" for ratio in ratios)])
        print(f"\n{title}\n{report.table(columns, rows)}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="What unilect costs a model.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="servers, by part of their names")
    given = parser.parse_args()
    all = contestants([name.lower() for name in given.only] or [""])
    found = measure(all, given.rounds)
    show(found)
    used = report.versions("unilect", "xllamacpp", "aiohttp")
    if "llama-cpp-python" in found:
        python = processes.environment(*LLAMA_CPP_PYTHON)
        used |= report.versions("llama-cpp-python", python=python)
    rows = [
        {"name": name, "clients": clients} | asdict(one)
        for name, loads in found.items()
        for clients, figures in loads.items()
        for one in figures
    ]
    settings = {"tokens": TOKENS, "context": CONTEXT, "parallel": PARALLEL, "threads": THREADS}
    report.write("engine", used, settings=settings | vars(given), rows=rows)


if __name__ == "__main__":
    main()
