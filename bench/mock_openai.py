#!/usr/bin/env python3
"""
A mock of an OpenAI server, made to cost as little as possible: what a gateway in front of it costs is what is left.

It answers every GET with a list of one model, `m`, and every POST with a chat completion: one JSON body, or, where the request
says `"stream": true`, an event stream of a role frame, CHUNKS content frames, a finish frame, a usage frame and `[DONE]`, each
written by itself as a real engine does. Connections are kept open.

usage: mock_openai.py PORT
environment: CHUNKS   content frames of a stream [64]
             DELAY_S  seconds between two frames [0]; streams are then trickled by a timer each
"""

import asyncio
import json
import os
import re
import sys
from typing import Any, cast

import uvloop

CHUNKS = int(os.environ.get("CHUNKS", "64"))
DELAY_S = float(os.environ.get("DELAY_S", "0"))
WORD = "hello "
WANTS_STREAM = re.compile(rb'"stream"\s*:\s*true')
LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
END_OF_HEAD = b"\r\n\r\n"
END_OF_CHUNKS = b"0\r\n\r\n"


def whole_answer(body: dict[str, Any]) -> bytes:
    """A response with a length."""
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return head.encode() + END_OF_HEAD + data


def http_chunk(frame: str) -> bytes:
    """One server-sent event as one chunk of a chunked body."""
    data = f"data: {frame}\n\n".encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def completion(kind: str, **fields: Any) -> dict[str, Any]:
    """What every object of an answer has."""
    return {"id": "chatcmpl-mock", "object": kind, "created": 1_700_000_000, "model": "m", **fields}


def delta_frame(delta: dict[str, str], finish: str | None = None) -> bytes:
    """A frame with one choice."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return http_chunk(json.dumps(completion("chat.completion.chunk", choices=[choice])))


def stream_frames() -> list[bytes]:
    """The head of a stream, then its frames."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    usage = completion("chat.completion.chunk", choices=[], usage=USAGE)
    return [
        head + END_OF_HEAD,
        delta_frame({"role": "assistant", "content": ""}),
        *[delta_frame({"content": WORD})] * CHUNKS,
        delta_frame({}, "stop"),
        http_chunk(json.dumps(usage)),
        http_chunk("[DONE]") + END_OF_CHUNKS,
    ]


USAGE = {"prompt_tokens": 10, "completion_tokens": CHUNKS, "total_tokens": 10 + CHUNKS}
MESSAGE = {"role": "assistant", "content": WORD * CHUNKS}
CHOICE = {"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}
WHOLE = whole_answer(completion("chat.completion", choices=[CHOICE], usage=USAGE))
MODELS = whole_answer({"object": "list", "data": [{"id": "m", "object": "model", "created": 1}]})
FRAMES = stream_frames()


class Connection(asyncio.Protocol):
    """One client; requests are answered in turn."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where answers go."""
        self.transport = cast(asyncio.Transport, transport)
        self.unread = b""
        self.timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop trickling."""
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete."""
        self.unread += data
        while (request := self.next_request()) is not None:
            self.answer(*request)

    def next_request(self) -> tuple[bytes, bytes] | None:
        """Head and body of the next request; None while it is incomplete."""
        head, found, rest = self.unread.partition(END_OF_HEAD)
        if not found:
            return None
        size = 0
        if length := LENGTH.search(head):
            size = int(length.group(1))
        elif head.startswith(b"POST"):  # a chunked body; nobody needs it in one piece
            size = rest.find(END_OF_CHUNKS) + len(END_OF_CHUNKS)
            if size < len(END_OF_CHUNKS):
                return None
        if len(rest) < size:
            return None
        self.unread = rest[size:]
        return head, rest[:size]

    def answer(self, head: bytes, body: bytes) -> None:
        """Write one answer, or begin to trickle it."""
        if head.startswith(b"GET"):
            self.transport.write(MODELS)
        elif not WANTS_STREAM.search(body):
            self.transport.write(WHOLE)
        elif DELAY_S:
            self.trickle(0)
        else:
            for frame in FRAMES:
                self.transport.write(frame)

    def trickle(self, number: int) -> None:
        """Write one frame, and the next one later."""
        self.transport.write(FRAMES[number])
        if number + 1 < len(FRAMES):
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(DELAY_S, self.trickle, number + 1)


async def main() -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", int(sys.argv[1]), backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
