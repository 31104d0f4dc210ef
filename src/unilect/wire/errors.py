"""Errors of servers whose answers cannot be read."""

from unilect.core.errors import BackendError


def invalid(what: str) -> BackendError:
    """Make the error for something that a model's server sent, as `a frame that is not JSON`."""
    return BackendError(f"The model's server sent {what}. Try again, or ask its operator.")


def cut(how: str = "was finished") -> BackendError:
    """Make the error for an answer that ended too early."""
    return BackendError(
        f"The model's server ended its answer before it {how}. Send the request again."
    )
