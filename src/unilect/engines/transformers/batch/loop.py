"""
Continuous batching: answers join and leave at every token, prefill runs between decode steps. One thread owns the model.

1. Everything that touches the model runs in this thread; others hand it jobs, and functions to be run between two steps.
2. Between two steps of the running answers one chunk of one prompt is read; a few, while more prompts wait than answers run.
3. Whoever no longer wants an answer sets `cancelled`: its row is free before the next step.
4. A client that reads too slowly sets `backpressured`: its answer is parked, and its row is free for another meanwhile.
"""

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch
from torch import Tensor

from unilect.engines.transformers.batch.beams import Beams
from unilect.engines.transformers.batch.cache import BatchKVCache, RowStates
from unilect.engines.transformers.batch.prefill import (
    CachedPrompt,
    Model,
    Prefill,
    prefills,
    shares_prefix,
)
from unilect.engines.transformers.batch.prefixes import Prefixes
from unilect.engines.transformers.batch.rows import RAN_OVER, Chooser, Row
from unilect.engines.transformers.batch.sampling import RowSampler, Sampler
from unilect.engines.transformers.job import (
    Failed,
    Job,
    PromptRead,
    Reason,
    Step,
    failure,
    lacks_memory,
)

MAX_WAITING = 1024
_CHUNKS = 4  # that are read in a row at most, of all prompts and of one
_CALLS_S = 0.05  # after which a step comes before the next call
_TOO_SLOW = "Aborted: the client reads too slowly and no buffer is left."
_IDLE_S = 20.0  # after which the memory of answers is given back
_GATHER_S = 0.02  # to read two prompts after each other costs more than to wait for the second
Value = TypeVar("Value")


