"""
The load of a run: requests that come at random at a rate (open loop), or a number of them at a time (closed loop), step by step, with two
servers in turn.

In an open loop a request is due at its time, whatever became of those before it, and its times count from then: a server that stalls is
charged for every request that waited.
"""

import asyncio
import math
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any, Literal, NamedTuple, TypeAlias

from unilect.cli.bench.prompts import Words, arrivals, fit_sizes
from unilect.cli.bench.stats import Bounds, Outcome, Step, summarize
from unilect.cli.bench.target import Target

#: The end of a run by Ctrl-C.
INTERRUPTED = "interrupted"
Messages: TypeAlias = list[dict[str, Any]]
_LOOK_S = 0.05  # from one look at the event loop to the next
_LOOKS_SHOWN = 4  # every so many the state is shown
_AFTER_FAILURE_S = 0.1  # that a stream of a closed loop waits: a refusal costs a server little, and would be all that is sent
_SAMPLES = (16, 144)  # words of the two prompts that show what a word takes


class Plan(NamedTuple):
    """
    The settings of a run.

    Attributes:
        mode: The meaning of the loads: requests a second, or at a time.
        loads: One a step.
        seconds: The time of a step in which requests are sent.
        timeout_s: The longest time of an answer, from when it was due.
        conversations: Prompts in place of words, in turn.
        most_requests: After so many the run ends.
    """

    mode: Literal["rate", "concurrency"]
    loads: Sequence[float]
    seconds: float
    timeout_s: float
    prompt_tokens: int
    output_tokens: int
    conversations: Sequence[Messages]
    seed: int
    most_requests: int | None
    bounds: Bounds

    @property
    def unit(self) -> str:
        """The unit of the loads."""
        return "requests/s" if self.mode == "rate" else "at a time"


