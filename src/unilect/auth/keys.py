"""
API keys of clients: those of the configuration, and those of the store.

Keys are held as SHA-256 digests and looked up by the whole digest. The timing of a look-up depends on the digest of the sent
string only, which reveals nothing about a key; no two strings are compared.
"""

import base64
import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from unilect.auth.key_cache import KeyCache, wrong
from unilect.config.digests import identity, key_digest
from unilect.core.errors import MissingKey, PermissionDenied
from unilect.runtime import context


class Caller(NamedTuple):
    """
    The sender of a request.

    Attributes:
        name: In logs and stored objects: the id of a key of the store, or a part of the digest of another.
        models: The names of the models that it may use; None for all.
        owner: The owner of its key; empty for none.
        limits: Its limits, by name.
    """

    name: str
    models: frozenset[str] | None = None
    owner: str = ""
    limits: Mapping[str, float] = {}


ANONYMOUS = Caller(context.ANONYMOUS)


def digest(secret: str) -> bytes:
    """Hash a key: 32 bytes, SHA-256. The 256 random bits of a key of ours need no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class Keys:
    """
    The accepted keys.

    Args:
        keys: The secrets of the configuration, or their digests as it writes them.
        any_scheme: `Authorization` may hold the key after any word, as llama.cpp's older server had it.
        known: The keys of the store, if it has any.
    """

    def __init__(
        self,
        keys: Iterable[str] = (),
        any_scheme: bool = False,
        known: KeyCache | None = None,
    ) -> None:
        self._any_scheme = any_scheme
        self._callers = dict[bytes, Caller]()
        self._known = known
        self.change(keys)

    def change(self, keys: Iterable[str]) -> None:
        """Take these secrets of the configuration, and no others, from now on."""
        self._callers = {found: Caller(identity(found)) for found in map(key_digest, keys)}

    @property
    def callers(self) -> set[str]:
        """The names of the keys of the configuration."""
        return {caller.name for caller in self._callers.values()}

    @property
    def required(self) -> bool:
        """
        True if a request must have a key.

        Raises:
            StoreUnavailable: It is unknown whether the store has keys.
        """
        return bool(self._callers) or (self._known is not None and self._known.required)

    def knows(self, headers: Mapping[str, str], as_password: bool = False) -> bool:
        """Return True if a key of the configuration was sent; the arguments are as of `caller`."""
        secret = self._secret(headers, as_password)
        return secret is not None and digest(secret) in self._callers

    async def caller(self, headers: Mapping[str, str], as_password: bool = False) -> Caller:
        """
        Find the sender of a request, by `Authorization: Bearer`, `X-API-Key` or `api-key`.

        Args:
            as_password: `Authorization: Basic` may have the key too, as a browser sends it after it has prompted for a password.

        Raises:
            AuthenticationError: No key, or a wrong one.
            StoreUnavailable: The keys of the store cannot be read.
        """
        known = self._known
        if not self._callers:
            if known is None or known.is_open:
                return ANONYMOUS
            known.check_fresh()
        secret = self._secret(headers, as_password)
        if secret is None:
            raise MissingKey(
                "No API key was sent. Send one as `Authorization: Bearer KEY`, `X-API-Key: KEY` or "
                "`api-key: KEY`."
            )
        hashed = digest(secret)
        if (caller := self._callers.get(hashed)) is not None:
            return caller
        if known is None:
            raise wrong("this server does not know it.")
        key = await known.key(secret, hashed)
        models = None if key.models is None else frozenset(key.models)
        return Caller(key.id, models, key.owner, key.limits)

    def _secret(self, headers: Mapping[str, str], as_password: bool) -> str | None:
        if as_password and (password := _password(headers)) is not None:
            return password
        authorization = headers.get("Authorization")
        if authorization is not None:
            scheme, _, secret = authorization.partition(" ")
            if scheme == "Bearer" or scheme.lower() == "bearer" or self._any_scheme:
                secret = secret.strip()
                if secret:
                    return secret
        return headers.get("X-API-Key") or headers.get("api-key")


class MetricsKeys:
    """
    Access to the metrics at an address of clients: for everybody where it asks for no key, else with a key for that, or of the admin API.

    Args:
        clients: The keys of the address.
        own: The secrets of the configuration for metrics, or their digests.
        admin: Those of the admin API.
    """

    def __init__(self, clients: Keys, own: Collection[str], admin: Collection[str]) -> None:
        self._clients = clients
        self.change(own, admin)

    def change(self, own: Collection[str], admin: Collection[str]) -> None:
        """Take these secrets, and no others, from now on."""
        self._has_own, self._accepted = bool(own), Keys([*own, *admin])

    @property
    def open(self) -> bool:
        """
        True if everybody may read the metrics.

        Raises:
            StoreUnavailable: As `Keys.required`.
        """
        return not (self._has_own or self._clients.required)

    async def caller(self, headers: Mapping[str, str], as_password: bool = False) -> Caller:
        """
        Find the sender as `Keys.caller` does.

        Raises:
            PermissionDenied: A client's key was sent.
        """
        if self.open:
            return ANONYMOUS
        if self._clients.required and not self._accepted.knows(headers, as_password):
            await self._clients.caller(headers, as_password)
            raise PermissionDenied(
                "A client's API key may not read /metrics, which tells what all clients do. Send one of `metrics_keys` of the "
                "server's configuration, or ask the admin API."
            )
        return await self._accepted.caller(headers, as_password)


def _password(headers: Mapping[str, str]) -> str | None:
    """Return the password of HTTP Basic authentication, or the user's name where that is all that was entered."""
    scheme, _, encoded = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:
        return None
    return password or user or None
