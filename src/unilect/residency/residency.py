"""
The places in memory: one owner gives them to models, in a fair order of those who ask for them, and takes them back.

1. A model has a place (`seat.State`) from before its start until it is stopped; the ledger has its bytes for so long. A request goes to a
   model only while it is `open`, which follows from the state.
2. Every change is followed by `_decide`, which looks at all that waits, and runs to its end without waiting: nobody else decides, and no
   state that somebody has read before is relied on.
3. Requests for a model that is not open wait together. The model comes first whose callers were charged least for loads (`turns.py`), and
   among equals the one that was asked for first: if its bytes are free it gets them; else the cheapest models leave for it (`policy.py`),
   at the end of their turn. One that is to leave takes no new request, finishes those that run, and is stopped; requests that come for it
   wait behind the swap. So everybody's turn comes.
4. Without a configured budget it is what was free at the start: then nothing is refused here, since nobody has said that it must not be
   tried, and what is to be loaded at the server's start is.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from unilect.core.errors import ModelTooLarge, QueueFull, QueueTimeout, UnilectError
from unilect.residency.budget import find_budget
from unilect.residency.events import describe_size
from unilect.residency.ledger import LEDGER, Ledger
from unilect.residency.policy import Loaded, choose_victims, keep_promise, turn_s
from unilect.residency.pressure import Pressure, Shortage
from unilect.residency.seat import Resident, Seat, State
from unilect.residency.turns import Turns
from unilect.runtime.context import ANONYMOUS, current_request

log = logging.getLogger("unilect")
_LOOK_S = 1.0  # from one look to the next at loads that others wait for
_TOLD_S = 60.0  # from one line of the log to the next about a shortage that nobody can relieve


ResidentT = TypeVar("ResidentT", bound=Resident)


class Residency:
    """
    The places of a server's models.

    Args:
        memory_bytes: The budget; None for what is free now, but for a reserve.
        swap_wait_s: The shortest turn of a model that is asked for while another one waits.
        ledger: Where the bytes are promised.

    Attributes:
        budget: The bytes that all models together may take; None where neither the operator nor the system says.
        is_hard: The operator has said so: what cannot fit is refused.
        swap_wait_s: As given.
        seats: The models that take part.
        pressure: Tells of a lack of memory, while it is open.
    """

    def __init__(
        self, memory_bytes: int | None, swap_wait_s: float = 5.0, ledger: Ledger = LEDGER
    ) -> None:
        self.is_hard, self.swap_wait_s = memory_bytes is not None, swap_wait_s
        self.budget = memory_bytes
        if memory_bytes is None:
            self.budget = find_budget()
        self.seats: dict[Resident, Seat] = {}
        self._claims = ledger.claims
        self._queue: dict[Seat, float] = {}  # since when they wait, the first first
        self._turns = Turns()
        self._due_at = 0.0  # when those may go at the latest that the first in line waits for
        self._timer: asyncio.TimerHandle | None = None
        self.pressure = Pressure(self.relieve)
        self._shortage, self._told_at = Shortage(0.0, 0), -math.inf

    @property
    def claimed(self) -> int:
        """The bytes of the models that have a place."""
        return sum(self._claims[seat] for seat in self.seats.values() if seat.has_place)

    def take(self, model: Resident) -> Seat | None:
        """Have a model take part, if its need is known and of this machine; returns its seat. Idempotent."""
        if (seat := self.seats.get(model)) is None and self.budget is not None:
            if model.memory_need() is None:
                return None
            seat = self.seats[model] = model.place = Seat(self, model)
            model.open = model.runs_here
            model.on_idle = self._decide if self._queue else None
        return seat

    def admit_at_start(self, models: Iterable[ResidentT]) -> list[ResidentT]:
        """
        Give places to the models that are to be loaded at the server's start, pinned ones first, and return those that are to be started; a
        budget that the operator has set may leave no room for some, which are loaded when they are asked for.

        Raises:
            ModelTooLarge: One can never fit.
        """
        models, admitted = list(models), set[ResidentT]()
        for model in sorted(models, key=lambda one: not one.pinned):
            seat = self.take(model)
            if seat is None or self._admit(seat):
                admitted.add(model)
        return [one for one in models if one in admitted]

    def force(self, models: Iterable[Resident]) -> None:
        """Give places to models that were not to be refused one, unless the operator has set a budget."""
        for model in models:
            if (seat := self.take(model)) is None or self.is_hard:
                continue
            if not seat.has_place:
                self._grant(seat, seat.need, State.FORCED)
            elif seat.state is State.GIVEN:
                seat.enter(State.FORCED)

    def _admit(self, seat: Seat) -> bool:
        if self.is_hard:
            self._check_fits(seat)
            if seat.need > (free := self.find_free()):
                told = f"{seat.model.name}: not loaded at start: needs {describe_size(seat.need)}, {describe_size(free)} of memory are free; the first request loads it"
                seat.events.add("skipped", told, need_bytes=seat.need, free_bytes=free)
                return False
        self._grant(seat, seat.need)
        return True

    async def wait(self, seat: Seat, until: float | None, timeout_s: float) -> None:
        """
        Wait until a model has its place.

        Args:
            until: The event loop's time after which nobody waits any more; None for never.
            timeout_s: The longest wait.

        Raises:
            ModelTooLarge: It can never fit.
            QueueTimeout: The time is over.
            QueueFull: Too many requests wait for it.
        """
        self._check_fits(seat)
        if len(seat.waiting) >= seat.model.most_waiting:
            raise QueueFull(
                f"Too many requests wait for the model to be loaded. Try again in {math.ceil(seat.wait_s)} s.",
                retry_after_s=seat.wait_s,
            )
        if not self._queue:
            self._turns.forgive()
        turn = asyncio.get_running_loop().create_future()
        seat.waiting[turn] = self._turns.admit(current_request().caller)
        if seat not in self._queue:
            self._queue[seat] = time.monotonic()
            if len(self._queue) == 1:
                self._hook(self._decide)
        end = asyncio.get_running_loop().time() + timeout_s
        try:
            self._decide()
            async with asyncio.timeout_at(end if until is None else min(end, until)):
                await turn
        except TimeoutError:
            raise QueueTimeout(
                "The model waited for memory of other models, which are answering, for too long. Try again later.",
                retry_after_s=seat.wait_s,
            ) from None
        except asyncio.CancelledError:
            self._drop_unused(seat, turn)
            raise
        finally:
            if seat.waiting.pop(turn, None) is not None:
                self._decide()

    def relieve(self, shortage: Shortage) -> None:
        """Have the idle model leave that costs least for its bytes, with all its caches, since the machine lacks memory; one at a time."""
        if any(one.goes for one in self.seats.values()):
            return
        self._shortage = shortage
        idle = [(one.cost / max(1, one.bytes), seat) for seat, one in self.list_movable(None) if not one.is_asked]  # fmt: skip
        if idle:
            _, seat = min(idle, key=lambda one: one[0])
            seat.enter(State.LEAVING)
            self._evict_idle()
        elif (now := time.monotonic()) > self._told_at + _TOLD_S:
            self._told_at = now
            log.warning("%s; no model that may leave is idle", shortage)

    def wait_s(self, seat: Seat) -> float:
        """Return seconds until a model is loaded, as far as is known: the turns of those that it waits for, and the loads until its own."""
        before = max(0.0, self._due_at - time.monotonic()) if seat in self._queue else 0.0
        for other in self._line():
            if other is seat:
                break
            before += self._turn_s(other) + other.reload_s
        return before + seat.reload_s

    def note_size(self, seat: Seat) -> None:
        """
        Reckon with what a model takes, now that its files are here. Where that is not free, and nothing of it loads yet, its place is
        taken back, and waited for as by others.
        """
        need = self.find_need(seat)
        if not seat.has_place or (more := need - self._claims[seat]) <= 0:
            return
        begun = seat.model.runs_here or seat.model.is_loading
        if begun or seat.state is State.FORCED or more <= self.find_free():
            self._claims[seat] = need
        else:
            self._free_seat(seat)

    def note_loaded(self, seat: Seat) -> float:
        """Note that a model is loaded, if that is not known; returns the seconds that it took."""
        if not seat.is_loaded and seat.model.runs_here:
            # what loads beside a start that failed takes memory all the same
            if not seat.has_place:
                self._grant(seat, seat.need)
            self._set_loaded(seat)
            self._decide()
        return seat.load_s or 0.0

    def _set_loaded(self, seat: Seat) -> None:
        seat.note_load(*seat.model.last_load)
        payers, charged_s = seat.payers, (seat.load_s or 0.0) + self._turn_s(seat)
        self._charge(seat, charged_s)
        seat.enter(State.LOADED)
        claim = self._claims[seat] = max(self._claims[seat], seat.need)
        budget = self.budget or 0
        takes = f"takes {describe_size(claim)} at most" if claim else "its size is not known yet"
        told = f"{seat.model.name}: loaded in {seat.load_s:.1f} s: {takes}, all models {describe_size(self.claimed)} of {describe_size(budget)}"
        numbers = {"load_s": seat.load_s or 0.0, "expected_s": seat.expected_s, "need_bytes": claim}
        if keys := [f"`{one}`" for one in payers if one not in ("", ANONYMOUS)]:
            told += f"; {charged_s:.1f} s are charged to {', '.join(keys)}"
            numbers["charged_s"] = charged_s
        seat.events.add("loaded", told, **numbers, claimed_bytes=self.claimed, budget_bytes=budget)
        measuring = asyncio.get_running_loop().run_in_executor(None, seat.model.measure_memory)
        measuring.add_done_callback(partial(self._note_measured, seat))

    def _note_measured(self, seat: Seat, measuring: "asyncio.Future[int]") -> None:
        """Reckon with what a model takes, where it is more than it was reckoned to take."""
        if measuring.cancelled() or measuring.exception() is not None:
            return
        seat.measured_bytes = measuring.result()
        if seat.is_loaded:
            self._claims[seat] = max(self._claims[seat], seat.need)

    def note_failed(self, seat: Seat, error: UnilectError) -> None:
        """Note that a model could not be loaded, where nothing of it runs; who waits for memory may have its place."""
        model = seat.model
        begun = model.runs_here or model.is_loading  # of several sources
        if seat.starts and not begun:
            seat.events.add("failed", f"{seat.model.name}: not loaded: {error.for_operator}")
            self._charge(seat, time.monotonic() - seat.given_at)
            self._free_seat(seat)

    def note_gone(self, seat: Seat, for_good: bool) -> None:
        """Note that a model is stopped; `for_good`: who waits for it is told by the model."""
        if seat.has_place:
            self._tell_of_end(seat, self._claims[seat])
        if for_good:
            self.seats.pop(seat.model, None)
            if seat in self._queue:
                self._give_up(seat)
        self._free_seat(seat)

    def _free_seat(self, seat: Seat) -> None:
        """Take a place back, and decide who gets it."""
        self._take_back(seat)
        self._decide()

    def _take_back(self, seat: Seat) -> None:
        """Promise a model nothing any more."""
        seat.model.open = False  # whatever it has made of its end
        self._charge(seat, 0.0)
        if seat.state is not State.GONE:
            seat.enter(State.GONE)
            del self._claims[seat]

    def _drop_unused(self, seat: Seat, turn: asyncio.Future[None]) -> None:
        """Take the place back of a model that nobody starts any more: the request that would have has left in the moment of its turn."""
        model = seat.model
        begun = model.in_use or model.runs_here or model.is_loading
        if turn not in seat.waiting and seat.starts and not begun:
            self._free_seat(seat)

    def _grant(self, seat: Seat, size: int, state: State = State.GIVEN) -> None:
        """Give a place."""
        self._claims[seat] = size
        seat.enter(state)
        seat.payers = self._turns.begin(seat.waiting.values())
        self._queue.pop(seat, None)
        self._let_stay(seat)
        seat.wake()

    def _charge(self, seat: Seat, seconds: float) -> None:
        """Have those who have caused a load, which is over now, pay for it."""
        self._turns.end(seat.payers, seconds)
        seat.payers = ()

    def _line(self) -> list[Seat]:
        """Return those that wait, the next one first: after those whose bytes are promised, as their callers were charged."""
        return sorted(self._queue, key=lambda one: (one.state is not State.PROMISED, self._turns.rank(one.waiting.values())))  # fmt: skip

    def _hook(self, on_idle: Callable[[], None] | None) -> None:
        """Be told of models that become idle, or not: nobody needs to be while none waits."""
        for seat in self.seats.values():
            seat.model.on_idle = on_idle

    def _decide(self) -> None:
        """Give places to those who wait, as far as there are any, and have others leave."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._queue:
            self._hook(None)
            return
        self._settle()
        for seat in list(self._queue):
            if not seat.waiting or seat.model.closed or not self.can_fit(seat):
                self._give_up(seat)
        for seat in self._line():
            if seat.has_place:  # it leaves, or is stopped: then it waits as others do
                if seat.leaves_for is not None:
                    name = f"`{seat.leaves_for.model.name}`, for which it leaves"
                    self._tell_of_wait(seat, seat.need, 0, name)
                continue
            if seat.state is State.GONE:
                self._tell_overtaken(seat)
                if not self._plan(seat):
                    break
            size = self._claims[seat]
            goes = any(one.goes for one in self.seats.values())
            if self.claimed + size <= (self.budget or 0) or not goes:
                self._grant(seat, size)
        self._evict_idle()
        if not self._queue:
            self._hook(None)

    def _evict_idle(self) -> None:
        """Stop those that leave, and in which no request runs any more."""
        for seat in list(self.seats.values()):
            if seat.state is State.LEAVING and not (seat.model.in_use or seat.model.stopping):
                seat.model.evict()

    def _settle(self) -> None:
        """
        Note the loads that have ended, or were never begun, and that nobody has told of: all who waited for them had left; and what models
        take more by now, such as for embeddings.
        """
        for seat in self.seats.values():
            model = seat.model
            if seat.is_loaded:
                self._claims[seat] = max(self._claims[seat], seat.need)
            if not seat.starts or model.is_loading:
                continue
            if model.runs_here:
                self._set_loaded(seat)
            elif not model.in_use and time.monotonic() > seat.given_at + _LOOK_S:
                self._take_back(seat)

    def _give_up(self, seat: Seat) -> None:
        """Leave off a swap that is for nobody any more: who was to leave for it stays, unless it is gone by now; who waits looks again."""
        del self._queue[seat]
        seat.waits_for = ()
        if seat.state is State.PROMISED:
            self._take_back(seat)
            self._let_stay(seat)
        seat.wake()

    def _let_stay(self, seat: Seat) -> None:
        """
        Have those stay that were to leave for a model, and need not any more; one that is being stopped does not come back, and one whose
        bytes are promised to the next in line leaves for that.
        """
        heir = next((one for one in self._queue if one.state is State.PROMISED), None)
        for other in self.seats.values():
            if other.leaves_for is not seat or other.model.stopping is not None:
                continue
            if heir is not None and self._claims[other] > self.find_free():
                other.enter(State.LEAVING, heir)
                continue
            other.enter(State.LOADED)
            self._queue.pop(other, None)
            other.wake()

    def _plan(self, seat: Seat) -> bool:
        """Find the bytes for a model, and tell those that leave for it; returns False where it has to wait for that."""
        need, free = self.find_need(seat), self.find_free()
        movable = {one: other for other, one in self.list_movable(seat)}
        told = [one for one, other in movable.items() if other in seat.waits_for]
        victims = keep_promise(told, choose_victims(list(movable), need - free), need - free)
        if victims is None:
            self._tell_of_wait(seat, need, free, "models that are being loaded")
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._decide)
            return False
        due_s = max((one.due_s for one in victims), default=0.0)
        if due_s > 0:
            names = ", ".join(f"`{one.name}`" for one in victims)
            self._due_at = time.monotonic() + due_s
            self._tell_of_wait(seat, need, free, f"{names} for {due_s:.1f} s at most", most_s=due_s)
            seat.waits_for = [movable[one] for one in victims]
            look_s = _LOOK_S if any(one.starts for one in seat.waits_for) else due_s
            self._timer = asyncio.get_running_loop().call_later(min(due_s, look_s), self._decide)
            return False
        self._due_at = 0.0
        for one in victims:
            movable[one].enter(State.LEAVING, seat)
        self._claims[seat] = need
        seat.enter(State.PROMISED)
        return True

    def list_movable(self, seat: Seat | None) -> list[tuple[Seat, Loaded]]:
        """Return the models that may leave for another one, also those that are being loaded, at the end of their turns; None for no other."""
        now, found = time.monotonic(), list[tuple[Seat, Loaded]]()
        for other in self.seats.values():
            model = other.model
            # its successor may take its place
            fixed = model.pinned and (seat is None or model.name != seat.model.name)
            if other is seat or fixed or other.goes or not (other.is_loaded or other.starts):
                continue
            runs = bool(model.in_use) or other.starts
            idle_s = 0.0 if runs else now - max(model.used_at, other.loaded_at)
            stays_s = -other.wait_s if other.starts else now - other.loaded_at
            loaded = Loaded(model.name, self._claims[other], other.reload_s, idle_s, stays_s, self._turn_s(other), runs)  # fmt: skip
            found.append((other, loaded))
        return found

    def _tell_of_end(self, seat: Seat, size: int) -> None:
        """Note that a model is stopped: for another one, or else."""
        name, other = seat.model.name, seat.leaves_for
        if seat.state is not State.LEAVING:
            told = f"{name}: stopped: {describe_size(size)} are free again"
            seat.events.add("stopped", told, freed_bytes=size)
            return
        idle_s, reload_s = time.monotonic() - seat.model.used_at, seat.reload_s
        told = f"{name}: evicted ({describe_size(size)}, idle {idle_s:.0f} s, {reload_s:.1f} s to load)"
        numbers = {"freed_bytes": size, "idle_s": idle_s, "reload_s": reload_s}
        if other is None:
            numbers |= {"stalled_percent": self._shortage.stalled, "free_bytes": self._shortage.free_bytes}  # fmt: skip
            seat.events.add("evicted", f"{told}: {self._shortage}", **numbers)
            return
        need, free = other.need, max(0, (self.budget or 0) - self.claimed)
        told += f" for `{other.model.name}`: needs {describe_size(need)}, {describe_size(free)} free"  # fmt: skip
        seat.events.add("evicted", told, **numbers, need_bytes=need, free_bytes=free)

    def _tell_of_wait(self, seat: Seat, need: int, free: int, for_whom: str, **most: float) -> None:
        """Note once for each time that a model begins to wait what it waits for, and for how long at most where that is known (`most_s`)."""
        since, last = self._queue[seat], seat.events.last
        if last and last[-1].kind == "waits" and last[-1].numbers["since_s"] == since:
            return
        told = f"{seat.model.name}: waits for {for_whom}: needs {describe_size(need)}, {describe_size(max(0, free))} free"
        seat.events.add("waits", told, need_bytes=need, free_bytes=free, since_s=since, **most)

    def _tell_overtaken(self, first: Seat) -> None:
        """Note of the models that were asked for before the one that is next, and wait for it, by what they stand behind it."""
        charged_s, _ = self._turns.rank(first.waiting.values())
        for seat in list(self._queue):  # in the order in which they were asked for
            if seat is first:
                break
            more_s = self._turns.rank(seat.waiting.values())[0] - charged_s
            if more_s > 0 and not seat.has_place:
                whom = f"`{first.model.name}`, whose callers were charged {more_s:.1f} s less for loads"
                self._tell_of_wait(seat, seat.need, self.find_free(), whom)

    def _turn_s(self, seat: Seat) -> float:
        return turn_s(self.swap_wait_s, seat.load_s or 0.0)

    def find_free(self) -> int:
        """Return the bytes that are promised to nobody who stays; less than 0 where too much is."""
        goes = {one for one in self.seats.values() if one.goes}
        taken = (size for seat, size in self._claims.items() if seat not in goes)
        return (self.budget or 0) - sum(taken)

    def find_need(self, seat: Seat) -> int:
        """Return the bytes that a model is to have: no more than it can, where nobody has said that it must not be tried."""
        return seat.need if self.is_hard else min(seat.need, self._most(seat))

    def _most(self, seat: Seat) -> int:
        """Return the bytes that a model can ever have, beside those that are pinned."""
        others = (one for one in self.seats.values() if one.model.name != seat.model.name)
        return max(0, (self.budget or 0) - sum(one.need for one in others if one.model.pinned))

    def can_fit(self, seat: Seat) -> bool:
        """Return False where the operator's budget has no room for a model, whatever leaves."""
        return not self.is_hard or seat.need <= self._most(seat)

    def _check_fits(self, seat: Seat) -> None:
        """
        Raises:
            ModelTooLarge: As `can_fit`.
        """
        if self.can_fit(seat):
            return
        need, most = seat.need, self._most(seat)
        pins = (self.budget or 0) - most
        beside = f", of which pinned models have {describe_size(pins)}" if pins else ""
        sizes = f"it needs {describe_size(need)}, and `memory` is {describe_size(self.budget or 0)}{beside}"
        told = (
            f"{seat.model.name}: refused: {sizes}. Lower its `context` or `parallel`, take fewer bits, or raise `memory`"
            f"{', or unpin a model' if pins else ''}."
        )
        seat.events.add("refused", told, need_bytes=need, most_bytes=most)
        raise ModelTooLarge(
            f"The model `{seat.model.name}` does not fit into this server's memory: {sizes}. Ask another model.",
            reason=told,
        )
