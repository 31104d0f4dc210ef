#!/usr/bin/env python3
"""
Three llama-servers of one model behind unilect, one of them killed and started again every 5 seconds: what fails, how evenly the
work is shared, and whether conversations stay where their cache is.

usage: balance.py [--seconds 60] [--clients 12] [--no-kills]

The clients hold conversations of 6 turns, half of them streamed. A stream of which the client has seen a word may break off when its
backend is killed; nothing else may fail. Shares are read from the backends' own counters in a run without kills; a prompt of which most comes from a cache has
found its backend again.
"""

import argparse
import asyncio
import itertools
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
from processes import free_port, running, stop, wait_for_port
from report import table, versions, write

from unilect.demo import MODEL

HERE = Path(__file__).parent
TURNS = 6
KILL_EVERY_S = 5.0
DOWN_S = 1.0
_MADE = "llamacpp:tokens_predicted_total "


class Backends:
    """The three servers, and the killing of them."""

    def __init__(self) -> None:
        self.ports = [free_port() for _ in range(3)]
        self.kills = 0
        self._processes = [self._start(port) for port in self.ports]

    def _start(self, port: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, HERE / "llama_server.py", MODEL, port, 16, 512, 1]
        process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_for_port(process, port, None)
        return process

    async def kill_in_turn(self) -> None:
        """Every 5 seconds kill one, and start it again a second later."""
        for number in itertools.cycle(range(3)):
            await asyncio.sleep(KILL_EVERY_S - DOWN_S)
            self._processes[number].send_signal(signal.SIGKILL)
            self._processes[number].wait()
            self.kills += 1
            await asyncio.sleep(DOWN_S)
            self._processes[number] = await asyncio.to_thread(self._start, self.ports[number])

    def stop(self) -> None:
        """End them all."""
        for process in self._processes:
            stop(process)


async def talk(
    session: aiohttp.ClientSession, url: str, name: str, seen: Counter[str], until_s: float
) -> None:
    """Conversations, one after the other, until the time is over."""
    for number in itertools.count():
        messages = [{"role": "user", "content": f"{name}, talk {number}. Tell me a story."}]
        for turn in range(TURNS):
            if time.monotonic() >= until_s:
                return
            body = {"messages": messages, "max_tokens": 24, "stream": (number + turn) % 2 == 0}
            text = await ask(session, url, body, seen)
            if text is None:
                break
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": f"And what comes {turn}th?"},
            ]


async def ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], seen: Counter[str]
) -> str | None:
    """The text of an answer; None where it failed, which is counted."""
    seen["requests"] += 1
    async with session.post(url, json=body) as response:
        data = await response.read()
    if response.status != 200:
        seen[f"failed with {response.status}"] += 1
        return None
    if not body["stream"]:
        answer = await response.json()
        seen["prompt tokens of whole answers"] += answer["usage"]["prompt_tokens"]
        seen["of them from a cache"] += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return str(answer["choices"][0]["message"]["content"])
    if data.endswith(b"data: [DONE]\n\n"):
        return "a story"
    began = b'"delta":{"content"' in data
    seen["torn after its first word" if began else "torn before its first word"] += 1
    return None


async def measure(seconds: float, clients: int, kills: bool) -> dict[str, Any]:
    """One run."""
    backends, gateway = Backends(), free_port()
    seen: Counter[str] = Counter()
    with ExitStack() as stack:
        stack.callback(backends.stop)
        sources = [f"m=http://127.0.0.1:{port}/v1" for port in backends.ports]
        command = [sys.executable, "-m", "unilect", "serve", *sources, "--port", str(gateway)]
        stack.enter_context(running([*command, "--log-level", "error"], port=gateway))
        url = f"http://127.0.0.1:{gateway}/v1/chat/completions"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
            killing = asyncio.create_task(backends.kill_in_turn()) if kills else None
            until_s = time.monotonic() + seconds
            await asyncio.gather(
                *(talk(session, url, f"I am client {n}", seen, until_s) for n in range(clients))
            )
            if killing is not None:
                killing.cancel()
                await asyncio.gather(killing, return_exceptions=True)
                return dict(seen) | {"kills": backends.kills}
            return dict(seen) | await shares(session, backends.ports)


async def shares(session: aiohttp.ClientSession, ports: list[int]) -> dict[str, Any]:
    """How the work was shared: the tokens that each backend has made."""
    made = []
    for port in ports:
        async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
            text = await response.text()
        line = next(line for line in text.splitlines() if line.startswith(_MADE))
        made.append(float(line.removeprefix(_MADE)))
    even = sum(made) / len(made)
    return {"farthest from even, %": max(abs(share - even) for share in made) / even * 100}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--no-kills", action="store_true")
    args = parser.parse_args()
    found = asyncio.run(measure(args.seconds, args.clients, not args.no_kills))
    print(table(["what", "measured"], list(found.items())))
    write("balance", versions("unilect", "xllamacpp"), found=found)


if __name__ == "__main__":
    main()
