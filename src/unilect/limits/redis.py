"""
Counters of limits on a Redis server, for several servers that count together.

1. What a request claims is taken in one script, so that two servers never take the same.
2. What a server holds for its requests is written down by its id. A server says every 2 s that it is alive; of one that has not for 10 s
   the others set all free that it held, once what the ledger has of it is counted.
3. A Redis server that is away is told after 0.7 s at most, and asked again by the next request. What could not be settled meanwhile is
   settled when it is back, however long that takes: what is held of a request is given back and counted in one step, so nothing is counted
   twice. Where nothing of it is held any more, as its reply was lost, its server was taken for dead, or the Redis server has begun anew, it
   counts nothing, and the budgets are raised to what the ledger says. Where there is no ledger, what a request has used is lost then.
4. A Redis server that has lost its data, or is new, has no mark of having been seeded: it holds no budget before the ledger's totals are in it.
5. One that was started again may have an old copy of its data. It has no scripts then, which are in no copy (Redis 7): before it gets them,
   its mark is taken off and nothing is held any more. What ran is counted from the ledger, once it has ended.
   https://redis.io/docs/latest/develop/programmability/eval-intro/
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from unilect.core.errors import LimitsUnavailable, UnilectError
from unilect.limits import scripts
from unilect.limits.counters import Claim, ReserveResult, State
from unilect.runtime.redact import redact
from unilect.runtime.tasks import Tasks, close_each

if TYPE_CHECKING:
    from redis.commands.core import AsyncScript

log = logging.getLogger("unilect")
ANSWER_TIMEOUT_S = 0.7
ALIVE_S = 2.0
DEAD_S = 10.0
_SOON_S = 0.5  # until a sign of life that has failed is given again
_MOST_CONNECTIONS = 64
_MOST_UNSETTLED = 100_000
_AT_ONCE = 500  # counters that are raised in one script, so that others wait for none of them long
_ENDS = 20  # times that a task is cancelled
_PREFIX = "{unilect}:"
_SERVERS, _SEEDED = f"{_PREFIX}servers", f"{_PREFIX}seeded"
_Value = TypeVar("_Value")


class _Settlement(NamedTuple):
    """
    The counts to settle of a request that has ended.

    Attributes:
        request: Its id.
        claims: What it has claimed.
        used: What it has used of each.
        begun: It was let through; else it is unknown whether anything is held for it.
    """

    request: str
    claims: Sequence[Claim]
    used: Sequence[int]
    begun: bool = True


class RedisCounters:
    """
    Counters on a Redis server; see `Counters`.

    Args:
        url: Of the Redis server.
        seed: Raises the budgets to what the ledger says; called where the Redis server has no mark of that.
        seed_after_death: The same with what a server has left that is dead; called before what that held is set free.

    Attributes:
        id: This server's, new for each process.
        is_away: See `Counters`.
    """

    def __init__(
        self,
        url: str,
        seed: Callable[[], Awaitable[None]],
        seed_after_death: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self.id = secrets.token_hex(8)
        self._where = redact(url)
        self._seed, self._seed_after_death = seed, seed_after_death or seed
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_MOST_CONNECTIONS,
            timeout=ANSWER_TIMEOUT_S,
            socket_timeout=ANSWER_TIMEOUT_S,
            socket_connect_timeout=ANSWER_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        self._redis: Any = Redis.from_pool(pool)
        script: Callable[[str], AsyncScript] = self._redis.register_script
        self._take, self._look = script(scripts.TAKE), script(scripts.LOOK)
        self._settle, self._lapse = script(scripts.SETTLE), script(scripts.LAPSE)
        self._raise = script(scripts.SEED)
        self._tasks = Tasks()
        self._settling: set[asyncio.Task[None]] = set()
        self._unsettled = deque[_Settlement]()  # those that were let through are the last ones
        self._settling_late = asyncio.Lock()
        # when something that was used was not counted last, which the ledger may have
        self._missed_at: float | None = None
        self._alive: asyncio.Task[None] | None = None
        self._freeing: asyncio.Task[None] | None = None
        self._late: asyncio.Task[None] | None = None  # settles what could not be settled before
        self._seeding = asyncio.Lock()
        self.is_away = False

    async def open(self) -> None:
        """See `Counters`: say that this server is alive, and go on saying it."""
        if self._alive is None:
            self._alive = self._tasks.start("the sign of life in Redis", self._live())

    async def take(self, request: str, claims: Sequence[Claim]) -> ReserveResult:
        """See `Counters`."""
        await self.open()
        taken = await self._send_claims(request, claims)
        if taken is None:  # no budget before its ledger
            async with self._seeding:
                if self.is_away:  # who waits for one that has asked in vain need not ask, too
                    raise _unavailable(f"the Redis server at {self._where} does not answer")
                taken = await self._send_claims(request, claims)
                if taken is None:
                    await self._seed()
                    taken = await self._send_claims(request, claims)
        if taken is None:
            raise _unavailable(f"the Redis server at {self._where} lost the limits' totals")
        return taken

    async def settle(self, request: str, claims: Sequence[Claim], used: Sequence[int]) -> None:
        """See `Counters`: who waits may leave, and it is settled all the same."""
        done = self._start(_Settlement(request, claims, used))
        await asyncio.wait([done], timeout=ANSWER_TIMEOUT_S)

    async def raise_to(self, used: Mapping[str, tuple[int, float]], *, are_all: bool = True) -> None:  # fmt: skip
        """See `Counters`; what the ledger may have already, and was not settled yet, is settled first."""
        if self._settling:
            await asyncio.wait(set(self._settling))
        await self._settle_late(begun=True)
        names = list(used)
        for at in range(0, len(names), _AT_ONCE):
            some = names[at : at + _AT_ONCE]
            numbers = [str(n) for units, end in map(used.__getitem__, some) for n in (units, int(end * 1000))]  # fmt: skip
            keys = [_PREFIX + name for name in some]
            await self._ask(self._raise(keys=keys, args=numbers))
        if are_all:
            await self._ask(self._redis.set(_SEEDED, 1))

    async def look(self, claims: Sequence[Claim]) -> list[State]:
        """See `Counters`."""
        given = _numbers(claims, [claim.room for claim in claims])
        return _states(await self._ask(self._look(keys=_keys(claims), args=given)))

    async def aclose(self) -> None:
        """See `Counters`: all that could not be settled yet is tried once more."""
        await _end(self._alive)
        if self._settling:
            await asyncio.wait(self._settling, timeout=ANSWER_TIMEOUT_S)
        await _end(self._late)
        await self._settle_all()
        with suppress(LimitsUnavailable):
            if self._missed_at is not None:
                await self._ask(self._redis.delete(_SEEDED))
            await self._ask(self._redis.delete(_alive(self.id)))
            await self._release_all(self.id)
        await close_each(self._tasks.aclose, self._redis.aclose)

    async def _send_claims(self, request: str, claims: Sequence[Claim]) -> ReserveResult | None:
        """
        Send claims to the Redis server; return None where it has not been seeded.

        Raises:
            LimitsUnavailable: It does not answer, or too late; whatever it has taken is released.
        """
        keys = [
            _key_of_held(self.id),
            _mark(request),
            _SEEDED,
            _alive(self.id),
            _SERVERS,
            *_keys(claims),
        ]
        needs_seed = any(claim.ends_at is not None for claim in claims)
        held = {_PREFIX + one.name: str(one.need) for one in claims if not one.leaks and one.need}
        given: list[Any] = [request, self.id, int(DEAD_S * 1000), int(needs_seed), msgspec.json.encode(held)]  # fmt: skip
        given += _numbers(claims, [claim.room for claim in claims])
        try:
            answer = await self._ask(self._let_take(keys, given))
        except BaseException:  # nobody knows whether it was taken
            self._start(_Settlement(request, claims, [0] * len(claims), begun=False))
            raise
        if answer[0] == -1:
            return None
        if answer[0] == -2:
            raise _unavailable(f"the Redis server at {self._where} answered too late")
        return ReserveResult(answer[0] == 1, _states(answer[1:]))

    async def _let_take(self, keys: list[str], given: list[Any]) -> Any:
        from redis.exceptions import NoScriptError

        once = partial(self._redis.evalsha, self._take.sha, len(keys), *keys, *given)
        try:
            return await once()
        except NoScriptError:  # it is new, or was started again
            await self._redis.eval(scripts.BEGIN, 2, _SEEDED, _SERVERS, _key_of_held(""))
            await self._redis.script_load(scripts.TAKE)
            return await once()

    def _start(self, one: _Settlement) -> "asyncio.Task[None]":
        """Begin to settle a request; whoever has asked for it may leave."""
        task = self._tasks.start("the settlement of a request", self._settle_surely(one))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def _settle_surely(self, one: _Settlement) -> None:
        """Settle a request, now or when the Redis server is back."""
        try:
            await self._send(one)
        except LimitsUnavailable:
            # those that were let through are as many as ran: what they have used is kept, however many are refused
            if one.begun or len(self._unsettled) < _MOST_UNSETTLED:
                self._settle_later(one)

    def _settle_later(self, one: _Settlement) -> None:
        (self._unsettled.append if one.begun else self._unsettled.appendleft)(one)

    async def _send(self, one: _Settlement) -> None:
        keys = [_key_of_held(self.id), _mark(one.request), *_keys(one.claims)]
        given: list[str | int] = [one.request, *_numbers(one.claims, one.used)]
        counted = await self._ask(self._settle(keys=keys, args=given))
        if not counted and one.begun and any(claim.ends_at is not None for claim in one.claims):
            self._missed_at = time.monotonic()

    async def _settle_all(self) -> None:
        """Settle what could not be settled before, until the Redis server is away again."""
        with suppress(LimitsUnavailable):
            await self._settle_late()

    async def _settle_late(self, *, begun: bool = False) -> None:
        """
        Settle what could not be settled before.

        Args:
            begun: Only what was let through, which is settled first.

        Raises:
            LimitsUnavailable: The Redis server is away again; the rest is settled later.
        """
        while True:
            async with self._settling_late:
                if not self._unsettled or (begun and not self._unsettled[-1].begun):
                    return
                one = self._unsettled.pop()
                try:
                    await self._send(one)
                except BaseException:
                    self._settle_later(one)
                    raise

    async def _tell_of_misses(self) -> None:
        """Have the next request read the ledger where that alone may have something that was used, once the rows of it are written."""
        missed_at = self._missed_at
        if missed_at is not None and time.monotonic() >= missed_at + ALIVE_S:
            await self._ask(self._redis.delete(_SEEDED))
            if self._missed_at == missed_at:
                self._missed_at = None

    async def _live(self) -> None:
        """Say that this server is alive, and set free what dead ones held."""
        while True:
            pause_s = ALIVE_S
            try:
                others = await self._ask(self._sign())
                if self.is_away:
                    self.is_away = False
                    log.info("the Redis server at %s answers again", self._where)
                # apart: much to settle, or a database that is slow, must not make this server look dead
                if self._unsettled and (self._late is None or self._late.done()):
                    late = self._settle_all()
                    self._late = self._tasks.start("the late settlement of requests", late)
                await self._tell_of_misses()
                if others and (self._freeing is None or self._freeing.done()):
                    freeing = self._free(others)
                    self._freeing = self._tasks.start("the end of dead servers", freeing)
            except LimitsUnavailable:  # the log tells it already
                pause_s = min(_SOON_S, ALIVE_S)
            await asyncio.sleep(pause_s)

    async def _sign(self) -> list[str]:
        """Say that this server is alive; the other servers that do not say so."""
        redis = self._redis
        await redis.set(_alive(self.id), 1, px=int(DEAD_S * 1000))
        await redis.sadd(_SERVERS, self.id)
        others = {raw.decode() for raw in await redis.smembers(_SERVERS)} - {self.id}
        return [other for other in sorted(others) if not await redis.exists(_alive(other))]

    async def _free(self, dead: Sequence[str]) -> None:
        """Set free what dead servers held, once what they have used is counted; what cannot be done now is tried again."""
        with suppress(UnilectError):
            await self._seed_after_death()
            for one in dead:
                if lapsed := await self._release_all(one):
                    log.warning("limits: a server is gone; what it held for %d requests is free", lapsed)  # fmt: skip

    async def _release_all(self, server: str) -> int:
        """Release what a server that is not alive has held; returns for how many requests."""
        keys = [_key_of_held(server), _alive(server), _SERVERS]
        return await self._ask(self._lapse(keys=keys, args=[server]))

    async def _ask(self, answer: Awaitable[_Value]) -> _Value:
        """
        Await an answer of the Redis server.

        Raises:
            LimitsUnavailable: It does not answer in time.
        """
        from redis.exceptions import RedisError

        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except (RedisError, OSError) as error:  # a timeout is an OSError, too
            why = redact(str(error)) or type(error).__name__
            reason = f"the Redis server at {self._where} does not answer: {why}"
            if not self.is_away:
                self.is_away = True
                log.error("limits: %s", reason)
            raise _unavailable(reason) from error


async def _end(task: "asyncio.Task[None] | None") -> None:
    """End a task that waits for a Redis server: where its wait ends in the same moment, a cancellation may be lost."""
    for _ in range(_ENDS):
        if task is None or task.done():
            return
        task.cancel()
        await asyncio.wait([task], timeout=ANSWER_TIMEOUT_S / _ENDS)


def _unavailable(reason: str) -> LimitsUnavailable:
    told = "The limits of this API key cannot be checked now; try again soon."
    return LimitsUnavailable(told, reason=reason, retry_after_s=2)


def _key_of_held(server: str) -> str:
    return f"{_PREFIX}held:{server}"


def _alive(server: str) -> str:
    return f"{_PREFIX}alive:{server}"


def _mark(request: str) -> str:
    return f"{_PREFIX}settled:{request}"


def _keys(claims: Sequence[Claim]) -> list[str]:
    """Name the counters of claims."""
    return [_PREFIX + claim.name for claim in claims]


def _numbers(claims: Sequence[Claim], units: Sequence[int]) -> list[int]:
    """Make the arguments of counters, as the scripts take them."""
    found: list[int] = []
    for claim, number in zip(claims, units, strict=True):
        ends_ms = 0 if claim.ends_at is None else int(claim.ends_at * 1000)
        found += (int(claim.leaks), claim.most, claim.need, number, ends_ms)
    return found


def _states(answer: Sequence[Any]) -> list[State]:
    """Read the counters in a script's answer."""
    numbers = map(int, answer)
    return [State(*one) for one in zip(numbers, numbers, numbers, strict=True)]
