"""Tests of unilect.scheduling.fair_order, against a model that keeps lists and counts by hand."""

from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from support.common.properties import given
from unilect.scheduling.fair_order import _KEPT, AGE_S, FairOrder, QueuedRequest

CALLERS = ("a", "b", "c")
MAX_COST = 50


class Job(QueuedRequest, eq=False, kw_only=True):
    """A ticket whose request uses a number of tokens that nobody knows before."""

    used: int = 1
    charged: int = 0


class Site:
    """An order in front of so many places, and what it must be: lists of who waits and who runs, and what was served to whom."""

    def __init__(self, places: int) -> None:
        self.order, self.places = FairOrder(), places
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.begun: list[Job] = []
        #: for two callers that both wait: what each has been served since
        self.served: dict[tuple[str, str], dict[str, int]] = {}

    def come(self, job: Job) -> None:
        """A request comes."""
        if len(self.running) < self.places and not len(self.order):
            self.begin(job)
            self.order = FairOrder(self.running)  # nobody owes anything
        else:
            self.order.add(job)
            self.waiting.append(job)
        self.give()

    def end(self, at: int) -> None:
        """A request that runs has ended."""
        job = self.running.pop(at % len(self.running))
        self.order.charge(job, job.used - job.charged)
        self.order.end(job)
        self.give()

    def work(self, at: int) -> None:
        """A request that runs has used a part of its tokens."""
        job = self.running[at % len(self.running)]
        part = (job.used - job.charged) // 2
        job.charged += part
        self.order.charge(job, part)

    def leave(self, at: int) -> None:
        """A request that waits is given up."""
        job = self.waiting.pop(at % len(self.waiting))
        assert self.order.discard(job)
        assert not self.order.discard(job)
        self.give()

    def give(self) -> None:
        """Give away what places are free."""
        self.note()
        while len(self.running) < self.places:
            job = self.order.next(0.0)
            if job is None:
                break
            assert isinstance(job, Job)
            self.order.begin(job)
            self.waiting.remove(job)
            self.begin(job)
            for pair, tokens in self.served.items():
                if job.caller in pair:
                    tokens[job.caller] += job.used
            self.note()
        self.check()

    def begin(self, job: Job) -> None:
        """A request runs."""
        self.running.append(job)
        self.begun.append(job)

    def note(self) -> None:
        """Take note of which callers wait both, of those who wait for an answer."""
        for pair in combinations(CALLERS, 2):
            if all(
                any(one.caller == name and not one.batch for one in self.waiting) for name in pair
            ):
                self.served.setdefault(pair, dict.fromkeys(pair, 0))
            else:
                self.served.pop(pair, None)

    def check(self) -> None:
        """What must hold at any time."""
        counts = {name: sum(one.caller == name for one in self.waiting) for name in CALLERS}
        assert len(self.order) == len(self.waiting)
        assert counts == {name: self.order.waiting_for(name) for name in CALLERS}
        assert self.order.most == max(counts.values())
        assert self.order.callers == sum(map(bool, counts.values()))
        assert not self.waiting or len(self.running) == self.places
        assert len(set(self.begun)) == len(self.begun)
        for tokens in self.served.values():
            assert max(tokens.values()) - min(tokens.values()) <= 2 * (self.places + 1) * MAX_COST


JOBS = st.builds(
    Job,
    st.sampled_from(CALLERS),
    st.integers(0, MAX_COST),
    st.sampled_from((False, False, False, True)),
    begun=st.sampled_from((False, False, True)),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), JOBS),
        st.tuples(st.just("come"), JOBS),
        st.tuples(st.sampled_from(("end", "end", "work", "leave")), st.integers(0, 100)),
    ),
    min_size=20,
    max_size=300,
)


@given(STEPS, st.integers(1, 4))
def test_as_the_model(steps: list[tuple[str, Any]], places: int) -> None:
    """Whatever comes, ends and leaves, no request is lost or served twice, and two callers that both wait are served about the same."""
    site = Site(places)
    for step, what in steps:
        if step == "come":
            site.come(what)
        elif step == "end" and site.running:
            site.end(what)
        elif step == "work" and site.running:
            site.work(what)
        elif step == "leave" and site.waiting:
            site.leave(what)
    while site.running:
        site.end(0)

    assert [] == site.waiting


