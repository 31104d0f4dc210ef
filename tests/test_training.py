"""Tests of training/: a run of all stages that is killed and started again makes the same weights as one that was left alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.models.torchside import need

need("torch", "transformers")

import torch

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 120.0
#: One stage from nothing, one that goes on with it, and one whose weights are averaged with those of the first.
STAGES = """
[[stage]]
name = "first"
count = 60
seed = 0
zh = 0.3
steps = 5
tokens = 512
save_every = 2
rate = 3e-3
fall = 0.0
shares = { chat = 0.6, tools = 0.3, plain = 0.1 }

[[stage]]
name = "second"
count = 50
seed = 10
zh = 0.3
steps = 6
tokens = 512
save_every = 2
rate = 2e-3
fall = 1.0
shares = { chat = 0.5, agents = 0.3, json = 0.2 }

[[stage]]
name = "third"
after = "first"
mean_with = "second"
count = 50
seed = 20
zh = 0.3
steps = 4
tokens = 512
save_every = 2
rate = 2e-3
fall = 1.0
shares = { chat = 1.0 }
"""
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(2 * DEADLINE_S)]


def started(out: Path) -> subprocess.Popen[str]:
    """`training.stages` with the stages above."""
    table = out.with_suffix(".toml")
    table.write_text(STAGES)
    command = [sys.executable, "-m", "training.stages", "--stages", table, "--out", out]
    return subprocess.Popen(
        [*command, "--threads", "1"], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"OMP_WAIT_POLICY": "passive"},
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> str:
    """What a run said, which has to have ended well."""
    told, _ = process.communicate(timeout=DEADLINE_S)
    assert 0 == process.returncode, told
    return told


def killed_with(process: subprocess.Popen[str], state: Path) -> None:
    """Kill a run as soon as it has saved a state in the middle of a stage."""
    until = time.monotonic() + DEADLINE_S
    while not state.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.005)
    process.kill()
    process.communicate()
    assert -signal.SIGKILL == process.returncode


def same(one: Path, other: Path) -> bool:
    """Whether two files have the same weights, bit for bit."""
    first, second = torch.load(one)["model"], torch.load(other)["model"]
    return first.keys() == second.keys() and all(
        torch.equal(of, second[name]) for name, of in first.items()
    )


def test_killed_and_started_again(tmp_path: Path) -> None:
    """All stages run from nothing in one command; killed in the middle of two of them and started again, they make the same weights."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    told = ended(started(whole))
    assert [f"stage {name}" for name in ("first", "second", "third")] == [
        line for line in told.splitlines() if line.startswith("stage ")
    ]
    for stage in ("first", "second"):
        killed_with(started(broken), broken / stage / "state.pt")
    again = ended(started(broken))

    assert "stage first" not in again  # it was finished
    assert "goes on" in again
    for name in ("first/model.pt", "second/model.pt", "third/model.pt", "model.pt"):
        assert same(whole / name, broken / name), name
    assert not same(whole / "model.pt", whole / "third" / "model.pt")  # it is a mean
