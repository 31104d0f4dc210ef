#!/usr/bin/env python3
"""
What a stream costs in each API: CPU time of unilect for a stream of 67 chunks of the same mock, in chat completions, Responses
(stored and not), Messages and Ollama's.

CPU time is user and system time of the process tree (/proc) for each request while `wrk` keeps 32 connections busy. The server has
core 0; the mock and the load have core 1. All APIs take turns of a second on one server, which is begun anew in every round, and the
median of the turns counts, in microseconds and as a multiple of the chat of the same turn. Each must first give a right answer:
all 64 words, and its own end.

usage: bench/apis.py [--rounds 2] [--turns 5] [--only NAME ...] [--store URL] [--against CHECKOUT]
Stored responses are in an SQLite file of the bench's own, unless `--store` names another store. With `--against` the unilect of another
checkout of this repository takes part. Needs `wrk` (Debian: apt-get install wrk) and `taskset`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import gateway
import processes
import report

PROMPT = gateway.MESSAGES[1]["content"]
SYSTEM = gateway.MESSAGES[0]["content"]


@dataclass(frozen=True)
class Api:
    """One API: where its streams are asked for, with what, and how they end."""

    name: str
    path: str
    fields: Mapping[str, Any]
    end: bytes

    @property
    def body(self) -> bytes:
        """The request."""
        return json.dumps({"model": "m", "stream": True} | dict(self.fields)).encode()


ASKED = {"input": PROMPT, "instructions": SYSTEM, "max_output_tokens": gateway.WORDS}
CHATTED = {"messages": gateway.MESSAGES, "max_tokens": gateway.WORDS}
TURN = {"role": "user", "content": PROMPT}
CHAT = "chat completions"
APIS = [
    Api(CHAT, gateway.PATH, CHATTED, b"data: [DONE]\n\n"),
    Api("Responses, store: false", "/v1/responses", ASKED | {"store": False}, b'"status":"completed"'),
    Api("Responses, stored (the default)", "/v1/responses", ASKED, b'"status":"completed"'),
    Api(
        "Messages",
        "/v1/messages",
        {"system": SYSTEM, "messages": [TURN], "max_tokens": gateway.WORDS},
        b"message_stop",
    ),
    Api("Ollama", "/api/chat", {"messages": gateway.MESSAGES}, b'"done":true'),
]  # fmt: skip


def check(api: Api, port: int) -> None:
    """
    One stream, looked at.

    Raises:
        RuntimeError: It is not right.
    """
    answer = processes.wait_until_ready(port, api.path, api.body, gateway.KEY)
    if answer.count(b"hello ") < gateway.WORDS or api.end not in answer[-4000:]:
        raise RuntimeError(f"{api.name}: {answer[-500:]!r}")


def cost_us(api: Api, port: int, pid: int, script: Path) -> float:
    """
    CPU time of one stream, in microseconds, measured for a second.

    Raises:
        RuntimeError: Some were errors.
    """
    script.write_text(
        'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n'
        f'wrk.headers["Authorization"] = "Bearer {gateway.KEY}"\nwrk.body = [[{api.body.decode()}]]\n'
    )
    url = f"http://127.0.0.1:{port}{api.path}"
    wrk = ["wrk", "-t1", f"-c{gateway.CONNECTIONS}", "--timeout", "60", "-d1", "-s", str(script)]
    before = processes.cpu_s(pid)
    said = subprocess.check_output(["taskset", "-c", str(gateway.LOAD_CORE), *wrk, url], text=True)
    errors = re.search(r"Non-2xx.*|Socket errors.*[1-9].*", said)
    found = re.search(r"(\d+) requests in", said)
    if errors or not found:
        raise RuntimeError(f"{api.name}: {errors.group(0) if errors else said}")
    cost = (processes.cpu_s(pid) - before) / max(int(found.group(1)), 1) * 1e6
    processes.settle(pid)
    return cost


def measure(commands: Mapping[str, Path], apis: list[Api], given: argparse.Namespace) -> dict[str, list[float]]:  # fmt: skip
    """The costs of each API on each unilect, turn by turn."""
    found: dict[str, list[float]] = {}
    for number in range(given.rounds):
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            mock = gateway.start_mock(stack, {})
            up = dict[str, tuple[int, int]]()
            for name, command in commands.items():
                config, port = folder / f"config{len(up)}.toml", processes.free_port()
                store = given.store or f"sqlite:///{folder}/store{len(up)}.db"
                config.write_text(
                    f'[models.m]\nsource = "http://127.0.0.1:{mock}/v1"\nmodel = "m"\nreuse_connections = true\n'
                    f'[store]\nurl = "{store}"\n'
                )
                serve = [str(command), "serve", "--config", str(config), "--port", str(port)]
                running = processes.running(
                    [*serve, "--api-key", gateway.KEY], port=port, core=gateway.GATEWAY_CORE
                )
                up[name] = port, stack.enter_context(running)
                for api in apis:
                    check(api, port)
                    cost_us(api, *up[name], folder / "load.lua")
            for turn in range(given.turns):
                for api in apis if (number + turn) % 2 else apis[::-1]:
                    for name in up:
                        cost = cost_us(api, *up[name], folder / "load.lua")
                        found.setdefault(api.name + name, []).append(cost)
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="What a stream costs in each API.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5, help="of a second, of each API in a round")
    parser.add_argument("--only", nargs="*", default=[], help="APIs, by part of their names")
    parser.add_argument("--store", help="a URL, as of [store]")
    parser.add_argument("--against", type=Path, help="another checkout, to compare with")
    given = parser.parse_args()
    if not shutil.which("wrk") or not shutil.which("taskset"):
        sys.exit("bench/apis.py needs wrk and taskset: apt-get install wrk util-linux")
    os.sched_setaffinity(0, {gateway.LOAD_CORE})
    commands = {"": processes.unilect()}
    if given.against:
        commands[gateway.BEFORE] = given.against.resolve() / ".venv" / "bin" / "unilect"
    wanted = [name.lower() for name in given.only]
    apis = [api for api in APIS if api.name == CHAT or not wanted or any(name in api.name.lower() for name in wanted)]  # fmt: skip
    found = measure(commands, apis, given)
    rows = []
    for name, costs in found.items():
        chat = found[CHAT + (gateway.BEFORE if name.endswith(gateway.BEFORE) else "")]
        rows.append([name, median(costs), f"{median(map(truediv, costs, chat)):.2f}x"])
    print(report.table(["API", "CPU us", "to a chat"], rows))
    settings = {name: str(value) for name, value in vars(given).items()}
    versions = report.versions("unilect", "aiohttp", "uvloop", "msgspec")
    results = [{"name": name, "cpu_us": costs} for name, costs in found.items()]
    report.write("apis", versions, settings=settings, rows=results)


if __name__ == "__main__":
    main()