@given(st.lists(st.integers(20, MAX_COST), min_size=120, max_size=120), st.integers(1, 4))
def test_two_callers_that_always_wait(costs: list[int], places: int) -> None:
    """Of two callers with much to ask, whose requests differ in size, each gets its half of the tokens, and not of the requests."""
    site = Site(places)
    for at, cost in enumerate(costs):
        small = at % 2 == 0
        site.come(Job("a" if small else "b", used=1 + cost // 10 if small else cost))
    while all(site.order.waiting_for(name) for name in "ab"):
        site.end(0)
    served = {name: sum(one.used for one in site.begun if one.caller == name) for name in "ab"}

    assert abs(served["a"] - served["b"]) <= 2 * (places + 1) * MAX_COST
    assert sum(one.caller == "a" for one in site.begun) > 2 * sum(
        one.caller == "b" for one in site.begun
    )


def test_who_asks_for_one_answer_at_a_time_is_next() -> None:
    """A caller that waits for one answer after the other is next each time, however many requests of another one wait."""
    site = Site(4)
    for _ in range(36):
        site.come(Job("a", used=30))
    for _ in range(20):
        mine = Job("b", used=30)
        site.come(mine)
        assert 1 == site.order.position(mine, 30)
        site.come(Job("a", used=30))
        site.end(0)
        assert mine is site.begun[-1]
        site.end(site.running.index(mine))


def test_requests_of_one_caller_go_in_their_order() -> None:
    """What one caller asks is begun in the order in which it came."""
    site, jobs = Site(1), [Job("a", used=used) for used in (5, 1, 9, 3)]
    for job in jobs:
        site.come(job)
    while site.running:
        site.end(0)

    assert jobs == site.begun


def test_what_has_begun_goes_first() -> None:
    """Of one caller what a request needs further goes before other requests, and not before those of other callers."""
    site = Site(1)
    jobs = [Job("a", used=5), Job("a", used=5), Job("a", used=5, begun=True), Job("b", used=5)]
    for job in jobs:
        site.come(job)
    while site.running:
        site.end(0)

    assert [jobs[0], jobs[3], jobs[2], jobs[1]] == site.begun


def test_nobody_saves_up_turns() -> None:
    """A caller that was away is not served for what it has not asked meanwhile."""
    site = Site(1)
    site.come(Job("b", used=10))
    for _ in range(41):
        site.come(Job("a", used=10))
    for _ in range(20):
        site.end(0)
    for _ in range(20):
        site.come(Job("b", used=10))
    for _ in range(10):
        site.end(0)

    assert {"a": 5, "b": 5} == {
        name: sum(one.caller == name for one in site.begun[-10:]) for name in "ab"
    }


def test_what_was_used_while_nobody_waited_is_no_debt() -> None:
    """Who has used much while nobody waited waits for no more than its turn among others."""
    site = Site(1)
    for _ in range(10):
        site.come(Job("a", used=10_000))
        site.end(0)
    site.come(Job("a", used=1))
    for _ in range(3):
        site.come(Job("b", used=1))
        site.come(Job("a", used=1))
    for _ in range(6):
        site.end(0)

    assert {"a": 3, "b": 3} == {
        name: sum(one.caller == name for one in site.begun[-6:]) for name in "ab"
    }


def test_batch_goes_last_and_ages() -> None:
    """Batch requests wait for all others, the caller's own too, until they are old enough to be as these."""
    order = FairOrder()
    batch, late = QueuedRequest("a", 0.0, batch=True), QueuedRequest("a", 1.0, batch=True)
    others = [QueuedRequest(name) for name in "abababab"]
    for ticket in (batch, late, *others):
        order.add(ticket)
    assert [9, 10] == [order.position(batch, 1), order.position(late, 1)]
    first = [order.next(AGE_S - 1) for _ in range(4)]
    for ticket in first:
        assert ticket is not None
        order.begin(ticket)
    assert set(first) < set(others)
    aged = []
    while (ticket := order.next(AGE_S)) is not None:
        order.begin(ticket)
        aged.append(ticket)

    assert aged.index(batch) < len(aged) - 1
    assert late is aged[-1]


def test_who_gives_up_a_place_in_the_queue() -> None:
    """The newest request of who has most of them, and of these a batch one first."""
    order = FairOrder()
    tickets = [
        QueuedRequest("a"),
        QueuedRequest("b"),
        QueuedRequest("b"),
        QueuedRequest("b", batch=True),
        QueuedRequest("b"),
    ]
    for ticket in tickets:
        order.add(ticket)
    left = []
    for _ in range(3):
        left.append(order.newest_of_most())
        order.discard(left[-1])

    assert [tickets[3], tickets[4], tickets[2]] == left


def test_nothing_is_kept_of_who_was_here() -> None:
    """Callers that come once and heaps of those that leave take no memory in the end."""
    order = FairOrder()
    for number in range(10_000):
        ticket = QueuedRequest(f"{number}")
        order.add(ticket)
        order.discard(ticket)
    assert len(order._callers) <= 2 * _KEPT
    stays = QueuedRequest("stays")
    order.add(stays)
    for _ in range(10_000):
        ticket = QueuedRequest("leaves")
        order.add(ticket)
        order.discard(ticket)

    assert len(order._heaps[0]) <= 3 * _KEPT + 2 * len(order._callers)


@given(st.lists(st.tuples(st.sampled_from(CALLERS), st.booleans()), min_size=1, max_size=30))
def test_the_position_is_the_order(jobs: list[tuple[str, bool]]) -> None:
    """Where all requests cost the same and nobody comes, each goes at the place that it was told."""
    order = FairOrder()
    tickets = [QueuedRequest(caller, 0.0, batch) for caller, batch in jobs]
    for ticket in tickets:
        order.add(ticket)
    told = {ticket: order.position(ticket, 7) for ticket in tickets}
    served = {}
    for place in range(1, len(tickets) + 1):
        ticket = order.next(0.0)
        assert ticket is not None
        order.begin(ticket)
        order.charge(ticket, 7)
        served[ticket] = place

    assert {t: p for t, p in served.items() if not t.batch} == {
        t: p for t, p in told.items() if not t.batch
    }
    assert sorted(told.values()) == sorted(served.values()) or any(t.batch for t in tickets)
