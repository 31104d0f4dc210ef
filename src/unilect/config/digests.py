"""
API keys of a configuration as SHA-256 digests: `sha256:` and 64 hexadecimal digits stand for a key that the file does not hold.

A server looks a key up by its digest, so a digest cannot be sent as a key. One step of SHA-256 is enough for keys of 128 random bits and
more, as `unilect keys create` and `openssl rand -hex 32` make them; a short word can be found from its digest by trying.
"""

import hashlib
import re
from collections.abc import Collection, Iterable

from unilect.config.mistakes import ErrorCollector, OptionPath

_MARK = "sha256:"
_FORM = re.compile(r"sha256:[0-9a-f]{64}", re.IGNORECASE)
_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")


def is_digest(text: str) -> bool:
    """Return True if a key of a configuration is given by its digest."""
    return _FORM.fullmatch(text) is not None


def key_digest(text: str) -> bytes:
    """Return the digest of a key of a configuration, 32 bytes, of one that is given by its digest too."""
    if is_digest(text):
        return bytes.fromhex(text[len(_MARK) :])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def identity(digest: bytes) -> str:
    """
    Make the name of a key of a configuration, in logs and for its use and its stored responses: a quarter of its digest, 64 bits.

    >>> identity(bytes(32))
    'key-0000000000000000'
    """
    return f"key-{digest.hex()[:16]}"


def check_secrets(keys: Collection[str], path: OptionPath, found: ErrorCollector) -> None:
    """Note keys that cannot be sent, digests that are none, and two keys that would be one caller."""
    if any(not key.strip() or not key.isascii() or " " in key for key in keys):
        found.at(path, "a key is empty, or has spaces or non-ASCII characters.")
    known = dict[str, bytes]()
    for digest in map(key_digest, keys):
        if known.setdefault(identity(digest), digest) != digest:
            found.at(
                path,
                f"two keys have the same identity, {identity(digest)}, the first 16 digits of their digests, and would be "
                "one caller. Replace one of them.",
            )
    if any(key.startswith(_MARK) and not is_digest(key) for key in keys):
        found.at(
            path,
            "`sha256:` is not followed by 64 hexadecimal digits. `unilect keys digest` prints the digest of a key.",
        )


def hash_keys(keys: Iterable[str]) -> list[str]:
    """
    Return the digests of keys of a configuration.

    >>> hash_keys(["a"])
    ['sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb']
    """
    return [_MARK + key_digest(key).hex() for key in keys]


def is_variable(text: str) -> bool:
    """Return True for `$NAME`, which stands for a secret in the environment."""
    return _VARIABLE.fullmatch(text) is not None
