"""
The backends of one model, and the choice among them.

1. A request goes where its conversation was answered before (`scheduling/affinity.py`), unless that backend is clearly more loaded, and
   else to the one with the fewest outstanding requests; among about equals, to the one that has served fewest.
2. A backend that is unreachable, or keeps failing, gets no requests (`scheduling/breaker.py`) until a probe succeeds. Probes run
   in the background: a probe causes no load, and no request is used as a probe.
3. A failure is attributed to the request if another backend fails on the same request, and to the backend if another one answers it; without
   that comparison a caller's failures count once. Backends that fail but are reachable are used if no other is
   left, and no fallback.
4. A single backend without a fallback gets every request and is not probed: the next
   request shows that it has recovered, and until then its own error says most.
5. Backends are added and removed at run time. A removed backend gets no new requests, and is closed after its last running request.
6. If backends differ in their capabilities, a request goes to those that support what it asks for.
"""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from unilect.api.backend import Capabilities, Witness
from unilect.core.errors import BackendTimeout, BackendUnavailable, BackendUnreachable, UnilectError
from unilect.core.requests import Request
from unilect.runtime.context import current_request
from unilect.runtime.tasks import Tasks
from unilect.scheduling.abilities import alike, can, together
from unilect.scheduling.affinity import Affinity, digests
from unilect.scheduling.breaker import is_failure
from unilect.scheduling.fair_queue import FairQueue
from unilect.scheduling.pooled_backend import PooledBackend, Trouble
from unilect.scheduling.retry_budget import RetryBudgets

log = logging.getLogger("unilect")
FIRST_LOOK_S = 0.25
MAX_LOOK_S = 5.0
LOOK_TIMEOUT_S = 5.0
TELL_EVERY_S = 60.0  # a backend that fails now and then is told no more often
_MOST_TOLD = 3  # backends that are out, in the error of a request
_SUSPECTS = 256  # failed requests of which it is not known yet whose fault they were
_EQUAL_FACTOR = 1.25  # how much more work counts as the same
_SLACK, _SLACK_FACTOR = 2, 1.5  # how much more work is no reason to leave a cache


class RoutedRequest(Struct, gc=False):
    """
    A request as the backends of a model were asked it.

    Attributes:
        request: The request; None for a call about the model, such as to count tokens.
        tried: The backends that the request was sent to, this one too.
        begun: The client has seen a part of the answer, so that it will not be sent to another one.
        falls_back: Another model answers the request if none of this one's backends does.
        known: What tells the request from others, once that was asked for; it costs a pass over the request.
    """

    request: Request | None = None
    tried: Collection[Any] = ()
    begun: bool = False
    falls_back: bool = False
    known: bytes = b""

    @property
    def digest(self) -> bytes:
        """The digest of the request; empty for a call about the model."""
        if not self.known and self.request is not None:
            self.known = _digest(self.request)
        return self.known


def _digest(request: Request) -> bytes:
    """A request, told apart from others; what stands in its fields is not read again as the client wrote it."""
    known, fields = msgspec.structs.replace(request, raw_fields={}), request.__struct_fields__
    more = {name: raw for name, raw in request.raw_fields.items() if name not in fields}
    try:
        data = msgspec.msgpack.encode((type(request).__name__, known, more))  # JSON takes longer
    except (TypeError, ValueError, OverflowError):
        data = repr((known, more)).encode("utf-8", "backslashreplace")
    return hashlib.sha256(data).digest()


