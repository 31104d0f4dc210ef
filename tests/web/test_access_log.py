"""Tests of unilect.web._access_log."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import pytest

from support.backends.scripted import HELLO, Exchange, answer, says, scripted, stream_of
from support.common.entries import meter_of
from support.servers.appserver import serving, upstream
from unilect.accounting.metrics import Metrics
from unilect.api.backend import Backend
from unilect.config.server import Config
from unilect.core.errors import RequestCancelled
from unilect.runtime.context import Context
from unilect.runtime.logs import LogFormat, LogSink, SinkHandler
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing.echo import Echo, Options
from unilect.web import _access_log as access_log
from unilect.web._access_log import AccessLog, RequestLine


@contextmanager
def logged(form: LogFormat) -> Iterator["Closing"]:
    """What is logged in the block, as the sink writes it: all of it once the handler is closed."""
    found: list[str] = []

    def write(data: bytes) -> int:
        found.extend(data.decode().splitlines())
        return len(data)

    handler, root = SinkHandler(LogSink(write, batch_s=0, form=form)), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield Closing(handler, found)
    root.removeHandler(handler)
    root.setLevel(level)
    handler.close()


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is logged in the console format."""
    with logged("console") as found:
        yield found


@pytest.fixture
def objects() -> Iterator[list[str]]:
    """What is logged in the JSON format."""
    with logged("json") as found:
        yield found


class Closing(list[str]):
    """The lines of a sink."""

    def __init__(self, handler: SinkHandler, lines: list[str]) -> None:
        super().__init__()
        self.handler = handler
        self.lines = lines

    def all(self) -> list[str]:
        """Every line; later ones are lost."""
        self.handler.sink.close(10)
        return self.lines


def at(url: str) -> PooledBackend:
    """A backend whose source holds secrets."""
    backend: Backend = upstream(url)
    return PooledBackend(backend, url.replace("//", "//user:SECRET@") + "?key=SECRET")


@pytest.mark.parametrize("stream", [True, False])
async def test_what_a_line_tells(lines: Closing, stream: bool) -> None:
    """A line tells model, backend without secrets, tokens and the time to the first of them."""
    async with scripted(says(stream_of(HELLO))) as server:
        async with serving([at(server.url)], Config()) as app:
            async with app.chat(stream=stream) as response:
                await response.read()
            await app.get("/healthz")

    (chat,) = [line for line in lines.all() if "chat/completions" in line]
    (health,) = [line for line in lines.all() if "healthz" in line]
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO req_\w+ POST '/v1/chat/completions' 200 [\d.]+ ms anonymous "
        rf"model=m backend=http://127.0.0.1:{server.port} prompt=3 completion=2 first=[\d.]+ ms",
        chat,
    )
    assert health.endswith(" ms -")


async def test_a_line_tells_the_fallback(lines: Closing) -> None:
    """A line tells which model answered in place of the one that was asked for."""

    async def fails(exchange: Exchange) -> None:
        await exchange.send(answer(b"{}", "503 Busy"))
        exchange.close()

    async with scripted(fails) as bad, scripted(says(stream_of(HELLO))) as good:
        async with serving([at(bad.url)], fallback=[at(good.url)]) as app:
            async with app.chat() as response:
                await response.read()

    (line,) = [line for line in lines.all() if "chat/completions" in line]
    assert f"model=m backend=http://127.0.0.1:{good.port} " in line
    assert line.endswith(" fallback=other")


def test_names_of_others() -> None:
    """Control characters in the name of a discovered model do not reach the log."""
    context = Context()
    context.set_model("a\x1b[2Jb\nc", meter_of(Metrics()))
    context.set_backend("d\re", "hf:/models/\x1bq")

    assert RequestLine.of(context, "POST", "/v1/\x1b[2J", 200).text().isprintable()


@pytest.mark.parametrize("form", ["console", "json"])
async def test_an_answer_that_the_server_ends(form: LogFormat) -> None:
    """The line of a stream that this server has ended tells why, beside the status that its head had."""
    with logged(form) as found:
        async with serving(Echo(Options(text="abc" * 99, tokens_per_s=500))) as app:
            async with app.chat() as response:
                await response.content.readany()
                (context,) = app.guard.requests.values()
                context.end(RequestCancelled("It was\nended."))
                await response.read()

        (line,) = [line for line in found.all() if "chat/completions" in line]
    if form == "json":
        told = json.loads(line)
        assert (200, "operator") == (told["status"], told["ended"])
        assert r"It was\nended." == told["reason"]
    else:
        assert "200" in line
        assert line.endswith(r' ended=operator error=request_cancelled reason="It was\nended."')


