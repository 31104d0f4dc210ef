"""Tests of unilect.engines.transformers.words.text."""

import itertools
import os
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.engines.transformers.words.text import Detokenizer

TEXTS = st.text(st.sampled_from("ab é中🙂👩\u200d👩\u200d👧\n "), min_size=1, max_size=20)


def bytes_of(tokens: Sequence[int]) -> str:
    """A tokenizer of which every token is a byte."""
    return bytes(tokens).decode(errors="replace")


@given(TEXTS)
def test_no_character_is_torn(text: str) -> None:
    """However characters are split over tokens, the pieces are whole, and together they are the text."""
    detokenizer = Detokenizer(bytes_of)

    pieces = [detokenizer.add(token) for token in text.encode()]

    assert text == "".join(pieces) + detokenizer.end()
    assert "\ufffd" not in "".join(pieces)


@pytest.mark.timeout(0 if "UNILECT_FUZZ" in os.environ else 180)
@given(
    st.text(min_size=1, max_size=30),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    examples=1000,
)
def test_any_split_of_any_text(text: str, sizes: list[int]) -> None:
    """Of any text of Unicode, in tokens of any number of bytes, nothing is lost, torn or changed."""
    data, tokens, at = text.encode(), [], 0
    for size in itertools.cycle(sizes):
        tokens.append(data[at : at + size])
        if (at := at + size) >= len(data):
            break
    detokenizer = Detokenizer(
        lambda ids: b"".join(tokens[id] for id in ids).decode(errors="replace")
    )

    pieces = [detokenizer.add(id) for id in range(len(tokens))]

    assert text == "".join(pieces) + detokenizer.end()
    assert text.count("\ufffd") == "".join(pieces).count("\ufffd")


@given(st.binary(min_size=1, max_size=30))
def test_what_is_no_text_is_told_all_the_same(data: bytes) -> None:
    """Bytes that make no character become U+FFFD, and what is sound beside them stays."""
    detokenizer = Detokenizer(bytes_of)

    told = "".join(map(detokenizer.add, data)) + detokenizer.end()

    assert [c for c in data.decode(errors="ignore") if c.isascii()] == [
        c for c in told if c.isascii()
    ]


def test_the_blank_before_a_first_word_is_kept() -> None:
    """A tokenizer that drops a text's first blank does not drop that of an answer."""
    words = ["▁Once", "▁upon", "▁a"]

    def decode(tokens: Sequence[int]) -> str:
        return "".join(words[token] for token in tokens).replace("▁", " ").removeprefix(" ")

    detokenizer = Detokenizer(decode, before=[0])

    assert [" upon", " a"] == [detokenizer.add(1), detokenizer.add(2)]
