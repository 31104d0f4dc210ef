"""
Answers whose backend dies in the middle: every client gets the text of an undisturbed run, whole and once.

`UNILECT_KILLS=200` kills each engine, and cuts each upstream, so many times.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from inprocess import Site, site, until

from support.backends.engine import ENGINES_IN_CI, IN_CI, SOURCES
from support.backends.llama_server import llama_server
from unilect.answers import resume
from unilect.answers.resume import DeliveredOutput
from unilect.api.backend import Batches
from unilect.config.server import Config, ModelConfig
from unilect.core.errors import UnilectError
from unilect.core.events import tells
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.engines.transformers.engine import HfEngine

KILLS = int(os.environ.get("UNILECT_KILLS", "20" if IN_CI else "6"))
#: A child of transformers takes seconds of the processor to start: each word is asked for once.
KILLS_OF_TRANSFORMERS = int(os.environ.get("UNILECT_KILLS", "6"))
TOKENS = 240
WORDS = ("Paris", "rain", "an old dog", "the sea", "a 🙂", "breakfast, in verse")
GREEDY = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(60 + 30 * KILLS)]
#: What is drawn is the same in every run.
draw = random.Random(12)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES_IN_CI)
async def mortal_site(request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    """A server of the bundled model on each engine."""
    model = ModelConfig(source=SOURCES[request.param], parallel=4)
    async with site(Config(port=0, models={"demo": model}, log_level="error")) as running:
        yield running


@pytest.fixture
def mortal(mortal_site: Site) -> Site:
    """The server, when nothing is known of earlier deaths."""
    suspects = mortal_site.suspects
    suspects._deaths, suspects._lingering = [], []
    return mortal_site


class Read:
    """
    A stream as its client reads it.

    Attributes:
        pieces: What came of the text.
        calls: What came of calls, as names and pieces of arguments.
        logprobs: The tokens whose log probabilities came.
        last: The last frame; `[DONE]` as it is.
        used: The tokens of the prompt and of the answer.
        at_death: How much of the text had come when the engine was killed.
    """

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.calls: list[str] = []
        self.logprobs: list[Any] = []
        self.last: Any = None
        self.used = (0, 0)
        self.at_death = 0

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    @property
    def begun(self) -> int:
        """How many pieces have come."""
        return len(self.pieces) + len(self.calls)

    async def more(self, response: Any) -> bool:
        """Read a line; false at the end."""
        line = await response.content.readline()
        if line.startswith(b"data: "):
            data = line[6:].strip()
            self.last = "[DONE]" if data == b"[DONE]" else json.loads(data)
            if self.last != "[DONE]":
                self._take(self.last)
        return bool(line)

    def _take(self, frame: dict[str, Any]) -> None:
        if usage := frame.get("usage"):
            self.used = usage["prompt_tokens"], usage["completion_tokens"]
        for choice in frame.get("choices", ()):
            delta = choice.get("delta", choice)
            if said := delta.get("content") or delta.get("text"):
                self.pieces.append(said)
            for call in delta.get("tool_calls") or ():
                function = call["function"]
                self.calls.append(function.get("name") or "")
                self.calls.append(function.get("arguments") or "")
            self.logprobs += (choice.get("logprobs") or {}).get("content") or ()


async def streamed(running: Site, after: int | None, path: str, **body: Any) -> Read:
    """A stream that is read to its end, and whose engine is killed after so many pieces."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    read, killed = Read(), after is None
    life = 0 if killed else running.child.starts
    async with running.post(path, **body, **options) as response:
        assert 200 == response.status
        while await read.more(response):
            if not killed and read.begun >= (after or 0):
                killed, read.at_death = True, len(read.text)
                kill(running)
    assert killed
    if after is not None:  # a death that comes late would be the next request's

        async def is_back() -> bool:
            return running.child.starts > life and running.child.alive

        await until(is_back)
    return read


def kill(running: Site) -> None:
    """Kill the engine, which may have died before as often as it likes."""
    assert running.child.pid is not None
    running.child.restarts.deaths.clear()
    os.kill(running.child.pid, signal.SIGKILL)


