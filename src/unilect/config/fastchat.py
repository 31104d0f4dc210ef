"""Admission to the FastChat controller: networks and a token."""

import re
from collections.abc import Iterable
from ipaddress import ip_network

from unilect.config.mistakes import OptionError


def check_fastchat(workers_from: Iterable[str], token: str | None) -> None:
    """
    Check who may register.

    Args:
        workers_from: Networks of workers.
        token: For workers outside of them.

    Raises:
        ConfigError: It is no network, or no token.
    """
    for network in workers_from:
        try:
            ip_network(network, strict=False)
        except ValueError as error:
            raise OptionError(
                ("fastchat_workers_from",),
                f"{network[:50]!r} is not a network; expected one such as 10.0.0.0/8 or 10.0.0.7.",
            ) from error
    if token is not None and not re.fullmatch(r"[!-9;-~]{8,}", token):  # no colon, no blank
        raise OptionError(
            ("fastchat_token",),
            "expected at least 8 ASCII characters without a space or colon. Choose another token.",
        )
