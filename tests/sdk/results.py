"""What a client's script says about a server: one line of JSON for each check."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from support.servers.serving import KEY, Server

KNOWLEDGE = True  # the bundled model knows what it should
TIMEOUT_S = 120
Results: TypeAlias = dict[str, tuple[bool, str]]


def run(
    command: Sequence[str], server: Server, cwd: Path | None = None, timeout_s: float = TIMEOUT_S
) -> Results:
    """
    Run a client's script to its end.

    Returns:
        For each check, whether it passed, and why not.
    """
    flags = ["--knowledge"] if KNOWLEDGE else []
    done = subprocess.run(
        [*command, ",".join([server.url, *server.further]), KEY, *flags],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert 0 == done.returncode, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: (line["ok"], line["detail"]) for line in lines}


def assert_passed(results: Results, name: str) -> None:
    """Fail unless a check passed; one that did not run has not passed."""
    passed, detail = results.get(name, (False, "the check did not run"))
    assert passed, detail
