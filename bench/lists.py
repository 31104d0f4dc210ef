#!/usr/bin/env python3
"""
How long reading a list of many models holds up everything else: the longest wait of a small request meanwhile.

A server of many upstream models answers one request for each of them, so that all have metrics. Then each list is read, again and
again, while another connection asks `/healthz` without a pause; the longest of its waits is what a token of a stream would wait.

usage: bench/lists.py [--models 1000] [--rounds 5]     the unilect beside the Python that runs it
"""

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import processes
import report

HERE = Path(__file__).parent
LISTS = ("/healthz", "/metrics", "/v1/models", "/api/tags")
PATH = "/v1/chat/completions"


def get(connection: http.client.HTTPConnection, path: str) -> tuple[float, int]:
    """Read a path; its milliseconds and the size of its answer."""
    begin = time.perf_counter()
    connection.request("GET", path)
    body = connection.getresponse().read()
    return (time.perf_counter() - begin) * 1000, len(body)


def read(port: int, path: str) -> tuple[float, float, int]:
    """Read a list while small requests go on; the milliseconds of both, of the latter the longest, and the list's size."""
    waits: list[float] = []
    over = threading.Event()

    def probe() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while not over.is_set():
            waits.append(get(connection, "/healthz")[0])

    thread = threading.Thread(target=probe)
    thread.start()
    time.sleep(0.05)
    took, size = get(http.client.HTTPConnection("127.0.0.1", port), path)
    over.set()
    thread.join()
    return took, max(waits), size


def measure(models: int, rounds: int) -> list[list[object]]:
    """The rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        mock, port = processes.free_port(), processes.free_port()
        config = Path(folder) / "config.toml"
        tables = (
            f'[models.m{n}]\nsource = "http://127.0.0.1:{mock}/v1"\nmodel = "m"\n'
            for n in range(models)
        )
        config.write_text("".join(tables))
        serve: list[str | Path] = [processes.unilect(), "serve", "--config", config]
        serve += ["--port", str(port)]
        own = {"XDG_DATA_HOME": folder, "XDG_RUNTIME_DIR": folder}
        upstream: list[str | Path] = [sys.executable, HERE / "mock_openai.py", str(mock)]
        with (
            processes.running(upstream, port=mock, core=1),
            processes.running(serve, port=port, core=0, environment=own),
        ):
            for n in range(models):
                body = {"model": f"m{n}", "messages": [{"role": "user", "content": "Hi"}]}
                processes.post(port, PATH, json.dumps(body).encode())
            found = [[read(port, path) for path in LISTS] for _ in range(rounds)]
    rows: list[list[object]] = []
    for path, times in zip(LISTS, zip(*found, strict=True), strict=True):
        took, waits, sizes = zip(*times, strict=True)
        rows.append([path, sizes[0] / 1000, median(took), median(waits), max(waits)])
    return rows


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="How long reading a list holds up the rest.")
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    rows = measure(given.models, given.rounds)
    columns = ["GET", "KB", "ms", "longest wait meanwhile, ms, median", "most"]
    print(report.table(columns, rows))
    report.write("lists", report.versions("unilect", "aiohttp"), settings=vars(given), rows=rows)


if __name__ == "__main__":
    main()
