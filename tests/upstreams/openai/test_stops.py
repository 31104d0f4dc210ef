"""Tests of unilect.upstreams.openai._stops."""

import pytest

from unilect.core.events import Event, Finish, TextDelta, fold
from unilect.testing import chat
from unilect.upstreams.openai._stops import cutter


@pytest.mark.parametrize(
    ("pieces", "told", "stop"),
    [
        (["one l", " wa", "sthol"], "one ", "l wa"),
        (["one l", "wa"], "one lwa", None),
        (["one l"], "one l", None),
        (["one END l wa"], "one ", "END"),
    ],
)
def test_cutter(pieces: list[str], told: str, stop: str | None) -> None:
    """The text of each choice ends before its first stop word, which is named; each piece keeps its tokens, and what only began a word is told."""
    cut = cutter(chat(stop=["l wa", "END"]))
    batches: list[list[Event]] = [[TextDelta(piece, 0), TextDelta("other", 1)] for piece in pieces]
    cut_ones = [*map(cut, batches), cut([Finish("stop", 0), Finish("length", 1)])]

    first, other = fold(cut_ones).choices
    assert (told, stop) == (first.text, first.stop)
    assert ("other" * len(pieces), None) == (other.text, other.stop)
    assert 2 * len(pieces) == sum(event.tokens for batch in cut_ones for event in batch)
