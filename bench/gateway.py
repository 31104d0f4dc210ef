#!/usr/bin/env python3
"""
What a gateway costs: CPU time, delay and memory of unilect, a bare aiohttp proxy and LiteLLM in front of the same mock.

* CPU: user and system time of the process tree (/proc) for each request while `wrk` keeps 32 connections busy, for whole
  answers and for streams of 67 chunks. What wrk had under way at the end was paid for and not counted, so slow gateways have
  longer turns.
* delay: the median over one kept connection, less the median without a gateway: to the end of a whole answer, and to the first
  byte of a stream.
* memory: resident, at rest after the first answers, and the most while 1,000 streams are open.

The gateway has core 0; the mock and the load have core 1. All contestants run in every round, in turns of a second, and the
median of the turns counts: on a machine that does other work, only ratios within one run mean something. Every contestant must
first give a right answer: status 200, all 64 words, and `[DONE]` at the end of the stream.

usage: bench/gateway.py [--rounds 3] [--seconds 4] [--streams 1000] [--only NAME ...] [--against CHECKOUT]
With `--against` the unilect of another checkout of this repository takes part, to see what a change costs.
Needs `wrk` (Debian: apt-get install wrk) and `taskset`; LiteLLM gets an environment of its own, made with uv.
"""

import argparse
import asyncio
import http.client
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import truediv
from pathlib import Path
from statistics import median

import processes
import report

HERE = Path(__file__).parent
KEY, PATH, WORDS = "sk-bench", "/v1/chat/completions", 64
GATEWAY_CORE, LOAD_CORE = 0, 1
CONNECTIONS = 32
SLOW_MOCK = {"CHUNKS": "20", "DELAY_S": "0.5"}  # the streams that stay open take 12 s each
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Hello, tell me something about the weather in Paris."},
]


@dataclass
class Contestant:
    """One gateway, and how to start it in front of a mock."""

    name: str
    command: Sequence[str | Path]  # {port} and {mock} stand for ports
    config: str = ""  # written to the file that {config} stands for
    environment: Mapping[str, str] = field(default_factory=dict)
    factor: float = 1.0  # so much longer is it measured, since it is slow
    memory: bool = True  # whether open streams are tried

    @contextmanager
    def running(self, mock: int) -> Iterator[tuple[int, int]]:
        """Run it; yields port and process id once it answers rightly."""
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            port, config = processes.free_port(), Path(folder) / "config"
            names = {"port": port, "mock": mock, "config": config}
            config.write_text(fill(self.config, names))
            command: list[str | Path] = [fill(str(part), names) for part in self.command]
            pid = stack.enter_context(
                processes.running(
                    command,
                    port=port,
                    core=GATEWAY_CORE,
                    environment=self.environment,
                    log=Path(folder) / "log",
                )
            )
            yield port, pid


def fill(text: str, names: Mapping[str, object]) -> str:
    """`{name}` replaced by its value; other braces stay."""
    return re.sub(r"\{(port|mock|config)\}", lambda match: str(names[match.group(1)]), text)


