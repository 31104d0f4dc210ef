"""The options about pages of other origins (CORS), which go into headers of answers."""

import re
from collections.abc import Mapping
from typing import Any

from unilect.config.mistakes import ErrorCollector
from unilect.config.values import describe_value

#: `file://` is what views of files in an application send.
_ORIGIN = re.compile(
    r"\*|null|file://|[a-z][a-z0-9+.-]*://(?:[\w.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?", re.ASCII | re.I
)
_TOKEN = re.compile(r"[!#$%&'*+.^`|~\w-]+", re.ASCII)  # RFC 9110, 5.6.2
_EXPECTED = {
    "allowed_origins": "`*`, `null`, or SCHEME://HOST[:PORT] without a path or a slash at the end, such as https://chat.example.org",
    "allowed_methods": "the name of a method, such as POST",
    "allowed_headers": "`*`, or the name of a header, such as X-Team",
}


def is_origin(text: str) -> bool:
    """Return True if a text can be the origin of a page, or stand for any."""
    return _ORIGIN.fullmatch(text) is not None


def check_cors(options: Mapping[str, Any]) -> None:
    """
    Check the options of a server about pages of other origins.

    Raises:
        ConfigError: It is not so.
    """
    found = ErrorCollector()
    for option, expected in _EXPECTED.items():
        for text in options[option]:
            if not (is_origin(text) if option == "allowed_origins" else _TOKEN.fullmatch(text)):
                found.at((option,), f"expected {expected}, found {describe_value(text)}.")
    if options["allow_credentials"] and "*" in options["allowed_origins"]:
        found.at(
            ("allow_credentials",),
            "browsers reject credentials with `*`; name the origins in allowed_origins.",
        )
    found.raise_all()
