"""Tests of unilect.engines._process: a child that says much is heard out."""

import json
import sys

import pytest

from unilect.engines._process import ChildProcess

#: Says ready, then draws a bar of progress that has no end of line, and dies when it was read.
_TALKER = """
import json, sys
sys.stdin.readline()
print(json.dumps({"ready": {"ok": True}}), flush=True)
sys.stderr.write("=" * 3_000_000)
sys.stderr.write("\\nthe last word\\n")
"""


@pytest.mark.asyncio
async def test_a_line_without_an_end_stops_nobody() -> None:
    """What a child writes is read on, however long its lines are, so that it can go on and its death is seen."""
    child = ChildProcess(
        "talker",
        [sys.executable, "-c", _TALKER],
        lambda path: json.loads("{}"),
        start_timeout_s=60,
    )
    try:
        await child.start()
        assert await child.has_died(60)
        watcher = child._watcher
        assert watcher is not None
        await watcher
        assert "the last word" == child._stderr[-1]
    finally:
        await child.aclose()
