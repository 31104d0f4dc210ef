"""
The certificate of the server: read where it listens, and where a configuration is checked.
"""

import os
import ssl

from unilect.config.server import Config
from unilect.errors import ConfigError


def server_context(config: Config) -> ssl.SSLContext | None:
    """
    What HTTPS needs; None where the server speaks HTTP.

    Raises:
        ConfigError: The certificate or its key cannot be used.
    """
    if config.tls_cert is None:
        return None
    for option, path in (("tls_cert", config.tls_cert), ("tls_key", config.tls_key)):
        if path is not None:
            _check_file(option, path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password=_no_password)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(
            f"tls_cert: {config.tls_cert} and its key cannot be used ({reason}). Both are PEM, and belong together"
            f"{'' if config.tls_key else '; a key in a file of its own stands in `tls_key`'}.",
            ("tls_cert",),
        ) from error
    return context


def _check_file(option: str, path: str) -> None:
    """
    Raises:
        ConfigError: There is no such file, or it cannot be read.
    """
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ConfigError(
            f"{option}: {path} cannot be read ({reason}). Name a file in PEM.", (option,)
        ) from error


def _no_password() -> str:
    """A key with a password would be asked for on the terminal."""
    raise ValueError("the key has a password; unlock it first")
