"""Tests of unilect.engines.process.child: the child's side, in a process of its own."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

_SERVES = """
from pathlib import Path
from unilect.engines.process import child

def serve(settings):
    Path(settings["socket_path"]).touch()
    if settings["fails"]:
        raise ValueError("no")
    return {}

child.run(serve)
"""


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.asyncio
async def test_a_parent_that_dies_while_it_loads(tmp_path: Path, fails: bool) -> None:
    """A child whose parent does not hear any more that it is ready, or has failed, leaves neither its socket nor its folder."""
    folder, (reading, writing) = tmp_path / "own", os.pipe()
    folder.mkdir()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SERVES, stdin=PIPE, stdout=writing, stderr=DEVNULL
    )
    os.close(writing)
    os.close(reading)
    settings = {"socket_path": str(folder / "engine.sock"), "parent": 0, "fails": fails}
    async with asyncio.timeout(60):
        await process.communicate(json.dumps(settings).encode() + b"\n")

    assert (int(fails), False) == (process.returncode, folder.exists())
