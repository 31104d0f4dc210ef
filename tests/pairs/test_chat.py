"""`unilect chat` with what a person puts into it: texts of several lines, and images."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from support.backends.loopback import served
from support.servers.terminals import PROMPT, Terminal

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("UNILECT_")}


class Blind:
    """
    A server of a model that reads text only.

    Attributes:
        asked: The contents of the last messages that it was sent.
    """

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.port = 0

    async def describe(self, request: web.Request) -> web.Response:
        """Describe the model, or all."""
        return web.json_response({"data": [{"id": "m"}], "unilect": {"vision": False}})

    async def answer(self, request: web.Request) -> web.Response:
        """Answer `Yes.`"""
        self.asked.append((await request.json())["messages"][-1]["content"])
        chunk = {"choices": [{"index": 0, "delta": {"content": "Yes."}, "finish_reason": "stop"}]}
        body = b"data: %s\n\ndata: [DONE]\n\n" % msgspec.json.encode(chunk)
        return web.Response(body=body, content_type="text/event-stream")


@pytest.fixture
def blind() -> Iterator[Blind]:
    """The server."""
    server = Blind()
    with served(
        web.get("/v1/models", server.describe),
        web.get("/v1/models/m", server.describe),
        web.post("/v1/chat/completions", server.answer),
    ) as server.port:
        yield server


def test_a_pasted_text_is_one_message(blind: Blind, tmp_path: Path) -> None:
    """Several lines that are pasted, in the brackets that the terminal is asked for, are one question, which the arrow key of a later chat brings back."""
    command = [sys.executable, "-m", "unilect", "chat"]
    environment = ENVIRONMENT | {"XDG_DATA_HOME": str(tmp_path)}
    for keys in ("\x1b[200~/one two\n/quit\n\nthree\x1b[201~\r", "\x1b[A\r"):
        chat = Terminal([*command, "--url", f"http://127.0.0.1:{blind.port}/v1"], environment)
        try:
            asked_for_brackets = "\x1b[?2004h" in chat.until(PROMPT)
            chat.type(keys)
            chat.until("Yes.")
            chat.until(PROMPT)
        finally:
            chat.process.kill()
            chat.process.wait()

    assert asked_for_brackets
    assert ["/one two\n/quit\n\nthree"] * 2 == blind.asked


def test_an_image_for_a_text_model(blind: Blind, tmp_path: Path) -> None:
    """A file with an image is refused before anything is sent where the model reads text only; an address of one stays text, and the chat goes on."""
    image = tmp_path / "cat.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n")
    lines = [f"/image {image}", f"What is {image} ?", "See https://host/a.png", "Hi"]
    done = subprocess.run(
        [sys.executable, "-m", "unilect", "chat", "--url", f"http://127.0.0.1:{blind.port}"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=30,
        env=ENVIRONMENT,
    )

    assert ["See https://host/a.png", "Hi"] == blind.asked
    assert (
        2
        * [
            f"unilect: {image}: the model m reads text only, and nothing was sent. /model NAME switches to one that sees images."
        ]
        == done.stderr.splitlines()
    )
    assert 1 == done.returncode
