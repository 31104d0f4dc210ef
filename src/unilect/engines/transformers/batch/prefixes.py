"""
The prompt cache: KV states of earlier prompts, reused for the prefix that a new prompt shares with them.

Bounded by tokens; what was not used for longest goes first. An adapter changes what is remembered, so each has its own. Each owner has
its own, too: nobody learns from the time that a prompt takes what another one has asked.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unilect.engines.transformers.batch.cache import RowStates

MIN_SHARED = 16  # less is read again faster than copied


class _Known(NamedTuple):
    owner: str
    adapter: str | None
    tokens: NDArray[np.int64]
    states: RowStates


class Prefixes:
    """
    The cached prompts.

    Args:
        max_tokens: Of all prompts together; 0 caches nothing.

    Attributes:
        max_tokens: As given.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._known: list[_Known] = []  # the last used is the last

    def find(self, owner: str, adapter: str | None, prompt: Sequence[int]) -> RowStates | None:
        """The owner's longest known beginning of a prompt, short of its last token: that one has to be read for what follows it."""
        tokens = np.asarray(prompt[:-1], dtype=np.int64)
        best, place = MIN_SHARED - 1, -1
        for number, known in enumerate(self._known):
            if (known.owner, known.adapter) != (owner, adapter):
                continue
            if (count := shared(known.tokens, tokens)) > best:
                best, place = count, number
        if place < 0:
            return None
        found = self._known.pop(place)
        self._known.append(found)
        return [(keys[:, :best], values[:, :best]) for keys, values in found.states]

    def keep(
        self, owner: str, adapter: str | None, tokens: Sequence[int], states: RowStates
    ) -> None:
        """Remember a prompt for its owner; what it continues is forgotten for it, and what has gone on already is not kept twice."""
        if not MIN_SHARED <= len(tokens) <= self.max_tokens:
            return
        new = np.asarray(tokens, dtype=np.int64)
        rest: list[_Known] = []
        for number, known in enumerate(self._known):
            same = (known.owner, known.adapter) == (owner, adapter)
            count = shared(known.tokens, new) if same else -1
            if count == len(new):  # known, and more
                self._known.append(self._known.pop(number))
                return
            if count < len(known.tokens):
                rest.append(known)
        self._known = [*rest, _Known(owner, adapter, new, states)]
        while sum(len(known.tokens) for known in self._known) > self.max_tokens:
            self._known.pop(0)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    def forget(self, adapter: str | None) -> None:
        """Forget all that was read with an adapter."""
        self._known = [known for known in self._known if known.adapter != adapter]


def shared(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Count the tokens that two texts share from their beginning."""
    count = min(len(one), len(other))
    differ = np.flatnonzero(one[:count] != other[:count])
    return int(differ[0]) if len(differ) else count
