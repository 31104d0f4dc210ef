"""
Whose request is in hand, for what lies too deep to be told: which caller a failure belongs to, and which request a line of the log.

The guard sets it for each request; whatever runs for that request, in its task or in one that it has started, finds it.
"""

from contextvars import ContextVar
from typing import NamedTuple


class Caller(NamedTuple):
    """
    Who asks.

    Attributes:
        request_id: The request's id, as the client and the access log have it.
        name: The name of the caller's key; empty where nobody needs one.
    """

    request_id: str = ""
    name: str = ""


NOBODY = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=NOBODY)
