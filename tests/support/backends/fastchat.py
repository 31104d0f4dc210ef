"""A FastChat controller with one worker, both on one port of this machine, that answer what a test chooses."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from support.backends.scripted import Exchange, Scripted, answer, chunked, scripted

PLAIN = b"HTTP/1.1 200 OK\r\n\r\n"  # the real worker names no content type
CONV = {
    "name": "test",
    "system_template": "{system_message}",
    "system_message": "",
    "roles": ["User", "Bot"],
    "messages": [],
    "offset": 0,
    "sep_style": 1,
    "sep": "\n",
    "sep2": None,
    "stop_str": "###",
    "stop_token_ids": [2],
}


def frame(text: str, **fields: Any) -> bytes:
    """A frame as a worker writes it."""
    return msgspec.json.encode({"text": text, "error_code": 0} | fields) + b"\0"


def used(prompt: int, completion: int) -> dict[str, int]:
    """A frame's usage."""
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


HELLO = [
    frame("Hel", usage=used(3, 1), finish_reason=None),
    frame("Hello", usage=used(3, 2), finish_reason=None),
    frame("Hello", usage=used(3, 2), finish_reason="stop"),
]


class FakeFastChat:
    """
    What the servers answer, and what they were asked.

    Attributes:
        answers: The JSON answers, by path.
        addresses: The workers that the controller names, one after the other, the last again and again; itself by default.
        pieces: What the worker streams.
        asked: The bodies that each path got.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "/refresh_all_workers": None,
            "/list_models": {"models": ["m"]},
            "/list_multimodal_models": {"models": []},
            "/worker_get_conv_template": {"conv": CONV},
            "/model_details": {"context_length": 100},
            "/count_token": {"count": 10, "error_code": 0},
            "/worker_get_status": {"model_names": ["m"], "speed": 1, "queue_length": 0},
        }
        self.addresses: list[str] = []
        self.pieces: Sequence[bytes] = HELLO
        self.asked: dict[str, list[Any]] = {}
        self.server: Scripted

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://127.0.0.1:{self.server.port}"

    @property
    def params(self) -> dict[str, Any]:
        """What the worker was asked to generate last."""
        found: dict[str, Any] = self.asked["/worker_generate_stream"][-1]
        return found

    async def script(self, exchange: Exchange) -> None:
        """Answer one request."""
        path = exchange.head.split(b" ")[1].decode()
        self.asked.setdefault(path, []).append(exchange.json() if exchange.body else None)
        if path == "/worker_generate_stream":
            await exchange.send(chunked(self.pieces, PLAIN))
        elif path == "/get_worker_address":
            address = self.addresses.pop(0) if len(self.addresses) > 1 else None
            address = address or (self.addresses[0] if self.addresses else self.url)
            await exchange.send(answer(msgspec.json.encode({"address": address})))
        elif path in self.answers:
            await exchange.send(answer(msgspec.json.encode(self.answers[path])))
        else:
            await exchange.send(answer(b'{"detail":"Not Found"}', "404 Not Found"))
        exchange.close()


@asynccontextmanager
async def fake_fastchat() -> AsyncIterator[FakeFastChat]:
    """Such servers, until the block ends."""
    fake = FakeFastChat()
    async with scripted(fake.script) as fake.server:
        yield fake
