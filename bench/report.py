"""What a bench says: a table for people, a JSON file in bench/results/ for programs, and both on which machine and versions."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table whose columns stand under each other; floats get as many digits as they need."""
    texts = [list(columns), *([cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(columns))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in texts
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def cell(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
        return f"{value:,.{digits}f}"
    return str(value)


def middle(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return median(values) if values else None


def versions(*packages: str, python: Path | None = None) -> dict[str, str]:
    """Versions of packages, here or in the environment of another Python."""
    if python is not None:
        code = (
            "import importlib.metadata as m, json, sys;"
            "print(json.dumps({name: m.version(name) for name in sys.argv[1:]}))"
        )
        return dict(json.loads(subprocess.check_output([python, "-c", code, *packages])))
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The machine, as far as numbers depend on it."""
    processor = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": processor[0] if processor else platform.machine(),
        "cores": os.cpu_count(),  # the bench itself may be pinned to one
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }


def write(name: str, versions: dict[str, str], file: Path | None = None, /, **parts: Any) -> None:
    """Write bench/results/NAME.json, or another file."""
    RESULTS.mkdir(exist_ok=True)
    path = file or RESULTS / f"{name}.json"
    record = {
        "bench": name,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": machine(),
        "versions": versions,
        **parts,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\n{path}: written", file=sys.stderr)
