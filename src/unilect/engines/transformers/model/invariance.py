"""
The batch-invariance check at load: whether a model's answers depend on the other rows of the batch.

The batch leans on what most models keep: positions and masks are the caller's to give, and all that is remembered lies in the cache.
Whether one does is not written down anywhere, so a few tokens are read in every manner in which the batch reads them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from unilect.engines.transformers.batch.cache import BatchKVCache, RowStates
from unilect.engines.transformers.batch.prefill import Forward, Prefill
from unilect.engines.transformers.job import Job, Sampling

#: Tokens of what is known, of the text that goes on from there, of another.
_KNOWN, _LONG, _SHORT = 16, 22, 9
_EXACT, _ROUNDED = 0.02, 0.5  # how far logits may be off, as a part of their length
#: all logits of a text that is read at once, without a cache: (n_tokens, n_vocab)
Whole = Callable[[list[int]], Tensor]


class NotBatchInvariant(Exception):
    """An answer would be another one beside others."""


def check_batch_invariance(
    forward: Forward, whole: Whole, size: int, device: torch.device, exact: bool
) -> bool:
    """
    Read some texts.

    Args:
        size: Tokens of the vocabulary.
        exact: Numbers are not rounded much.

    Returns:
        Whether prompts that begin with what is known may be read beside others; else each has to be read by itself.

    Raises:
        NotBatchInvariant: Not even then it answers as it does alone.
    """
    limit = _EXACT if exact else _ROUNDED
    long = [(7919 * place + 13) % size for place in range(_LONG + 1)]
    short = [(104729 * place + 17) % size for place in range(_SHORT + 1)]
    jobs = _job(long[:_LONG]), _job(short[:_SHORT])
    with torch.inference_mode():
        expected = whole(long).float(), whole(short).float()
        begin = Prefill([_job(long[:_KNOWN])], [None], device)
        _to_end(begin, forward)
        known = [begin.states(0), None]
        cache = BatchKVCache()
        for row, job in enumerate(jobs):
            alone = Prefill([job], [known[row]], device)
            _compare(_to_end(alone, forward)[0], expected[row][len(job.prompt) - 1], limit)
            cache.join(alone.states(0))
        after = _step(cache, forward, [long[_LONG], short[_SHORT]], device)
        for row in range(len(jobs)):
            _compare(after[row], expected[row][-1], limit)
        try:
            _side_by_side(jobs, known, forward, expected, limit, device)
        except NotBatchInvariant:
            return False
    return True


def _side_by_side(
    jobs: Sequence[Job],
    known: list[RowStates | None],
    forward: Forward,
    expected: Sequence[Tensor],
    limit: float,
    device: torch.device,
) -> None:
    logits = _to_end(Prefill(jobs, known, device), forward)
    for row, job in enumerate(jobs):
        _compare(logits[row], expected[row][len(job.prompt) - 1], limit)


def _to_end(prefill: Prefill, forward: Forward) -> Tensor:
    """The logits after all prompts, read in pieces."""
    logits = None
    while logits is None:
        logits = prefill.step(forward, 5 * len(prefill.jobs))
    return logits


def _step(cache: BatchKVCache, forward: Forward, tokens: list[int], device: torch.device) -> Tensor:
    """The logits after one more token for each row of a batch."""
    cache.make_column()
    positions = torch.tensor([[cache.length(row)] for row in range(cache.rows)], device=device)
    ids = torch.tensor(tokens, device=device)[:, None]
    return forward(ids, cache.mask(device), positions, cache, [None] * cache.rows)[:, -1].float()


def _compare(found: Tensor, expected: Tensor, limit: float) -> None:
    length = (expected - expected.mean()).norm()
    if not float((found - expected).norm()) <= limit * float(length):
        raise NotBatchInvariant


def _job(prompt: list[int]) -> Job:
    return Job(prompt=prompt, sampling=Sampling(), max_tokens=1)
