"""
The room for parts of requests: answers of `n` and of several prompts that are made at the same time.

The first part of a request has the connection that stands for its client's. Each further one takes another to the model's server, so that
those of all requests have a bound.
"""

from unilect.core.bounds import most_further_parts


class Room:
    """
    The further parts of all requests that are made now.

    Attributes:
        taken: Their number.
    """

    def __init__(self) -> None:
        self.taken = 0

    def take(self, wanted: int) -> int:
        """Take as many places as there are, up to `wanted`; returns their number."""
        count = max(0, min(wanted, most_further_parts() - self.taken))
        self.taken += count
        return count

    def give_back(self) -> None:
        """Free one place."""
        self.taken -= 1
