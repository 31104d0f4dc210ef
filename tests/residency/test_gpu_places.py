"""Tests of unilect.residency with GPUs, whose memory is told as their driver does: models leave for it as for the sum, and nothing is refused for it."""

import asyncio
import re
from collections.abc import Callable

import pytest

from support.backends.leases import acquire
from support.backends.rooms import kinds, model, reason, room, use, waiting
from support.common.waiting import until
from unilect.api.backend import MemoryNeed
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.residency.fits import Fit, Fits
from unilect.residency.space import Space
from unilect.runtime.gpus import GpuMemory
from unilect.server._state import metrics_of

GB = 10**9
RESERVE = 2**30  # stays free on each
MEMORY = 100 * GB  # of all

Gpus = Callable[..., None]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """Have the machine have GPUs of so many gigabytes beside what stays free."""

    def have(*sizes: int) -> None:
        told = [GpuMemory(one * GB + RESERVE, one * GB + RESERVE) for one in sizes]
        monkeypatch.setattr("unilect.residency.budget.gpu_memory", lambda: told)

    return have


def on_gpu(name: str, *sizes: int, pinned: bool = False) -> Model:
    """A model that takes so many gigabytes of each GPU, and nothing else."""
    return model(name, sum(sizes) * GB, pinned=pinned, gpus=tuple(one * GB for one in sizes))


def fit_of(registry: Registry, one: Model) -> Fit | None:
    """The fit of a model now."""
    assert registry.residency is not None
    assert one.place is not None
    return Fits(registry.residency).of(one.place)


