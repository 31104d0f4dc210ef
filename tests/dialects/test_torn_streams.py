"""
Answers of a model's server that break off, through each API that streams: the end is that API's form of an error, and never a false end.

An answer that is told as ended must be the whole one, so wherever a stream is cut there are two right ends: an error, or all of it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from support.backends.scripted import DONE, Exchange, chunked, frames, scripted, stream_of
from support.clients.responses_client import events, in_memory
from support.servers.appserver import App, serving, upstream


def chunk(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a chat answer, as short as it may be."""
    choice = {"delta": fields} | ({"finish_reason": finish} if finish else {})
    return {"choices": [choice]}


def call(number: int, arguments: str, name: str | None = None) -> dict[str, Any]:
    """A piece of a tool call; its name comes with the first."""
    head = {"id": f"c{number}"} if name else {}
    function = ({"name": name} if name else {}) | {"arguments": arguments}
    return chunk(tool_calls=[{"index": number, **head, "function": function}])


USED = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}
#: What a chat's server says: before the finish, the finish, and after it.
CHAT = (
    frames(
        chunk(role="assistant", reasoning_content="hm é"),
        chunk(content="Hel"),
        chunk(content="lo"),
        call(0, '{"x"', "f"),
        call(0, ":1}"),
        call(1, "{}", "g"),
    ),
    frames(chunk("tool_calls")),
    frames(USED, DONE),
)
SAID: Any = ("hm é", "Hello", [("f", {"x": 1}), ("g", {})])
#: The same of a plain completion's.
PLAIN = (
    frames({"choices": [{"text": "Hel"}]}, {"choices": [{"text": "lo é"}]}),
    frames({"choices": [{"text": "", "finish_reason": "stop"}]}),
    frames(USED, DONE),
)
CONTINUED: Any = ("", "Hello é", [])


class Torn(Exception):
    """The answer ended in the API's form of an error, as it must where it is not whole."""


def data_of(stream: bytes) -> list[Any]:
    """The data of server-sent events; what ends a stream of OpenAI's stays as it is."""
    lines = [line[6:] for line in stream.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) if line != "[DONE]" else line for line in lines]


def check_error(error: Any) -> None:
    """A broken answer is the fault of the server behind, and is told so."""
    assert {"message", "type", "param", "code"} == set(error), error
    assert error["message"]
    assert error["type"] in ("upstream_error", "api_error"), error
    assert str(error["code"]).startswith("backend_"), error


def of_chunks(stream: bytes) -> Any:
    """What a stream of OpenAI's chunks says."""
    *told, last = data_of(stream)
    if last != "[DONE]":
        assert "[DONE]" not in told
        check_error(last["error"])
        raise Torn
    assert not any("error" in one for one in told)
    choices = [choice for one in told for choice in one["choices"]]
    assert [True] == [bool(choice["finish_reason"]) for choice in choices if choice["finish_reason"]]  # fmt: skip
    if "text" in choices[0]:
        return "", "".join(choice["text"] for choice in choices), []
    deltas = [choice["delta"] for choice in choices]
    calls: dict[int, list[str]] = {}
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls", ())):
        function = piece["function"]
        calls.setdefault(piece["index"], [function.get("name", ""), ""])[1] += function["arguments"]
    return (
        "".join(delta.get("reasoning_content") or "" for delta in deltas),
        "".join(delta.get("content") or "" for delta in deltas),
        [(name, json.loads(arguments)) for name, arguments in calls.values()],
    )


def of_events(stream: bytes) -> Any:
    """What a stream of the Responses API says."""
    *told, last = events(stream)
    ends = {"response.completed", "response.incomplete", "response.failed", "error"}
    assert not ends & {event["type"] for event in told}
    response = last["response"]
    if last["type"] == "response.failed":
        assert "failed" == response["status"]
        assert {"code", "message"} == set(response["error"])
        assert "server_error" == response["error"]["code"]
        raise Torn
    assert ("response.completed", "completed") == (last["type"], response["status"])
    thoughts, texts, calls = "", "", []
    for item in response["output"]:
        match item["type"]:
            case "reasoning":
                thoughts += "".join(part["text"] for part in item["content"])
            case "message":
                texts += "".join(part["text"] for part in item["content"])
            case "function_call":
                calls.append((item["name"], json.loads(item["arguments"])))
    return thoughts, texts, calls


