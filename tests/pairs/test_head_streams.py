"""HEAD, with the events of a response that is still made."""

import asyncio

from support.backends.scripted import DONE, USAGE, Exchange, delta, frames, stream_of
from support.clients.responses_client import client


async def test_head_and_the_events_of_a_stored_response() -> None:
    """HEAD of a response's events is their head alone while the response is made, which goes on and is told to who asks with GET."""
    finish = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(role="assistant", content="Hello"))))
        await finish.wait()
        await exchange.send(frames(delta(finish="stop"), USAGE, DONE))
        exchange.close()

    async with client(script) as one:
        made = await one.create("Hi", background=True)
        path = f"/v1/responses/{made['id']}?stream=true"
        reader, writer = await asyncio.open_connection("127.0.0.1", one.app.port)
        for method, close in (("HEAD", ""), ("GET", "Connection: close\r\n")):
            writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{close}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"200" == head[9:12]
        assert b"text/event-stream" in head
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        finish.set()
        events = await reader.read()
        writer.close()

    assert b"event: response.created" in events
    assert b"event: response.completed" in events
