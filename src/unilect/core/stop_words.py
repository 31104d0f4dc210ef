"""
Stop words in a text that comes in pieces.

It imports nothing that imports, since the child that generates does.
"""

from collections.abc import Sequence

from unilect.core.marks import count_overlap


class StopWords:
    """
    Cuts a text before the first stop word.

    Attributes:
        found: The first one, once there was one.
        held: What is not told yet, because a stop word may begin there.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)
        self.held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that is certainly before any stop word; its end is held back where a word may begin there."""
        text = self.held + text
        places = [(at, word) for word in self._words if (at := text.find(word)) >= 0]
        if places:
            at, self.found = min(places)
            self.held = ""
            return text[:at]
        held = max((count_overlap(text, word) for word in self._words), default=0)
        self.held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """Return the text that was held back, at the end of the answer."""
        held, self.held = self.held, ""
        return held