@pytest.mark.parametrize("admin", [True, False])
def test_requests_of_operators(admin: bool) -> None:
    """The line of a request to the admin API says so, and that of a client's does not."""
    line = RequestLine.of(Context(caller="key"), "GET", "/models", 200, admin)

    assert admin is line.text().endswith(" key admin")
    assert admin is line.fields().get("admin", False)


async def test_lines_keep_their_order(lines: Closing) -> None:
    """Lines of requests and log records come out in the order in which they were logged."""
    log = AccessLog()
    for number in range(50):
        log.add(RequestLine.of(Context(request_id=f"request {number}"), "GET", "/", 200))
        logging.getLogger("unilect").info("record %d", number)

    found = [line.split(" INFO ")[1].partition(" GET ")[0] for line in lines.all()]
    assert [f"{what} {n}" for n in range(50) for what in ("request", "record")] == found


@pytest.mark.parametrize(
    ("level", "expected"), [(logging.DEBUG, True), (logging.INFO, True), (logging.WARNING, False)]
)
def test_level(level: int, expected: bool) -> None:
    """Requests are logged at the level info, and not above it."""
    logger = access_log.access
    before = logger.level
    logger.setLevel(level)
    try:
        assert expected is AccessLog().on
    finally:
        logger.setLevel(before)


async def test_an_answer_that_breaks(lines: Closing) -> None:
    """The line of an answer that breaks off tells the tokens so far."""
    async with serving(Echo(Options(text="abcdef", breaks_after=3, failing_answers=1))) as app:
        async with app.chat(stream=True) as response:
            await response.read()

    (line,) = [line for line in lines.all() if "chat/completions" in line]
    assert " prompt=2 completion=3 " in line


async def test_json_lines(objects: Closing) -> None:
    """A line as JSON tells what is known of the request, and leaves out what is not."""
    async with scripted(says(stream_of(HELLO))) as server:
        async with serving([at(server.url)]) as app:
            async with app.chat() as response:
                await response.read()
            await app.get("/healthz")

    asked, health = (one for one in map(json.loads, objects.all()) if "status" in one)
    numbers = {asked.pop(name) for name in ("duration_ms", "time_to_first_token_ms")}
    assert all(type(number) is float and number >= 0 for number in numbers)
    assert asked.pop("request_id").startswith("req_")
    assert asked.pop("time").endswith("Z")
    assert {
        "level": "info",
        "message": "POST /v1/chat/completions 200",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "caller": "anonymous",
        "model": "m",
        "backend": f"http://127.0.0.1:{server.port}",
        "prompt_tokens": 3,
        "completion_tokens": 2,
    } == asked
    assert {*health} == {
        *("time", "level", "message", "request_id", "method", "path", "status", "duration_ms")
    }


async def test_a_json_line_tells_the_fallback(objects: Closing) -> None:
    """A line as JSON names the model that answered in place of the one that was asked for."""
    async with scripted(says(answer(b"{}", "503 Busy"))) as bad:
        async with scripted(says(stream_of(HELLO))) as good:
            async with serving([at(bad.url)], fallback=[at(good.url)]) as app:
                async with app.chat() as response:
                    await response.read()

    (line,) = [one for one in map(json.loads, objects.all()) if "status" in one]
    assert ("m", "other") == (line["model"], line["fallback"])


PIECES = ["\r\n", "\n", "\x1b[2J", "\u2028", "\x85", "\x00", '"', "\\", "{}", "\u202e", "é" * 300]


@pytest.mark.parametrize("form", ["console", "json"])
async def test_hostile_requests(form: LogFormat) -> None:
    """300 requests with control characters in path, model, user and headers are 300 lines, each of which can be read."""
    with logged(form) as found:
        async with serving(Echo()) as app:
            for number in range(150):
                text = f"{number}{PIECES[number % 11]}{PIECES[number % 7]}forged"
                await app.get(f"/v1/{quote(text)}")
                headers = {"User-Agent": quote(text), "X-Text": text.encode().hex()}
                body = {
                    "model": text,
                    "user": text,
                    "messages": [{"role": "user", "content": text}],
                }
                url = f"http://127.0.0.1:{app.port}/v1/chat/completions"
                async with app.session.post(url, json=body, headers=headers) as response:
                    await response.read()

        told = found.all()
    assert 300 == len(told)
    if form == "json":
        assert {404} == {json.loads(line)["status"] for line in told}
    else:
        assert all(
            re.match(r"\d{4}-\S+ \S+ INFO req_", line) and line.isprintable() for line in told
        )
