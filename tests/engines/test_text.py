"""Tests of unilect.engines.text."""

import itertools
import os
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.engines.text import PUNCTUATION, REPLACEMENT, Decoder, StopWords

TEXTS = st.text(st.sampled_from("ab é中🙂👩\u200d👩\u200d👧\n "), min_size=1, max_size=20)


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
