"""Requests as bodies give them, for tests of what becomes of their fields."""

from typing import Any

import msgspec

from unilect.core.requests import ChatRequest


def chat(**fields: Any) -> ChatRequest:
    """A chat request as a body gives it, with its raw fields."""
    return request_of(ChatRequest, {"messages": [{"role": "user", "content": "Hi"}]} | fields)


def request_of(kind: Any, body: dict[str, Any]) -> Any:
    """A request of a body, with its raw fields."""
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in body.items()}
    decoded = msgspec.json.decode(msgspec.json.encode(body), type=kind)
    return msgspec.structs.replace(decoded, raw_fields=raw)
