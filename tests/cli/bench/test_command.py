"""`unilect bench`, before real servers and hostile ones: what is counted, what is written, and how it ends."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from aiohttp import web
from click.testing import CliRunner

from support.backends.loopback import served
from support.servers.serving import serve
from unilect.cli import main as cli

REHEARSALS = 3  # requests to each server before the first step
HOSTILE = "<script>alert(1)</script>\u202e\x1b[2J\"'"
WORD = 'data: {"choices": [{"index": 0, "delta": {"content": "word"}}]}\n\n'
END = 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
#: The answers of the hostile server, in turn, with the kind of failure that each is.
ANSWERS: list[tuple[str, str]] = [
    ("\ufeff" + (": hi\n\n" + WORD + END).replace("data: ", "data:").replace("\n", "\r\n"), ""),
    (WORD + 'data: {"choices": [], "usage": {"prompt_tokens": -5, "completion_tokens": 1e400}}\n\n' + END, "error in the stream"),
    (WORD + 'data: {"choices": [], "usage": {"prompt_tokens": -5, "completion_tokens": -7}}\n\n' + END, ""),
    (WORD + 'data: {"error": {"message": ' + json.dumps(HOSTILE) + "}}\n\n", "error in the stream"),
    (WORD, "error in the stream"),
    (WORD + "data: {\n\n" + END, "error in the stream"),
    (END, "empty answer"),
    ("500", "HTTP 500"),
    ("json", "no stream"),
    (WORD + "broken", "connection broken"),
]  # fmt: skip
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def run(*arguments: str) -> Any:
    """What `unilect bench` does with these arguments."""
    return CliRunner().invoke(cli.app, ["bench", *arguments], env={"UNILECT_API_KEY": None})


async def stream(request: web.Request, text: str) -> web.StreamResponse:
    """Answer with a stream; one that ends with `broken` breaks off."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(text.removesuffix("broken").encode())
    if text.endswith("broken"):
        assert request.transport is not None
        request.transport.close()
    return response


def chat(answer: Handler) -> list[web.RouteDef]:
    """The routes of a server with a model of a hostile name, which answers the rehearsals well."""
    rehearsals = iter(range(REHEARSALS))

    async def handle(request: web.Request) -> web.StreamResponse:
        is_first = next(rehearsals, None) is not None
        return await (stream(request, WORD + END) if is_first else answer(request))

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": HOSTILE}]})

    return [web.post("/v1/chat/completions", handle), web.get("/v1/models", models)]


class _Tags(HTMLParser):
    """The tags of a page, and the texts between them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.text = set[str](), ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag; none has a handler, or an address."""
        self.tags.add(tag)
        assert not {name for name, _ in attrs if name.startswith("on") or name in ("href", "src")}

    def handle_data(self, data: str) -> None:
        """Keep a text."""
        self.text += data


def test_two_servers(tmp_path: Path) -> None:
    """Two servers with different keys answer all requests of an open loop, are compared, and the tokens are those that they count."""
    page, data = tmp_path / "report.html", tmp_path / "results.json"
    config = "api_keys = ['sk-{}']\n[models.m]\nsource = 'echo:'\n"
    with serve(config=config.format("one")) as one, serve(config=config.format("two")) as two:
        done = run(
            f"one={one.url}", f"two={two.url}", "--api-key", "sk-one", "--api-key", "sk-two", "--rate", "10,20", "--seconds", "0.4",
            "--prompt-tokens", "100", "--output-tokens", "9", "--ttft-ms", "60000", "--html", str(page), "--json", str(data),
        )  # fmt: skip

    assert 0 == done.exit_code, done.output
    results = json.loads(data.read_text())
    steps = results["steps"]
    # each server is first once
    assert [("one", 10), ("two", 10), ("two", 20), ("one", 20)] == [(step["server"], step["load"]) for step in steps]  # fmt: skip
    assert [4, 4, 8, 8] == [step["requests"] for step in steps] == [step["completed"] for step in steps]  # fmt: skip
    assert all((9, 1, 1) == (step["output_tokens"], step["counted_share"], step["good_share"]) for step in steps)  # fmt: skip
    # a token of echo: is a character
    assert all(90 <= step["prompt_tokens"] <= 110 for step in steps)
    assert "two by one" in done.stdout
    assert "sk-" not in done.output + data.read_text() + page.read_text()
    html = page.read_text()
    drawn = [ElementTree.fromstring(f"<svg{one.split('</svg>')[0]}</svg>") for one in html.split("<svg")[1:]]  # fmt: skip
    assert [4, 4, 2, 3] == [len(list(plot.iter("polyline"))) for plot in drawn]


