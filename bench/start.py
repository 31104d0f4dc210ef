#!/usr/bin/env python3
"""
How long unilect takes to be there, and how much memory it holds when it is.

* seconds from starting `unilect serve` to its first complete answer (of 16 tokens at most), and until it listens,
* seconds of `unilect --help`, and of `python -c pass`, below which no Python program can be,
* resident memory after that answer, of the gateway without its engine and of the engine.

All are measured in turn, and the median of the rounds counts.

usage: bench/start.py [--rounds 5] [--model SOURCE] [--imports | --models 100]
       --model    another model than the bundled one
       --models   say instead what so many configured models cost until the server listens, beside one: copies of a file, each by its own
                  name and none loaded, in turn with one, and what processor time the gateway has taken by then
       --imports  say instead where the time of importing goes
"""

import argparse
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import processes
import report

PATH = "/v1/chat/completions"
REQUEST = json.dumps(
    {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16, "model": ""}
)
IMPORT = re.compile(r"^import time:\s*(\d+) \|\s*(\d+) \|( *)(\S+)$")
ROWS = {
    "python -c pass": ("python_s", "s"),
    "unilect --help": ("help_s", "s"),
    "unilect serve, until it listens": ("listens_s", "s"),
    "unilect serve, to its first answer": ("answer_s", "s"),
    "memory of the gateway": ("gateway_mb", "MB"),
    "memory of the engine": ("engine_mb", "MB"),
}


def command_s(*command: str | Path) -> float:
    """How long a command takes."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def serve(model: str) -> tuple[str, list[str | Path], int]:
    """The model's name, the command that serves it, and the port where it will listen."""
    port = processes.free_port()
    argument = [f"m={model}"] if model else []
    command: list[str | Path] = [processes.unilect(), "serve", *argument, "--port", str(port)]
    return "m" if model else "demo", command, port


def first_answer(model: str) -> dict[str, float]:
    """
    Start a server and wait for its first answer.

    Raises:
        RuntimeError: It does not come.
    """
    name, command, port = serve(model)
    body = json.dumps(json.loads(REQUEST) | {"model": name}).encode()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        own = {"XDG_DATA_HOME": folder}  # keys of the user's store would be asked for
        with processes.running(
            command, port=port, log=Path(folder) / "log", environment=own
        ) as pid:
            listens_s = time.perf_counter() - begin
            status, answer = processes.post(port, PATH, body)
            answer_s = time.perf_counter() - begin
            if status != 200 or not json.loads(answer)["choices"][0]["finish_reason"]:
                raise RuntimeError(f"status {status}: {answer[:500]!r}")
            gateway_mb = processes.rss_mb(pid, children=False)
            engine_mb = processes.rss_mb(pid) - gateway_mb
    return {
        "listens_s": listens_s,
        "answer_s": answer_s,
        "gateway_mb": gateway_mb,
        "engine_mb": engine_mb,
    }


def measure(model: str, rounds: int) -> list[dict[str, float]]:
    """All figures of all rounds."""
    first_answer(model)  # files into the page cache, bytecode onto the disk
    found = []
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        figures = {
            "python_s": command_s(sys.executable, "-c", "pass"),
            "help_s": command_s(processes.unilect(), "--help"),
        }
        found.append(figures | first_answer(model))
    return found


def starts(file: Path, count: int, rounds: int) -> dict[int, list[dict[str, float]]]:
    """Seconds until a server with one model and with many listens, and its processor time by then, in turn."""
    found: dict[int, list[dict[str, float]]] = {1: [], count: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            shutil.copyfile(file, Path(folder) / f"m{number}.gguf")
        for number in range(rounds + 1):  # the first fills the page cache
            print(f"round {number} of {rounds}", file=sys.stderr)
            for models, rows in found.items():
                row = listen(Path(folder), models)
                rows += [row] if number else []
    return found


def listen(folder: Path, models: int) -> dict[str, float]:
    """Start a server with the first models of a folder, and wait until it listens."""
    port, config = processes.free_port(), folder / "unilect.toml"
    tables = (
        f'[models.m{one}]\nsource = "{folder}/m{one}.gguf"\nload = "demand"\n'
        for one in range(models)
    )
    config.write_text(f"port = {port}\n{''.join(tables)}")
    begin = time.perf_counter()
    with processes.running(
        [processes.unilect(), "serve", "--config", config],
        port=port,
        log=folder / "log",
        environment={"XDG_DATA_HOME": str(folder)},
    ) as pid:
        return {"listens_s": time.perf_counter() - begin, "cpu_s": processes.cpu_s(pid)}


def show_starts(found: dict[int, list[dict[str, float]]]) -> None:
    """The medians, and what the many cost more than the one."""
    middles = {
        models: [median(row[what] for row in rows) for what in ("listens_s", "cpu_s")]
        for models, rows in found.items()
    }
    rows: list[list[Any]] = [[models, *values] for models, values in middles.items()]
    one, many = middles.values()
    rows.append(["more", *(many[at] - one[at] for at in range(2))])
    print(report.table(["models", "s until it listens", "CPU s by then"], rows))


def imports(model: str) -> list[tuple[int, int, int, str]]:
    """What the gateway imports until it listens: own and whole time in us, depth, module."""
    _, command, port = serve(model)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        profiled = [sys.executable, "-X", "importtime", *command]
        with processes.running(profiled, port=port, log=log):
            said = log.read_text(errors="replace")
    lines = [match.groups() for line in said.splitlines() if (match := IMPORT.match(line))]
    return [(int(own), int(whole), len(depth), name) for own, whole, depth, name in lines]


def show_imports(found: Sequence[tuple[int, int, int, str]]) -> None:
    """Own time by package, and the modules that cost most with all that they import."""
    packages: Counter[str] = Counter()
    for own, _, _, name in found:
        packages[name.partition(".")[0]] += own
    total = sum(packages.values())
    print(
        f"importing: {total / 1000:.0f} ms in {len(found)} modules (more than without -X importtime)\n"
    )
    rows = [[name, own / 1000, f"{own / total:.0%}"] for name, own in packages.most_common(20)]
    print(report.table(["package", "ms, its own modules", "part"], rows))
    costly = sorted(found, key=lambda one: -one[1])[:20]
    print()
    rows = [[name, whole / 1000] for _, whole, _, name in costly]
    print(report.table(["module", "ms, with what it imports first"], rows))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="How long unilect takes to start.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="", help="a source; the bundled model if none")
    parser.add_argument("--models", type=int, default=0, help="start with so many instead")
    parser.add_argument("--imports", action="store_true", help="profile imports instead")
    given = parser.parse_args()
    package = importlib.util.find_spec("unilect")
    assert package is not None
    assert package.origin is not None
    bundled = Path(package.origin).parent / "demo" / "model.gguf"
    if not given.model and not bundled.exists():
        sys.exit("bench/start.py: there is no bundled model in this tree; name one with --model")
    if given.imports:
        show_imports(imports(given.model))
        return
    if given.models:
        show_starts(starts(Path(given.model or bundled), given.models, given.rounds))
        return
    found = measure(given.model, given.rounds)
    rows = []
    for title, (what, unit) in ROWS.items():
        values = [figures[what] for figures in found]
        rows.append(
            [title, f"{median(values):.2f} {unit}", f"{min(values):.2f}", f"{max(values):.2f}"]
        )
    print(report.table(["what", "median", "least", "most"], rows))
    used = report.versions("unilect", "aiohttp", "xllamacpp")
    report.write("start", used, settings=vars(given), rows=found)


if __name__ == "__main__":
    main()
