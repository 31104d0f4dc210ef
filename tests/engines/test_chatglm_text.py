"""Tests of unilect.engines._chatglm_text."""

from hypothesis import strategies as st

from properties import given
from unilect.engines._chatglm_text import PUNCTUATION, REPLACEMENT, Decoder, StopWords


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


def test_what_is_no_character_is_told_at_the_end() -> None:
    """A character that was never finished becomes one replacement."""
    for tokenizer in (decode, strict):
        decoder = Decoder(tokenizer)
        pieces = [decoder.feed(byte) for byte in b"ab\xe4\xbd"]

        assert ["a", "b", "", "", REPLACEMENT] == [*pieces, decoder.end()]


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
    """What is told is the text before the first stop word, however the text was cut into pieces."""
    text = "".join(pieces)
    ends = [text.find(word) for word in words if word in text]
    stop, told = StopWords(words), ""
    for piece in pieces:
        told += stop.feed(piece)
        if stop.found:
            break
    else:
        told += stop.end()

    assert stop.found == bool(ends)
    assert not any(word in told for word in words)
    assert text.startswith(told)
    assert stop.found or text == told


def test_stop_words_hold_back_no_more_than_they_must() -> None:
    """Only an end that begins a stop word waits."""
    stop = StopWords(["###", "\nUser"])

    assert ["ab", "", "#a", "", "\nUx", ""] == [
        stop.feed(piece) for piece in ("ab", "#", "a", "\nU", "x", "###")
    ]
    assert stop.found
