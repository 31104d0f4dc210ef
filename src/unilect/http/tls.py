"""TLS of connections to servers."""

import ssl
from functools import cache


@cache
def client_context() -> ssl.SSLContext:
    """
    Return the context of all connections to servers, which have their certificates checked against the system's authorities.

    It takes tens of milliseconds to make, since it reads the certificates of all authorities; `cache_clear` has the next call read them
    again.
    """
    return ssl.create_default_context()
