"""Tests of unilect.engines.text."""

import itertools
import os
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.engines.text import PUNCTUATION, REPLACEMENT, Decoder


def decode(tokens: list[int]) -> str:
    """A tokenizer of bytes, whose torn characters become U+FFFD."""
    return bytes(tokens).decode(errors="replace")


def strict(tokens: list[int]) -> str:
    """A tokenizer of bytes that fails on torn characters."""
    return bytes(tokens).decode()


@given(st.text(max_size=40))
def test_pieces_make_the_text(text: str) -> None:
    """Whatever the text is, its pieces together are the text, and none ends in the middle of a character."""
    for tokenizer in (decode, strict):
        decoder = Decoder(tokenizer)
        pieces = [decoder.feed(byte) for byte in text.encode()] + [decoder.end()]

        assert text == "".join(pieces)
        assert REPLACEMENT in text or not any(REPLACEMENT in piece for piece in pieces)


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
    decoder = Decoder(lambda ids: b"".join(tokens[id] for id in ids).decode(errors="replace"))

    pieces = [decoder.feed(id) for id in range(len(tokens))]

    assert text == "".join(pieces) + decoder.end()
    assert text.count("\ufffd") == "".join(pieces).count("\ufffd")


@given(st.binary(min_size=1, max_size=30))
def test_what_is_no_text_is_told_all_the_same(data: bytes) -> None:
    """Bytes that make no character become U+FFFD, and what is sound beside them stays."""
    decoder = Decoder(decode)

    told = "".join(map(decoder.feed, data)) + decoder.end()

    assert [c for c in data.decode(errors="ignore") if c.isascii()] == [
        c for c in told if c.isascii()
    ]


def test_the_blank_before_a_first_word_is_kept() -> None:
    """A tokenizer that drops a text's first blank does not drop that of an answer."""
    words = ["▁Once", "▁upon", "▁a"]

    def joined(tokens: Sequence[int]) -> str:
        return "".join(words[token] for token in tokens).replace("▁", " ").removeprefix(" ")

    decoder = Decoder(joined, before=[0])

    assert [" upon", " a"] == [decoder.feed(1), decoder.feed(2)]


def test_a_character_that_the_prompt_began_is_told() -> None:
    """A prompt may end within a character: the answer begins with it; what stays torn there is no part of the answer."""
    for first, expected in ((b"\xa9", "éb"), (b"a", "ab")):
        decoder = Decoder(decode, before=b"a\xc3")

        assert expected == "".join(map(decoder.feed, first + b"b")) + decoder.end()


def test_what_is_no_character_is_told_at_the_end() -> None:
    """A character that was never finished becomes one replacement."""
    for tokenizer in (decode, strict):
        decoder = Decoder(tokenizer)
        pieces = [decoder.feed(byte) for byte in b"ab\xe4\xbd"]

        assert ["a", "b", "", "", REPLACEMENT] == [*pieces, decoder.end()]


def test_a_character_is_told_once_it_is_whole() -> None:
    """Where every token ends one character and begins the next, no text waits for a token that ends with one."""
    data = ("字" * 20).encode()
    tokens = [data[:2], *(data[at : at + 3] for at in range(2, len(data), 3))]
    decoder = Decoder(lambda ids: b"".join(tokens[id] for id in ids).decode(errors="replace"))
    pieces = [decoder.feed(number) for number in range(len(tokens))] + [decoder.end()]

    assert "字" * 20 == "".join(pieces)
    assert ["", "字", "字"] == pieces[:3]


def test_garbage_is_not_held_back_for_ever() -> None:
    """Bytes that never become a character are told after a bounded number of tokens."""
    decoder = Decoder(strict)

    assert any(decoder.feed(0xFF) for _ in range(50))


def test_punctuation_waits_for_what_follows() -> None:
    """A tokenizer that rewrites punctuation next to Chinese has it told in its last form."""

    def rewriting(tokens: list[int]) -> str:
        return "".join(map(chr, tokens)).replace("好,", "好，").replace(",中", "，中")

    decoder = Decoder(rewriting, PUNCTUATION)
    pieces = [decoder.feed(ord(character)) for character in "a,中好,b"] + [decoder.end()]

    assert ["a", "", "，中", "好", "，", "b", ""] == pieces
