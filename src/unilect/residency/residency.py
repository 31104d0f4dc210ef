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
5. A GPU that lacks memory has others leave as the sum does, and is no reason to refuse: what cannot have it is loaded all the same. While
   one waits for a GPU alone, those behind it that would take nothing from it are loaded.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from unilect.core.errors import QueueFull, QueueTimeout, UnilectError
from unilect.residency.account import Account
from unilect.residency.budget import find_budget
from unilect.residency.events import describe_size
from unilect.residency.ledger import LEDGER, Ledger
from unilect.residency.policy import Loaded, choose_victims, keep_promise, turn_s
from unilect.residency.pressure import Pressure, Shortage
from unilect.residency.seat import Resident, Seat, State
from unilect.residency.space import NOTHING, Space
from unilect.residency.telling import tell_end, tell_loaded, tell_wait
from unilect.residency.turns import Turns
from unilect.runtime.context import current_request

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
        swap_wait_s: As given.
        seats: The models that take part.
        account: The account of their bytes.
        pressure: Tells of a lack of memory, while it is open.
    """

    def __init__(
        self, memory_bytes: int | None, swap_wait_s: float = 5.0, ledger: Ledger = LEDGER
    ) -> None:
        self.swap_wait_s = swap_wait_s
        budget = find_budget(memory_bytes)
        self.budget = None if budget is None else budget.total
        self.seats: dict[Resident, Seat] = {}
        self.account = Account(budget or NOTHING, memory_bytes is not None, self.seats, ledger)
        self._queue: dict[Seat, float] = {}  # since when they wait, the first first
        self._turns = Turns()
        self._due_at = 0.0  # when those may go at the latest that the first in line waits for
        self._timer: asyncio.TimerHandle | None = None
        self.pressure = Pressure(self.relieve)
        self._shortage, self._told_at = Shortage(0.0, 0), -math.inf

    @property
    def claimed(self) -> int:
        """The bytes of the models that have a place."""
        return self.account.claimed.total

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
            if (seat := self.take(model)) is None or self.account.is_hard:
                continue
            if not seat.has_place:
                self._grant(seat, self.account.reckon(seat), State.FORCED)
            elif seat.state is State.GIVEN:
                seat.enter(State.FORCED)

    def _admit(self, seat: Seat) -> bool:
        need = self.account.reckon(seat)
        if self.account.is_hard:
            self.account.check_fits(seat)
            size, free = need.total, self.account.find_free().total
            if size > free:
                told = f"{seat.model.name}: not loaded at start: needs {describe_size(size)}, {describe_size(free)} of memory are free; the first request loads it"
                seat.events.add("skipped", told, need_bytes=size, free_bytes=free)
                return False
        self._grant(seat, need)
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
        self.account.check_fits(seat)
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
        idle = [(one.cost / max(1, one.space.total), seat) for seat, one in self.list_movable(None) if not one.is_asked]  # fmt: skip
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
        if not seat.has_place:
            return
        need, claim = self.account.find_need(seat), self.account.claims[seat]
        if claim.covers(need):
            return
        begun = seat.model.runs_here or seat.model.is_loading
        lacking = self.account.find_lack(seat, need, self.account.find_free() + claim)
        if begun or seat.state is State.FORCED or NOTHING.covers(lacking):
            self.account.claims[seat] = need.join(claim)
        else:
            self._free_seat(seat)

    def note_loaded(self, seat: Seat) -> float:
        """Note that a model is loaded, if that is not known; returns the seconds that it took."""
        if not seat.is_loaded and seat.model.runs_here:
            # what loads beside a start that failed takes memory all the same
            if not seat.has_place:
                self._grant(seat, self.account.reckon(seat))
            self._set_loaded(seat)
            self._decide()
        return seat.load_s or 0.0

    def _set_loaded(self, seat: Seat) -> None:
        seat.note_load(*seat.model.last_load)
        payers, charged_s = seat.payers, (seat.load_s or 0.0) + self._turn_s(seat)
        self._charge(seat, charged_s)
        seat.enter(State.LOADED)
        self.account.grow(seat)
        tell_loaded(seat, self.account, payers, charged_s)
        measuring = asyncio.get_running_loop().run_in_executor(None, seat.model.measure_memory)
        measuring.add_done_callback(partial(self._note_measured, seat))

    def _note_measured(self, seat: Seat, measuring: "asyncio.Future[int]") -> None:
        """Reckon with what a model takes, where it is more than it was reckoned to take."""
        if measuring.cancelled() or measuring.exception() is not None:
            return
        seat.measured_bytes = measuring.result()
        if seat.is_loaded:
            self.account.grow(seat)

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
            tell_end(seat, self.account, self._shortage)
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
            del self.account.claims[seat]

    def _drop_unused(self, seat: Seat, turn: asyncio.Future[None]) -> None:
        """Take the place back of a model that nobody starts any more: the request that would have has left in the moment of its turn."""
        model = seat.model
        begun = model.in_use or model.runs_here or model.is_loading
        if turn not in seat.waiting and seat.starts and not begun:
            self._free_seat(seat)

    def _grant(self, seat: Seat, size: Space, state: State = State.GIVEN) -> None:
        """Give a place."""
        self.account.claims[seat] = size
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
            if not seat.waiting or seat.model.closed or not self.account.can_fit(seat):
                self._give_up(seat)
        self._give()
        self._evict_idle()
        if not self._queue:
            self._hook(None)

    def _give(self) -> None:
        """Give places to those in line, up to the first that waits; behind one that waits for a GPU alone to those that take nothing from it."""
        waits: Space | None = None  # the needs of those that wait for a GPU
        for seat in self._line():
            if seat.has_place:  # it leaves, or is stopped: then it waits as others do
                if seat.leaves_for is not None:
                    name = f"`{seat.leaves_for.model.name}`, for which it leaves"
                    self._tell_of_wait(seat, self.account.reckon(seat), name)
                continue
            if seat.state is State.GONE:
                need = self.account.find_need(seat)
                if waits is not None:
                    if not self._is_free(seat, need, waits):
                        waits += need
                        continue
                    self._promise(seat, need)
                elif (lacking := self._plan(seat, need)) is not None:
                    if lacking.total > 0:
                        break
                    waits = need
                    continue
            if self.account.may_start(seat):
                self._grant(seat, self.account.claims[seat])

    def _is_free(self, seat: Seat, need: Space, waits: Space) -> bool:
        """Return True if a model lacks nothing, though others that wait have what they are to have."""
        free = self.account.find_free() - waits
        return NOTHING.covers(self.account.find_lack(seat, need, free))

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
                self.account.grow(seat)
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
            if heir is not None and not self.account.find_free().covers(self.account.claims[other]):
                other.enter(State.LEAVING, heir)
                continue
            other.enter(State.LOADED)
            self._queue.pop(other, None)
            other.wake()

    def _plan(self, seat: Seat, need: Space) -> Space | None:
        """Find the bytes for a model, and tell those that leave for it; returns what it lacks where it has to wait for that."""
        self._tell_overtaken(seat)
        lacking = self.account.find_lack(seat, need, self.account.find_free())
        movable = {one: other for other, one in self.list_movable(seat)}
        told = [one for one, other in movable.items() if other in seat.waits_for]
        victims = keep_promise(told, self.choose(list(movable), lacking), lacking)
        if victims is None:
            self._tell_of_wait(seat, need, "models that are being loaded")
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._decide)
            return lacking
        due_s = max((one.due_s for one in victims), default=0.0)
        if due_s > 0:
            names = ", ".join(f"`{one.name}`" for one in victims)
            self._due_at = time.monotonic() + due_s
            self._tell_of_wait(seat, need, f"{names} for {due_s:.1f} s at most", most_s=due_s)
            seat.waits_for = [movable[one] for one in victims]
            look_s = _LOOK_S if any(one.starts for one in seat.waits_for) else due_s
            self._timer = asyncio.get_running_loop().call_later(min(due_s, look_s), self._decide)
            return lacking
        self._due_at = 0.0
        for one in victims:
            movable[one].enter(State.LEAVING, seat)
        self._promise(seat, need)
        return None

    def _promise(self, seat: Seat, need: Space) -> None:
        """Promise a model its bytes."""
        self.account.claims[seat] = need
        seat.enter(State.PROMISED)

    def choose(self, movable: Sequence[Loaded], lacking: Space) -> list[Loaded] | None:
        """
        Choose the models that leave for what is lacking; None where all together do not have it. What they do not have of a GPU is left
        out, unless others are about to be loaded, which may leave after that.
        """
        victims = choose_victims(movable, lacking)
        if victims is None and not any(
            one.starts or one.state is State.PROMISED for one in self.seats.values()
        ):
            victims = choose_victims(movable, Space(lacking.total))
        return victims

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
            loaded = Loaded(model.name, self.account.claims[other], other.reload_s, idle_s, stays_s, self._turn_s(other), runs)  # fmt: skip
            found.append((other, loaded))
        return found

    def _tell_of_wait(self, seat: Seat, need: Space, for_whom: str, **most: float) -> None:
        tell_wait(seat, self.account, self._queue[seat], need, for_whom, **most)

    def _tell_overtaken(self, first: Seat) -> None:
        """Note of the models that were asked for before the one that is next, and wait for it, by what they stand behind it."""
        charged_s, _ = self._turns.rank(first.waiting.values())
        for seat in list(self._queue):  # in the order in which they were asked for
            if seat is first:
                break
            more_s = self._turns.rank(seat.waiting.values())[0] - charged_s
            if more_s > 0 and not seat.has_place:
                whom = f"`{first.model.name}`, whose callers were charged {more_s:.1f} s less for loads"
                self._tell_of_wait(seat, self.account.reckon(seat), whom)

    def _turn_s(self, seat: Seat) -> float:
        return turn_s(self.swap_wait_s, seat.load_s or 0.0)
