"""A native answer of llama.cpp's server: one POST, its frames as events. The engine's child and foreign servers are read alike."""

from contextlib import aclosing

from unilect.backend import Batches
from unilect.errors import UnilectError
from unilect.events import Event
from unilect.http.client import HttpServer
from unilect.http.sse import FrameReader
from unilect.upstreams.llamacpp.frames import FrameDecoder
from unilect.upstreams.openai.backend import GATHER_S


async def native_stream(
    server: HttpServer, path: str, body: bytes, decoder: FrameDecoder
) -> Batches:
    """
    POST a request for a stream and yield its events.

    Raises:
        UnilectError: As `HttpServer.stream` and `FrameDecoder`.
    """
    reader = FrameReader()
    gather_s = GATHER_S if decoder.joined else 0.0
    async with aclosing(server.stream(path, body, gather_s)) as chunks:
        async for data in chunks:
            batch: list[Event] = []
            try:
                decoder.decode(reader.feed(data), batch)
            except UnilectError:
                if batch:
                    yield batch
                raise
            if batch:
                yield batch
            if decoder.done and not server.reuses_connections:
                break
    batch = []
    decoder.decode(reader.end(), batch)
    decoder.end()
    if batch:
        yield batch
