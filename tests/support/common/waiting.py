"""Waiting for what is about to be so."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], deadline_s: float = 60.0) -> None:
    """
    Wait until something holds.

    Raises:
        TimeoutError: It does not in time.
    """
    async with asyncio.timeout(deadline_s):
        while not holds():
            await asyncio.sleep(0.001)
