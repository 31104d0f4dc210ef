"""
The tokens of an answer's thoughts, where its backend does not tell them.

Its pieces tell of how many tokens they are made. Of a server that sends many tokens at a time, or a whole answer, they do not: then
nobody knows how many of them are thoughts.
"""

from msgspec.structs import replace

from unilect.core.events import Event, ReasoningDelta, Usage

_TOLD = 2  # marks and the names of calls are tokens of no piece; a half of all is in some


class ThoughtTokens:
    """The tokens of one answer's thoughts."""

    __slots__ = ("_pieces", "_thoughts")

    def __init__(self) -> None:
        self._pieces = self._thoughts = 0

    def count(self, batch: list[Event]) -> list[Event]:
        """The next batch of the answer; the usage that ends one with thoughts tells how many of its tokens they are, or None."""
        for event in batch:
            self._pieces += event.tokens
            if type(event) is ReasoningDelta:
                self._thoughts += event.tokens
        last = batch[-1]
        if not self._thoughts or type(last) is not Usage or last.reasoning_tokens:
            return batch
        known = self._pieces * _TOLD >= last.completion_tokens > 0
        thoughts = min(self._thoughts, last.completion_tokens) if known else None
        return [*batch[:-1], replace(last, reasoning_tokens=thoughts)]
