"""
API keys of a configuration as SHA-256 digests: `sha256:` and 64 hexadecimal digits stand for a key that the file does not hold.

A server looks a key up by its digest, so a digest cannot be sent as a key. One step of SHA-256 is enough for keys of 128 random bits and
more, as `unilect keys create` and `openssl rand -hex 32` make them; a short word can be found from its digest by trying.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from unilect.mistakes import Mistakes

_MARK = "sha256:"
_FORM = re.compile(r"sha256:[0-9a-f]{64}", re.IGNORECASE)
_VARIABLE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")


def is_digest(text: str) -> bool:
    """Whether a key of a configuration is given by its digest."""
    return _FORM.fullmatch(text) is not None


def is_no_digest(text: str) -> bool:
    """Whether a text is meant as a digest, and is none."""
    return text.startswith(_MARK) and not is_digest(text)


def key_digest(text: str) -> bytes:
    """The digest of a key of a configuration, 32 bytes, of one that is given by its digest too."""
    if is_digest(text):
        return bytes.fromhex(text[len(_MARK) :])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def check_digests(keys: Iterable[str], path: tuple[str, ...], found: Mistakes) -> None:
    """Keys that are meant as digests are digests."""
    if any(map(is_no_digest, keys)):
        found.add(
            f"{'.'.join(path)}: `sha256:` is not followed by 64 hexadecimal digits. `unilect keys digest` prints the digest of a key.",
            path,
        )


def hashed(keys: Iterable[str]) -> list[str]:
    """
    Keys of a configuration, each by its digest.

    >>> hashed(["a"])
    ['sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb']
    """
    return [_MARK + key_digest(key).hex() for key in keys]


def plain_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """
    The options of a TOML file that hold a key itself: neither its digest nor `$NAME`.

    Args:
        values: The file's, whatever is wrong with them.
    """
    admin = values.get("admin")
    for name, table in (("", values), ("admin.", admin if isinstance(admin, dict) else {})):
        keys = table.get("api_keys")
        for key in [keys] if isinstance(keys, str) else keys if isinstance(keys, list) else []:
            if _is_plain(key):
                yield f"{name}api_keys"
                break
    if _is_plain(values.get("fastchat_token")):
        yield "fastchat_token"
    models = values.get("models")
    for name, table in models.items() if isinstance(models, dict) else ():
        if isinstance(table, dict) and _is_plain(table.get("api_key")):
            yield f"models.{name}.api_key"


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, str)
        and value != ""
        and not is_digest(value)
        and not _VARIABLE.fullmatch(value)
    )
