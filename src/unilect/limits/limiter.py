"""
Limits and budgets of keys, owners and models: what a request may use is held for it before it is answered, and counted after.

1. A budget (tokens or money, of a day or a month) is never passed: what a request may use at most is held, of its prompt a bound, which is
   counted exactly where little is left; of its answer what it asks for. One that asks for no limit gets the one that is left, and is told so.
2. A rate (requests or tokens a minute) and `parallel` hold for the same counters; all of a request's limits are taken in one step.
3. What a client is told to wait is long enough, if nobody else uses the same limit meanwhile.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count

from msgspec import Struct, structs

from unilect.config.limits import Limits as Table
from unilect.config.server import Config
from unilect.core.errors import LimitsUnavailable, UnilectError
from unilect.core.events import Tally, Usage
from unilect.core.requests import Call, Request
from unilect.limits import claims
from unilect.limits.claims import Demand, Limit, TokenEstimator
from unilect.limits.counters import Claim, Counters, MemoryCounters, State
from unilect.limits.refusals import refuse, refuse_large
from unilect.limits.usage_resync import EVERY, UsageResync
from unilect.runtime.context import Context, Rates, Requests
from unilect.store.ledger import Ledger
from unilect.store.records import KeyUsage

_TRIES = 8  # others may take what is left between two of them
_MOST_PLANS = 4096
_NAMES = frozenset(Table.__struct_fields__)


class Plan:
    """
    The limits that hold for all requests of a key for a model, and what follows from them.

    Attributes:
        given: The key's own limits, that it was made of.
        limits: All of them.
        minutes: Those of tokens in a minute.
        has_budget: One is a budget.
        needs_size: One is of tokens or money.
        shown: What headers tell of.
    """

    __slots__ = ("given", "has_budget", "limits", "minutes", "needs_size", "shown")

    def __init__(self, given: Mapping[str, float], limits: Sequence[Limit]) -> None:
        self.given, self.limits = given, limits
        self.minutes = [one for one in limits if one.leaks and one.unit == "tokens"]
        self.has_budget = any(one.is_budget for one in limits)
        self.needs_size = not all(one.counts_requests for one in limits)
        self.shown = claims.select_limits(limits)


class Limiter:
    """
    The limits of requests; see `RequestRecorder`.

    Args:
        config: The limits of every key and of owners, and where is counted.
        measures: Knows the sizes of requests, and the limits of models.
        ledger: Has what was used before; without one a server begins at 0.
        clock: Seconds since 1970: days and months are UTC's.
        counters: What counts, instead of what `config` says.
        requests: The requests that are being answered.

    Attributes:
        is_on: The configuration has limits; else only keys may have some.
        recover: Brings into the ledger what dead servers have left, as far as that can be done here.
    """

    def __init__(
        self,
        config: Config,
        measures: TokenEstimator,
        ledger: Ledger | None = None,
        clock: Callable[[], float] = time.time,
        counters: Counters | None = None,
        requests: Requests | None = None,
    ) -> None:
        url = config.limits.url
        self._measures, self._ledger, self.clock = measures, ledger, clock
        self._seeding = asyncio.Lock()
        self._in_memory = counters is None and url is None
        self._counters = counters or self._make_counters(url)
        self._requests: Requests = {} if requests is None else requests
        self._resync = UsageResync(
            self.seed, lambda context: self.plan(context).has_budget, self._requests
        )
        self.recover: Callable[[], Awaitable[None]] | None = None
        self._id, self._numbers = secrets.token_hex(8), count()  # of requests, for the counters
        self.configure(config)

    def _make_counters(self, url: str | None) -> Counters:
        """Make the counters of a Redis server's URL, or of memory."""
        if url is None:
            return MemoryCounters()
        from unilect.limits.redis import RedisCounters  # an extra

        return RedisCounters(url, self.seed, self._seed_after_death)

    def configure(self, config: Config) -> None:
        """Have other limits and prices from now on, for requests that come; what was used stays. Where is counted cannot be changed."""
        self._defaults = {name: most for name, most in structs.asdict(config.limits).items() if name in _NAMES and most is not None}  # fmt: skip
        self._owners = {
            name: claims.limits_of(structs.asdict(one), "owner", f"owner:{name}")
            for name, one in config.owners.items()
        }
        self._has_models = any(one.limits is not None for one in config.models.values())
        self.is_on = bool(self._defaults or self._owners or self._has_models)
        every = [one.limits is not None and any(structs.astuple(one.limits)) for one in config.models.values()]  # fmt: skip
        self._limits_all = bool(self._defaults) or (bool(every) and all(every))
        self._plans = dict[tuple[str, str, str], Plan]()
        # budgets that were not counted before have what the ledger says, also of what runs now
        self._unread = self._ledger is not None
        if self._requests:
            self.note_change([EVERY])

    @property
    def ready(self) -> bool:
        """False where every request has a limit, and none can be counted now."""
        return not (self._limits_all and self._counters.is_away)

    async def open(self, context: Context, request: Request) -> "Reservation | None":
        """
        Hold what a request may use, by a claim of each counter; see `RequestRecorder`.

        Raises:
            QuotaExceeded: A budget is used up.
            RateLimited: The request comes too early, or too many run.
            RequestTooLarge: It may use more in a minute than a limit has.
            LimitsUnavailable: What is left cannot be read now.
        """
        plan = self.plan(context)
        limits = plan.limits
        if not limits:
            return None
        if type(request) is Call and not request.counts:
            await self._check(context, plan)
            return None
        # first: the clock may tell that the ledger has to be read
        now = self.clock() if context.at is None else context.at
        if plan.has_budget and (self._unread or context.caller in self._resync.changed):
            await self._sync_usage(context.caller)
        demand = Demand(now=now)
        if plan.needs_size:
            bound = self._measures.size(context.model, request)
            demand = Demand(now=now, size=bound, price=context.price, loose=not bound.is_counted)
            demand = _bound(demand, plan)
        claimed = list(map(demand.claim, limits))
        request_id = f"{self._id}-{next(self._numbers)}"
        for _ in range(_TRIES):
            taken = await self._counters.take(request_id, claimed)
            if taken.ok:
                break
            less = await self._again(context, request, demand, plan, taken.states)
            if less is None:
                break
            demand, claimed = less, list(map(less.claim, limits))
        context.headers = claims.headers(context.dialect, plan.shown, claimed, taken.states, now)
        if not taken.ok:
            refuse(demand, limits, claimed, taken.states)
        context.allowed, size = demand.allowed, demand.size
        # a piece of an answer may count for more than it is made of: only a backend that keeps to no limit passes this
        if size and size.choices:
            context.most = 2 * size.most(demand.allowed)[1] + 64
        return Reservation(self._counters, request_id, limits, claimed, demand.price)

    async def _sync_usage(self, caller: str) -> None:
        """Count what was used before; errors as `seed`."""
        if self._unread:
            async with self._seeding:
                if self._unread:
                    await self.seed()
        await self._resync.before(caller)

    async def _check(self, context: Context, plan: Plan) -> None:
        """Refuse what would be refused whatever it asked for, and hold nothing; errors as `open`."""
        found = await self.look(context)
        if any(state.wait_us for *_, state in found):
            refuse(Demand(now=self.clock()), plan.limits, [claim for _, claim, _ in found], [state for _, _, state in found])  # fmt: skip

    async def look(self, context: Context) -> list[tuple[Limit, Claim, State]]:
        """
        Return the limits that hold for a request of a key, an owner or a model, and how their counters are; nothing is held.

        Raises:
            LimitsUnavailable: What is left cannot be read now.
        """
        limits = self._limits(context)
        if any(limit.is_budget for limit in limits):
            await self._sync_usage(context.caller)
        claimed = list(map(Demand(now=self.clock()).claim, limits))
        states = await self._counters.look(claimed) if limits else []
        return list(zip(limits, claimed, states, strict=True))

    @property
    def owners(self) -> tuple[str, ...]:
        """The owners that have limits."""
        return tuple(self._owners)

    async def start(self) -> None:
        """Make ready; what cannot be done yet is done with the first request. Idempotent."""
        await self._counters.open()
        if self._ledger is not None and not self._in_memory:
            with suppress(LimitsUnavailable):
                await self.seed()

    def note_change(self, keys: Iterable[str]) -> None:
        """Forget the plans of keys that have changed: what they have used may not have been counted, and one that was revoked needs no plan."""
        gone = set(keys)
        self._plans = {name: plan for name, plan in self._plans.items() if name[0] not in gone}
        if self._ledger is not None:
            self._resync.note_change(gone)

    def correct_periods(self, before: float, now: float) -> None:
        """
        Move budgets after the time was corrected. What was counted for days and months that have not come counts now; what else was used since these began
        the ledger says, which is read before the next request that has a budget.
        """
        self._unread = self._ledger is not None
        if isinstance(self._counters, MemoryCounters):
            for of in ("day", "month"):
                old, new = (claims.period(of, claims.day_of(at)) for at in (before, now))
                if new[1] < old[1]:
                    self._counters.move(f"_{of}/{old[0]}", f"_{of}/{new[0]}", new[1])

    async def aclose(self) -> None:
        """Release everything. Idempotent."""
        await self._resync.aclose()
        await self._counters.aclose()

    async def seed(self, key: str = EVERY) -> None:
        """
        Raise the budgets to what the ledger says; of all, or of one key.

        Raises:
            LimitsUnavailable: It cannot be read now.
        """
        totals: dict[str, tuple[int, float]] = {}
        now = self.clock()
        for of in ("day", "month"):
            text, ends_at, since = claims.period(of, claims.day_of(now))
            for one in await self._ledger_since(since, key or None):
                subjects = [f"key:{one.key}"]
                if key == EVERY:
                    subjects += [f"owner:{one.owner}"] if one.owner in self._owners else []
                    # also of one that is not known yet: the server that has it may be down
                    subjects += [f"model:{one.model}"] if self._has_models else []
                for subject in subjects:
                    for unit, amount in (("tokens", one.tokens), ("money", one.cost)):
                        if amount:
                            name = f"{subject}/{unit}_per_{of}/{text}"
                            before = totals.get(name, (0, 0.0))[0]
                            totals[name] = (before + amount, ends_at)
        await self._counters.raise_to(totals, are_all=key == EVERY)
        if key == EVERY:
            self._unread = False

    async def _seed_after_death(self) -> None:
        """Raise the budgets to what a server has used that is dead, before what it has reserved is free; errors as `recover` and `seed`."""
        if self.recover is not None:
            await self.recover()
        await self.seed()

    def plan(self, context: Context) -> Plan:
        """Return the limits of a request. They are cached for each caller, owner and model until the key's limits change."""
        given = context.limits
        name = (context.caller, context.owner, context.model if self._has_models else "")
        plan = self._plans.get(name)
        if plan is None or (plan.given is not given and plan.given != given):
            if len(self._plans) >= _MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[name] = Plan(given, self._limits(context))
        return plan

    def _limits(self, context: Context) -> list[Limit]:
        """Return the limits that hold for a request."""
        found: list[Limit] = []
        given = context.limits
        if given or self._defaults:
            own = {name: most for name, most in given.items() if name in _NAMES} if given else {}
            of_key = {**self._defaults, **own}
            found += claims.limits_of(of_key, "API key", f"key:{context.caller}")
        if self._owners and context.owner:
            found += self._owners.get(context.owner, ())
        if self._has_models:
            found += self.of_model(context.model)
        return found

    def of_model(self, name: str) -> list[Limit]:
        """Make the limits of a model anew."""
        table = self._measures.limits(name) if self._has_models else None
        return [] if table is None else claims.limits_of(structs.asdict(table), "model", f"model:{name}")  # fmt: skip

    async def _count_prompt(
        self, model: str, request: Request, demand: Demand, plan: Plan
    ) -> Demand:
        """Count its prompt, where that can be done."""
        if demand.size is None:
            return demand
        size = await self._measures.count(model, request, demand.size)
        return _bound(structs.replace(demand, size=size, allowed=None, loose=False), plan)

    async def _again(
        self,
        context: Context,
        request: Request,
        demand: Demand,
        plan: Plan,
        states: Sequence[State],
    ) -> Demand | None:
        """
        Make the next claim to try after one that does not fit; None where nothing less is worth it.

        Raises:
            RequestTooLarge: No minute has room for it.
            QuotaExceeded: A budget is used up, and no minute has room for it as far as is known.
        """
        limits = plan.limits
        is_too_large = any(map(demand.never_fits, plan.minutes))
        if is_too_large and not demand.loose:
            refuse_large(demand, limits)
        every = list(zip(limits, states, strict=True))
        short = [limit for limit, state in every if state.wait_us]
        if not is_too_large and any(limit.counts_requests for limit in short):
            return None
        if demand.loose:
            if not any(claims.hopeless(demand, limit, state) for limit, state in every):
                return await self._count_prompt(context.model, request, demand, plan)
            demand = structs.replace(demand, loose=False)  # a count may load its model, in vain
            if is_too_large:
                refuse(demand, limits, list(map(demand.claim, limits)), states)
            return demand
        if any(limit.leaks for limit in short):
            return None
        allowed = claims.allowance(demand, limits, states)
        return None if allowed is None else structs.replace(demand, allowed=allowed)

    async def _ledger_since(self, since: float, key: str | None) -> Sequence[KeyUsage]:
        if self._ledger is None:
            return ()
        try:
            return await self._ledger.read_usage(since, key)
        except UnilectError as error:
            raise LimitsUnavailable(
                "What this API key has used cannot be read now; try again soon.",
                reason=f"limits: the ledger cannot be read: {error.for_operator}",
                retry_after_s=5,
            ) from error


class Reservation(Struct, eq=False):
    """The amounts that are held for one request."""

    _counters: Counters
    request: str
    limits: Sequence[Limit]
    claimed: Sequence[Claim]
    price: Rates | None

    def note_usage(self, usage: Tally) -> None:
        """Nothing is noted before the end."""

    async def close(self, usage: Tally | Usage, status: int) -> None:
        """See `RequestRecord`."""
        amounts = claims.count_used(self.limits, usage, self.price)
        await self._counters.settle(self.request, self.claimed, amounts)


def _bound(demand: Demand, plan: Plan) -> Demand:
    """
    Bound the answer of a request that does not say how long: what its model has room for, where a budget has to be kept and the
    model does not know that; and the tokens of a minute.
    """
    size = demand.size
    if size is None or size.limit is not None:
        return demand
    if plan.has_budget and size.choices and not size.knows_room:
        demand = structs.replace(demand, allowed=size.room)
    if not plan.minutes:
        return demand
    allowed = claims.allowance(demand, plan.minutes, [State(0)] * len(plan.minutes))
    return demand if allowed is None else structs.replace(demand, allowed=allowed)
