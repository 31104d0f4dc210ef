"""
API keys of clients.

Keys are stored as SHA-256 digests and looked up by the whole digest. The timing of a look-up depends on the digest of the sent
string only, which reveals nothing about a key; no two strings are compared.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping

from unilect.errors import AuthenticationError, MissingKey


class Keys:
    """
    The accepted keys.

    Args:
        keys: The secrets. If there are none, no key is required.
        any_scheme: `Authorization` may hold the key after any word, as llama.cpp's older server had it.
    """

    def __init__(self, keys: Iterable[str] = (), any_scheme: bool = False) -> None:
        self._any_scheme = any_scheme
        self._names = {_digest(key): _name(key) for key in keys}

    def __bool__(self) -> bool:
        """True when a key is required."""
        return bool(self._names)

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Whether an accepted key was sent; false if none is required."""
        secret = self._secret(headers)
        return secret is not None and _digest(secret) in self._names

    def caller(self, headers: Mapping[str, str], as_password: bool = False) -> str:
        """
        The caller's name for logs, from `Authorization: Bearer`, `X-API-Key` or `api-key`.

        Args:
            as_password: `Authorization: Basic` may hold the key too, as a browser sends it that was asked for a password.

        Raises:
            AuthenticationError: No key, or a wrong one.
        """
        if not self._names:
            return "anonymous"
        secret = (_password(headers) if as_password else None) or self._secret(headers)
        if secret is None:
            raise MissingKey(
                "No API key was sent. Send one as `Authorization: Bearer KEY`, `X-API-Key: KEY` or "
                "`api-key: KEY`."
            )
        name = self._names.get(_digest(secret))
        if name is None:
            error = AuthenticationError("Incorrect API key provided: this server does not know it.")
            error.wrong = True
            raise error
        return name

    def _secret(self, headers: Mapping[str, str]) -> str | None:
        authorization = headers.get("Authorization")
        if authorization is not None:
            scheme, _, secret = authorization.partition(" ")
            if (scheme.lower() == "bearer" or self._any_scheme) and secret.strip():
                return secret.strip()
        return headers.get("X-API-Key") or headers.get("api-key")


def _password(headers: Mapping[str, str]) -> str | None:
    """The password of HTTP Basic authentication, or the user's name where that is all that was entered."""
    scheme, _, encoded = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:
        return None
    return password or user or None


def _name(key: str) -> str:
    """The name of a key in logs: a part of its digest."""
    return f"key-{_digest(key).hex()[:8]}"


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
