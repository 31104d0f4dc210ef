"""
Keeps callers apart in the prompt cache of a vLLM server, which sees one client: unilect.

Each request gets a `cache_salt`, from which the caller cannot be told. Requests with other salts share nothing in vLLM's cache. It has been
known in chats and plain completions since vLLM 0.10; before 0.11 an engine could be in use that refuses it. A server that does not tell its
version gets none.

Source: https://docs.vllm.ai/en/stable/features/automatic_prefix_caching/; https://github.com/vllm-project/vllm/pull/17045
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from unilect.runtime.context import ANONYMOUS, cache_owner

FIELD = "cache_salt"
_SINCE = (0, 11)
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(?![0-9])")


def takes_salt(version: object) -> bool:
    """Return True if this version of vLLM keeps prompts with different salts apart and never refuses a salt."""
    match = _VERSION.match(version) if isinstance(version, str) else None
    return match is not None and (int(match[1]), int(match[2])) >= _SINCE


class Salts:
    """
    The salts of one upstream's callers; others after each start of unilect.

    Args:
        shares: The model's option `share_cache`: nobody gets a salt.
    """

    def __init__(self, shares: bool = False) -> None:
        self._shares = shares
        self._key = secrets.token_bytes(32)

    def of(self, fields: Mapping[str, Any]) -> dict[str, str]:
        """
        Return the field of the request in hand; none where no key is required, since all callers are one then.

        Args:
            fields: The request's; a salt of the client's own parts its requests further.
        """
        if self._shares or cache_owner() == ANONYMOUS:
            return {}
        given = fields.get(FIELD)
        what = msgspec.json.encode([cache_owner(), given])
        return {FIELD: hmac.new(self._key, what, hashlib.sha256).hexdigest()}
