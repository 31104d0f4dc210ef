"""
Reasons for connection failures and error answers of an upstream, for the operator: with its address and its error text.

Clients do not get these texts, and the log of a request gets them without the server's words.
"""

import errno
import re
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from unilect.http.base_url import ENDPOINT
from unilect.http.error_bodies import clean, error_text, for_log, plain
from unilect.runtime.redact import redact

MAX_TOLD = 300  # characters of what a server said
_SELF_SIGNED = frozenset({18, 19})  # OpenSSL's X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT, ..._IN_CHAIN
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_VERSION = re.compile(r"/v\d+$")
_TRUST = "SSL_CERT_FILE names a file of trusted certificates"


def of_connecting(error: BaseException, host: str, port: int, timeout_s: float) -> str:
    """Return the reason why the connection failed, as the end of a sentence."""
    where = f"{host}:{port}"
    match error:
        case TimeoutError():
            return f"no connection to {where} within {timeout_s:.0f} s"
        case socket.gaierror():
            return f"the name {host} does not resolve ({error.strerror or error})"
        case UnicodeError():
            return f"the name {clean(host)} is not a valid host name"
        case ssl.SSLCertVerificationError():
            return _of_certificate(error, host, where)
        case ssl.SSLError():
            told = error.reason or "no TLS"
            is_plain = told in ("WRONG_VERSION_NUMBER", "no TLS")
            hint = ", as one without TLS does; try http://" if is_plain else ""
            return f"{where} failed the TLS handshake ({told}){hint}"
        case ConnectionRefusedError():
            return f"connection refused by {where}"
        case ConnectionError():
            return f"{where} closed the connection during the handshake"
        case OSError():
            return _of_system(error, where)
    return f"no connection to {where} ({error})"


def _of_certificate(error: ssl.SSLCertVerificationError, host: str, where: str) -> str:
    if error.verify_code in _SELF_SIGNED:
        return f"the certificate of {where} is self-signed and not trusted ({_TRUST})"
    told = clean(error.verify_message).rstrip(".")
    hint = f" ({_TRUST})" if "issuer" in told else ""
    return f"the certificate of {where} is not valid for {host}: {told}{hint}"


def _of_system(error: OSError, where: str) -> str:
    """Return an OSError in words; if several addresses failed with the same error, that error."""
    numbers = {int(number) for number in _ERRNO.findall(str(error))}
    if error.errno is None and numbers == {errno.ECONNREFUSED}:
        return f"connection refused by {where}"
    return f"no connection to {where} ({clean(error.strerror or str(error))})"


def of_answer(
    asked: str, status: int, headers: Mapping[str, str], body: bytes, hint: str = ""
) -> tuple[str, str]:
    """
    Return an error answer with its status and the server's error text; and what the log of a request tells of it, without that text.

    Args:
        asked: The method and the URL, `POST http://host/v1/x`.
        hint: What the operator may do.
    """
    words = error_text(body) if plain(body) is not None else ""
    if words in ("", "no reason given"):
        words = clean(body[:2000].decode("utf-8", "replace"))
    method, _, url = asked.partition(" ")
    told = f"{method} {redact(url)} was answered with status {status}"
    if status == 404 and (better := likely_base(url)):
        told += f"; the base URL is likely {redact(better)}"
    logged = f"{told}{for_log(words)}.{hint}"
    if 300 <= status < 400:
        told += f", a redirect to {redact(clean(headers.get('location')))}, which is not followed"
    if not words:
        return f"{told}.{hint}", logged
    words = words[:MAX_TOLD]
    return f"{told}: {words.rstrip('.')}.{hint}" if hint else f"{told}: {words}", logged


def likely_base(url: str) -> str:
    """Return the base URL that was likely meant, if a URL of OpenAI's API was not found; empty if there is no better guess."""
    parts = urlsplit(url)
    base = ENDPOINT.sub("", parts.path)
    better = ENDPOINT.sub("", base)
    if "/v1/" in better:
        better = better[: better.index("/v1/") + 3]
    elif not better.endswith("/v1"):
        better = _VERSION.sub("", better) + "/v1"
    query = f"?{parts.query}" if parts.query else ""
    return "" if better == base else f"{parts.scheme}://{parts.netloc}{better}{query}"
