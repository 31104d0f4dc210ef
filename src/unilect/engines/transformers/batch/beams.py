"""
Beam search for the best answers to a prompt, as rows of the running batch.

Each step keeps the `num_beams` likeliest continuations; one that ends is put aside with its mean log probability. The search is
over when as many have ended as there are beams, or at the length limit.

Source: https://huggingface.co/docs/transformers/generation_strategies (beam search, early stopping once enough have ended)
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unilect.engines.transformers.batch.prefixes import shared
from unilect.engines.transformers.job import Job, Reason


class Move(NamedTuple):
    """
    The next step of one beam.

    Attributes:
        source: The beam that it continues.
        token: Its next token.
        shared: The number of tokens that their answers have in common.
    """

    source: int
    token: int
    shared: int


class Beams:
    """
    One search.

    Args:
        stop_ids: Tokens that end an answer.
        limit: The most tokens.

    Attributes:
        broken: The logits of a beam were no numbers; there is no answer.
    """

    def __init__(self, job: Job, stop_ids: frozenset[int], limit: int) -> None:
        self._count = job.sampling.num_beams
        self._stop_ids = frozenset() if job.ignore_eos else stop_ids
        self._banned = sorted(stop_ids) if job.ignore_eos else []
        self._limit = limit
        self._texts: list[NDArray[np.int64]] = []
        self._scores: Tensor = torch.zeros(0)
        self._ended: list[tuple[float, NDArray[np.int64]]] = []
        self.broken = False

    def begin(self, logits: Tensor) -> list[Move] | None:
        """
        The first tokens, from the logits after the prompt: (n_vocab,).

        Returns:
            As `step`; every source is the prompt.
        """
        self._texts = [np.zeros(0, dtype=np.int64)]
        self._scores = torch.zeros(1, device=logits.device)
        return self.step(logits[None])

    def step(self, logits: Tensor) -> list[Move] | None:
        """
        Take the logits of all beams.

        Args:
            logits: (n_beams, n_vocab).

        Returns:
            How each beam goes on, as itself wherever it goes on at all. None when the search is over.
        """
        self.broken = bool(logits[:, 0].isnan().any())
        if self.broken:
            return None
        if self._banned:
            logits[:, self._banned] = float("-inf")
        totals = logits.log_softmax(-1) + self._scores[:, None]
        size = totals.shape[-1]
        wanted = min(totals.numel(), self._count * (1 + max(1, len(self._stop_ids))))
        values, places = totals.flatten().topk(wanted)
        chosen: list[tuple[int, int, float]] = []
        for rank, (value, place) in enumerate(zip(values.tolist(), places.tolist(), strict=True)):
            source, token = divmod(place, size)
            if token in self._stop_ids:
                if rank < self._count:  # an end that is no better than what goes on is none
                    text = self._texts[source]
                    self._ended.append((value / (len(text) + 1), text))
            elif len(chosen) < self._count:
                chosen.append((source, token, value))
        before = self._texts
        chosen = _in_place(chosen)
        self._texts = [np.append(before[source], token) for source, token, _ in chosen]
        self._scores = torch.tensor([value for *_, value in chosen], device=logits.device)
        if len(self._ended) >= self._count or len(self._texts[0]) >= self._limit:
            return None
        return [
            Move(source, token, shared(before[source], before[min(place, len(before) - 1)]))
            for place, (source, token, _) in enumerate(chosen)
        ]

    def best(self, count: int) -> list[tuple[list[int], Reason]]:
        """The likeliest answers, the best first, and why each ended; at most as many as there are beams."""
        candidates: list[tuple[float, NDArray[np.int64], Reason]] = [
            (score, text, "stop") for score, text in self._ended
        ]
        if len(self._ended) < self._count:
            for text, score in zip(self._texts, self._scores.tolist(), strict=True):
                candidates.append((score / len(text), text, "length"))
        candidates.sort(key=lambda one: one[0], reverse=True)
        return [(text.tolist(), reason) for _, text, reason in candidates[:count]]


def _in_place(chosen: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """The same in the order in which the first that continues a beam stands in its place: the others are copies."""
    placed: dict[int, tuple[int, int, float]] = {}
    copies = []
    for one in chosen:
        if one[0] >= len(chosen) or placed.setdefault(one[0], one) is not one:
            copies.append(one)
    rest = iter(copies)
    return [placed[place] if place in placed else next(rest) for place in range(len(chosen))]