class BatchLoop:
    """
    Runs jobs on a model.

    Args:
        parallel: Rows that run at the same time.
        context: The most tokens of prompt and answer.
        chunk: Prompt tokens that are read between two steps.
        remember: Tokens of prompts that are remembered.
        after_step: Called after each step, in the loop's thread, when words have been delivered.
    """

    def __init__(
        self,
        model: Model,
        *,
        parallel: int,
        context: int,
        chunk: int,
        remember: int,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._model = model
        self._parallel = parallel
        self._chooser = Chooser(model, context)
        self._chunk = chunk
        self._prefixes = Prefixes(remember)
        self._after_step = after_step
        self._news = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._waiting_since = 0.0
        self._pending = 0
        self._stopping = False
        self._admitting: list[Job] = []
        self._prefills: deque[Prefill] = deque()
        self._rows: list[Row] = []
        self._parked: list[tuple[Row, RowStates]] = []
        self._cache = BatchKVCache()
        self._sampler: Sampler | None = None

    @property
    def full(self) -> bool:
        """True while no more jobs are taken."""
        return len(self._waiting) >= MAX_WAITING

    @property
    def running(self) -> int:
        """The rows that are read or answered; to be asked between two steps."""
        return len(self._rows) + len(self._being_read())

    def submit(self, job: Job) -> None:
        """Have a job done. May be called from any thread."""
        job.reuse = job.reuse and self._prefixes.max_tokens > 0
        with self._news:
            if not self._waiting:
                self._waiting_since = time.monotonic()
            self._waiting.append(job)
            self._news.notify()

    def announce(self, jobs: int) -> None:
        """So many jobs more are being made: while nothing runs, no prompt is read before those that come with it. Called in one thread."""
        self._pending += jobs
        self.wake()

    def wake(self) -> None:
        """See what has been set in a job. May be called from any thread."""
        with self._news:
            self._news.notify()

    def call(self, function: Callable[[], Value], first: bool = False) -> "Future[Value]":
        """Run a function between two steps, or before all others that wait. May be called from any thread."""
        future: Future[Value] = Future()
        with self._news:
            (self._calls.appendleft if first else self._calls.append)((function, future))
            self._news.notify()
        return future

    def stop(self) -> None:
        """End `run` after the step that is running."""
        with self._news:
            self._stopping = True
            self._news.notify()

    def end(self, adapter: str | None) -> None:
        """End the answers of an adapter that changes, and forget its prompts; to be called between two steps."""
        for job in [*self._waiting, *self._active_jobs()]:
            if job.adapter == adapter and not job.cancelled:
                job.emit(Failed("The model's LoRA adapter was unloaded."))
                job.cancelled = True
        self._drop_cancelled()
        self._prefixes.forget(adapter)

    def run(self) -> None:
        """Do all jobs until `stop`."""
        with torch.inference_mode():
            while not self._stopping:
                self._wait()
                self._make_calls()
                try:
                    self._drop_cancelled()
                    self._park_slow_rows()
                    for _ in range(_CHUNKS):
                        self._admit()
                        self._read()
                        self._after_step()
                        self._make_calls()
                        if not self._prefill_first:
                            break
                    self._decode()
                except Exception as error:  # noqa: BLE001 - a model raises anything
                    self._fail_all(error)
                self._after_step()

    def _wait(self) -> None:
        with self._news:
            if not self._news.wait_for(self._has_work, _IDLE_S):
                self._give_back()
                self._news.wait_for(self._has_work)
            if not self._rows and not self._prefills:
                rest_s = self._waiting_since + _GATHER_S - time.monotonic()
                self._news.wait_for(self._is_complete, max(0.0, rest_s))

    def _has_work(self) -> bool:
        asked = self._stopping or self._waiting or self._calls or self._rows or self._prefills
        parked = (row.job for row, _ in self._parked)
        return bool(asked) or any(job.cancelled or not job.backpressured for job in parked)

    def _is_complete(self) -> bool:
        """Return True if nothing is gained by waiting for more prompts."""
        full = not self._waiting or len(self._waiting) >= self._free
        return full or not self._pending or bool(self._calls) or self._stopping

    def _give_back(self) -> None:
        """Give back the memory that running answers needed."""
        self._cache = BatchKVCache()
        torch.cuda.empty_cache()

    def _make_calls(self) -> None:
        """Make the calls that wait; those that take long, one between two steps."""
        begun = time.monotonic()
        while self._calls and time.monotonic() - begun < _CALLS_S:
            function, future = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - the caller's to see
                future.set_exception(error)

    def _drop_cancelled(self) -> None:
        with self._news:
            self._waiting = deque(job for job in self._waiting if not job.cancelled)
        self._prefills = deque(prefill for prefill in self._prefills if not prefill.unwanted)
        for place in reversed(range(len(self._rows))):
            if self._rows[place].job.cancelled:
                self._remove(place)
        self._parked = [parked for parked in self._parked if not parked[0].job.cancelled]

    def _park_slow_rows(self) -> None:
        """Park the rows whose clients read too slowly, and resume those whose clients have caught up."""
        for place in reversed(range(len(self._rows))):
            row = self._rows[place]
            if row.job.backpressured and row.beams is None:  # beams say all at once, at the end
                if len(self._parked) < self._parallel:
                    self._parked.append((row, self._cache.states(place)))
                else:
                    row.job.emit(Failed(_TOO_SLOW, of_reader=True))
                self._remove(place)
        ready = [parked for parked in self._parked if not parked[0].job.backpressured]
        for parked in ready[: self._free]:
            self._add(*parked)
            self._parked.remove(parked)

    def _admit(self) -> None:
        """Begin to read the prompts for which there is room."""
        free = self._free
        later: list[Job] = []
        found: list[CachedPrompt] = []
        while free > 0 and self._waiting:
            job = self._waiting.popleft()
            self._admitting.append(job)
            if _width(job) > free and (self._rows or self._prefills or found):
                later.append(job)  # beams wait for their whole room
                break
            begun = (*self._being_read(), *(other for other, _ in found)) if job.reuse else ()
            if any(shares_prefix(job, other) for other in begun):
                later.append(job)  # what it shares will be known soon
                continue
            states = None
            if job.reuse and not job.prompt_logprobs:
                states = self._prefixes.find(job.owner, job.adapter, job.prompt)
            found.append((job, states))
            free -= _width(job)
        self._prefills += prefills(found, self._model.windowed, self._model.device)
        with self._news:
            self._waiting.extendleft(reversed(later))
        self._admitting.clear()

    @property
    def _free(self) -> int:
        """The number of rows that may be added."""
        taken = sum(_width(job) for job in self._being_read()) + len(self._rows)
        return max(0, self._parallel - taken)

    @property
    def _prefill_first(self) -> bool:
        """True while more answers wait for their first token than for their next, and could have it."""
        return len(self._being_read()) + min(self._free, len(self._waiting)) > len(self._rows)

    def _active_jobs(self) -> set[Job]:
        """All jobs that have been begun."""
        rows = [*self._rows, *(row for row, _ in self._parked)]
        return {*self._admitting, *self._being_read(), *(row.job for row in rows)}

    def _being_read(self) -> list[Job]:
        return [job for prefill in self._prefills for job in prefill.jobs]

    def _read(self) -> None:
        """Read a chunk of one prompt: the first that came, until it has had its turn. A long one holds up no short one for long."""
        if not self._prefills:
            return
        prefill = self._prefills[0]
        try:
            logits = prefill.step(self._model.forward, self._chunk)
        except Exception as error:
            if not lacks_memory(error):
                raise
            self._read_apart(prefill, error)
            return
        if prefill.chunks % _CHUNKS == 0:
            self._prefills.rotate(-1)
        for row, job in enumerate(prefill.jobs):
            if not job.cancelled:
                told = prefill.prompt_logprobs if logits is not None else []
                counts = prefill.count_processed(row), len(job.prompt), prefill.count_cached(row)
                job.emit(PromptRead(*counts, told))
        if logits is None:
            return
        self._begin(prefill, logits)
        # not before: a failure above is reported to all of them
        self._prefills = deque(one for one in self._prefills if one is not prefill)

    def _read_apart(self, prefill: Prefill, error: BaseException) -> None:
        """
        Go on without prompts for which there is no memory: those that were read together are begun again one by one, and one that was
        alone is refused. What other answers hold is not touched by reading.
        """
        apart: list[Prefill] = []
        if len(prefill.jobs) == 1:
            self._refuse(prefill.jobs[0], error)
        else:
            self._free_memory()
            jobs = (job for job in prefill.jobs if not job.cancelled)
            apart = [Prefill([job], [None], self._model.device) for job in jobs]
        self._prefills = deque([*apart, *(one for one in self._prefills if one is not prefill)])

    def _refuse(self, job: Job, error: BaseException) -> None:
        """End one answer for want of memory."""
        job.emit(failure(error))
        job.cancelled = True
        self._drop_cancelled()
        self._free_memory()

    def _free_memory(self) -> None:
        """Free what nobody needs: the prompts that are remembered, and what torch holds in reserve."""
        self._prefixes.clear()
        torch.cuda.empty_cache()

    def _begin(self, prefill: Prefill, logits: Tensor) -> None:
        """Choose the first tokens of answers, and let those join the batch for the others; all are told before anything is copied."""
        wanted = [place for place, job in enumerate(prefill.jobs) if not job.cancelled]
        single = [place for place in wanted if _is_single(prefill.jobs[place])]
        rows = {
            place: Row(prefill.jobs[place], self._row_sampler(prefill.jobs[place]))
            for place in single
        }
        ended: dict[int, Reason | None] = {}
        if rows:
            sampler = Sampler([row.sampler for row in rows.values()], self._model.device)
            reasons = self._chooser.choose([*rows.values()], sampler, logits[single])
            ended = dict(zip(single, reasons, strict=True))
            self._after_step()
        self._cache.expected_rows = self.running
        for place in wanted:
            job, row = prefill.jobs[place], rows.get(place)
            over = row is not None and ended[place] is not None
            try:
                states = prefill.states(place)
                if job.reuse:
                    self._prefixes.keep(job.owner, job.adapter, job.prompt, states)
                if not over:
                    self._join(job, row, states, logits[place])
            except Exception as error:
                if not lacks_memory(error):
                    raise
                if not over:
                    self._refuse(job, error)

    def _join(self, job: Job, row: Row | None, states: RowStates, logits: Tensor) -> None:
        """Have an answer whose prompt has been read run with the others; without a row it is no answer of one token after the other."""
        if row is not None:
            self._add(row, states)
        elif job.max_tokens < 1:
            for choice in range(job.choices):
                job.emit(Step(finish="length", choice=choice))
        else:
            self._begin_beams(job, states, logits)

    def _begin_beams(self, job: Job, states: RowStates, logits: Tensor) -> None:
        beams = Beams(job, self._model.stop_ids | job.stop_ids, self._chooser.limit(job))
        sampler = self._row_sampler(job)
        moves = beams.begin(logits)
        if moves is None:
            self._end_beams(job, beams)
            return
        for number, move in enumerate(moves):
            row = Row(job, sampler, beams, number)
            row.last = move.token
            self._add(row, states)

    def _row_sampler(self, job: Job) -> RowSampler:
        banned = self._model.stop_ids | job.stop_ids if job.ignore_eos else ()
        return RowSampler(job.sampling, job.prompt, list(banned))

    def _decode(self) -> None:
        """One more token for every row."""
        if not self._rows:
            return
        cache, device = self._cache, self._model.device
        cache.make_column()
        ids = torch.tensor([[row.last] for row in self._rows], device=device)
        lengths = [[cache.length(place)] for place in range(cache.rows)]
        positions = torch.tensor(lengths, device=device)
        adapters = [row.job.adapter for row in self._rows]
        logits = self._model.forward(ids, cache.mask(device), positions, cache, adapters)
        cache.advance()
        logits = logits[:, -1].float()
        if any(row.beams for row in self._rows):
            self._step_beams(logits)
        single = [place for place, row in enumerate(self._rows) if row.beams is None]
        if not single:
            return
        rows = [self._rows[place] for place in single]
        if self._sampler is None:
            self._sampler = Sampler([row.sampler for row in rows], device)
        if len(single) < len(logits):
            logits = logits[torch.tensor(single, device=device)]
        reasons = self._chooser.choose(rows, self._sampler, logits)
        for place, reason in sorted(zip(single, reasons, strict=True), reverse=True):
            if reason is not None:
                self._remember(place)
                self._remove(place)

    def _step_beams(self, logits: Tensor) -> None:
        """Each search decides which of its rows go on, and with what."""
        for beams in {id(row.beams): row.beams for row in self._rows}.values():
            if beams is None:
                continue
            places = [place for place, row in enumerate(self._rows) if row.beams is beams]
            places.sort(key=lambda place: self._rows[place].number)
            moves = beams.step(logits[torch.tensor(places, device=logits.device)])
            job = self._rows[places[0]].job
            if moves is None:
                self._end_beams(job, beams)
                job.cancelled = True  # its rows are taken out before the next step
                continue
            for place, move in zip(places, moves, strict=True):
                # the source goes on in its own place, so that nothing has been written there
                self._cache.copy(places[move.source], place, len(job.prompt) + move.shared)
                self._rows[place].last = move.token

    def _end_beams(self, job: Job, beams: Beams) -> None:
        if beams.broken:
            job.emit(Failed(RAN_OVER))
            return
        for choice, (tokens, reason) in enumerate(beams.best(job.choices)):
            job.emit(Step(tokens, [], reason, choice))

    def _remember(self, place: int) -> None:
        """Keep what a finished answer made: a conversation goes on from there."""
        row = self._rows[place]
        if row.job.reuse:
            job, tokens = row.job, [*row.job.prompt, *row.sampler.made[:-1]]
            try:
                self._prefixes.keep(job.owner, job.adapter, tokens, self._cache.states(place))
            except (RuntimeError, MemoryError):  # no reason for the others to end
                self._prefixes.clear()

    def _add(self, row: Row, states: RowStates) -> None:
        self._cache.join(states)
        self._rows.append(row)
        self._sampler = None

    def _remove(self, place: int) -> None:
        self._cache.leave(place)
        self._rows[place] = self._rows[-1]
        self._rows.pop()
        self._sampler = None

    def _fail_all(self, error: BaseException) -> None:
        """
        Nothing that was running can go on; what waits can.

        Raises:
            RuntimeError: The device itself is of no use any longer.
        """
        traceback.print_exception(error)
        for job in self._active_jobs():
            job.emit(failure(error))
        self._admitting.clear()
        self._prefills.clear()
        self._rows.clear()
        self._parked.clear()
        self._sampler = None
        self._prefixes.clear()
        self._give_back()
        torch.zeros(1, device=self._model.device).item()


def _is_single(job: Job) -> bool:
    """Return True if a job makes one answer, token by token."""
    return job.max_tokens > 0 and job.sampling.num_beams <= 1


def _width(job: Job) -> int:
    """The rows that a job takes."""
    return max(1, job.sampling.num_beams)
