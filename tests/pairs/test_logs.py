"""The log together with the texts of requests and answers, in both formats."""

import json
import logging
from collections.abc import Callable, Iterator

import pytest

from support.servers.appserver import serving
from unilect.runtime.logs import LogFormat, LogSink, SinkHandler
from unilect.testing.echo import Echo, Options

MARK = "zebra quux"


@pytest.fixture(params=["console", "json"])
def logged(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """A function that ends the log, and returns what the sink has written."""
    found: list[str] = []
    form: LogFormat = request.param

    def write(data: bytes) -> int:
        found.append(data.decode())
        return len(data)

    handler, root = SinkHandler(LogSink(write, batch_s=0, form=form)), logging.getLogger()
    level = root.level

    def text() -> str:
        root.removeHandler(handler)
        handler.close()
        return "".join(found)

    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield text
    root.setLevel(level)
    text()


async def test_no_prompt_and_no_answer(logged: Callable[[], str]) -> None:
    """Neither a prompt nor an answer stands in a line, of a request that succeeds, is refused, or breaks off; what is wrong does."""
    chat = {"messages": [{"role": "user", "content": MARK}]}
    async with serving(Echo(Options(text=MARK, failing_answers=1, breaks_after=1))) as app:
        for more in (
            {},
            {},
            {"stop": [MARK] * 1000},
            {"messages": [{"role": MARK}]},
            {"model": "nosuch"},
        ):
            async with app.chat(**{**chat, **more}) as response:
                await response.read()

    text = logged()
    assert "zebra" not in text
    assert "quux" not in text
    for word in (
        "model_not_found",
        "nosuch",
        "messages[0].role",
        "127.0.0.1",
        "backend_error",
    ):
        assert word in text


async def test_control_characters(logged: Callable[[], str]) -> None:
    """What others choose adds no line, and no control character: a model, a path."""
    async with serving(Echo()) as app:
        async with app.chat(model="a\nb\x1b[2J") as response:
            await response.read()
        async with app.session.get(f"http://127.0.0.1:{app.port}/a%0ab%1b") as response:
            await response.read()

    text = logged()
    assert 2 == len([line for line in text.splitlines() if "req_" in line])
    assert all(line.isprintable() for line in text.splitlines())
    if text.startswith("{"):
        assert all(json.loads(line)["error"] for line in text.splitlines() if "req_" in line)
