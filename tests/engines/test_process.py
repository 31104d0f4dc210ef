"""Tests of unilect.engines._process: a child that says much is heard out, one that cannot be is an error of ours."""

import json
import sys
import tempfile
from pathlib import Path

import pytest

from unilect.engines._process import ChildProcess
from unilect.errors import BackendUnavailable

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
        assert "the last word" == child._last_words._lines[-1]
    finally:
        await child.aclose()


@pytest.mark.asyncio
async def test_a_process_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system refuses is an error with its reason, for which another backend can be asked; no folder is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = ChildProcess("none", [str(tmp_path / "none")], lambda path: {}, start_timeout_s=60)

    with pytest.raises(BackendUnavailable, match="cannot be started: No such file"):
        await child.start()
    assert [] == list(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(BackendUnavailable, match="cannot be started: No such file"):
        await child.start()
    await child.aclose()
