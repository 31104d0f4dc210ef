"""Tests of unilect.residency.pressure."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from support.backends.rooms import kinds, model, reason, room, use
from unilect.residency.pressure import FILE, Pressure, Shortage


@pytest.mark.heavy
async def test_the_kernel_tells() -> None:
    """The kernel's file tells of stalls; tried with those for processors, which hurt nobody, and no memory left."""
    told, heard = list[Shortage](), asyncio.Event()

    def tell(shortage: Shortage) -> None:
        told.append(shortage)
        heard.set()

    watch = Pressure(tell, FILE.with_name("cpu"), lambda: (7, 10**10))
    watch.open()
    if not watch.watches:
        pytest.skip("this kernel does not tell of pressure")
    busy = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    count = 2 * len(os.sched_getaffinity(0)) + 1
    workers = [await asyncio.create_subprocess_exec(sys.executable, "-c", busy) for _ in range(count)]  # fmt: skip
    try:
        await asyncio.wait_for(heard.wait(), 20)
    finally:
        for one in workers:
            one.kill()
            await one.wait()
        watch.close()

    assert 7 == told[0].free_bytes
    assert told[0].stalled > 0
    assert not watch.watches


async def test_where_the_kernel_does_not_tell(tmp_path: Path) -> None:
    """Without the kernel's file, and with one that tells nothing, memory is not watched."""
    (tmp_path / "memory").write_text("some avg10=0.00\n")
    for name in ("missing", "memory"):
        watch = Pressure(lambda _: None, tmp_path / name)
        watch.open()
        assert not watch.watches
        watch.close()


async def test_idle_models_leave() -> None:
    """When memory is short idle models leave, one for each time that it is told, but none that is pinned, or is being asked for."""
    a, b, fixed, asked = model("a"), model("b"), model("c", pinned=True), model("d")
    async with room(a, b, fixed, asked, memory=100) as registry:
        residency = registry.residency
        assert residency is not None
        for one in (a, b, fixed, asked):
            await use(one)
        for one in (a, b, fixed):
            one.used_at -= 100
            assert one.place is not None
            one.place.loaded_at -= 200
        asked.used_at += 100
        for _ in range(3):
            residency.relieve(Shortage(12.0, 10**8))
            assert 1 == sum(one.stopping is not None for one in (a, b)) or not a.runs_here
            for one in (a, b):
                if one.stopping is not None:
                    await one.stopping

        assert [False, False, True, True] == [one.runs_here for one in (a, b, fixed, asked)]
        assert ["loaded", "evicted"] == kinds(a)
        told = "memory is short: processes waited for it for 12 % of 10 s, 100 MB are available"
        assert reason(b).endswith(f"(0 MB, idle 100 s, 0.0 s to load): {told}")
        await use(a)
