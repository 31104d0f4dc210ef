"""A server's base URL, and the headers that are sent with each request."""

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.runtime.redact import basic, redact


def key_headers(config: ModelConfig) -> dict[str, str]:
    """Return the header that carries the key of an upstream, where it has one."""
    if config.api_key is None:
        return {}
    bearer = config.api_key_header.lower() == "authorization"
    return {config.api_key_header: f"Bearer {config.api_key}" if bearer else config.api_key}


#: The path of an endpoint at the end of a URL.
ENDPOINT = re.compile(r"(/chat/completions|/completions|/embeddings|/rerank|/models)/*$")


def check_base(url: str) -> None:
    """
    Check that a URL is the base URL of an OpenAI-compatible server, not the URL of an endpoint.

    Raises:
        ConfigError: The URL ends with the path of an endpoint.
    """
    parts, _ = split(url)
    base = ENDPOINT.sub("", parts.path)
    if base != parts.path:
        right = parts._replace(path=base).geturl()
        raise ConfigError(
            f"{redact(url)}: this is the URL of one call, and the base URL is needed, which comes before "
            f"{parts.path[len(base) :]}: write {redact(right)}."
        )


def root_of(url: str) -> str:
    """Return a base URL without its last `/v1`, for endpoints outside of it."""
    parts, _ = split(url)
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1")).geturl()


def split(base: str) -> tuple[SplitResult, int]:
    """
    Return the parts of a base URL, and its port.

    Raises:
        ConfigError: The URL is not that of a server.
    """
    try:
        url = urlsplit(base)
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError as error:
        is_port = "port" in str(error).lower()
        why = "its port is no number from 1 to 65535" if is_port else "it is not a URL"
        raise ConfigError(
            f"{redact(base)}: {why}. Write a URL such as http://host:8000/v1."
        ) from error
    if (
        url.scheme not in ("http", "https")
        or not url.hostname
        or not re.fullmatch(r"[!-~]+", base)
        or url.fragment
    ):
        raise ConfigError(f"{redact(base)}: expected a URL such as http://host:8000/v1.")
    return url, port


def with_user(url: SplitResult, headers: Mapping[str, str]) -> Mapping[str, str]:
    """
    Return the headers with the URL's user and password as Basic authentication, if it has them.

    Raises:
        ConfigError: Another key is configured for the same header.
    """
    if url.username is None:
        return headers
    if any(name.lower() == "authorization" for name in headers):
        raise ConfigError(
            f"{redact(url.geturl())}: the URL has a user, and there is a key besides; both would be the header "
            "`Authorization`. Leave one of them out."
        )
    user, password = unquote(url.username), unquote(url.password or "")
    return {**headers, "Authorization": f"Basic {basic(user, password)}"}


def head(host: str, headers: Mapping[str, str], reuse: bool) -> bytes:
    """
    Return the headers of every request.

    Raises:
        ConfigError: One is not a valid header.
    """
    lines = {
        "Host": host,
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "Connection": "keep-alive" if reuse else "close",
        **headers,
    }
    for name, value in lines.items():
        if not re.fullmatch(r"[A-Za-z0-9-]+", name) or not re.fullmatch(r"[\x20-\x7e]*", value):
            raise ConfigError(f"The header {name[:50]!r} for an upstream is not a valid one.")
    return "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()
