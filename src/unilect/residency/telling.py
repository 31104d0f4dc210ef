"""The events of a model's place, with the numbers that are their reason: those of a GPU where that is what lacks."""

import time
from collections.abc import Sequence

from unilect.residency.account import Account
from unilect.residency.events import describe_size
from unilect.residency.pressure import Shortage
from unilect.residency.seat import Seat, State
from unilect.residency.space import Space
from unilect.runtime.context import ANONYMOUS


def tell_loaded(seat: Seat, account: Account, payers: Sequence[str], charged_s: float) -> None:
    """Note that a model is loaded, who pays for it, and which GPU has less for it than it would take."""
    claim, claimed, budget = account.claims[seat], account.claimed, account.budget
    size = claim.total
    takes = f"takes {describe_size(size)} at most" if size else "its size is not known yet"
    told = f"{seat.model.name}: loaded in {seat.load_s:.1f} s: {takes}, all models {describe_size(claimed.total)} of {describe_size(budget.total)}"
    numbers = {"load_s": seat.load_s or 0.0, "expected_s": seat.expected_s, "need_bytes": size}
    left = budget - (claimed - claim)
    for number, (need, free) in enumerate(zip(seat.need.gpus, left.gpus, strict=False)):
        if need > free:
            told += f"; it would take {describe_size(need)} of GPU {number}, where {describe_size(max(0, free))} are free for it"
            numbers |= _number_gpu(number, need, free)
    if keys := [f"`{one}`" for one in payers if one not in ("", ANONYMOUS)]:
        told += f"; {charged_s:.1f} s are charged to {', '.join(keys)}"
        numbers["charged_s"] = charged_s
    seat.events.add("loaded", told, **numbers, claimed_bytes=claimed.total, budget_bytes=budget.total)  # fmt: skip


def tell_end(seat: Seat, account: Account, shortage: Shortage) -> None:
    """Note that a model is stopped: for another one, for a lack of memory, or else."""
    name, other, size = seat.model.name, seat.leaves_for, account.claims[seat].total
    if seat.state is not State.LEAVING:
        told = f"{name}: stopped: {describe_size(size)} are free again"
        seat.events.add("stopped", told, freed_bytes=size)
        return
    idle_s, reload_s = time.monotonic() - seat.model.used_at, seat.reload_s
    told = f"{name}: evicted ({describe_size(size)}, idle {idle_s:.0f} s, {reload_s:.1f} s to load)"
    numbers = {"freed_bytes": size, "idle_s": idle_s, "reload_s": reload_s}
    if other is None:
        numbers |= {"stalled_percent": shortage.stalled, "free_bytes": shortage.free_bytes}
        seat.events.add("evicted", f"{told}: {shortage}", **numbers)
        return
    free = account.budget - account.claimed
    why, found = _describe_lack(other, account, account.reckon(other), free)
    found["free_bytes"] = max(0, found["free_bytes"])
    seat.events.add("evicted", f"{told} for `{other.model.name}`: {why}", **numbers, **found)


def tell_wait(seat: Seat, account: Account, since: float, need: Space, whom: str, **most: float) -> None:  # fmt: skip
    """Note once for each time that a model begins to wait what it waits for, and for how long at most where that is known (`most_s`)."""
    last = seat.events.last
    if last and last[-1].kind == "waits" and last[-1].numbers["since_s"] == since:
        return
    why, numbers = _describe_lack(seat, account, need, account.find_free())
    told = f"{seat.model.name}: waits for {whom}: {why}"
    seat.events.add("waits", told, **numbers, since_s=since, **most)


def _describe_lack(
    seat: Seat, account: Account, need: Space, free: Space
) -> tuple[str, dict[str, float]]:
    """Describe what a model needs and what is free, in words and numbers: of the GPUs that lack it, and of the sum where that does, or no GPU."""
    lacking = account.find_lack(seat, need, free)
    texts, numbers = list[str](), {"need_bytes": need.total, "free_bytes": free.total}
    for number, lack in enumerate(lacking.gpus):
        if lack > 0:
            size, left = need.gpus[number], free.gpus[number]
            texts.append(f"{describe_size(size)} of GPU {number}, {describe_size(max(0, left))} free")  # fmt: skip
            numbers |= _number_gpu(number, size, left)
    if lacking.total > 0 or not texts:
        sizes = f"{describe_size(need.total)}, {describe_size(max(0, free.total))} free"
        texts.insert(0, sizes)
    return f"needs {', and '.join(texts)}", dict(numbers)


def _number_gpu(number: int, need: int, free: int) -> dict[str, int]:
    return {f"gpu_{number}_need_bytes": need, f"gpu_{number}_free_bytes": max(0, free)}
