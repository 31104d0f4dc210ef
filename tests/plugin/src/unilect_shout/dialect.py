"""The dialect: POST /shout with `{"say": "..."}`, answered with plain text, at once or as it comes."""

from aiohttp import web

from unilect.core.errors import UnilectError
from unilect.core.events import Answer, Event, TextDelta
from unilect.core.requests import ChatRequest, Message, Request
from unilect.web.decode import BodyDecoder, decode_request
from unilect.web.route import Route
from unilect.web.site import Site
from unilect.web.streaming import respond

_TEXT = "text/plain; charset=utf-8"


class ShoutRequest(Request, frozen=True, kw_only=True):
    """POST /shout."""

    say: str
    stream: bool = False


class Encoder:
    """Text, and nothing else."""

    def encode(self, batch: list[Event]) -> bytes:
        """The text of a batch."""
        return "".join(event.text for event in batch if isinstance(event, TextDelta)).encode()

    def keep_alive(self) -> bytes:
        """Nothing: every byte is a part of the text."""
        return b""

    def end(self) -> bytes:
        """The end of a line."""
        return b"\n"

    def error(self, error: UnilectError) -> bytes:
        """A line of its own."""
        return f"\nerror: {error.message}\n".encode()

    def whole(self, answer: Answer, ignored: tuple[str, ...]) -> bytes:
        """The text as JSON."""
        return b'{"shouted": "%s"}' % (answer.choices[0].text or "").encode()


_decoder = BodyDecoder(ShoutRequest)


def routes(site: Site) -> list[Route]:
    """The URLs of this dialect."""

    async def shout(request: web.Request) -> web.StreamResponse:
        """Shout a text."""
        asked = await decode_request(request, _decoder.decode)
        chat = ChatRequest(
            model=asked.model, stream=asked.stream, messages=[Message("user", asked.say)]
        )
        return await respond(request, site.service.run(chat), Encoder(), _TEXT)

    return [Route("POST", "/shout", shout, "shout", request=ShoutRequest, summary="Shout a text")]
