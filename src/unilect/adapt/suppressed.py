"""
Answers that are held back before one is told: they are counted as they are made, also where none is told in the end, as the client
leaves, or as none of them is valid.
"""

from unilect.core.events import Event, Tally
from unilect.runtime.context import current_request


class SuppressedUsage:
    """One answer, or several that are made at once."""

    def __init__(self) -> None:
        self._meter = current_request().meter
        self._tally = Tally()
        self._prompt = self._completion = 0

    def see(self, batch: list[Event]) -> None:
        """Count a batch that is not told."""
        tally = self._tally
        tally.add(batch)
        self._count(tally.prompt_tokens, tally.completion_tokens)

    def release(self) -> None:
        """Count nothing here: the answer is told after all, and counted then."""
        self._count(0, 0)

    def _count(self, prompt: int, completion: int) -> None:
        if self._meter is not None:
            self._meter.hold(prompt - self._prompt, completion - self._completion)
        self._prompt, self._completion = prompt, completion
