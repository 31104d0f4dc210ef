"""
Chunked prefill: prompts are processed in chunks, several at once, so that running answers wait for a chunk and not for a prompt.

Columns of the cache: first what is known of each prompt, right-aligned, then what is to be read of it, right-aligned again. What
lies between is masked, and left out when the rows join the batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from unilect.engines.transformers.batch.cache import RowStates, side_by_side, states_of
from unilect.engines.transformers.batch.prefixes import MIN_SHARED
from unilect.engines.transformers.batch.sampling import logprobs
from unilect.engines.transformers.job import Job, Logprob

MAX_ROWS = 8
_OVER = 1.5  # a chunk may be so much longer than asked for, where it is the last one then
_ALIKE = 2  # a prompt twice as long as another is padding to it

#: a job, and what is known of its prompt
CachedPrompt: TypeAlias = tuple[Job, RowStates | None]
#: (ids, mask, positions, cache, adapters, all logits wanted) -> logits of the last column, or of all
Forward = Callable[..., Tensor]


class Model(Protocol):
    """The part of a model that the batch uses."""

    device: torch.device
    stop_ids: frozenset[int]
    windowed: bool

    def forward(
        self,
        ids: Tensor,
        mask: Tensor,
        positions: Tensor,
        cache: Any,
        adapters: Sequence[str | None],
        all_logits: bool = False,
    ) -> Tensor:
        """
        The logits after the last column, or after all: (n_rows, 1 or n_columns, n_vocab).

        Args:
            ids, positions: (n_rows, n_columns).
            mask: (n_rows, n_columns before and now).
        """


class Prefill:
    """
    Prompts that are read together.

    Args:
        jobs: Whose prompts.
        known: For each what the cache of prompts holds of it.

    Attributes:
        chunks: How many have been read.
        prompt_logprobs: Of each token read but the first, where they are wanted.
    """

    def __init__(
        self, jobs: Sequence[Job], known: list[RowStates | None], device: torch.device
    ) -> None:
        self.jobs = list(jobs)
        self._cache, self._known = side_by_side(known)
        self._prefix = max(self._known)
        self._rest = [len(job.prompt) - count for job, count in zip(jobs, self._known, strict=True)]
        self._width = max(self._rest)
        self._read = 0
        self.chunks = 0
        ids = torch.zeros(len(jobs), self._width, dtype=torch.long)
        mask = torch.zeros(len(jobs), self._prefix + self._width, dtype=torch.long)
        for row, job in enumerate(jobs):
            begin = self._width - self._rest[row]
            ids[row, begin:] = torch.tensor(job.prompt[self._known[row] :])
            mask[row, self._prefix - self._known[row] : self._prefix] = 1
            mask[row, self._prefix + begin :] = 1
        positions = torch.arange(self._width)[None] + torch.tensor(
            [
                [known + rest - self._width]
                for known, rest in zip(self._known, self._rest, strict=True)
            ]
        )
        self._ids, self._mask = ids.to(device), mask.to(device)
        self._positions = positions.clamp_min(0).to(device)
        self.prompt_logprobs: list[Logprob] = []

    @property
    def unwanted(self) -> bool:
        """True when nobody waits for any of these any longer."""
        return all(job.cancelled for job in self.jobs)

    def count_cached(self, row: int) -> int:
        """Count the tokens of a prompt that came from the cache."""
        return self._known[row]

    def count_processed(self, row: int) -> int:
        """Count the tokens of a prompt that have been read, or came from the cache."""
        return self._known[row] + max(0, self._read - (self._width - self._rest[row]))

    def step(self, forward: Forward, budget: int) -> Tensor | None:
        """
        Read a chunk.

        Args:
            budget: About how many tokens.

        Returns:
            The logits after each prompt, (n_rows, n_vocab), when all have been read; else None.
        """
        columns, left = max(1, budget // len(self.jobs)), self._width - self._read
        if left <= columns * _OVER:
            columns = left
        chunk = slice(self._read, self._read + columns)
        self.chunks += 1
        wants_all = self.jobs[0].prompt_logprobs
        logits = forward(
            self._ids[:, chunk],
            self._mask[:, : self._prefix + chunk.stop],
            self._positions[:, chunk],
            self._cache,
            [job.adapter for job in self.jobs],
            wants_all,
        )
        self._read = chunk.stop
        if wants_all:
            self._note_logprobs(logits[0], chunk)
        return logits[:, -1].float() if self._read == self._width else None

    def _note_logprobs(self, logits: Tensor, chunk: slice) -> None:
        """Note the log probability of each token of the prompt; its first has nothing before it."""
        job = self.jobs[0]
        following = job.prompt[chunk.start + 1 : chunk.stop + 1]
        if following:
            wanted = [job.logprobs] * len(following)
            self.prompt_logprobs += logprobs(logits[: len(following)], wanted, following)

    def states(self, row: int) -> RowStates:
        """Return the keys and values of a prompt that has been read."""
        end = self._prefix + self._width
        known = slice(self._prefix - self._known[row], self._prefix)
        return states_of(self._cache, row, [known, slice(end - self._rest[row], end)])


def prefills(found: Sequence[CachedPrompt], alone: bool, device: torch.device) -> list[Prefill]:
    """
    Prompts, those with about as much to be read together and the shortest first.

    Args:
        found: The prompts, and what the cache of prompts holds of each.
        alone: Each is read by itself.
    """
    groups: list[list[CachedPrompt]] = []
    for one in sorted(found, key=_rest):
        if groups and not alone and _may_share(one, groups[-1]):
            groups[-1].append(one)
        else:
            groups.append([one])
    return [
        Prefill([job for job, _ in group], [known for _, known in group], device)
        for group in groups
    ]


def _may_share(one: CachedPrompt, others: Sequence[CachedPrompt]) -> bool:
    """True when a prompt fits beside others, none of which is longer."""
    return (
        len(others) < MAX_ROWS
        and not any(job.prompt_logprobs for job, _ in (one, *others))
        and _rest(one) <= _ALIKE * _rest(others[0])
    )


def _rest(one: CachedPrompt) -> int:
    """Count the tokens of a prompt that are to be read."""
    job, known = one
    return len(job.prompt) - (known[0][0].shape[1] if known is not None else 0)


def shares_prefix(job: Job, other: Job) -> bool:
    """True when most of a prompt is being read for another of the same owner already."""
    same = (job.owner, job.adapter) == (other.owner, other.adapter)
    if not same or not other.reuse or job.prompt_logprobs:
        return False
    most = max(MIN_SHARED, len(job.prompt) // 2 + 1)  # asked of all that wait, at every step
    return len(job.prompt) >= most and job.prompt[:most] == other.prompt[:most]
