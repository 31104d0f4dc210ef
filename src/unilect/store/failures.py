"""The error of a store that cannot be used."""

from unilect.core.errors import StoreUnavailable


def unavailable(reason: str) -> StoreUnavailable:
    """Make the error for a client; the reason is for the operator."""
    return StoreUnavailable(
        "The store of responses cannot be used now. Try again later, or send `store: false`.",
        reason=f"store: {reason}",
        retry_after_s=5,
    )


def stopping() -> StoreUnavailable:
    """Make the error for whoever asks while the server stops."""
    return StoreUnavailable("The server is stopping. Try again soon.", retry_after_s=5)
