"""Admission to the FastChat controller: networks and a token."""

import re
from ipaddress import ip_network


def check_network(text: str) -> str:
    """Return what is wrong with a network of workers; empty for nothing."""
    try:
        ip_network(text, strict=False)
    except ValueError:
        return f"{text[:50]!r} is not a network; expected one such as 10.0.0.0/8 or 10.0.0.7."
    return ""


def check_token(text: str) -> str:
    """Return what is wrong with a token for workers of other networks; empty for nothing."""
    if re.fullmatch(r"[!-9;-~]{8,}", text):  # no colon, no blank
        return ""
    return "expected at least 8 ASCII characters without a space or colon. Choose another token."