def of_blocks(stream: bytes) -> Any:
    """What a stream of the Messages API says."""
    *told, last = data_of(stream)
    assert not {"message_stop", "error"} & {event["type"] for event in told}
    if last["type"] == "error":
        check_error(last["error"])
        raise Torn
    assert "message_stop" == last["type"]
    assert "message_delta" == told[-1]["type"]
    blocks: list[tuple[Any, list[str]]] = []
    for event in told:
        if event["type"] == "content_block_start":
            blocks.append((event["content_block"], []))
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            if delta["type"] != "signature_delta":
                said = delta.get("text") or delta.get("thinking") or delta.get("partial_json")
                blocks[event["index"]][1].append(said or "")
    joined = [(block, "".join(pieces)) for block, pieces in blocks]
    return (
        "".join(text for block, text in joined if block["type"] == "thinking"),
        "".join(text for block, text in joined if block["type"] == "text"),
        [(block["name"], json.loads(text or "{}")) for block, text in joined if block["type"] == "tool_use"],
    )  # fmt: skip


def of_rows(stream: bytes) -> Any:
    """What the rows of Ollama's API say."""
    *told, last = [json.loads(line) for line in stream.splitlines()]
    assert not any(row["done"] for row in told)
    if "error" in last:
        assert {"error"} == set(last)
        assert str is type(last["error"])
        raise Torn
    assert last["done"] is True
    bodies = [row.get("message", row) for row in (*told, last)]
    calls = [one["function"] for body in bodies for one in body.get("tool_calls") or ()]
    return (
        "".join(body.get("thinking") or "" for body in bodies),
        "".join(body.get("content", body.get("response")) or "" for body in bodies),
        [(one["name"], one["arguments"]) for one in calls],
    )


def of_pieces(stream: bytes) -> Any:
    """What a stream of llama.cpp's own says."""
    *told, last = data_of(stream)
    assert not any(piece.get("stop") for piece in told)
    if "error" in last:
        check_error(last["error"])
        raise Torn
    assert last["stop"] is True
    return "", "".join(piece["content"] for piece in told), []


@dataclass(frozen=True)
class Api:
    """
    An API that streams.

    Attributes:
        path, body: Where a stream is asked for, and how.
        read: What a stream says: thoughts, text and calls. Raises `Torn` where it ends in the API's form of an error.
        behind: What the server behind says for it, before its finish, with it and after it.
        said: What that is as a whole.
    """

    path: str
    body: dict[str, Any]
    read: Callable[[bytes], Any]
    behind: tuple[bytes, bytes, bytes] = CHAT
    said: Any = SAID

    async def ends(self, app: App) -> bool:
        """Ask for a stream; whether it is told as the whole answer, which it is then, or as a broken one."""
        async with app.post(self.path, **self.body) as response:
            data = await response.read()
        if response.status != 200:
            assert response.status in (502, 503), data
            told = json.loads(data)["error"]
            if self.read is not of_rows:
                check_error(told)
            return False
        try:
            assert self.said == self.read(data)
        except Torn:
            return False
        return True