def asked(number: int) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request: chats and completions in turn."""
    word = WORDS[number % len(WORDS)]
    if number % 2:
        return COMPLETION, GREEDY | {"prompt": f"Once upon a time, {word}"}
    return CHAT, GREEDY | {"messages": [{"role": "user", "content": f"Tell me about {word}."}]}


def what_is_asked(running: Site, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the engine is asked from now on, in a list that grows."""
    backend = running.registry.get(None).pool.members[0].backend
    generate, found = backend.generate, list[Any]()
    monkeypatch.setattr(backend, "generate", lambda one: (found.append(one), generate(one))[1])
    return found


@pytest.mark.heavy
async def test_an_engine_that_is_killed_at_any_token(
    mortal: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A greedy stream whose engine is killed after any of its tokens has the text and the usage of an undisturbed one."""
    asked_for = what_is_asked(mortal, monkeypatch)
    undisturbed: dict[int, Read] = {}
    interrupted = 0
    backend = mortal.registry.get(None).pool.members[0].backend
    while interrupted < (KILLS_OF_TRANSFORMERS if isinstance(backend, HfEngine) else KILLS):
        which = interrupted % (2 * len(WORDS))
        path, body = asked(which)
        if which not in undisturbed:
            undisturbed[which] = await streamed(mortal, None, path, **body)
        expected = undisturbed[which]
        asked_for.clear()
        read = await streamed(mortal, draw.randrange(1, TOKENS // 2), path, **body)

        assert (expected.text, expected.used, "[DONE]") == (read.text, read.used, read.last)
        assert TOKENS == read.used[1]
        interrupted += len(asked_for) == 2  # else it had made the rest before it was killed


async def test_a_whole_answer(mortal: Site) -> None:
    """A whole greedy answer whose engine is killed is that of an undisturbed run."""
    path, body = asked(0)
    body["max_tokens"] = 400
    texts = []
    for kills in (False, True):
        whole = asyncio.ensure_future(mortal.post(path, **body).__aenter__())
        if kills:
            await mortal.until_busy(1)
            kill(mortal)
        texts.append((await (await whole).json())["choices"][0]["message"]["content"])

    assert texts[0] == texts[1]


FIELDS: dict[str, dict[str, Any]] = {
    "a seed": {"temperature": 1.2, "seed": 7},
    "several choices": {"n": 2},
    "log probabilities": {"logprobs": True, "top_logprobs": 2},
    "a grammar": {"grammar": 'root ::= ("ab" | "cd")*', "temperature": 1, "seed": 3},
    "penalties": {"frequency_penalty": 1.0, "presence_penalty": 0.5, "seed": 5, "temperature": 0.7},
    "a call": {
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "note",
                    "parameters": {
                        "type": "object",
                        "properties": {
                            "numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 20, "maxItems": 20},
                        },
                        "required": ["numbers"],
                    },
                },
            }
        ],
        "tool_choice": "required",
        "seed": 4,
        "temperature": 1,
    },
}  # fmt: skip


@pytest.mark.heavy
@pytest.mark.parametrize("what", FIELDS)
async def test_what_else_goes_on(mortal: Site, what: str) -> None:
    """An answer goes on as it would have without the death, also one that is drawn by chance, bound, or half of a call."""
    _, body = asked(0)
    # a prompt that is read behind a cached beginning has other roundings, and chance may turn on one
    body = body | {"ignore_eos": what != "a call", "cache_prompt": False} | FIELDS[what]
    expected = await streamed(mortal, None, CHAT, **body)
    read = await streamed(mortal, 9, CHAT, **body)

    assert ("[DONE]", expected.used) == (read.last, read.used)
    if what == "several choices":  # which come beside each other
        assert sorted(expected.text) == sorted(read.text)
    else:
        assert expected.text == read.text
    assert "".join(expected.calls) == "".join(read.calls)
    tokens = [[one["token"] for one in logprobs] for logprobs in (expected.logprobs, read.logprobs)]
    assert tokens[0] == tokens[1]


async def another(batches: Batches, told: DeliveredOutput, lost: UnilectError) -> Batches:
    """An answer that turns out to be another one."""
    async with aclosing(batches):
        async for batch in batches:
            if tells(batch):
                raise lost
            yield batch


@pytest.mark.heavy
async def test_an_engine_that_is_given_the_text(
    mortal: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an engine makes another answer it goes on with the text: at the seam nothing is missing or told twice, and all tokens are made."""
    monkeypatch.setattr(resume, "filter_replay", another)
    can = mortal.registry.get(None).pool.members[0].backend.capabilities
    asked_for = what_is_asked(mortal, monkeypatch)
    number = 0
    while number < 4:
        path, body = asked(number)
        if path == CHAT and not can.continues:
            number += 1
            continue
        if path == CHAT:
            body |= {
                "messages": [{"role": "user", "content": f"Tell me a story about {WORDS[number]}."}]
            }
        expected = await streamed(mortal, None, path, **body)
        asked_for.clear()
        read = await streamed(mortal, 17 + number, path, **body)
        seen = read.at_death + 20  # what comes later may turn on a rounding
        if len(asked_for) == 1 or len(given(asked_for[-1])) > len(given(asked_for[0])) + seen:
            continue  # it died late: what comes after an end is not read again as the tokens that it was
        assert 3 == len(asked_for)
        assert (expected.text[:seen], "[DONE]") == (read.text[:seen], read.last)
        assert expected.used == read.used
        number += 1


def given(request: ChatRequest | CompletionRequest) -> str:
    """What an engine is given: a prompt, or all messages."""
    if isinstance(request, CompletionRequest):
        return str(request.prompt)
    return "".join(str(message.content) for message in request.messages)


async def test_an_answer_without_a_seed(mortal: Site) -> None:
    """An answer that is left to chance goes on too: what its client has is made again with the seed that it was begun with."""
    _, body = asked(0)
    read = await streamed(mortal, 20, CHAT, **body | {"temperature": 1.5})

    assert ("[DONE]", TOKENS) == (read.last, read.used[1])


class Scissors:
    """
    Proxies that cut answers off.

    Attributes:
        after: How many frames of the next answer they let through; None for all of them.
        cuts: How many answers they have cut off.
    """

    def __init__(self) -> None:
        self.after: int | None = None
        self.cuts = 0

    @asynccontextmanager
    async def before(self, url: str) -> AsyncIterator[str]:
        """The URL of a proxy in front of a server."""
        address, tasks = urlsplit(url), set[Any]()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.current_task())  # the server itself holds none of them
            theirs, ours = await asyncio.open_connection(address.hostname, address.port)
            upwards = asyncio.create_task(handed_on(reader, ours))
            try:
                with suppress(ConnectionError):
                    await self._answered(theirs, writer)
            finally:
                upwards.cancel()
                for side in (ours, writer):
                    side.close()
                    with suppress(ConnectionError):
                        await side.wait_closed()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = 0
        while data := await reader.readline():
            frames += data.startswith(b"data: ")
            if self.after is not None and frames > self.after:
                self.after, self.cuts = None, self.cuts + 1
                writer.transport.abort()
                return
            writer.write(data)
            await writer.drain()


