"""The store with a clock that jumps."""

from unilect.config.store import StoreConfig
from unilect.runtime import clock as clocks
from unilect.store.records import StoredResponse
from unilect.store.store import Store

DAY_S = 86_400


async def test_a_clock_that_jumps() -> None:
    """A stored response stays where the system's clock jumps past its end, as keys do, and goes once that time is believed."""
    now = [1_800_000_000.0, 0.0]  # the system's, and the even one's
    clock = clocks.SteadyClock(lambda: now[0], lambda: now[1])
    store = Store(StoreConfig(url="sqlite://", max_age_days=30), {}, clock)
    answers, keys = store.answers, store.keys
    assert answers is not None
    assert keys is not None
    await answers.save(StoredResponse("r", "me", "completed", b"{}", [], [], None, None, clock()))
    await keys.create("ann", "AAAA", b"digest", lasts_s=30.0 * DAY_S)

    async def kept() -> tuple[bool, bool]:
        await answers.sweep()
        (ann,) = await keys.all()
        return await answers.get("me", "r") is not None, keys.clock() < (ann.expires_at or 0)

    now[0] += 40 * DAY_S
    assert (True, True) == await kept()
    now[:] = [one + clocks.BELIEVED_S for one in now]
    assert (False, False) == await kept()
    await store.aclose()
