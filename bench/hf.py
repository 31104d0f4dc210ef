#!/usr/bin/env python3
"""
Models of transformers: tokens per second and time to the first token of one folder, served by unilect and by its peers.

* `unilect serve` with 32 places and one thread, in float32, bfloat16 and 8 bits,
* `transformers serve --continuous-batching` in float32 and bfloat16,
* FastChat (controller, one model worker, API server; bench/fastchat_server.py) in float32,
* transformers' own `generate`, all rows in one call, without any server (bench/plain_generate.py).

The folder has random weights (bench/random_model.py; 64 million parameters) and is made on first use. The load is that of
bench/engine.py. Beside tokens per second stands the CPU time of a token, which other work on the machine hardly changes.

usage: bench/hf.py [--rounds 3] [--only NAME ...] [--type float32 bfloat16 int8 ...]
Needs the extra `unilect[transformers]` here; the peers get environments of their own (torch and transformers again).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import processes
import report

import engine
from engine import CONTEXT, PARALLEL, THREADS, Contestant

HERE = Path(__file__).parent
FOLDER = processes.CACHE / "random-64m-hf"
TYPES = ("float32", "bfloat16", "int8")
PASSIVE = (("OMP_NUM_THREADS", "1"), ("OMP_WAIT_POLICY", "passive"), ("HF_HUB_OFFLINE", "1"))


def model() -> Path:
    """The model's folder; made where it does not exist yet."""
    if not (FOLDER / "config.json").exists():
        python = processes.environment("model", "gguf", "numpy", "safetensors", "tokenizers")
        subprocess.run([python, HERE / "random_model.py", FOLDER], check=True)
    return FOLDER


def ours(kind: str) -> Contestant:
    """unilect with weights of this type."""
    port, path = processes.free_port(), model()
    how = 'quantize = "8bit"' if kind == "int8" else f'dtype = "{kind}"'
    config = processes.CACHE / f"transformers-{kind}.toml"
    config.write_text(
        f'port = {port}\nlog_level = "warning"\n[models.m]\nsource = "{path}"\n{how}\n'
        f"parallel = {PARALLEL}\ncontext = {CONTEXT}\nthreads = {THREADS}\n"
    )
    command = [processes.unilect(), "serve", "--config", config]
    return Contestant(f"unilect {kind}", [str(part) for part in command], port)


def peer(kind: str) -> Contestant:
    """`transformers serve` with weights of this type; it wants the path for a name."""
    python = processes.environment(
        "transformers-serve", "transformers[serving]==5.23.0", pip=["torch==2.13.0"]
    )
    port, path = processes.free_port(), model()
    command = [python.parent / "transformers", "serve", path, "--device", "cpu", "--port", port]
    command += ["--dtype", kind, "--continuous-batching", "--cb-num-blocks", "64"]
    command += ["--cb-max-batch-tokens", "256"]
    words = [str(part) for part in command]
    return Contestant(f"transformers serve {kind}", words, port, str(path), PASSIVE)


def fastchat(kind: str) -> Contestant:
    """FastChat with weights of this type."""
    packages = ["fschat[model_worker]==0.2.36", "transformers<5", "peft<0.18"]
    packages += ["pydantic<2", "fastapi<0.110"]  # with newer ones its streams are empty
    python = processes.environment("fastchat", *packages, pip=["torch==2.13.0"])
    port = processes.free_port()
    command = [python, HERE / "fastchat_server.py", model(), port, kind]
    return Contestant(f"FastChat {kind}", [str(part) for part in command], port, "m", PASSIVE)


def generate(kind: str) -> dict[str, list[float]]:
    """Plain `generate`: rows -> tokens per second and CPU microseconds for a token."""
    words = [str(HERE / "plain_generate.py"), str(model())]
    words += ["float32", "int8"] if kind == "int8" else [kind]
    said = subprocess.check_output([sys.executable, *words], text=True)
    found: dict[str, list[float]] = json.loads(said.splitlines()[-1])
    return found


def wanted(names: Sequence[str], kinds: Sequence[str]) -> list[Contestant]:
    """The servers whose names have one of the wanted parts."""
    makers = [("unilect", kind, ours) for kind in kinds]
    makers += [("transformers serve", kind, peer) for kind in kinds if kind != "int8"]
    makers += [("fastchat", kind, fastchat) for kind in kinds if kind == "float32"]
    return [make(kind) for name, kind, make in makers if any(part in name for part in names)]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="Models of transformers, beside their peers.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="servers, by part of their names")
    parser.add_argument("--type", nargs="*", default=list(TYPES), choices=TYPES)
    given = parser.parse_args()
    names = [name.lower() for name in given.only] or [""]
    rows: list[dict[str, object]] = []
    for kind in given.type:  # a type at a time: servers of others would only take memory
        found = engine.measure(wanted(names, [kind]), given.rounds)
        engine.show(found, f"unilect {kind}")
        rows += [
            {"name": name, "clients": clients} | asdict(one)
            for name, loads in found.items()
            for clients, figures in loads.items()
            for one in figures
        ]
        if any(part in "generate" for part in names):
            plain = generate(kind)
            columns = [f"generate {kind}", *(f"{count} rows" for count in plain)]
            titles = ("tokens/s", "CPU us for a token")
            lines = [[t, *(pair[i] for pair in plain.values())] for i, t in enumerate(titles)]
            print("\n" + report.table(columns, lines))
            rows += [
                {
                    "name": f"generate {kind}",
                    "clients": int(count),
                    "tokens_per_s": rate,
                    "cpu_us": us,
                }
                for count, (rate, us) in plain.items()
            ]
    used = report.versions("unilect", "torch", "transformers")
    settings = {"context": CONTEXT, "parallel": PARALLEL, "threads": THREADS} | vars(given)
    report.write("hf", used, settings=settings, rows=rows)


if __name__ == "__main__":
    main()
