"""The errors of the hub, of its client and of the connection to it, as sentences."""

from collections.abc import Iterator
from contextlib import contextmanager

from unilect.core.errors import ConfigError

_ABSENT = (
    "neither a local file nor one on the hub. Check its spelling; a private one needs HF_TOKEN."
)


def hub_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of the hub, of the connection to it, and of the client that is offline."""
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    return (httpx2.HTTPError, OfflineModeIsEnabled)


def may_pass(error: Exception) -> bool:
    """Return True for what may be gone in a moment: a broken connection, a busy or failing server."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    return not isinstance(error, OSError)


def explain_unreachable(error: Exception) -> str:
    """Return the reason why the hub cannot be reached, and what can be done about it."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "because HF_HUB_OFFLINE is set. Unset it, or name a file or a folder that is on this machine"
    return (
        f"({reason_of(error)}). Check the network, or set HF_ENDPOINT where a mirror is used; or name a file or a folder that is on "
        "this machine"
    )


def reason_of(error: Exception) -> str:
    """Return what an exception says, in one short line."""
    return " ".join(str(error).split())[:100] or type(error).__name__


@contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Translate the errors of the hub's client, of its HTTP client and of the operating system into one sentence."""
    import httpx2
    from huggingface_hub import errors

    absent = errors.EntryNotFoundError, errors.HFValidationError
    try:
        yield
    except (OSError, httpx2.HTTPError, *absent) as error:
        match error:
            case errors.GatedRepoError():
                told = "its owner asks for your consent to terms. Give it on the hub, and set HF_TOKEN."
            case errors.LocalEntryNotFoundError():
                told = "HF_ENDPOINT does not answer as a hub does."
            case errors.RepositoryNotFoundError() | errors.RevisionNotFoundError():
                told = _ABSENT
            case errors.EntryNotFoundError() | errors.HFValidationError():
                told = _ABSENT
            case errors.HfHubHTTPError():
                told = f"the hub answered with status {error.response.status_code}. Try again."
            case httpx2.HTTPError() | errors.OfflineModeIsEnabled():
                told = "the connection to the hub broke again and again. What has come is kept; start again to go on from there."
            case _:
                told = f"could not be fetched ({getattr(error, 'strerror', None) or error})."
        raise ConfigError(f"{name}: {told}") from error