@pytest.mark.parametrize("memory", [MEMORY, None])
async def test_one_leaves_the_gpu_for_another(
    gpus: Gpus, memory: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is idle on the GPU leaves for one that has no room there, whatever else is free, and says what the GPU lacks."""
    gpus(12)
    monkeypatch.setattr("unilect.residency.budget.free_bytes", lambda: MEMORY)
    a, b = on_gpu("a", 10), on_gpu("b", 8)
    async with room(a, b, memory=memory) as registry:
        await use(a)
        assert Fit("evicts", ["a"]) == fit_of(registry, b)
        await use(b)

        assert [False, True] == [one.runs_here for one in (a, b)]
        assert reason(a).endswith("for `b`: needs 8.0 GB of GPU 0, 2.0 GB free")
        numbers = a.events.last[-1].numbers
        assert (8 * GB, 2 * GB) == (numbers["gpu_0_need_bytes"], numbers["gpu_0_free_bytes"])
        assert "GPU" not in reason(b)


async def test_one_that_uses_no_gpu(gpus: Gpus) -> None:
    """A model that is computed on the processor leaves who is on the GPU there, and stays beside it."""
    gpus(12)
    a, b = on_gpu("a", 10), model("b", 8 * GB)
    async with room(a, b, memory=MEMORY) as registry:
        await use(a)
        assert Fit("now") == fit_of(registry, b)
        await use(b)

        assert [True, True] == [one.runs_here for one in (a, b)]


async def test_one_that_is_larger_than_the_gpu(gpus: Gpus) -> None:
    """A model that is larger than the GPU has all of it and the rest elsewhere, is told so, and leaves in turn."""
    gpus(12)
    a, large = on_gpu("a", 10), on_gpu("large", 30)
    async with room(a, large, memory=MEMORY):
        await use(a)
        await use(large)
        assert [False, True] == [one.runs_here for one in (a, large)]
        assert reason(large).endswith("; it would take 30.0 GB of GPU 0, where 12.0 GB are free for it")  # fmt: skip
        await use(a)
        assert [True, False] == [one.runs_here for one in (a, large)]


async def test_each_on_a_gpu_of_its_own(gpus: Gpus) -> None:
    """Models on different GPUs stay beside each other, and who needs both has both leave."""
    gpus(12, 12)
    a, b, both = on_gpu("a", 10), on_gpu("b", 0, 10), on_gpu("both", 6, 6)
    async with room(a, b, both, memory=MEMORY) as registry:
        await use(a)
        await use(b)
        assert [True, True] == [one.runs_here for one in (a, b)]
        assert Fit("evicts", ["a", "b"]) == fit_of(registry, both)
        await use(both)

        assert [False, False, True] == [one.runs_here for one in (a, b, both)]
        assert reason(b).endswith("for `both`: needs 6.0 GB of GPU 1, 2.0 GB free")


async def test_a_gpu_that_a_pinned_model_has(gpus: Gpus) -> None:
    """A model that would have little of a GPU beside a pinned one is loaded there all the same and told so, and nobody leaves for it."""
    gpus(12)
    a, small, b = on_gpu("a", 10, pinned=True), on_gpu("small", 1), on_gpu("b", 8)
    async with room(a, small, b, memory=MEMORY) as registry:
        await use(a)
        await use(small)
        assert Fit("now") == fit_of(registry, b)
        await use(b)

        assert [True, True, True] == [one.runs_here for one in (a, small, b)]
        assert reason(b).endswith("; it would take 8.0 GB of GPU 0, where 1.0 GB are free for it")


async def test_a_small_pinned_model(gpus: Gpus) -> None:
    """Models that are larger than the GPU are exchanged beside a small pinned one, which leaves them most of it."""
    gpus(12)
    pinned, a, b = on_gpu("pinned", 1, pinned=True), on_gpu("a", 30), on_gpu("b", 40)
    async with room(pinned, a, b, memory=MEMORY):
        for one in (pinned, a, b):
            await use(one)

        assert [True, False, True] == [one.runs_here for one in (pinned, a, b)]
        assert reason(a).endswith("for `b`: needs 11.0 GB of GPU 0, 0 MB free")


async def test_a_gpu_that_nobody_here_has(gpus: Gpus) -> None:
    """A model is loaded where those that may leave have not what it lacks of a GPU, and nobody leaves in vain."""
    gpus(12)
    a, b = on_gpu("a", 1), on_gpu("b", 8)
    async with room(a, b, memory=MEMORY) as registry:
        assert registry.residency is not None
        registry.residency.account.claims["another"] = Space(0, (10 * GB,))
        await use(a)
        assert Fit("now") == fit_of(registry, b)
        await use(b)

        assert [True, True] == [one.runs_here for one in (a, b)]


async def test_waiting_for_a_gpu(gpus: Gpus) -> None:
    """Who waits for the answers of one on the GPU is told for what, and who takes nothing from that GPU, or waits for both, is no longer for it than the sum says."""
    gpus(12, 12)
    a, b, behind = on_gpu("a", 10), on_gpu("b", 8), on_gpu("behind", 1)
    beside, processor = on_gpu("beside", 0, 10), model("processor", 10 * GB)
    async with room(a, b, behind, beside, processor, memory=MEMORY, turn_s=30.0):
        lease = await acquire(a)
        asking = asyncio.create_task(acquire(b))
        await until(waiting(b))
        told = r"b: waits for `a` for \S+ s at most: needs 8\.0 GB of GPU 0, 2\.0 GB free"
        assert re.fullmatch(told, reason(b))
        later = asyncio.create_task(acquire(behind))
        await until(waiting(behind))
        for one in (beside, processor):
            await use(one)
        assert not behind.runs_here
        assert a.place is not None
        a.place.loaded_at -= 1000
        lease.release()
        (await asking).release()
        (await later).release()

        assert [False, True, True, True, True] == [
            one.runs_here for one in (a, b, behind, beside, processor)
        ]


async def test_who_waits_for_more_than_a_gpu(gpus: Gpus) -> None:
    """While one waits for memory of the sum nobody passes it, and what it is told has all that lacks."""
    gpus(12)
    a, b, c = on_gpu("a", 10), on_gpu("b", 8), model("c", GB)
    async with room(a, b, c, memory=15 * GB, turn_s=30.0):
        lease = await acquire(a)
        asking = asyncio.create_task(acquire(b))
        await until(waiting(b))
        assert "needs 8.0 GB, 5.0 GB free, and 8.0 GB of GPU 0, 2.0 GB free" in reason(b)
        later = asyncio.create_task(acquire(c))
        await until(waiting(c))
        assert not c.runs_here
        assert a.place is not None
        a.place.loaded_at -= 1000
        lease.release()
        (await asking).release()
        (await later).release()


async def test_a_download_for_the_gpu(gpus: Gpus) -> None:
    """A model whose need is known once its file is here has others leave the GPU then, and is loaded once."""
    gpus(12)
    a, b = on_gpu("a", 10), model("b", 8 * GB)
    backend = b.pool.members[0].backend

    async def fetch() -> None:
        backend.memory_need = lambda: MemoryNeed(8 * GB, gpus=(8 * GB,))  # type: ignore[method-assign]

    backend.fetch = fetch  # type: ignore[method-assign]
    async with room(a, b, memory=MEMORY):
        await use(a)
        await use(b)

        assert [False, True] == [one.runs_here for one in (a, b)]
        assert ["loaded", "evicted"] == kinds(a)
        assert 1 == kinds(b).count("loaded")


async def test_all_are_loaded_at_start(gpus: Gpus) -> None:
    """What the server loads at its start it loads without regard to GPUs, and tells which has too little there."""
    gpus(12)
    a, b = on_gpu("a", 10), on_gpu("b", 8)
    async with room(a, b, memory=MEMORY) as registry:
        await registry.start(["a", "b"])

        assert [True, True] == [one.runs_here for one in (a, b)]
        assert reason(b).endswith("; it would take 8.0 GB of GPU 0, where 2.0 GB are free for it")


async def test_what_is_shown(gpus: Gpus) -> None:
    """The metrics have the memory of each GPU, and what models are to have of it."""
    gpus(12, 24)
    a = on_gpu("a", 10)
    async with room(a, memory=MEMORY) as registry:
        await use(a)
        families = {one.name: list(one.rows) for one in metrics_of(registry).families()}

    budgets = [(("0",), 12 * GB), (("1",), 24 * GB)]
    assert budgets == families["unilect_gpu_memory_budget_bytes"]
    assert [(("0",), 10 * GB), (("1",), 0)] == families["unilect_gpu_memory_claimed_bytes"]


async def test_what_an_operator_says(gpus: Gpus) -> None:
    """A model takes no more of a GPU than its operator says of all its memory."""
    gpus(12)
    a = model("a", 5 * GB, gpus=(10 * GB,))
    async with room(a, memory=MEMORY):
        assert a.place is not None
        assert Space(5 * GB, (5 * GB,)) == a.place.need
