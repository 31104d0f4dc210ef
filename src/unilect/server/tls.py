"""
The certificate of the server: read where it listens, and where a configuration is checked.
"""

import re
import ssl

from unilect.config.mistakes import OptionError
from unilect.config.plain_file import read_plain
from unilect.config.server import Config
from unilect.core.errors import ConfigError

_MOST_BYTES = 1024 * 1024


def server_context(config: Config) -> ssl.SSLContext | None:
    """
    Make the TLS context of the server; None where it speaks HTTP.

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
        raise _fault(config.tls_cert, config.tls_key, error) from error
    return context


def _fault(cert: str, key: str | None, error: Exception) -> ConfigError:
    """Return what is wrong with a certificate and its key, with the option that is to be changed."""
    of_cert, of_key = _pem(cert), _pem(key or cert)
    has_key = re.search(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----", of_key) is not None
    if b"-----BEGIN CERTIFICATE-----" not in of_cert:
        swapped = b"-----BEGIN CERTIFICATE-----" in of_key
        what = "the key; the certificate is in `tls_key`. Swap the two" if swapped and key else "no certificate in PEM. Name a PEM file with the certificate"  # fmt: skip
        return OptionError(("tls_cert",), f"{cert} holds {what}.")
    if not has_key and key is None:
        return OptionError(
            ("tls_cert",), f"{cert} holds no private key. Name the file with the key in `tls_key`."
        )
    if not has_key:
        return OptionError(
            ("tls_key",),
            f"{key} holds no private key in PEM. Name the PEM file with the certificate's key.",
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "damaged, or of an unknown kind").lower().replace("_", " ")
        wrong = "KEY_VALUES_MISMATCH" in (error.reason or "")
        reason = "the key is that of another certificate" if wrong else reason
    else:
        reason = str(error)
    return OptionError(
        ("tls_cert",),
        f"{cert} and {key or 'its key'} cannot be used: {reason}. Name a certificate and the key that belongs to it.",
    )


def _pem(path: str) -> bytes:
    with open(path, "rb") as file:  # they have been opened before
        return file.read(_MOST_BYTES)


def _check_file(option: str, path: str) -> None:
    """
    Raises:
        ConfigError: There is no such file, or it cannot be read.
    """
    try:
        read_plain(path, _MOST_BYTES)
    except OSError as error:
        raise OptionError(
            (option,), f"{path} cannot be read ({error.strerror}). Name a file in PEM."
        ) from error


def _no_password() -> str:
    """Refuse a key with a password, which would be asked for on the terminal."""
    raise ValueError("the key has a password; unlock it first")