def test_a_hostile_server(tmp_path: Path) -> None:
    """Each kind of broken answer is a failure of its kind, the whole ones count, and nothing that the server says is obeyed."""
    page, data, answers = tmp_path / "report.html", tmp_path / "results.json", iter(ANSWERS)

    async def answer(request: web.Request) -> web.StreamResponse:
        text, _ = next(answers)
        if text == "500":
            return web.Response(status=500, text=HOSTILE, content_type="text/html", headers={"Server": "<b>"})  # fmt: skip
        return web.json_response({"x": 1}) if text == "json" else await stream(request, text)

    with served(*chat(answer)) as port:
        done = run(f"http://127.0.0.1:{port}", "--concurrency", "1", "--requests", str(len(ANSWERS)), "--seconds", "60", "--html", str(page), "--json", str(data))  # fmt: skip

    assert 0 == done.exit_code, done.output
    (step,) = json.loads(data.read_text())["steps"]
    kinds = [kind for _, kind in ANSWERS if kind]
    assert {kind: kinds.count(kind) for kind in kinds} == {one["kind"]: one["count"] for one in step["failures"]}  # fmt: skip
    assert (2, 0) == (step["completed"], step["counted_share"])
    parser = _Tags()
    parser.feed(page.read_text())
    assert not parser.tags & {"script", "b", "iframe", "img", "link", "object", "a"}
    assert "<script>alert(1)</script>" in parser.text
    assert not {"\x1b", "\u202e"} & {*page.read_text(), *done.output}


def test_an_open_loop() -> None:
    """Requests at a rate wait for none before them: the server answers only once it has all."""
    all_here, here = asyncio.Event(), 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal here
        here += 1
        if here == 8:
            all_here.set()
        await all_here.wait()
        return await stream(request, WORD + END)

    with served(*chat(answer)) as port:
        done = run(f"http://127.0.0.1:{port}/v1", "--rate", "20", "--seconds", "0.4", "--timeout", "30")  # fmt: skip

    assert 0 == done.exit_code
    assert "8 done, 0 failed" in done.stderr


def test_a_closed_loop() -> None:
    """So many requests as asked for are in flight, and never more; the run ends after the last that is allowed."""
    three, running = asyncio.Event(), list[int]()
    now = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal now
        now += 1
        running.append(now)
        if now == 3:
            three.set()
        await three.wait()
        response = await stream(request, WORD)
        now -= 1
        await response.write(END.encode())
        return response

    with served(*chat(answer)) as port:
        done = run(f"http://127.0.0.1:{port}", "--concurrency", "3,4", "--requests", "9", "--seconds", "60")  # fmt: skip

    assert 0 == done.exit_code
    assert (9, 3) == (len(running), max(running))
    assert "ended early: after 9 requests (--requests)" in done.stdout


def test_strict_servers() -> None:
    """A server that refuses what not every server knows is asked in plainer words, which is noted."""
    bodies = list[dict[str, Any]]()

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        if {"ignore_eos", "max_tokens"} & bodies[-1].keys():
            return web.json_response({"error": {"message": "unknown field"}}, status=400)
        return await stream(request, WORD + END)

    with served(web.post("/v1/chat/completions", answer)) as port:
        done = run(f"http://127.0.0.1:{port}", "--model", "m", "--concurrency", "1", "--requests", "2", "--output-tokens", "5")  # fmt: skip

    assert 0 == done.exit_code
    assert 3 + REHEARSALS + 2 == len(bodies)
    assert {"model", "messages", "stream", "max_completion_tokens", "stream_options"} == bodies[-1].keys()  # fmt: skip
    assert "it refuses `ignore_eos`" in done.stdout


def test_ctrl_c(tmp_path: Path) -> None:
    """Ctrl-C ends a run that waits, with the results so far and the exit code of an interruption."""
    hangs, data, count = threading.Event(), tmp_path / "results.json", iter(range(9))

    async def answer(request: web.Request) -> web.StreamResponse:
        if next(count):
            hangs.set()
            await asyncio.Event().wait()
        return await stream(request, WORD + END)

    with served(*chat(answer)) as port:
        line = [sys.executable, "-m", "unilect", "bench", f"http://127.0.0.1:{port}", "--concurrency", "1", "--json", str(data)]  # fmt: skip
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert hangs.wait(60)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)

    assert 130 == process.returncode, errors
    results = json.loads(data.read_text())
    assert "interrupted" == results["ended_early"]
    assert [(2, 1, 1, 0)] == [(step["requests"], step["completed"], step["unfinished"], step["failed"]) for step in results["steps"]]  # fmt: skip
    assert b"Every step" in output


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("", 2, "Missing argument"),
        ("http://127.0.0.1:9", 1, "cannot be reached"),
        (
            "http://127.0.0.1:9 --model m",
            1,
            "127.0.0.1:9: the first requests failed (no connection)",
        ),
        ("localhost:8000", 1, "localhost:8000: expected a URL"),
        ("http://a http://b http://c", 1, "at most 2"),
        ("http://a --model x --model y", 1, "--model: given 2 times for 1 server."),
        ("http://a --rate 1 --concurrency 1", 1, "Leave one of them out."),
        ("http://a --concurrency 1.5", 1, "expected whole numbers"),
        ("http://a --rate 0", 2, "expected numbers above 0"),
        ("http://a --rate nan", 2, "expected numbers above 0"),
        ("http://a --rate 1,,2", 2, "expected numbers above 0"),
        ("http://a --json /nowhere/x", 1, "--json /nowhere/x: its folder does not exist"),
        ("http://a --html /", 1, "is a folder"),
        ("http://a --request-rate 4", 2, "Use --rate."),
        ("http://a --max-concurrency 4", 2, "Use --concurrency."),
    ],
)
def test_mistakes(line: str, code: int, said: str) -> None:
    """What cannot be measured is told before anything is sent."""
    done = run(*line.split())

    assert code == done.exit_code
    assert said in " ".join(done.stderr.split())
