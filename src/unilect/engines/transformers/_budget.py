"""
Ends the thoughts of an answer after a number of tokens. Imports neither torch nor transformers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from unilect.engines.transformers._job import Constraint
from unilect.engines.transformers._text import Detokenizer
from unilect.tools.parser import THINK


class ThoughtBudget:
    """
    A constraint that ends thoughts; see `Constraint`.

    Args:
        inner: What else binds the answer.
        budget: The most tokens of thoughts.
        end: The tokens of the mark behind them.
        decode: Text of token ids.
        begun: The prompt has begun them.
    """

    def __init__(
        self,
        inner: Constraint | None,
        budget: int,
        end: Sequence[int],
        decode: Callable[[Sequence[int]], str],
        begun: bool,
    ) -> None:
        self._inner = inner
        self._left = budget
        self._end = list(end)
        self._detokenizer = Detokenizer(decode)
        self._begins, self._thinks = not begun, begun
        self._text = ""

    def mask(self, logits: Any) -> None:
        """Allow nothing but the mark where the budget is spent; see `Constraint`."""
        if self._is_spent:
            logits.fill_(-math.inf)
            logits[self._end[0]] = 0.0
        elif self._inner is not None:
            self._inner.mask(logits)

    def accept(self, token: int, ends: bool = False) -> bool:
        """Take a token in; see `Constraint`."""
        if self._is_spent:
            self._end.pop(0)
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
        self._text = (self._text + self._detokenizer.add(token)).lstrip()
        self._thinks = self._text.startswith(THINK[0])
        self._begins = not self._thinks and THINK[0].startswith(self._text)

    def _think(self, token: int) -> None:
        self._left -= 1
        self._text += self._detokenizer.add(token)
        self._thinks = THINK[1] not in self._text
        self._text = self._text[1 - len(THINK[1]) :]
