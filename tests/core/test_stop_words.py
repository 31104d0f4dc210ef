"""Tests of unilect.core.stop_words."""

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.stop_words import StopWords

TEXTS = st.text(st.sampled_from("ab é中🙂👩\u200d👩\u200d👧\n "), min_size=1, max_size=20)


@given(st.lists(st.text("abc", max_size=4)), st.lists(st.text("abc", min_size=1, max_size=3)))
def test_stop_words_are_found_across_pieces(pieces: list[str], words: list[str]) -> None:
    """What is told is the text before the first stop word, however the text was cut into pieces; and the word is known."""
    text = "".join(pieces)
    ends = [(text.find(word), word) for word in words if word in text]
    stop, told = StopWords(words), ""
    for piece in pieces:
        told += stop.feed(piece)
        if stop.found:
            break
    else:
        told += stop.end()

    assert (stop.found is not None) == bool(ends)
    assert stop.found is None or stop.found in words
    assert not any(word in told for word in words)
    assert text.startswith(told)
    assert stop.found or text == told


def test_stop_words_hold_back_no_more_than_they_must() -> None:
    """Only an end that begins a stop word waits."""
    stop = StopWords(["###", "\nUser"])

    assert ["ab", "", "#a", "", "\nUx", ""] == [
        stop.feed(piece) for piece in ("ab", "#", "a", "\nU", "x", "###")
    ]
    assert "###" == stop.found


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3), st.integers(1, 4))
def test_nothing_of_a_stop_word_is_told(text: str, words: list[str], size: int) -> None:
    """The text ends before the first stop word, wherever its pieces are cut; else nothing is missing."""
    stops, told = StopWords(words), ""
    for begin in range(0, len(text), size):
        told += stops.feed(text[begin : begin + size])
        if stops.found:
            break
    told += stops.end()

    places = [place for word in words if (place := text.find(word)) >= 0]
    assert bool(places) == (stops.found is not None)
    if not places:
        assert text == told
    else:
        assert text.startswith(told)
        assert not any(word in told for word in words)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [(["a st", "op b"], "a "), (["sto", "st", "op"], "sto"), (["a", "b"], "ab")],
)
def test_stop_words_across_pieces(pieces: list[str], expected: str) -> None:
    """A stop word that comes in pieces is found, and its beginning is told where it was none."""
    stops, told = StopWords(["stop"]), ""
    for piece in pieces:
        told += stops.feed(piece)
        if stops.found:
            break

    assert expected == told + ("" if stops.found else stops.end())