async def handed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hand the bytes of one side on."""
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@pytest.fixture(scope="module")
def llama_urls() -> Iterator[list[str]]:
    """Two of llama.cpp's own servers with the bundled model."""
    with llama_server() as first, llama_server() as second:
        yield [first, second]


@pytest.mark.heavy
async def test_upstreams_that_are_cut_at_any_frame(llama_urls: list[str]) -> None:
    """A greedy stream of a server that breaks off at any frame goes on at another one, and has the text of an undisturbed one."""
    scissors, different = Scissors(), list[Any]()
    undisturbed: dict[int, Read] = {}
    async with AsyncExitStack() as stack:
        sources = [await stack.enter_async_context(scissors.before(url)) for url in llama_urls]
        models = {"demo": ModelConfig(source=sources)}
        config = Config(port=0, models=models, log_level="error")
        running = await stack.enter_async_context(site(config))
        for number in range(KILLS):
            which = number % (2 * len(WORDS))
            path, body = asked(which)
            if which not in undisturbed:
                undisturbed[which] = await streamed(running, None, path, **body)
            scissors.after = draw.randrange(2, TOKENS // 2)
            read, expected = await streamed(running, None, path, **body), undisturbed[which]
            if (expected.text, expected.used, "[DONE]") != (read.text, read.used, read.last):
                different.append(
                    (path, expected.used, read.used, expected.text, read.text, read.last)
                )

    assert KILLS == scissors.cuts
    assert not different, f"{len(different)} of {KILLS}: {different[:3]}"
