"""The texts of the options about pages of other origins (CORS), which go into headers of answers."""

import re
from collections.abc import Callable

from unilect.config.values import describe_value

#: `file://` is what views of files in an application send.
_ORIGIN = re.compile(
    r"\*|null|file://|[a-z][a-z0-9+.-]*://(?:[\w.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?", re.ASCII | re.I
)
_TOKEN = re.compile(r"[!#$%&'*+.^`|~\w-]+", re.ASCII)  # RFC 9110, 5.6.2


def is_origin(text: str) -> bool:
    """Return True if a text can be the origin of a page, or stand for any."""
    return _ORIGIN.fullmatch(text) is not None


def _expect(form: re.Pattern[str], expected: str) -> Callable[[str], str]:
    """Make the check of an option whose texts have a form."""

    def check(text: str) -> str:
        return "" if form.fullmatch(text) else f"expected {expected}, found {describe_value(text)}."

    return check


check_origin = _expect(
    _ORIGIN,
    "`*`, `null`, or SCHEME://HOST[:PORT] without a path or a slash at the end, such as https://chat.example.org",
)
check_method = _expect(_TOKEN, "the name of a method, such as POST")
check_header = _expect(_TOKEN, "`*`, or the name of a header, such as X-Team")