def contestants(litellm: Path) -> list[Contestant]:
    """All gateways; `litellm` is the Python of its environment."""
    serve: list[str | Path] = [processes.unilect(), "serve"]
    fresh = [*serve, "m=http://127.0.0.1:{mock}/v1", "--port", "{port}", "--api-key", KEY]
    reuse = [*serve, "--config", "{config}", "--port", "{port}", "--api-key", KEY]
    table = (
        '[models.m]\nsource = "http://127.0.0.1:{mock}/v1"\nmodel = "m"\nreuse_connections = true\n'
    )
    quiet: list[str | Path] = ["--log-level", "warning"]
    bare: list[str | Path] = [
        sys.executable,
        HERE / "bare_proxy.py",
        "{port}",
        "http://127.0.0.1:{mock}",
    ]
    yaml = (
        "model_list:\n  - model_name: m\n    litellm_params:\n      model: openai/m\n"
        "      api_base: http://127.0.0.1:{mock}/v1\n      api_key: none\n"
        f"general_settings:\n  master_key: {KEY}\n"
    )
    proxy: list[str | Path] = [
        litellm.parent / "litellm",
        "--config",
        "{config}",
        "--port",
        "{port}",
    ]
    return [
        Contestant("unilect", fresh),
        Contestant("unilect, log warning", [*fresh, *quiet], memory=False),
        Contestant("unilect, reuse", reuse, table),
        # what all peers do: a whole answer is asked for as a whole
        Contestant("unilect, reuse, whole answers", reuse, table + 'whole_answers = "whole"\n'),
        Contestant("unilect, reuse, log warning", [*reuse, *quiet], table, memory=False),
        Contestant("bare aiohttp", [*bare, "fresh"]),
        Contestant("bare aiohttp, reuse", [*bare, "reuse"]),
        Contestant(
            "LiteLLM",
            [*proxy, "--host", "127.0.0.1", "--num_workers", "1", "--telemetry", "False"],
            yaml,
            {"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            factor=4,
        ),
    ]


def before(checkout: Path) -> list[Contestant]:
    """The unilect of another checkout, with the environment that `scripts/check` has made there."""
    unilect = checkout.resolve() / ".venv" / "bin" / "unilect"
    return [
        replace(one, name=one.name + BEFORE, command=[unilect, *one.command[1:]])
        for one in contestants(Path())
        if one.name.startswith("unilect")
    ]


def body(stream: bool) -> bytes:
    """The request that everybody gets."""
    fields = {"model": "m", "messages": MESSAGES, "temperature": 0.7, "max_tokens": WORDS}
    return json.dumps(fields | {"stream": stream}).encode()


def check(name: str, port: int) -> None:
    """
    One whole answer and one stream, looked at.

    Raises:
        RuntimeError: One of them is not right.
    """
    for stream in (False, True):
        answer = processes.wait_until_ready(port, PATH, body(stream), KEY)
        complete = not stream or answer.rstrip().endswith(b"data: [DONE]")
        if answer.count(b"hello ") != WORDS or not complete:
            raise RuntimeError(f"{name}, stream={stream}: {answer[-500:]!r}")


def wrk(port: int, stream: bool, seconds: float, script: Path) -> int:
    """
    Load a gateway.

    Returns:
        The number of answers.

    Raises:
        RuntimeError: Some were errors.
    """
    script.write_text(
        'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n'
        f'wrk.headers["Authorization"] = "Bearer {KEY}"\nwrk.body = [[{body(stream).decode()}]]\n'
    )
    command = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{CONNECTIONS}", "--timeout", "60"]
    command += [f"-d{max(1, round(seconds))}", "-s", str(script), f"http://127.0.0.1:{port}{PATH}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    errors = re.search(r"Non-2xx.*|Socket errors.*[1-9].*", said)
    found = re.search(r"(\d+) requests in", said)
    if errors or not found:
        raise RuntimeError(f"wrk: {errors.group(0) if errors else said}")
    return int(found.group(1))


def cost_us(port: int, pid: int, stream: bool, seconds: float, script: Path) -> float:
    """CPU time for one request, in microseconds."""
    before = processes.cpu_s(pid)
    answers = wrk(port, stream, seconds, script)
    return (processes.cpu_s(pid) - before) / max(answers, 1) * 1e6


def delay_ms(port: int, stream: bool, requests: int = 150) -> float:
    """The median on one connection: to the first byte of a stream, to the end of a whole answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    taken = []
    for _ in range(requests):
        begin = time.perf_counter()
        connection.request("POST", PATH, body(stream), headers)
        response = connection.getresponse()
        first = response.read(1) if stream else response.read()
        taken.append(time.perf_counter() - begin)
        if not first or response.status != 200:
            raise RuntimeError(f"port {port}: status {response.status}")
        response.read()
    connection.close()
    return median(taken) * 1e3


async def hold_streams(port: int, pid: int, count: int) -> tuple[float, int]:
    """The most memory while so many streams are open, in MB, and how many of them were complete."""
    payload = body(True)
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(payload)}"
    )

    async def one() -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(head.encode() + b"\r\n\r\n" + payload)
            end = b""
            while data := await reader.read(2**16):
                end = (end + data)[-64:]
            return b"[DONE]" in end
        finally:
            writer.close()

    async def spaced(number: int) -> bool:
        await asyncio.sleep(number * 0.002)  # no listening queue is that long
        return await one()

    tasks = [asyncio.create_task(spaced(number)) for number in range(count)]
    most, deadline = 0.0, time.monotonic() + 180
    while not all(task.done() for task in tasks) and time.monotonic() < deadline:
        most = max(most, processes.rss_mb(pid))
        await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return most, sum(result is True for result in results)


class Row:
    """What was measured of one contestant."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, list[float]] = {}

    def add(self, what: str, value: float) -> None:
        """One more measurement."""
        self.values.setdefault(what, []).append(value)

    def middle(self, what: str) -> float | None:
        """The median of the rounds."""
        return report.middle(self.values.get(what, []))


def measure_load(all: list[Contestant], rows: dict[str, Row], rounds: int, seconds: float) -> None:
    """
    CPU time, delay and memory at rest; every contestant in every round.

    All are begun anew in every round: how a process happens to lie in memory changes its cost by up to 10 %. In a round they take
    turns of a second: what else the machine does changes from second to second.
    """
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        with ExitStack() as stack:
            script = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "load.lua"
            mock = start_mock(stack, {})
            up = {}
            for one in all:
                up[one.name] = port, pid = stack.enter_context(one.running(mock))
                check(one.name, port)
                processes.settle(pid)
                rows[one.name].add("rest_mb", processes.rss_mb(pid))
            for stream, what in ((False, "json"), (True, "stream")):
                direct = delay_ms(mock, stream)
                for one in all:
                    port, pid = up[one.name]
                    rows[one.name].add(f"{what}_delay_ms", delay_ms(port, stream) - direct)
                    wrk(port, stream, 1, script)
                    processes.settle(pid)
                for turn in range(max(1, round(seconds))):
                    for one in all if (number + turn) % 2 else all[::-1]:
                        port, pid = up[one.name]
                        cost = cost_us(port, pid, stream, one.factor, script)
                        rows[one.name].add(f"{what}_cpu_us", cost)
                        processes.settle(pid)


def measure_memory(all: list[Contestant], rows: dict[str, Row], streams: int) -> None:
    """Memory with open streams; a fresh process each."""
    for one in all:
        if not one.memory:
            continue
        with ExitStack() as stack:
            mock = start_mock(stack, SLOW_MOCK)
            port, pid = stack.enter_context(one.running(mock))
            time.sleep(0.5)
            while not answers(port):
                time.sleep(0.5)
            most, complete = asyncio.run(hold_streams(port, pid, streams))
            rows[one.name].add("open_mb", most)
            rows[one.name].add("open_complete", complete)


def answers(port: int) -> bool:
    """Whether a gateway is ready; that it has no list of models is an answer too."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        return connection.getresponse().status < 500
    return False


def start_mock(stack: ExitStack, environment: Mapping[str, str]) -> int:
    """Start the mock on the load's core; its port."""
    port = processes.free_port()
    command: list[str | Path] = [sys.executable, HERE / "mock_openai.py", str(port)]
    stack.enter_context(
        processes.running(command, port=port, core=LOAD_CORE, environment=environment)
    )
    return port


BEFORE = " (before)"
COLUMNS = {
    "CPU us, JSON": "json_cpu_us",
    "CPU us, stream": "stream_cpu_us",
    "+ms, JSON": "json_delay_ms",
    "+ms to first byte": "stream_delay_ms",
    "MB at rest": "rest_mb",
    "MB, open streams": "open_mb",
    "complete": "open_complete",
}


def show(rows: Mapping[str, Row]) -> None:
    """The table, with CPU time also as a multiple of the bare proxy's."""
    bare = rows.get("bare aiohttp, reuse")
    out = []
    for row in rows.values():
        cells: list[object] = [row.name]
        for what in COLUMNS.values():
            value = row.middle(what)
            base = bare.middle(what) if bare and what.endswith("cpu_us") else None
            cells.append(f"{value:,.0f} ({value / base:.2f}x)" if value and base else value)
        out.append(cells)
    print(report.table(["gateway", *COLUMNS], out))
    print("(x: against the bare aiohttp proxy that keeps its connections, in the same run)")
    for name, old in rows.items():
        if name.endswith(BEFORE) and (new := rows.get(name.removesuffix(BEFORE))):
            ratios = {
                what: median(map(truediv, new.values[key], old.values[key]))
                for what, key in COLUMNS.items()
                if key.endswith("cpu_us")
            }
            told = ", ".join(f"{what} {ratio:.3f}x" for what, ratio in ratios.items())
            print(f"{new.name}, the median of its turns' ratios: {told}")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="What a gateway costs.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="of load for each figure")
    parser.add_argument("--streams", type=int, default=1000, help="that stay open; 0 for none")
    parser.add_argument("--only", nargs="*", default=[], help="contestants, by part of their names")
    parser.add_argument("--against", type=Path, help="another checkout, to compare with")
    given = parser.parse_args()
    if not shutil.which("wrk") or not shutil.which("taskset"):
        sys.exit("bench/gateway.py needs wrk and taskset: apt-get install wrk util-linux")
    os.sched_setaffinity(0, {LOAD_CORE})
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    wanted = [name.lower() for name in given.only] or [""]
    litellm = Path()
    if any(name in "litellm" for name in wanted):
        litellm = processes.environment("litellm", "litellm[proxy]")
    all = contestants(litellm)
    if given.against:  # each beside its counterpart: the machine's speed changes within a round
        old = {one.name.removesuffix(BEFORE): one for one in before(given.against)}
        all = [each for one in all for each in (one, old.get(one.name)) if each is not None]
    all = [one for one in all if any(name in one.name.lower() for name in wanted)]
    rows = {one.name: Row(one.name) for one in all}
    measure_load(all, rows, given.rounds, given.seconds)
    if given.streams:
        measure_memory(all, rows, given.streams)
    show(rows)
    found = report.versions("unilect", "aiohttp", "uvloop", "msgspec")
    if litellm != Path():
        found |= report.versions("litellm", python=litellm)
    results = [{"name": row.name, **row.values} for row in rows.values()]
    report.write(
        "gateway",
        found,
        settings={name: str(value) for name, value in vars(given).items()},
        rows=results,
    )


if __name__ == "__main__":
    main()