SAY = [{"role": "user", "content": "Hi"}]
APIS = {
    "chat": Api("/v1/chat/completions", {"messages": SAY, "stream": True}, of_chunks),
    "responses": Api("/v1/responses", {"input": "Hi", "stream": True, "store": False}, of_events),
    "messages": Api("/v1/messages", {"messages": SAY, "max_tokens": 99, "stream": True}, of_blocks),
    "ollama chat": Api("/api/chat", {"model": "m", "messages": SAY}, of_rows),
    "ollama generate": Api("/api/generate", {"model": "m", "prompt": "Hi"}, of_rows),
    "completions": Api("/v1/completions", {"prompt": "Hi", "stream": True}, of_chunks, PLAIN, CONTINUED),
    "ollama raw": Api("/api/generate", {"model": "m", "prompt": "Hi", "raw": True}, of_rows, PLAIN, CONTINUED),
    "llama.cpp": Api("/completion", {"prompt": "Hi", "stream": True}, of_pieces, PLAIN, CONTINUED),
}  # fmt: skip
#: Where a server says itself how long its answer is, a cut is seen below all APIs, which is the same for each.
CUT = [
    *(
        (name, "until it closes")
        if name in ("chat", "responses")
        else pytest.param(name, "until it closes", marks=pytest.mark.heavy)
        for name in APIS
    ),
    ("messages", "in HTTP chunks"),
]
#: A response that goes on without its client; its events are those of the store.
BEHIND = {"input": "Hi", "stream": True, "background": True}
EVERY = APIS | {"in the background": Api("/v1/responses", BEHIND, of_events)}


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize(("name", "framing"), CUT)
async def test_every_cut(name: str, framing: str) -> None:
    """A stream of the server behind that is cut at any of its bytes is told as broken, unless all that it has to say came before."""
    api = APIS[name]
    before, finish, after = api.behind
    whole = stream_of(before + finish + after)
    if framing == "in HTTP chunks":
        whole = chunked(api.behind)
    said = whole.index(finish) + len(finish) - len(b"\n\n")
    cut = 0

    async def script(exchange: Exchange) -> None:
        await exchange.send(whole[:cut])
        exchange.close()

    ended = []
    async with scripted(script) as server, serving(upstream(server.url)) as app:
        for cut in range(len(whole) + 1):
            if await api.ends(app):
                ended.append(cut)

    assert len(whole) == ended[-1]
    assert said <= ended[0]


#: What a server says after the text and before its finish, or after that, how its connection ends, and whether that is a whole answer.
ENDS: list[tuple[str, bool, bytes, str, bool]] = [
    ("a close", False, b"", "close", False),
    ("a reset", False, b"", "reset", False),
    ("garbage", False, b"\x00\xff<html>502 Bad Gateway</html>\n\n", "close", False),
    ("a frame of garbage", False, b'data: {"choices\n\n', "close", False),
    ("a frame of nothing known", False, b"data: 7\n\n", "close", False),
    ("an error", False, b'data: {"error":{"message":"no","code":500}}\n\n', "close", False),
    ("an error, and [DONE]", False, b'data: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n', "close", False),
    ("an error of one text", False, b'data: {"error":"no"}\n\n', "close", False),
    ("an event that is an error", False, b'event: error\ndata: {"message":"no"}\n\n', "close", False),
    ("an error of llama.cpp", False, b'error: {"code":500,"message":"no"}\n\n', "close", False),
    ("an aborted finish", False, frames({"choices": [{"delta": {}, "text": "", "finish_reason": "abort"}]}, DONE), "close", False),
    ("a finish, and a close", True, b"", "close", True),
    ("a finish, usage, and a close", True, frames(USED), "close", True),
    ("a finish, and garbage", True, b'data: {"choices\n\n', "close", False),
    ("a finish, and an error", True, b'data: {"error":{"message":"no"}}\n\n', "close", False),
    ("[DONE], and a reset", True, frames(USED, DONE), "reset", True),
    ("[DONE], and garbage", True, frames(USED, DONE) + b"\x00\xff", "close", True),
]  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
async def test_every_end(name: str) -> None:
    """What a server says instead of the rest of its answer ends in an error, and what it leaves out behind the finish in none."""
    api = EVERY[name]
    before, finish, _ = api.behind
    at = 0

    async def script(exchange: Exchange) -> None:
        _, finished, more, end, _ = ENDS[at]
        await exchange.send(stream_of(before + (finish if finished else b"") + more))
        getattr(exchange, end)()

    store = in_memory()
    found = {}
    async with scripted(script) as server, serving(upstream(server.url), store=store) as app:
        for at in range(len(ENDS)):
            found[ENDS[at][0]] = await api.ends(app)
    await store.aclose()

    assert {one[0]: one[4] for one in ENDS} == found


@pytest.mark.parametrize("name", APIS)
async def test_a_break_before_a_word(name: str) -> None:
    """A server that breaks off before it has said anything is an error of HTTP, in the form of its API."""
    async with scripted(_resets) as server, serving(upstream(server.url)) as app:
        async with app.post(APIS[name].path, **APIS[name].body) as response:
            status, told = response.status, await response.json()

    assert 502 == status
    assert told["error"]


async def _resets(exchange: Exchange) -> None:
    exchange.reset()
