"""Tests of unilect.wire.stream: plain tokens that pass the reader of a stream while it waits for them."""

import asyncio
from contextlib import aclosing

import pytest

from support.backends.scripted import DONE, USAGE, delta, frames, one_by_one, scripted
from unilect.core.errors import QuotaExceeded, UnilectError
from unilect.core.events import Event, Finish, TextDelta, Usage
from unilect.http.client import HttpServer
from unilect.wire.chunks import ChunkDecoder
from unilect.wire.stream import stream

WORDS = [f" w{number}" for number in range(12)]
TOKENS = [frames(delta(content=word)) for word in WORDS]
BEGIN = frames(delta(role="assistant", content=""))
END = frames(delta(finish="stop"), USAGE, DONE)


class Client:
    """
    A client of a stream, which gets events of it in two ways.

    Attributes:
        events: All that it got, in order.
        pushed: How many of them came past the reader.
        declines: Takes only every other token past the reader.
        fails: Raised for the token of this number past the reader.
    """

    def __init__(self, declines: bool = False, fails: int | None = None) -> None:
        self.taken = asyncio.Semaphore(0)
        self.events: list[Event] = []
        self.pushed = self.offered = 0
        self.declines, self.fails = declines, fails

    def push(self, batch: list[Event]) -> bool:
        """Take a batch, or leave it to the reader."""
        self.offered += 1
        if self.offered == self.fails:
            raise QuotaExceeded("No tokens are left.")
        if self.declines and self.offered % 2:
            return False
        self.pushed += 1
        self.take(batch)
        return True

    def take(self, batch: list[Event]) -> None:
        """Have the next pieces sent."""
        for event in batch:
            self.events.append(event)
            self.taken.release()

    async def read(self, pieces: list[bytes], end: str = "close") -> None:
        """Read a stream of these pieces; raises as `stream`."""
        async with scripted(one_by_one(pieces, self.taken, end)) as server:
            answer = stream(
                HttpServer(server.url).stream, "/chat/completions", b"{}", ChunkDecoder(), self.push
            )
            self.taken.release()  # for what says nothing
            async with aclosing(answer):
                async for batch in answer:
                    self.take(batch)

    @property
    def texts(self) -> list[str]:
        """The texts of what it got."""
        return [event.text for event in self.events if isinstance(event, TextDelta)]


@pytest.mark.parametrize("declines", [False, True])
async def test_one_by_one(declines: bool) -> None:
    """Tokens that come one by one reach the client in their order, each once, whether it takes them past the reader or not."""
    client = Client(declines)

    await client.read([BEGIN, *TOKENS, END])

    assert WORDS == client.texts
    assert [Finish("stop"), Usage(3, 2)] == client.events[len(WORDS) :]
    assert client.pushed >= len(WORDS) // 2 - 2


async def test_what_is_no_plain_token() -> None:
    """What is not exactly one plain token of the first choice comes by the reader, in its place."""
    odd = [
        TOKENS[3][:-30],  # a frame that is cut in two
        TOKENS[3][-30:] + frames(delta(content="a"), delta(content="b")),
        frames(delta(1, content="other")),
        frames(delta(content="", reasoning_content="thought")),
        frames(
            delta(content="\ud83d\ude00 \u4e2d".encode("utf-16", "surrogatepass").decode("utf-16"))
        ),
        b": comment\n\n",
        frames(delta(content='"quoted\\"\n')),
    ]
    client = Client()
    client.taken = asyncio.Semaphore(100)

    await client.read([BEGIN, *TOKENS[:3], *odd, *TOKENS[4:], END])

    texts = [e.text for e in client.events if isinstance(e, TextDelta) and e.text and not e.index]
    assert [*WORDS[:4], "a", "b", "\U0001f600 \u4e2d", '"quoted\\"\n', *WORDS[4:]] == texts


async def test_an_error_of_who_takes() -> None:
    """An error of who takes a token past the reader is the reader's, and ends the answer."""
    client = Client(fails=4)

    with pytest.raises(QuotaExceeded):
        await client.read([BEGIN, *TOKENS, END])

    assert WORDS[: len(client.texts)] == client.texts


async def test_text_after_its_end() -> None:
    """A token after a finish reason comes by the reader, since then the answer is not whole yet."""
    client = Client()
    pieces = [BEGIN, *TOKENS[:6], frames(delta(finish="length")), *TOKENS[6:], frames(USAGE, DONE)]
    client.taken = asyncio.Semaphore(2)

    await client.read(pieces)

    assert (WORDS, Finish("length")) == (client.texts, client.events[-2])


async def test_a_server_that_breaks_off() -> None:
    """What was taken before a server broke off stays taken, and the reader gets the error."""
    client = Client()

    with pytest.raises(UnilectError):
        await client.read([BEGIN, *TOKENS], end="reset")

    assert WORDS == client.texts
