"""
The order of waiting requests: deficit round robin over callers, in tokens.

Each caller has a round: the tokens that it was charged. It may go in the rounds from there on: a round lets everybody go who owes nothing
any more, those first for whom the fewest run, and rounds in which nobody may go are skipped, by a heap: a turn costs O(log callers), however
large the debts are. A quantum of more than one token would let a caller with small requests send many in a row, and others wait meanwhile.

1. Nothing is charged before it is used. What a request will use is not known: its prompt is not counted in tokens yet, and agents ask
   for 32,000 tokens and use 300. A charge that is too high would hold up others, too: they would join in a round that is too late.
2. Nobody saves up turns while idle: a caller that begins to wait goes in the present round at the earliest. Nor does anybody pay for
   what was used while nobody waited. So a caller that asks for one answer at a time is next.
3. Of two callers that both wait all the time, neither gets more tokens than the other by more than twice what the requests that run
   at a time, and one more, may use.
4. Batch requests wait until no other does, or until they have waited for `AGE_S`; then they are as all others.
5. What a request needs after its first place, such as for its next choice, goes before the other requests of its caller, which came later.

The rounds are the virtual time of start-time fair queueing.
Sources: https://doi.org/10.1109/90.502236 (deficit round robin), https://arxiv.org/abs/2401.00588 (in tokens of language models)
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from itertools import count
from typing import TypeAlias

from msgspec import Struct

AGE_S = 60.0  # a turn of batch work in a minute is no harm to anybody, and none in an hour is starvation
_FIRST, _LAST = 0, 1  # levels: those that wait for an answer, and batch requests
_KEPT = 64  # idle callers are kept so many, beside twice those that are not


class QueuedRequest(Struct, eq=False):
    """
    One request that waits, or runs.

    Attributes:
        caller: Who has sent it.
        since_s: When it came, on the clock of `FairOrder.next`.
        batch: Others go first.
        aged: It has waited so long that it goes as all others.
        begun: A part of its request has run already.
    """

    caller: str
    since_s: float = 0.0
    batch: bool = False
    aged: bool = False
    begun: bool = False

    @property
    def level(self) -> int:
        """0 for those that go first, 1 for batch requests that have not aged."""
        return _LAST if self.batch and not self.aged else _FIRST


#: A place in a heap: the round, the requests that run, the place in the ring, and who stands there.
_Entry: TypeAlias = "tuple[int, int, int, _Caller]"


class _Caller:
    """
    The scheduling state of one caller.

    Attributes:
        round: The round in which its next request may run.
        running: The number of its running requests.
        waiting: Its waiting requests by level, the oldest first.
        entries: Its entry in the heap of each level; None where none of its requests waits.
    """

    __slots__ = ("entries", "round", "running", "waiting")

    def __init__(self) -> None:
        self.round = self.running = 0
        self.waiting = (OrderedDict[QueuedRequest, None](), OrderedDict[QueuedRequest, None]())
        self.entries: list[_Entry | None] = [None, None]

    @property
    def count(self) -> int:
        """The number of its waiting requests."""
        return len(self.waiting[_FIRST]) + len(self.waiting[_LAST])


class FairOrder:
    """
    The requests that wait before one backend, and what the callers of those that run were charged.

    Args:
        running: The requests that run already, whose callers owe nothing.

    Attributes:
        length: How many wait.
    """

    def __init__(self, running: Iterable[QueuedRequest] = ()) -> None:
        self._callers: dict[str, _Caller] = {}
        self._heaps: tuple[list[_Entry], ...] = ([], [])
        self._ring = count()
        self._round = 0
        self._unaged: OrderedDict[QueuedRequest, None] = OrderedDict()
        self._by_count: dict[int, OrderedDict[str, None]] = {}
        self._most = 0
        self.length = 0
        self._sweep_at = _KEPT
        for one in running:
            self._ensure_caller(one.caller).running += 1

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return self.length

    @property
    def callers(self) -> int:
        """The number of callers with waiting requests."""
        return sum(map(len, self._by_count.values()))

    @property
    def most(self) -> int:
        """The most requests that wait for one caller."""
        return self._most

    def waiting_for(self, caller: str) -> int:
        """Return the number of waiting requests of a caller."""
        known = self._callers.get(caller)
        return 0 if known is None else known.count

    def add(self, ticket: QueuedRequest) -> None:
        """A request waits."""
        caller = self._ensure_caller(ticket.caller)
        if not caller.count:
            caller.round = max(caller.round, self._round)
        self._put(caller, ticket)
        if ticket.level == _LAST:
            self._unaged[ticket] = None
        self._update_count(ticket.caller, caller.count - 1, caller.count)

    def next(self, now_s: float) -> QueuedRequest | None:
        """Take out who is next; None where nobody waits. Whoever goes is to `begin`."""
        while self._unaged and (oldest := next(iter(self._unaged))).since_s + AGE_S <= now_s:
            self._age(oldest)
        for level in (_FIRST, _LAST):
            heap = self._heaps[level]
            while heap:
                caller = heap[0][3]
                if caller.entries[level] is heap[0]:
                    ticket = next(iter(caller.waiting[level]))
                    self.discard(ticket)
                    return ticket
                heapq.heappop(heap)  # it stands elsewhere now, or nowhere
        return None

    def begin(self, ticket: QueuedRequest) -> None:
        """A request that was taken out runs."""
        caller = self._ensure_caller(ticket.caller)
        if not caller.count:
            caller.round = max(caller.round, self._round)
        self._round = max(self._round, caller.round)
        caller.running += 1
        self._stand(caller)

    def charge(self, ticket: QueuedRequest, tokens: int) -> None:
        """A request that runs has used more tokens."""
        caller = self._callers[ticket.caller]
        caller.round += tokens
        self._stand(caller)

    def end(self, ticket: QueuedRequest) -> None:
        """A request that was begun has ended."""
        caller = self._callers[ticket.caller]
        caller.running -= 1
        self._stand(caller)

    def discard(self, ticket: QueuedRequest) -> bool:
        """A request waits no more; false where it did not."""
        caller = self._callers.get(ticket.caller)
        if caller is None or ticket not in caller.waiting[ticket.level]:
            return False
        del caller.waiting[ticket.level][ticket]
        self._unaged.pop(ticket, None)
        self.length -= 1
        if not caller.waiting[ticket.level]:
            caller.entries[ticket.level] = None
        self._update_count(ticket.caller, caller.count + 1, caller.count)
        return True

    def newest_of_most(self) -> QueuedRequest:
        """The newest request, batch ones before others, of a caller for whom the most wait."""
        caller = self._callers[next(iter(self._by_count[self._most]))]
        return next(reversed(caller.waiting[_LAST] or caller.waiting[_FIRST]))

    def position(self, ticket: QueuedRequest, cost: int) -> int:
        """
        The place of a request that waits, 1 for the next; O(those that wait).

        Args:
            cost: Tokens that each request is taken to use, as soon as it has begun; nobody is taken to come.
        """
        mine, ahead = self._callers[ticket.caller], 0
        for one in mine.waiting[ticket.level]:
            if one is ticket:
                break
            ahead += 1
        start = mine.round + ahead * cost
        entry = mine.entries[ticket.level]
        assert entry is not None
        for caller in self._callers.values():
            if caller is not mine:
                ahead += _before(caller, ticket.level, start, entry, cost)
            if ticket.level == _LAST:
                ahead += len(caller.waiting[_FIRST])
        return ahead + 1

    def _ensure_caller(self, name: str) -> _Caller:
        """A caller; where it is new, idle ones that owe nothing may be forgotten for it."""
        caller = self._callers.get(name)
        if caller is None:
            if len(self._callers) >= self._sweep_at:
                self._callers = {
                    name: one
                    for name, one in self._callers.items()
                    if one.count or one.running or one.round > self._round
                }
                self._sweep_at = 2 * len(self._callers) + _KEPT
            caller = self._callers[name] = _Caller()
        return caller

    def _stand(self, caller: _Caller) -> None:
        """Stand where its charges say, at the end of the ring; where nothing has changed, it stays."""
        for level in (_FIRST, _LAST):
            before = caller.entries[level]
            where = caller.round, caller.running
            if not caller.waiting[level] or (before is not None and before[:2] == where):
                continue
            entry = caller.entries[level] = (*where, next(self._ring), caller)
            heap = self._heaps[level]
            heapq.heappush(heap, entry)
            if len(heap) > 2 * len(self._callers) + _KEPT:
                heap[:] = [one for one in heap if one[3].entries[level] is one]
                heapq.heapify(heap)

    def _put(self, caller: _Caller, ticket: QueuedRequest) -> None:
        """A request at the end of its caller's; what has begun at their beginning."""
        waiting = caller.waiting[ticket.level]
        waiting[ticket] = None
        if ticket.begun:
            waiting.move_to_end(ticket, last=False)
        self.length += 1
        if caller.entries[ticket.level] is None:
            self._stand(caller)

    def _age(self, ticket: QueuedRequest) -> None:
        """A batch request has waited long enough."""
        self.discard(ticket)
        ticket.aged = True
        self.add(ticket)

    def _update_count(self, name: str, before: int, now: int) -> None:
        """So many requests wait for a caller; O(1), since it is one more or one less."""
        if before:
            del self._by_count[before][name]
        if now:
            self._by_count.setdefault(now, OrderedDict())[name] = None
        if before and not self._by_count[before]:
            del self._by_count[before]
        self._most = max(self._most, now)
        if self._most not in self._by_count:
            self._most = now  # that was the only one with the most


def _before(caller: _Caller, level: int, start: int, entry: _Entry, cost: int) -> int:
    """Count the requests of `caller` that go before a request that another caller, with the heap entry `entry`, may send in the round `start`."""
    its = caller.entries[level]
    if its is None or (rounds := start - its[0]) < 0:
        return 0
    same = (
        rounds % cost == 0 and its[:3] < entry[:3]
    )  # in the same round, and before it in the ring
    return min(len(caller.waiting[level]), -(-rounds // cost) + same)
