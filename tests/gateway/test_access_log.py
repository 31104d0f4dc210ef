"""Tests of unilect.gateway.access_log."""

import asyncio
import logging

import pytest

from unilect.gateway import access_log
from unilect.gateway.access_log import AccessLog


async def test_lines_are_written_in_batches(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are gathered, and written together soon after the first."""
    monkeypatch.setattr(access_log, "FLUSH_S", 0.001)
    flushed = asyncio.Event()
    log = AccessLog()
    flush = log.flush
    monkeypatch.setattr(log, "flush", lambda: (flush(), flushed.set()))
    log.add("a")
    log.add("b")

    assert capsys.readouterr().err == ""
    async with asyncio.timeout(5):
        await flushed.wait()
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(" INFO a")
    assert second.endswith(" INFO b")


async def test_flush(capsys: pytest.CaptureFixture[str]) -> None:
    """What has been gathered is written once."""
    log = AccessLog()
    log.add("a")
    log.flush()
    log.flush()

    assert capsys.readouterr().err.count("a\n") == 1


@pytest.mark.parametrize(
    ("level", "expected"), [(logging.DEBUG, True), (logging.INFO, True), (logging.WARNING, False)]
)
def test_level(level: int, expected: bool) -> None:
    """Requests are logged at the level info, and not above it."""
    logger = access_log.access
    before = logger.level
    logger.setLevel(level)
    try:
        assert expected is AccessLog().on
    finally:
        logger.setLevel(before)