class Pool:
    """
    The backends of one model.

    Args:
        name: The model's name, for logs and errors.
        members: Its backends, not yet started.
        has_fallback: Another model answers when none of them can.
        witness: Told what happens to their processes.

    Attributes:
        members: Those that are in it now.
        has_fallback: As given, until `falls_back`.
        retries: How many failures are tried again.
        callers: Who has sent requests, the first two.
    """

    def __init__(
        self,
        name: str,
        members: Iterable[PooledBackend],
        has_fallback: bool = False,
        witness: Witness | None = None,
    ) -> None:
        self.members = tuple(members)
        self._witness = witness
        for member in self.members:
            member.witness = witness
        self._name = name
        self.has_fallback = has_fallback
        self._suspects: OrderedDict[bytes, dict[PooledBackend, UnilectError]] = OrderedDict()
        self.callers: set[str] = set()
        self.retries = RetryBudgets()
        self._affinity: Affinity[PooledBackend] = Affinity()
        self._looks: dict[PooledBackend, asyncio.Task[None]] = {}
        self._work = Tasks()
        self._leaving: list[PooledBackend] = []

    @property
    def queues(self) -> list[FairQueue]:
        """The queues of all backends, also of those that leave."""
        return [queue for one in (*self.members, *self._leaving) for queue in one.queues]

    @property
    def only_fetches(self) -> bool:
        """True while files of a backend come, and none is started."""
        members = self.members
        return any(one.is_fetching for one in members) and not any(one.started for one in members)

    @property
    def spares(self) -> bool:
        """True if another backend, or a fallback, may answer instead of the first."""
        return self.has_fallback or len(self.members) != 1

    @property
    def capabilities(self) -> Capabilities:
        """The merged capabilities of the backends, of which each request gets one that fits it; empty without a backend."""
        members = self.members
        if len(members) == 1:
            return members[0].backend.capabilities
        every = [member.backend.capabilities for member in members]
        return every[0] if every and alike(every) else together(every)

    def add(self, member: PooledBackend) -> None:
        """Take a backend in; the first request that it gets starts it, where nothing has."""
        # it shall have its share from now on, and not all until it has caught up
        member.served = min((one.served for one in self.members), default=0)
        member.witness = self._witness
        self.members += (member,)
        self._look_after_all()

    def falls_back(self, has_fallback: bool) -> None:
        """Another model answers from now on when none of the backends can, or does no more."""
        self.has_fallback = has_fallback
        self._look_after_all()

    def remove(self, member: PooledBackend) -> None:
        """Send a backend no more requests, and close it once those that it has have ended."""
        self.members = tuple(one for one in self.members if one is not member)
        if (look := self._looks.pop(member, None)) is not None:
            look.cancel()
        self._leaving = [one for one in self._leaving if not (one.closing and one.closing.done())]
        self._leaving.append(member)
        member.leaving = True
        member.release(0)

    def unable(self, judge: Callable[[Capabilities], object]) -> set[PooledBackend]:
        """
        The backends that cannot do what a request asks for. None, where all can do the same, or nobody can: any of them says why.

        Args:
            judge: Raises an error of ours for what the request asks of such a backend in vain.
        """
        if alike([member.backend.capabilities for member in self.members]):
            return set()
        able = {one for one in self.members if can(one.backend.capabilities, judge)}
        return {*self.members} - able if able else set()

    async def start(self, tell: bool = True) -> list[UnilectError]:
        """
        Start every backend.

        Args:
            tell: The log says why one could not be started; false where the caller does.

        Returns:
            Why some could not be started; they are looked after.
        """
        members, errors = self.members, list[UnilectError]()
        starts = (member.start() for member in members)
        results = await asyncio.gather(*starts, return_exceptions=True)
        for member, result in zip(members, results, strict=True):
            if isinstance(result, UnilectError):
                if not tell:
                    member.told_at_s = self._now_s()
                self.record_result(member, result)
                if not member.leaving:
                    errors.append(result)
            elif isinstance(result, BaseException):
                raise result
        return errors

    def note_caller(self, caller: str) -> None:
        """A request of a caller has come: whether there are several decides for whom failures count."""
        if caller and len(self.callers) < 2:
            self.callers.add(caller)

    def choose(self, asked: RoutedRequest) -> PooledBackend | None:
        """The backend for a request; None where there is none that was not tried and is worth asking."""
        if len(self.members) == 1 and not asked.falls_back:
            return None if self.members[0] in asked.tried else self.members[0]
        free = self._free(asked, asked.tried)
        if not free or len(self.members) == 1:
            return free[0] if free else None
        beginnings = digests(asked.request)
        known = self._affinity.find(beginnings)
        least = min(member.outstanding for member in free)
        idlest = [one for one in free if one.outstanding <= _EQUAL_FACTOR * least]
        member = min(idlest, key=lambda one: one.served)
        if known in free and known.outstanding <= _SLACK + _SLACK_FACTOR * least:
            member = known
        self._affinity.note(beginnings, member)
        return member

    def _free(self, asked: RoutedRequest, tried: Collection[PooledBackend]) -> list[PooledBackend]:
        """The backends that are worth asking; where none is, and nobody else answers, those that fail but can be reached."""
        now_s = asyncio.get_running_loop().time()
        rest = [member for member in self.members if member not in tried]
        free = [member for member in rest if member.breaker.allows(now_s)]
        if free or asked.falls_back:
            # an engine that died comes back by itself, which may take as long as its model takes to load
            return [member for member in free if not member.is_coming_back] or free
        return [
            member
            for member in rest
            if not member.breaker.unreachable and not member.breaker.cooldown_s(now_s)
        ]

    def has_room(self, asked: RoutedRequest, tried: Collection[PooledBackend]) -> bool:
        """True if a backend that was not tried, and is worth asking, would take a request at once."""
        free = self._free(asked, tried)
        return any(one.has_room and not one.is_coming_back for one in free)

    def none_left(self, last: UnilectError | None = None) -> UnilectError:
        """
        The error for a request that no backend can take now.

        Args:
            last: Why the last one that was tried could not; of a single backend this is the error.
        """
        if len(self.members) == 1 and last is not None:
            return last
        now_s = asyncio.get_running_loop().time()
        out = [f"{one.source}: {one.trouble.reason}" for one in self.members if one.trouble]
        told = None if last is not None else "; ".join(out[:_MOST_TOLD]) or None
        cooldown_s = min((member.breaker.cooldown_s(now_s) for member in self.members), default=0.0)
        return BackendUnavailable(
            f"No backend of the model `{self._name}` (it has {len(self.members)}) can take the request now. Try again, or ask "
            "the operator.",
            retry_after_s=max(1.0, cooldown_s),
            reason=told if last is None else last.for_operator,
            logged=None if last is None else last.for_log,
        )

    def record_result(
        self, member: PooledBackend, error: UnilectError | None, asked: RoutedRequest | None = None
    ) -> None:
        """
        Take note of how a request ended, or an attempt to start the backend.

        Args:
            asked: The request; None for an attempt to start the backend.
        """
        if member not in self.members:
            return
        breaker = member.breaker
        was_out = breaker.open
        if error is None:
            if self._suspects and asked is not None and len(asked.tried) > 1:
                self._blame_others(asked)
            if was_out or breaker.failed:
                breaker.close()
            member.trouble = None
            if was_out:
                log.warning("%s: %s is back", self._name, member.source)
            return
        error.reword(member.secrets.remove_from)
        member.failures += is_failure(error)
        if self._is_to_blame(member, error, asked):
            # a digest costs a pass over the request, and what is no failure counts for nobody
            whose = self._whose(asked) if error.status >= 502 else None
            breaker.record_result(error, self._now_s(), whose)
        self._tell(member, error, was_out, asked is None or is_failure(error))

    def _tell(
        self, member: PooledBackend, error: UnilectError, was_out: bool, fails: bool = True
    ) -> None:
        """Tell the log once that a backend is out, or fails; and look after one that is out."""
        about = current_request().request_id
        # what a server says of a request it may repeat; of a request that is refused its client is told
        words = error.for_log if about else error.for_operator
        words = words if fails else f"{type(error).__name__}, {error.status}"
        words = words.removeprefix(f"{self._name}: ")
        if fails or member.breaker.open:
            now = time.time()
            member.trouble = Trouble(words, member.trouble.since if member.trouble else now, now)
        told = words + (f" ({about})" if about else "")
        if member.breaker.open and not was_out:
            log.warning("%s: %s is out: %s", self._name, member.source, told)
        elif fails and not was_out and self._now_s() > member.told_at_s + TELL_EVERY_S:
            log.warning("%s: %s fails: %s", self._name, member.source, told)
        else:
            log.debug("%s: %s: %s", self._name, member.source, told)
        if fails:
            member.told_at_s = max(member.told_at_s, self._now_s())
        self._look_after(member)

    def _look_after_all(self) -> None:
        """Look after what is out already, since others can be asked now."""
        for member in self.members:
            self._look_after(member)

    def _look_after(self, member: PooledBackend) -> None:
        """Look at a backend from time to time that is out, and that others can be asked instead of."""
        if member.breaker.open and self.spares:
            self._begin_looks(member)

    def look_at_all(self) -> None:
        """Look at the servers that are out, also where nobody else can be asked: nothing may be sent here before one is well again."""
        for member in self.members:
            if not (member.works or member.backend.children):
                self._begin_looks(member)

    def _begin_looks(self, member: PooledBackend) -> None:
        if member not in self._looks:
            self._looks[member] = self._work.start("a look", self._look(member))

    def _is_to_blame(
        self, member: PooledBackend, error: UnilectError, asked: RoutedRequest | None
    ) -> bool:
        """
        Return True if a failure is the backend's, as far as is known.

        It is not where another backend has failed on the same request too, and not yet where another one may still answer it.
        """
        if asked is None or not is_failure(error) or isinstance(error, BackendUnreachable):
            return True
        if asked.request is None:
            return False  # a text that cannot be counted
        if isinstance(error, BackendTimeout) or asked.begun or len(self.members) == 1:
            return True
        digest = asked.digest
        failed = self._suspects.setdefault(digest, {})
        failed[member] = error.alone()
        self._suspects.move_to_end(digest)
        if len(self._suspects) > _SUSPECTS:
            self._suspects.popitem(last=False)
        return len(failed) == 1 and not self._free(asked, asked.tried)

    def _blame_others(self, asked: RoutedRequest) -> None:
        """A request was answered here: where it has failed before, that was no fault of its own."""
        digest = asked.digest
        for member, error in self._suspects.pop(digest, {}).items():
            was_out = member.breaker.open
            member.breaker.record_result(error, self._now_s(), digest)
            self._tell(member, error, was_out)

    def _whose(self, asked: RoutedRequest | None) -> Hashable:
        """To whom failures are counted once: to the caller, where there are several, else to the request."""
        if asked is None or asked.request is None:
            return None
        caller = current_request().caller
        return caller if caller and len(self.callers) > 1 else asked.digest

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    async def aclose(self) -> None:
        """Stop all backends. What is known of them is forgotten: nobody would find out that one is well again."""
        self._looks.clear()
        await self._work.aclose()
        for member in self.members:
            member.breaker.close()
            member.trouble = member.next_look_at = None
        for queue in self.queues:
            queue.dismiss()
        await asyncio.gather(*(member.aclose() for member in (*self.members, *self._leaving)))

    async def _look(self, member: PooledBackend) -> None:
        """Look after a backend until it is well again."""
        pause_s = FIRST_LOOK_S
        while not member.works:
            member.next_look_at = self._now_s() + pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_LOOK_S)
            try:
                # it has a deadline of its own: a model may take long to load
                await member.start()
                async with asyncio.timeout(LOOK_TIMEOUT_S):
                    await member.backend.check()
            except (UnilectError, TimeoutError):
                continue
            except Exception:
                log.exception("%s: the probe of %s failed", self._name, member.source)
                continue  # the last look would leave it out for good
            self.record_result(member, None)
        member.next_look_at = None
        self._looks.pop(member, None)
