"""
Beam search for the best answers to a prompt, as rows of the running batch.

Each step keeps the `num_beams` likeliest continuations; one that ends is put aside with its mean log probability. The search is
over when as many have ended as there are beams, or at the length limit.

Source: https://huggingface.co/docs/transformers/generation_strategies (beam search, early stopping once enough have ended)
"""

import torch
from torch import Tensor

from unilect.engines._hf_job import Job, Reason


class Beams:
    """
    One search.

    Args:
        stop_ids: Tokens that end an answer.
        limit: The most tokens.
    """

    def __init__(self, job: Job, stop_ids: frozenset[int], limit: int) -> None:
        self._count = job.sampling.num_beams
        self._stop_ids = frozenset() if job.ignore_eos else stop_ids
        self._banned = sorted(stop_ids) if job.ignore_eos else []
        self._limit = limit
        self._texts: list[list[int]] = []
        self._scores: Tensor = torch.zeros(0)
        self._ended: list[tuple[float, list[int]]] = []

    def begin(self, logits: Tensor) -> list[tuple[int, int]] | None:
        """
        The first tokens, from the logits after the prompt: (n_vocab,).

        Returns:
            As `step`; every source is the prompt.
        """
        self._texts = [[]]
        self._scores = torch.zeros(1, device=logits.device)
        return self.step(logits[None])

    def step(self, logits: Tensor) -> list[tuple[int, int]] | None:
        """
        Take the logits of all beams.

        Args:
            logits: (n_beams, n_vocab).

        Returns:
            For each beam from now on: which beam it continues, and its next token. None when the search is over.
        """
        if self._banned:
            logits[:, self._banned] = float("-inf")
        totals = logits.log_softmax(-1) + self._scores[:, None]
        size = totals.shape[-1]
        wanted = min(totals.numel(), self._count * (1 + max(1, len(self._stop_ids))))
        values, places = totals.flatten().topk(wanted)
        texts: list[list[int]] = []
        scores: list[float] = []
        moves: list[tuple[int, int]] = []
        for rank, (value, place) in enumerate(zip(values.tolist(), places.tolist(), strict=True)):
            source, token = divmod(place, size)
            text = [*self._texts[source], token]
            if token in self._stop_ids:
                if rank < self._count:  # an end that is no better than what goes on is none
                    self._ended.append((value / len(text), text[:-1]))
            elif len(moves) < self._count:
                texts.append(text)
                scores.append(value)
                moves.append((source, token))
        self._texts, self._scores = texts, torch.tensor(scores, device=logits.device)
        over = len(self._ended) >= self._count or len(texts[0]) >= self._limit
        return None if over else moves

    def best(self, count: int) -> list[tuple[list[int], Reason]]:
        """The likeliest answers, the best first, and why each ended; at most as many as there are beams."""
        candidates: list[tuple[float, list[int], Reason]] = [
            (score, text, "stop") for score, text in self._ended
        ]
        if len(self._ended) < self._count:
            for text, score in zip(self._texts, self._scores.tolist(), strict=True):
                candidates.append((score / len(text), text, "length"))
        candidates.sort(key=lambda one: one[0], reverse=True)
        return [(text, reason) for _, text, reason in candidates[:count]]
