#!/usr/bin/env python3
"""
Where a fleet bends: 1 to 16 replicas whose engines cost next to nothing, on one machine.

Each replica is an `echo:` that says 50 tokens a second to each of 8 streams, so that it gives 400 tokens/s while there is processor time for
it. All replicas are kept busy with streams of 64 tokens, and the tokens that arrive are held against those that could be there. The processor
time of a token is told apart: the gateway, the process that holds its connection to Ray, the replicas (Python of Ray's, and the echo), and
Ray's own processes. The time to the first token is that of single requests beside the load, which wait for a place as all do.

usage: bench/fleet_scale.py [--replicas 1 2 4 8 16] [--seconds 8]
Needs `wrk` (Debian: apt-get install wrk). All runs on the same cores, the load too.
"""

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread

import processes
import report

TOKENS, PACE, STREAMS = 64, 50, 8
PATH = "/v1/chat/completions"
PARTS = {"replicas": "ray::ServeReplica", "link": "unilect.fleet.driver.child"}
_TABLE = """
[models.m]
source = "echo:"
replicas = {replicas}
parallel = {places}
resources = {{ cpu = 0.01 }}
start_timeout_s = 300
[models.m.options]
text = "{text}"
tokens_per_s = {pace}
"""


@dataclass(frozen=True)
class Figures:
    """
    One number of replicas.

    Attributes:
        tokens_per_s: That arrived.
        share: Of those that the replicas could say.
        first_ms: To the first token of a request beside the load.
        cpu_us: Processor time of a token, by part.
        cores: That all parts used.
    """

    replicas: int
    streams: int
    tokens_per_s: float
    share: float
    first_ms: float
    cpu_us: dict[str, float]
    cores: float


def body(tokens: int) -> bytes:
    """A request."""
    said = {"role": "user", "content": "Say it."}
    asked = {"model": "m", "stream": True, "max_tokens": tokens, "messages": [said]}
    return json.dumps(asked).encode()


def spent(pid: int) -> dict[str, float]:
    """The processor time of each part so far, in seconds."""
    found = {"gateway": 0.0, "link": 0.0, "replicas": 0.0, "Ray": 0.0}
    for one in processes.tree(pid):
        if not (said := processes.command(one)):
            continue
        names = [name for name, mark in PARTS.items() if mark in said]
        part = "gateway" if one == pid else names[0] if names else "Ray"
        found[part] += processes.cpu_s(one, children=False)
    return found


def wrk(port: int, streams: int, seconds: int, script: Path) -> tuple[int, float]:
    """Keep so many streams busy: how many ended, and how long it took, in seconds."""
    script.write_text(
        'wrk.method = "POST"\nwrk.headers["Content-Type"] = "application/json"\n'
        f"wrk.body = [[{body(TOKENS).decode()}]]\n"
    )
    command = ["wrk", "-t1", f"-c{streams}", "--timeout", "60", f"-d{seconds}s", "-s", str(script)]
    said = subprocess.check_output([*command, f"http://127.0.0.1:{port}{PATH}"], text=True)
    if bad := re.search(r"Non-2xx.*|Socket errors.*", said):
        raise RuntimeError(f"wrk: {bad.group(0)}")
    ended = re.search(r"(\d+) requests in ([\d.]+)(m?s)", said)
    assert ended is not None, said
    return int(ended[1]), float(ended[2]) / (1000 if ended[3] == "ms" else 1)


@contextmanager
def firsts(port: int) -> Iterator[list[float]]:
    """Ask for one token at a time while the block runs: how long each took, in milliseconds."""
    found, over = list[float](), Event()

    def ask() -> None:
        while not over.wait(0.2):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            begin = time.perf_counter()
            connection.request("POST", PATH, body(1), {"Content-Type": "application/json"})
            response = connection.getresponse()
            while (line := response.readline()) and b'"content":"' not in line:
                pass
            found.append((time.perf_counter() - begin) * 1e3 - 1000 / PACE)
            connection.close()

    thread = Thread(target=ask)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def figures(replicas: int, seconds: int, folder: Path) -> Figures:
    """Start a server with so many replicas, and keep them busy."""
    port, config, script = processes.free_port(), folder / "c.toml", folder / "wrk.lua"
    config.write_text(
        _TABLE.format(replicas=replicas, places=STREAMS + 1, text="a" * TOKENS, pace=PACE)
    )
    command = [str(processes.unilect()), "serve", "--config", str(config), "--port", str(port)]
    with processes.running(
        [*command, "--log-level", "warning"], port=port, log=folder / "log"
    ) as pid:
        processes.wait_until_ready(port, PATH, body(1))
        streams = replicas * STREAMS
        wrk(port, streams, 3, script)
        before = spent(pid)
        with firsts(port) as waits:
            answers, taken = wrk(port, streams, seconds, script)
        used = {name: now - before[name] for name, now in spent(pid).items()}
    tokens = answers * TOKENS
    return Figures(
        replicas,
        streams,
        tokens / taken,
        tokens / taken / (streams * PACE),
        median(waits),
        {name: one / tokens * 1e6 for name, one in used.items()},
        sum(used.values()) / taken,
    )


def show(found: list[Figures]) -> None:
    """A table, and a plot in Mermaid's language."""
    columns = ["replicas", "streams", "tokens/s", "of what they can", "first token, ms", "cores"]
    parts = list(found[0].cpu_us)
    rows: list[list[object]] = [
        [
            one.replicas, one.streams, one.tokens_per_s, f"{one.share:.0%}", one.first_ms, one.cores,
            *one.cpu_us.values(),
        ]
        for one in found
    ]  # fmt: skip
    print(report.table([*columns, *(f"{part}, CPU us a token" for part in parts)], rows))
    most = max(one.streams for one in found) * PACE
    print("\nxychart-beta")
    print(f'    x-axis "replicas" [{", ".join(str(one.replicas) for one in found)}]')
    print(f'    y-axis "tokens/s" 0 --> {most}')
    print(f"    line [{', '.join(str(one.streams * PACE) for one in found)}]")
    print(f"    line [{', '.join(f'{one.tokens_per_s:.0f}' for one in found)}]")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="Where a fleet bends.")
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=int, default=8)
    given = parser.parse_args()
    found = list[Figures]()
    for count in given.replicas:
        print(f"{count} replicas", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            found.append(figures(count, given.seconds, Path(folder)))
    show(found)
    report.write(
        "fleet_scale",
        report.versions("unilect", "ray"),
        settings={"tokens": TOKENS, "pace": PACE, "streams": STREAMS} | vars(given),
        rows=[asdict(one) for one in found],
    )


if __name__ == "__main__":
    main()