class Load:
    """
    One load on one server, for one step.

    Args:
        value: Requests a second, or at a time.
        take: Returns the messages of the next request; None where the run has no more.

    Attributes:
        target, value: As given.
        outcomes: The outcome of each request, from when it is sent.
        lags_s: How late the event loop was, each time that it was looked at.
        running, failed, tokens: Requests without an end, those that have failed, and the tokens of those that have ended.
        elapsed_s: Time since the step began.
        window_s: The time in which requests were sent; all of the step where that was cut.
        cpu: Cores that this process has used.
    """

    def __init__(
        self, plan: Plan, target: Target, value: float, take: Callable[[], Messages | None]
    ) -> None:
        self.target, self.value = target, value
        self.outcomes: list[Outcome] = []
        self.lags_s: list[float] = []
        self.running = self.failed = self.tokens = 0
        self.window_s = self.cpu = 0.0
        self._plan, self._take = plan, take
        self._began = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Time since the step began."""
        return time.perf_counter() - self._began

    async def run(self, show: Callable[[], None]) -> None:
        """Send the requests, and wait for their ends; `show` is called several times a second."""
        cpu, in_time = time.process_time(), False
        look = asyncio.create_task(self._look(show))
        try:
            in_time = await (self._send_open() if self._plan.mode == "rate" else self._send_closed())  # fmt: skip
        finally:
            look.cancel()
            self.window_s = self._plan.seconds if in_time else self.elapsed_s
            self.cpu = (time.process_time() - cpu) / self.elapsed_s

    async def _send_open(self) -> bool:
        """Send requests at a rate; returns False where the run had no more of them."""
        # the times are the same for each server
        times = arrivals(self.value, self._plan.seconds, f"{self._plan.seed}/{self.value}")
        async with asyncio.TaskGroup() as group:
            for due in times:
                if (messages := self._take()) is None:
                    return False
                body = self.target.body(messages, self._plan.output_tokens)
                await asyncio.sleep(max(0.0, due - self.elapsed_s))
                group.create_task(self._send(body, due))
        return True

    async def _send_closed(self) -> bool:
        """Send requests, so many at a time; as `_send_open`."""

        async def send_in_turn() -> bool:
            while self.elapsed_s < self._plan.seconds:
                if (messages := self._take()) is None:
                    return False
                body = self.target.body(messages, self._plan.output_tokens)
                outcome = await self._send(body, self.elapsed_s)
                if outcome.failure:
                    await asyncio.sleep(_AFTER_FAILURE_S)
            return True

        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(send_in_turn()) for _ in range(round(self.value))]
        return all(stream.result() for stream in streams)

    async def _send(self, body: bytes, due: float) -> Outcome:
        """Send a request, and return its outcome, which is unfinished until then."""
        outcome = Outcome(due, sent=due, finished=False)
        self.outcomes.append(outcome)
        self.running += 1
        await self.target.send(body, outcome, self._began)
        outcome.finished = True
        self.running -= 1
        self.failed += bool(outcome.failure)
        self.tokens += outcome.tokens
        return outcome

    async def _look(self, show: Callable[[], None]) -> None:
        """Measure how late the event loop is, until cancelled."""
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_LOOK_S)
            self.lags_s.append(max(0.0, time.perf_counter() - before - _LOOK_S))
            if len(self.lags_s) % _LOOKS_SHOWN == 0:
                show()


class Run:
    """
    A run; its life is `run`.

    Args:
        show: Called several times a second with the load, the part of the run that is done, from 0 to 1, and whether the step has ended.

    Attributes:
        plan, targets: As given.
        steps: The results so far.
        ended: The reason for an early end; empty for none.
    """

    def __init__(
        self, plan: Plan, targets: Sequence[Target], show: Callable[[Load, float, bool], None]
    ) -> None:
        self.plan, self.targets = plan, targets
        self.steps: list[Step] = []
        self.ended = ""
        self._show = show
        self._words = Words()
        self._conversations = cycle(plan.conversations)
        self._left = math.inf if plan.most_requests is None else plan.most_requests

    async def run(self) -> None:
        """
        Run all steps; Ctrl-C ends the run with what there is, a second one at once.

        Raises:
            ConfigError: A server does not answer the first requests.
        """
        work, loop = asyncio.create_task(self._work()), asyncio.get_running_loop()

        def interrupt() -> None:
            self.ended = INTERRUPTED
            loop.remove_signal_handler(signal.SIGINT)
            work.cancel()

        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            await work
        except asyncio.CancelledError:
            if not self.ended:
                raise
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            for target in self.targets:
                await target.aclose()

    async def _work(self) -> None:
        for target in self.targets:
            if not self.plan.conversations:
                counts = [await target.rehearse(self._words.messages(words)) for words in _SAMPLES]
                target.sizes = fit_sizes(_SAMPLES, counts)
            await target.rehearse(self._messages(target), self.plan.output_tokens)
        for number, value in enumerate(self.plan.loads):
            # each is first as often as the other: what drifts on the machine favours none
            for target in self.targets if number % 2 == 0 else reversed(self.targets):
                await self._step(Load(self.plan, target, value, partial(self._take, target)))
                if self.ended:
                    return

    async def _step(self, load: Load) -> None:
        """Run one step, and keep its result, also where it is cut."""
        begun, all_steps = len(self.steps), len(self.plan.loads) * len(self.targets)

        def show(ended: bool = False) -> None:
            done = begun + min(1.0, load.elapsed_s / self.plan.seconds)
            self._show(load, done / all_steps, ended)

        try:
            await load.run(show)
        finally:
            if load.outcomes:
                self.steps.append(summarize(load.target.name, load.value, load.window_s, load.outcomes, self.plan.bounds, load.lags_s, load.cpu))  # fmt: skip
                show(ended=True)

    def _take(self, target: Target) -> Messages | None:
        """Return the messages of the next request; None for none, which ends the run."""
        if not self._left:
            self.ended = f"after {self.plan.most_requests} requests (--requests)"
            return None
        self._left -= 1
        return self._messages(target)

    def _messages(self, target: Target) -> Messages:
        if self.plan.conversations:
            return next(self._conversations)
        return self._words.messages(target.sizes.words(self.plan.prompt_tokens))
