"""
Incremental detokenization: whole characters only.

A token may be a part of a character, and what a token looks like may depend on the one before it; so the text of a few last tokens
is made anew with each token, and what has grown is told, unless it ends in a half character.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

Decode: TypeAlias = Callable[[Sequence[int]], str]
_HALF = "\ufffd"
_CONTEXT = 6  # tokens whose text is made again, and up to twice as many
_MOST_HELD = 64  # tokens of which each ends within a character; their text is made again with each
_MAX_BYTES = 4  # of a character; a token that is no part of any is told as U+FFFD after so many


class Detokenizer:
    """
    The text of a growing list of tokens.

    Args:
        decode: Text of token ids.
        before: The last tokens before the answer: some tokenizers drop the blank of a first word.
    """

    def __init__(self, decode: Decode, before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._tokens = _whole_end(decode, before)
        self._pieces = deque([len(self._tokens)])  # how many tokens made each
        self._told = len(self._tokens)
        self._halves = 0  # tokens that have completed no character
        self._old = decode(self._tokens) if self._tokens else ""

    def add(self, token: int) -> str:
        """The text that a token completes; empty while a character is not whole."""
        self._tokens.append(token)
        new = self._decode(self._tokens)
        if not new.endswith(_HALF) or len(self._tokens) - self._told >= _MOST_HELD:
            return self._grown(new)
        whole = new.rstrip(_HALF)  # a token may end one character and begin another
        if len(whole) > len(self._old):
            told = whole[self._begin(whole) :]
            self._old, self._halves = whole, 0
            return told
        self._halves += 1
        return self._grown(new) if self._halves >= _MAX_BYTES else ""

    def end(self) -> str:
        """Return the text that was held back."""
        return self._grown(self._decode(self._tokens)) if len(self._tokens) > self._told else ""

    def _grown(self, new: str) -> str:
        """Return the new part of a text. Its tokens are dropped in whole pieces: half a character would spoil what follows."""
        begin = self._begin(new)
        self._pieces.append(len(self._tokens) - self._told)
        self._old, self._halves = new, 0
        if len(self._tokens) > 2 * _CONTEXT:
            while len(self._tokens) - self._pieces[0] >= _CONTEXT:
                del self._tokens[: self._pieces.popleft()]
            self._old = self._decode(self._tokens)
        self._told = len(self._tokens)
        return new[begin:]

    def _begin(self, new: str) -> int:
        """Find the index where a text begins to differ from what was sent."""
        begin = len(self._old)
        if self._old.endswith(_HALF):
            pairs = enumerate(zip(self._old, new, strict=False))
            begin = next((place for place, (a, b) in pairs if a != b), begin)
        return begin


def _whole_end(decode: Decode, tokens: Sequence[int]) -> list[int]:
    """A few last tokens that begin with a whole character."""
    sizes = range(_CONTEXT, _CONTEXT + _MAX_BYTES)
    whole = (size for size in sizes if not decode(tokens[-size:]).startswith(_HALF))
    return list(tokens[-next(whole, _CONTEXT) :])
