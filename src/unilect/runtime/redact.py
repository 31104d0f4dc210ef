"""
Redaction of secrets: credentials in URLs, and configured secrets in the words of a server.

Every URL that is printed, logged or sent goes through `redact`. A server's error message goes through `Secrets`, because
some servers repeat the key that they receive.
"""

import base64
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote, unquote, unquote_plus, urlsplit

MASK = "***"
_USER = re.compile(r"//([^\s/?#]*)@")
#: A password that is not percent-encoded, and so looks like a port and a path; and `user:password@host` without a scheme.
_BROKEN_USER = re.compile(r"//(?:[^\s/?#@:\[]+:(?!\d{1,5}(?:[/?#\s]|$))|:)[^\s@]{0,200}@")
#: The same of a store, which has hardly an `@` behind a real port and path.
_BROKEN_STORE = re.compile(
    r"((?:postgres(?:ql)?|rediss?)(?:\+\w{1,20})?:)//[^\s/?#@:\[]+:[^\s@]{0,200}@", re.IGNORECASE
)
_NO_URL = re.compile(r"(//[^/?#]*).*", re.DOTALL)  # what follows a host
_BARE_USER = re.compile(r"^[^\s/?#@:]+:[^\s/@]+@")
_FIELD = re.compile(r"([?&;#])([^=&#\s?;]*)=([^&#\s;]*)")
_SECRET_NAME = re.compile(r"key|token|secret|passw|pwd|auth|cred|sig|code|session", re.IGNORECASE)
_LONG_VALUE = re.compile(r"[A-Za-z0-9_.~+/%=-]{24,}")
#: What is put into the place of a key that a server does not ask for.
_NO_SECRETS = frozenset({"", "none", "null", "empty", "dummy", "test", "key", "ollama"})
_LEAST_LENGTH = 8  # a shorter secret is removed only where it is a word by itself
_LEAST_BEGINNING = 4


def redact(text: str) -> str:
    """
    Return a text whose URLs hold no credentials: no user, no password, no value of a query that may be a key.

    >>> redact("http://me:pw@host/v1?api-version=2&api_key=abc")
    'http://***@host/v1?api-version=2&api_key=***'
    """
    text = _USER.sub(f"//{MASK}@", text)
    text = _BROKEN_USER.sub(f"//{MASK}@", text)
    text = _BROKEN_STORE.sub(rf"\1//{MASK}@", text)
    text = _BARE_USER.sub(f"{MASK}@", text)
    return _FIELD.sub(_field, text)


def _field(match: re.Match[str]) -> str:
    before, name, value = match.groups()
    secret = _is_secret(name, value)
    return f"{before}{name}={MASK}" if secret else match.group()


def _is_secret(name: str, value: str) -> bool:
    return bool(value) and bool(_SECRET_NAME.search(name) or _LONG_VALUE.fullmatch(value))


@lru_cache(256)
def shorten(source: str) -> str:
    """Return a source as a log line or a metric may show it: of a server scheme, host and port, of a model file its name."""
    try:
        parts = urlsplit(source)
        host, port = parts.hostname, parts.port
    except ValueError:  # any text may be the source of a backend of another package
        return _NO_URL.sub(r"\1", redact(source))
    if host is None:
        return source.rpartition("/")[2]
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}"


def secrets_of(url: str) -> Iterator[str]:
    """Yield the credentials that stand in a URL: its user and password, and the values of its query that may be keys."""
    for match in _USER.finditer(url):
        user, _, password = match.group(1).rpartition("@")[2].partition(":")
        yield from (unquote(user), unquote(password))
        yield basic(unquote(user), unquote(password))
    for match in _FIELD.finditer(url):
        _, name, value = match.groups()
        if _is_secret(name, value):
            yield unquote_plus(value)


def basic(user: str, password: str) -> str:
    """Return the credentials of HTTP's Basic authentication."""
    return base64.b64encode(f"{user}:{password}".encode()).decode()


class Secrets:
    """
    Texts that must not be shown.

    Args:
        values: The secrets; what is empty, or a usual placeholder, is none.
    """

    def __init__(self, values: Iterable[str | None] = ()) -> None:
        found = {value for value in values if value and value.lower() not in _NO_SECRETS}
        found |= {quote(value, safe="") for value in found}
        self._values = sorted(found, key=len, reverse=True)
        patterns = [
            re.escape(value) if len(value) >= _LEAST_LENGTH else rf"(?<!\w){re.escape(value)}(?!\w)"
            for value in self._values
        ]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def remove_from(self, text: str) -> str:
        """Return the text without them; nor does it end with the beginning of one, as a text that was cut may."""
        if self._pattern is None:
            return text
        text = self._pattern.sub(MASK, text)
        for value in self._values:
            for length in range(min(len(value) - 1, len(text)), _LEAST_BEGINNING - 1, -1):
                if text.endswith(value[:length]):
                    return text[:-length] + MASK
        return text
