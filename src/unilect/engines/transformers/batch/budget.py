"""
Ends the thoughts of an answer after a number of tokens. Imports neither torch nor transformers.
"""

import math
from collections.abc import Callable
from typing import Any

from unilect.core.marks import count_overlap
from unilect.engines.text import Decoder
from unilect.engines.transformers.job import Constraint


class ThoughtBudget:
    """
    A constraint that ends thoughts; see `Constraint`.

    Args:
        inner: What else binds the answer.
        budget: The most tokens of thoughts.
        thoughts: The marks that they stand between.
        encode: Token ids of a text.
        decode: Text of token ids.
        has_begun: The prompt has begun them.
    """

    def __init__(
        self,
        inner: Constraint | None,
        budget: int,
        thoughts: tuple[str, str],
        encode: Callable[[str], list[int]],
        decode: Callable[[list[int]], str],
        has_begun: bool,
    ) -> None:
        self._inner = inner
        self._left = budget
        self._begin_mark, self._end_mark = thoughts
        self._encode = encode
        self._end: list[int] = []  # the tokens of the mark that are still to come
        self._decoder = Decoder(decode)
        self._begins, self._thinks = not has_begun, has_begun
        self._text = ""

    def mask(self, logits: Any) -> None:
        """Allow nothing but the mark where the budget is spent; see `Constraint`."""
        if self._is_spent:
            if not self._end:  # a mark that the model has begun itself is not written anew
                self._end = self._encode(
                    self._end_mark[count_overlap(self._text, self._end_mark) :]
                )
            logits.fill_(-math.inf)
            logits[self._end[0]] = 0.0
        elif self._inner is not None:
            self._inner.mask(logits)

    def accept(self, token: int, ends: bool = False) -> bool:
        """Take a token in; see `Constraint`."""
        if self._is_spent:
            self._end = self._end[1:]
            self._thinks = bool(self._end)
        elif self._begins:
            self._begin(token)
        elif self._thinks:
            self._think(token)
        return ends if self._inner is None else self._inner.accept(token, ends)

    @property
    def _is_spent(self) -> bool:
        return self._thinks and self._left <= 0

    def _begin(self, token: int) -> None:
        """An answer that does not begin with the mark of thoughts has none."""
        self._text = (self._text + self._decoder.feed(token)).lstrip()
        self._thinks = self._text.startswith(self._begin_mark)
        self._begins = not self._thinks and self._begin_mark.startswith(self._text)

    def _think(self, token: int) -> None:
        self._left -= 1
        self._text += self._decoder.feed(token)
        self._thinks = self._end_mark not in self._text
        self._text = self._text[1 - len(self._end_mark) :]
