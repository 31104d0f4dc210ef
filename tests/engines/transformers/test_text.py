"""Tests of unilect.engines.transformers._text."""

from collections.abc import Sequence

from hypothesis import strategies as st

from properties import given
from unilect.engines.transformers._text import Detokenizer

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
