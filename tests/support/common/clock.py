"""A clock that a test sets."""


class Clock:
    """Seconds since 1970, as a test has them."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
