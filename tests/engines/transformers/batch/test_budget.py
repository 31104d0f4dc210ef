"""Tests of unilect.engines.transformers.batch.budget."""

import math
from collections.abc import Sequence

import pytest

from unilect.engines.transformers.batch.budget import ThoughtBudget

END = (1000, 1001)


class Row(list[float]):
    """A row of logits, as far as a constraint uses it."""

    def fill_(self, value: float) -> None:
        """Set all of them."""
        self[:] = [value] * len(self)


def text(tokens: Sequence[int]) -> str:
    """The text of tokens that are letters, and of the two that end thoughts."""
    return "".join({1000: "</thi", 1001: "nk>"}.get(token, chr(token)) for token in tokens)


def tokens(words: str) -> list[int]:
    """The tokens of a mark, or of the rest of one."""
    return list(END) if words == "</think>" else list(map(ord, words))


def written(words: str, budget: int, begun: bool = False) -> str:
    """What a model writes that would write these words, wherever it is let."""
    told, left = list[int](), list(words)
    bound = ThoughtBudget(None, budget, ("<think>", "</think>"), tokens, text, begun)
    while left:
        row = Row([0.0] * 1002)
        bound.mask(row)
        allowed = [token for token, value in enumerate(row) if value > -math.inf]
        token = allowed[0] if len(allowed) == 1 else ord(left.pop(0))
        told.append(token)
        assert not bound.accept(token)
    return text(told)


@pytest.mark.parametrize(
    ("words", "budget", "begun", "expected"),
    [
        ("<think>abcdef</think>x", 3, False, "<think>abc</think>def</think>x"),
        ("abcdef", 2, True, "ab</think>cdef"),
        ("ab", 0, True, "</think>ab"),
        ("\n <think>ab</think>xyz", 10, False, "\n <think>ab</think>xyz"),
        ("ab</think>xyz", 10, True, "ab</think>xyz"),
        ("ab</xyz", 4, True, "ab</think>xyz"),
        ("abcdef", 2, False, "abcdef"),
        ("ab <think>cdef", 1, False, "ab <think>cdef"),
        ("<thinner", 0, False, "<thinner"),
    ],
)
def test_a_budget(words: str, budget: int, begun: bool, expected: str) -> None:
    """Thoughts end after so many tokens, or where the model ends them; what is no thought at the beginning is not bounded."""
    assert expected == written(words, budget, begun)
