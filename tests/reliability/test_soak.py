"""A server with everything on, under load and faults: `bench/soak.py`, for half a minute. Its promises are those of the long form."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "soak.py"
FORM = {"minutes": 0.5, "warm-up": 15, "rest": 3, "pace": 0.2, "rate": 15}
#: Memory is not at its size after seconds: this tells of a leak of some MB in some hundred requests only.
GROWTH = 0.1
FAULTS = {
    "kill -9: gguf engine",
    "kill -9: checker",
    "reload",
    "restart of an upstream",
    "request cancelled",
    "key made: 201",
    "key revoked: 200",
}


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_half_a_minute(tmp_path: Path) -> None:
    """After half a minute of load and faults no thread, task, file, reservation or row is too many or too few, and no request has failed without a fault."""
    file = tmp_path / "soak.json"
    options = [word for name, value in FORM.items() for word in (f"--{name}", str(value))]
    options += ["--no-transformers", "--growth", str(GROWTH), "--json", str(file)]
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True, timeout=200)  # fmt: skip

    assert 0 == done.returncode, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["faults"].keys() >= FAULTS
    assert found["ok"] > 300
