"""
The text of an API key: `ul_ID_SECRET_CHECKSUM`, in letters and digits, so that a double click selects all of it.

ID has 8 characters and can be shown; SECRET has 256 random bits; CHECKSUM tells a typing error from a key that is not known, without
a look into the store.

Source: https://github.blog/engineering/platform-security/behind-githubs-new-authentication-token-formats/
"""

import re
import secrets
import string
import zlib

PREFIX = "ul_"
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_ID_DIGITS, _SECRET_DIGITS, _SUM_DIGITS = 8, 43, 6  # 62 ** 43 > 2 ** 256, 62 ** 6 > 2 ** 32
_FORM = re.compile(rf"(ul_([0-9A-Za-z]{{{_ID_DIGITS}}})_[0-9A-Za-z]{{{_SECRET_DIGITS}}})_([0-9A-Za-z]{{{_SUM_DIGITS}}})")  # fmt: skip


def new_secret() -> str:
    """Make a new key."""
    id = "".join(secrets.choice(_DIGITS) for _ in range(_ID_DIGITS))
    text = f"{PREFIX}{id}_{_in_digits(secrets.randbits(256), _SECRET_DIGITS)}"
    return f"{text}_{_checksum(text)}"


def id_of(secret: str) -> str | None:
    """Return the ID of a key of ours; None where the text has not its form, or another checksum."""
    found = _FORM.fullmatch(secret)
    if found is None:
        return None
    text, id, told = found.groups()
    return id if _checksum(text) == told else None


def is_mistyped(secret: str) -> bool:
    """Return True if a text begins as a unilect key, and is not one."""
    return secret.startswith(PREFIX) and id_of(secret) is None


def _checksum(text: str) -> str:
    return _in_digits(zlib.crc32(text.encode()), _SUM_DIGITS)


def _in_digits(number: int, count: int) -> str:
    found = []
    for _ in range(count):
        number, digit = divmod(number, len(_DIGITS))
        found.append(_DIGITS[digit])
    return "".join(reversed(found))
