"""Tests of unilect.dialects.responses over HTTP, in front of a server that says exactly what a test gives it."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from support.backends.engine import engine
from support.backends.scripted import (
    DONE,
    HELLO,
    USAGE,
    Exchange,
    delta,
    frames,
    scripted,
    stream_of,
)
from support.clients.responses_client import client, events, in_memory, says
from support.servers.appserver import serving, upstream
from unilect.config.server import Config
from unilect.core.errors import StoreUnavailable
from unilect.core.events import Event, Finish, ToolCallDelta, Usage
from unilect.dialects.responses import _background
from unilect.dialects.responses._output import ResponseEncoder, ResponseOptions
from unilect.store.records import Item, StoredResponse
from unilect.web import streaming

USER = {"role": "user", "content": [{"type": "input_text", "text": "x"}]}
DEEP = msgspec.json.decode(b"[" * 200 + b"]" * 200)
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "x" * 70_000}
F = {"type": "function", "name": "f", "strict": False, "parameters": {"type": "object", "properties": {}}}  # fmt: skip


def calls(*called: tuple[str, str], text: str = "") -> bytes:
    """A stream of tool calls."""
    pieces = [delta(role="assistant", content=text)]
    for number, (name, arguments) in enumerate(called):
        function = {"name": name, "arguments": ""}
        pieces.append(delta(tool_calls=[{"index": number, "id": f"call_{number}", "type": "function", "function": function}]))  # fmt: skip
        for piece in arguments:
            pieces.append(delta(tool_calls=[{"index": number, "function": {"arguments": piece}}]))
    return frames(*pieces, delta(finish="tool_calls"), USAGE, DONE)


async def test_a_whole_answer() -> None:
    """A text is one turn of the user; the answer is one message, and the usage adds up."""
    async with client(says(HELLO)) as one:
        body = await one.create(model="m")

        assert [{"role": "user", "content": "hi"}] == one.prompt()
    usage = body["usage"]
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    assert ("response", "completed", [part]) == (body["object"], body["status"], body["output"][-1]["content"])  # fmt: skip
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] == 5


async def test_a_stream() -> None:
    """Events come in the API's order, with one id throughout, and their deltas add up to the text at the end."""
    async with client(says(HELLO)) as one:
        found = await one.stream([{"role": "user", "content": "hi"}])

    assert [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.delta", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ] == [event["type"] for event in found]  # fmt: skip
    item = found[2]["item"]["id"]
    assert {item} == {event["item_id"] for event in found if "item_id" in event}
    text = "".join(event["delta"] for event in found if event["type"].endswith("text.delta"))
    ended = found[-1]["response"]
    assert text == found[6]["text"] == ended["output"][0]["content"][0]["text"] == "Hello"
    assert (found[0]["response"]["id"], item) == (ended["id"], ended["output"][0]["id"])


async def test_tools_of_agents() -> None:
    """A hosted tool is left out and told; a tool of a namespace comes back with its namespace."""
    tools = [{"type": "web_search", "external_web_access": True}, {"type": "namespace", "name": "ns", "description": "d", "tools": [F]}]  # fmt: skip
    choice = {"type": "function", "name": "f"}
    async with client(says(calls(("ns__f", '{"a":1}')))) as one:
        status, headers, _ = await one.ask(
            "POST", "/responses", {"input": "x", "tools": tools, "tool_choice": choice}
        )
        found = await one.stream("x", tools=tools, tool_choice=choice)
        asked = one.server.requests[-1].json()

    assert (200, "tools%5B0%5D%3Aweb_search") == (status, headers["X-Unilect-Ignored"])
    assert ["ns__f"] == [tool["function"]["name"] for tool in asked["tools"]]
    call = found[-1]["response"]["output"][0]
    assert ("function_call", "f", "ns", '{"a":1}') == (call["type"], call["name"], call["namespace"], call["arguments"])  # fmt: skip
    pieces = [e["delta"] for e in found if e["type"] == "response.function_call_arguments.delta"]
    assert '{"a":1}' == "".join(pieces)
    assert len(pieces) > 1


async def test_calls_and_their_outputs() -> None:
    """A call and its output become an assistant's message and a tool's."""
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"x":1}'}
    output = {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "r"}]}  # fmt: skip
    async with client(says(HELLO)) as one:
        await one.create([USER, call, output])

        user, assistant, tool = one.prompt()
    assert {"role": "user", "content": "x"} == user
    assert ("call_1", {"name": "f", "arguments": '{"x":1}'}) == (assistant["tool_calls"][0]["id"], assistant["tool_calls"][0]["function"])  # fmt: skip
    assert {"role": "tool", "content": "r", "tool_call_id": "call_1"} == tool


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([USER, {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}], "No tool output found for function call a."),
        ([USER, {"type": "function_call_output", "call_id": "a", "output": "r"}], "No tool call found for function call output with call_id a."),
        ([], "`input` holds no message"),
        ([7], "`input[0]`: expected an object."),
        ([{"role": "robot", "content": ""}], "`input[0].role`: expected `user`"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}], "`input[0].content[0]` is not supported"),
        ([{"type": "compaction", "encrypted_content": "abc"}], "it was made by another server"),
        ([{"type": "item_reference", "id": "no"}], "Item with id 'no' not found."),
        ([USER, {"type": "function_call", "call_id": "a", "name": "f", "arguments": "[" + "{}," * 70_000}], "`input[1]`: the calls up to here have more than 120000 values"),
    ],
)  # fmt: skip
async def test_input_that_cannot_be_read(items: list[Any], message: str) -> None:
    """What is wrong with an item is told with its place."""
    async with client(says(HELLO)) as one:
        status, _, body = await one.ask("POST", "/responses", {"input": items})

        assert not one.server.requests
    assert status in (400, 404)
    assert message in body["error"]["message"]


async def test_an_empty_thought() -> None:
    """A reasoning item without a text is as if it were not there."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [], "encrypted_content": None, "status": "in_progress"}  # fmt: skip
    async with client(says(HELLO)) as one:
        await one.create([thought, {"role": "user", "content": "x"}])

        assert [{"role": "user", "content": "x"}] == one.prompt()


async def test_a_thought_that_comes_back() -> None:
    """What the model thought is told, as a summary too where one is asked for, and comes back from clients that store nothing."""
    thinks = frames(delta(role="assistant", reasoning_content="hm"), delta(content="Yes"), delta(finish="stop"), USAGE, DONE)  # fmt: skip
    async with client(says(thinks)) as one:
        options = {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "store": False}  # fmt: skip
        found = await one.stream("x", **options)
        output = found[-1]["response"]["output"]
        stateless = {"type": "reasoning", "id": output[0]["id"], "summary": [], "encrypted_content": output[0]["encrypted_content"]}  # fmt: skip
        await one.create([{"role": "user", "content": "x"}, stateless, output[1], {"role": "user", "content": "y"}])  # fmt: skip

        assistant = one.prompt()[1]
    kinds = [event["type"] for event in found]
    assert (["hm"], ["hm"]) == ([p["text"] for p in output[0]["content"]], [p["text"] for p in output[0]["summary"]])  # fmt: skip
    assert {"response.reasoning_text.delta", "response.reasoning_summary_text.delta", "response.reasoning_summary_part.done"} <= {*kinds}  # fmt: skip
    assert ("hm", "Yes") == (assistant["reasoning_content"], assistant["content"])


async def test_what_went_before() -> None:
    """A stored response and a reference to one of its items stand in the next prompt, once each."""
    async with client(says(HELLO)) as one:
        first = await one.create("My name is Ada.")
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        await one.create([reference, {"role": "user", "content": "Who?"}], previous_response_id=first["id"])  # fmt: skip
        before = one.prompt()
        await one.create([USER, reference, {"role": "user", "content": "Who?"}])

        texts = [message["content"] for message in one.prompt()]
    assert ["My name is Ada.", "Hello", "Who?"] == [message["content"] for message in before]
    assert ["x", "Hello", "Who?"] == texts


async def test_a_chain() -> None:
    """A chain of turns holds every turn, and instructions belong to their own request only."""
    async with client(says(HELLO)) as one:
        last = await one.create("1", instructions="Be brief.")
        for number in "23":
            last = await one.create(number, previous_response_id=last["id"])

        assert ["1", "Hello", "2", "Hello", "3"] == [m["content"] for m in one.prompt()]


async def test_what_was_not_stored() -> None:
    """A response that was not to be stored is not found later, nor is an item of it."""
    async with client(says(HELLO)) as one:
        first = await one.create("My name is Ada.", store=False)
        status, _, body = await one.ask("POST", "/responses", {"input": "Who?", "previous_response_id": first["id"]})  # fmt: skip
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        missing, _, _ = await one.ask("POST", "/responses", {"input": [reference]})

    error = body["error"]
    assert (400, "previous_response_not_found", "previous_response_id") == (status, error["code"], error["param"])  # fmt: skip
    assert (False, 404) == (first["store"], missing)


async def test_a_stored_response() -> None:
    """A response is told again as it was, its input is listed, and it is gone once it is removed."""
    async with client(says(HELLO)) as one:
        first = await one.create([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])  # fmt: skip
        path = f"/responses/{first['id']}"
        _, _, again = await one.ask("GET", path)
        _, _, inputs = await one.ask("GET", f"{path}/input_items?order=asc")
        _, _, page = await one.ask("GET", f"{path}/input_items?limit=1")
        gone = [await one.ask("DELETE", path), await one.ask("GET", path), await one.ask("DELETE", path)]  # fmt: skip

    assert first == again
    assert ["a", "b"] == [item["content"][0]["text"] for item in inputs["data"]]
    assert all(item["id"] for item in inputs["data"])
    assert (inputs["data"][0]["id"], False) == (inputs["first_id"], inputs["has_more"])
    assert (inputs["data"][1:], True) == (page["data"], page["has_more"])
    assert [200, 404, 404] == [status for status, _, _ in gone]
    assert (True, "error") == (gone[0][2]["deleted"], next(iter(gone[1][2])))


async def test_items_that_are_told() -> None:
    """Items are told with parts for a content and with a status, as clients' types have them, however short they were sent."""
    sent = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "type": None},
        {"role": "user", "content": [{"type": "input_text", "text": "c"}], "status": "incomplete"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "status": None},
        {"type": "function_call_output", "call_id": "1", "output": "d"},
    ]
    async with client(says(HELLO)) as one:
        first = await one.create(sent)
        prompt = [message.get("content") for message in one.prompt()]
        _, _, inputs = await one.ask("GET", f"/responses/{first['id']}/input_items?order=asc")
        _, _, talk = await one.ask("POST", "/conversations", {"items": sent})
        _, _, items = await one.ask("GET", f"/conversations/{talk['id']}/items?order=asc")
        _, _, short = await one.ask("POST", "/responses/compact", {"input": sent})

    for data in (inputs["data"], items["data"]):
        assert ["message"] * 3 + ["function_call", "function_call_output"] == [item["type"] for item in data]  # fmt: skip
        assert ["completed", "completed", "incomplete", "completed", "completed"] == [item["status"] for item in data]  # fmt: skip
        said = [item["content"] for item in data[:3]]
        assert [{"type": "input_text", "text": "a"}] == said[0]
        assert [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}] == said[1]
        assert sent[2]["content"] == said[2]
    assert inputs["data"][0]["content"] == short["output"][0]["content"]
    assert ["a", "b", "c", None, "d"] == prompt


async def test_in_the_background() -> None:
    """A response in the background is made without its client, who asks for it and its events later."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(role="assistant", content="Hel"))))
        begun.set()
        await go_on.wait()
        await exchange.send(frames(delta(content="lo"), delta(finish="stop"), USAGE, DONE))
        exchange.close()

    async with client(script) as one:
        first = await one.create("count", background=True)
        await begun.wait()
        path = f"/responses/{first['id']}"
        url = f"http://127.0.0.1:{one.app.port}/v1{path}?stream=true&starting_after=2"
        async with one.app.session.get(url) as live:
            await live.content.readuntil(b"\n\n")
            _, _, during = await one.ask("GET", path)
            go_on.set()
            await live.read()
        while (await one.ask("GET", path))[2]["status"] == "in_progress":
            await asyncio.sleep(0)
        _, _, after = await one.ask("GET", path)
        async with one.app.session.get(url) as stored:
            again = events(await stored.read())

    assert ("queued", "in_progress", "completed") == (first["status"], during["status"], after["status"])  # fmt: skip
    assert "Hello" == after["output"][0]["content"][0]["text"]
    assert (3, "response.completed") == (again[0]["sequence_number"], again[-1]["type"])


async def test_a_cancellation() -> None:
    """A response in the background that is cancelled stops its model's server, and is told as cancelled from then on."""
    begun = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(role="assistant", content="Hel"))))
        begun.set()
        await exchange.client_gone()

    async with client(script) as one:
        first = await one.create("count", background=True)
        await begun.wait()
        status, _, body = await one.ask("POST", f"/responses/{first['id']}/cancel")
        await one.server.until_gone()
        _, _, after = await one.ask("GET", f"/responses/{first['id']}")
        _, _, again = await one.ask("POST", f"/responses/{first['id']}/cancel")

    assert (200, "cancelled", "cancelled", "cancelled") == (status, body["status"], after["status"], again["status"])  # fmt: skip


async def test_a_cancellation_of_what_is_not_in_the_background() -> None:
    """A response that its client has waited for cannot be cancelled, and stays as it is."""
    async with client(says(HELLO)) as one:
        first = await one.create("x")
        status, _, body = await one.ask("POST", f"/responses/{first['id']}/cancel")
        _, _, after = await one.ask("GET", f"/responses/{first['id']}")
        missing, _, _ = await one.ask("POST", "/responses/resp_none/cancel")

    assert (400, 404) == (status, missing)
    assert "background" in body["error"]["message"]
    assert first == after


async def test_a_stream_of_what_was_not_in_the_background() -> None:
    """Only the events of responses in the background are kept, which is said."""
    async with client(says(HELLO)) as one:
        first = await one.create("x")
        status, _, body = await one.ask("GET", f"/responses/{first['id']}?stream=true")

    assert (400, "stream") == (status, body["error"]["param"])


async def test_a_turn_without_an_input() -> None:
    """What goes on from a response or a conversation needs no input of its own."""
    async with client(says(HELLO)) as one:
        first = await one.create("a")
        await one.create(None, previous_response_id=first["id"])
        chain = one.prompt()
        _, _, talk = await one.ask("POST", "/conversations", {"items": [USER]})
        await one.create(None, conversation=talk["id"])
        conversation = one.prompt()
        status, _, body = await one.ask("POST", "/responses", {"model": "m"})

    assert ["a", "Hello"] == [message["content"] for message in chain]
    assert ["x"] == [message["content"] for message in conversation]
    assert (400, "input") == (status, body["error"]["param"])


async def test_urls_without_a_version() -> None:
    """The API is there without `/v1`, too."""
    async with client(says(HELLO)) as one, one.app.post("/responses", input="x") as response:
        body = await response.json()
        status, _ = await one.app.get(f"/responses/{body['id']}")

    assert (200, "completed", 200) == (response.status, body["status"], status)
    assert response.headers["X-Request-Id"].startswith("req_")


async def test_a_client_that_leaves() -> None:
    """A client that leaves in the midst of an answer stops the model's server, and nothing is stored."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(role="assistant", content="Hel"))))
        await exchange.client_gone()

    async with client(script) as one:
        async with one.app.post("/v1/responses", input="x", stream=True) as response:
            data = b""
            while b"output_text.delta" not in data:
                data += await response.content.readuntil(b"\n\n")
            response.close()
        await one.server.until_gone()
        status, _, _ = await one.ask("GET", f"/responses/{events(data)[0]['response']['id']}")

    assert 404 == status


async def test_an_answer_that_cannot_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer is stored before its end is told: one that cannot be is told as failed, never as completed."""
    store, heard = in_memory(), asyncio.Event()
    assert store.answers is not None

    async def save(stored: StoredResponse) -> None:
        raise StoreUnavailable("away")

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(role="assistant", content="Hel"))))
        await heard.wait()
        await exchange.send(frames(delta(content="lo"), delta(finish="stop"), USAGE, DONE))
        exchange.close()

    monkeypatch.setattr(store.answers, "save", save)
    async with client(script, store) as one:
        async with one.app.post("/v1/responses", input="x", stream=True) as response:
            data = await response.content.readuntil(b"\n\n")
            heard.set()
            told = events(data + await response.read())
        whole, _, _ = await one.ask("POST", "/responses", {"input": "x"})

    kinds = [event["type"] for event in told]
    assert ("response.failed", 503) == (kinds[-1], whole)
    assert "response.completed" not in kinds
    assert "Hello" == "".join(event["delta"] for event in told if event["type"].endswith("delta"))


async def test_a_store_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last text of an answer is told while its response is still being stored, and its end only afterwards."""
    store, told = in_memory(), asyncio.Event()
    assert store.answers is not None
    save = store.answers.save

    async def slow(stored: StoredResponse) -> None:
        await told.wait()
        await save(stored)

    monkeypatch.setattr(store.answers, "save", slow)
    async with client(
        says(frames(delta(content="Hello"), delta(finish="stop"), USAGE, DONE)), store
    ) as one:
        async with one.app.post("/v1/responses", input="x", stream=True) as response:
            data = await response.content.readuntil(b"event: response.output_item.done")
            assert b"Hello" in data
            assert b"response.completed" not in data
            told.set()
            kinds = [event["type"] for event in events(data + await response.read())]

    assert "response.completed" == kinds[-1]


async def test_a_cut_answer() -> None:
    """An answer that reaches the limit ends as incomplete, with the reason."""
    cut = frames(delta(role="assistant", content="a"), delta(finish="length"), USAGE, DONE)
    async with client(says(cut)) as one:
        found = await one.stream("x", max_output_tokens=1)

        assert 1 == one.server.requests[0].json()["max_completion_tokens"]
    ended = found[-1]
    assert ("response.incomplete", "max_output_tokens") == (ended["type"], ended["response"]["incomplete_details"]["reason"])  # fmt: skip


async def says_nothing(exchange: Exchange) -> None:
    """A script that breaks off before a word."""
    exchange.reset()


async def test_an_answer_that_breaks() -> None:
    """A stream that breaks off ends in `response.failed`; one that never began is an error of HTTP."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(role="assistant", content="Hel"))))
        exchange.reset()

    async with client(script) as one:
        found = await one.stream("x")
        _, _, stored = await one.ask("GET", f"/responses/{found[-1]['response']['id']}")
    async with client(says_nothing) as one:
        status, _, body = await one.ask("POST", "/responses", {"input": "x", "stream": True})

    failed = found[-1]
    assert ("response.failed", "server_error") == (failed["type"], failed["response"]["error"]["code"])  # fmt: skip
    assert "response.completed" not in [event["type"] for event in found]
    assert "error" in stored
    assert (502, dict) == (status, type(body["error"]))


async def test_a_refusal() -> None:
    """What the model refuses is a part of its own, told piece by piece."""
    no = frames(delta(role="assistant", refusal="I can"), delta(refusal="not."), delta(finish="stop"), USAGE, DONE)  # fmt: skip
    async with client(says(no)) as one:
        found = await one.stream("x")

    told = [(e["type"], e.get("delta") or e.get("refusal")) for e in found if ".refusal." in e["type"]]  # fmt: skip
    part = {"type": "refusal", "refusal": "I cannot."}
    assert [
        ("response.refusal.delta", "I can"),
        ("response.refusal.delta", "not."),
        ("response.refusal.done", "I cannot."),
    ] == told
    assert [part] == [e["part"] for e in found if e["type"] == "response.content_part.done"]
    assert [part] == found[-1]["response"]["output"][0]["content"]


async def test_a_custom_tool() -> None:
    """A custom tool is a function with one text for the model, and comes back with its input as plain text."""
    tool = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}}  # fmt: skip
    async with client(says(calls(("patch", '{"input":"*** x"}')), HELLO)) as one:
        found = await one.stream("x", tools=[tool])
        call = found[-1]["response"]["output"][0]
        output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"}
        await one.create([USER, call, output], tools=[tool])

        told, (_, assistant, result) = one.server.requests[0].json()["tools"][0], one.prompt()
    assert "start: X" in told["function"]["description"]
    assert ("custom_tool_call", "*** x") == (call["type"], call["input"])
    assert ("*** x", "done") == (msgspec.json.decode(assistant["tool_calls"][0]["function"]["arguments"])["input"], result["content"])  # fmt: skip
    assert "response.custom_tool_call_input.done" in [event["type"] for event in found]


async def test_calls_that_are_mixed() -> None:
    """Pieces of two calls that a server mixes are told one call after the other, and so is a text between them."""

    def piece(number: int, arguments: str, **first: Any) -> dict[str, Any]:
        function = {"arguments": arguments} | ({"name": first["name"]} if first else {})
        id = {"id": first["id"]} if first else {}
        return delta(tool_calls=[{"index": number, **id, "function": function}])

    mixed = frames(
        piece(0, "", id="a", name="f"), piece(0, "{"), piece(1, "", id="b", name="g"), delta(content="so"), piece(0, "}"), piece(1, "{}"),
        delta(finish="tool_calls"), USAGE, DONE,
    )  # fmt: skip
    async with client(says(mixed)) as one:
        found = await one.stream("x", tools=[F, F | {"name": "g"}])

    output = found[-1]["response"]["output"]
    assert [("f", "{}"), ("g", "{}")] == [(i["name"], i["arguments"]) for i in output if i["type"] == "function_call"]  # fmt: skip
    assert "so" == next(i for i in output if i["type"] == "message")["content"][0]["text"]
    places = [event["output_index"] for event in found if "output_index" in event]
    assert places == sorted(places)


def test_many_pieces_of_mixed_calls() -> None:
    """Pieces of two calls that come in turns are told in a time that grows as their number does."""
    encoder, count = ResponseEncoder("resp_1", ResponseOptions({}, {})), 100_000
    first: list[Event] = [ToolCallDelta(call, "", f"c{call}", "f") for call in range(2)]
    pieces: list[Event] = [ToolCallDelta(number % 2, "x") for number in range(count)]
    encoder.encode([*first, *pieces, Finish("tool_calls"), Usage(1, 2)])

    assert ["x" * (count // 2)] * 2 == [
        item["arguments"] for item in map(msgspec.json.decode, (one.body for one in encoder.items))
    ]


async def test_a_schema() -> None:
    """The flat format of this API is the nested one of a chat."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
    wanted = {"type": "json_schema", "name": "a", "strict": True, "schema": schema}
    answer = frames(delta(role="assistant", content='{"a":"b"}'), delta(finish="stop"), USAGE, DONE)
    async with client(says(answer)) as one:
        body = await one.create("x", text={"format": wanted})

        asked = one.server.requests[0].json()["response_format"]
    assert {"name": "a", "strict": True, "schema": schema} == asked["json_schema"]
    assert wanted == body["text"]["format"]


async def test_conversations() -> None:
    """A conversation takes in what a response was asked and what it said, and stands before the next."""
    async with client(says(HELLO)) as one:
        _, _, talk = await one.ask("POST", "/conversations", {"metadata": {"a": "b"}, "items": [USER]})  # fmt: skip
        await one.create("y", conversation=talk["id"])
        await one.create("z", conversation={"id": talk["id"]})
        prompt = [message["content"] for message in one.prompt()]
        path = f"/conversations/{talk['id']}"
        _, _, items = await one.ask("GET", f"{path}/items?order=asc")
        _, _, item = await one.ask("GET", f"{path}/items/{items['data'][0]['id']}")
        _, _, changed = await one.ask("POST", path, {"metadata": {"c": "d"}})
        await one.ask("DELETE", f"{path}/items/{item['id']}")
        _, _, fewer = await one.ask("GET", f"{path}/items")
        gone = [await one.ask("DELETE", path), await one.ask("GET", path)]
        missing, _, _ = await one.ask("POST", "/responses", {"input": "x", "conversation": talk["id"]})  # fmt: skip

    assert ["x", "y", "Hello", "z"] == prompt
    assert (5, items["data"][0], {"c": "d"}, 4) == (len(items["data"]), item, changed["metadata"], len(fewer["data"]))  # fmt: skip
    assert ([200, 404], 404) == ([status for status, _, _ in gone], missing)


async def test_a_conversation_that_is_too_large() -> None:
    """A conversation of more than may be read into memory is refused, as a chain is."""
    store = in_memory()
    assert store.answers is not None
    store.answers.most_read_bytes = 1000
    async with client(says(HELLO), store) as one:
        long = {"role": "user", "content": "x" * 600}
        _, _, talk = await one.ask("POST", "/conversations", {"items": [long]})
        await one.ask("POST", f"/conversations/{talk['id']}/items", {"items": [long]})
        status, _, body = await one.ask("POST", "/responses", {"input": "x", "conversation": talk["id"]})  # fmt: skip

    assert (400, "conversation") == (status, body["error"]["param"])


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/responses", {}),
        ("/responses", {"store": False}),
        ("/responses", {"background": True}),
        ("/responses", {"truncation": "auto"}),
        ("/responses", {"stream": True}),
        ("/responses/input_tokens", {}),
        ("/responses/compact", {}),
    ],
)
async def test_an_item_that_is_named_often(path: str, fields: dict[str, Any]) -> None:
    """An item counts as often as it is named, wherever it is from and whatever stands before it, and nothing is made of too many."""
    store = in_memory()
    assert store.answers is not None
    store.answers.most_read_bytes = 3000
    async with client(says(HELLO), store) as one:
        first = await one.create("x" * 600)
        _, _, talk = await one.ask("POST", "/conversations", {"items": [{"role": "user", "content": "y" * 600}]})  # fmt: skip
        _, _, inputs = await one.ask("GET", f"/responses/{first['id']}/input_items")
        _, _, items = await one.ask("GET", f"/conversations/{talk['id']}/items")
        asked = len(one.server.requests)
        mine, theirs = (
            {"type": "item_reference", "id": of["data"][0]["id"]} for of in (inputs, items)
        )
        for body in (
            {"input": [mine] * 6},
            {"input": [theirs] * 6},
            {"input": [mine] * 4, "conversation": talk["id"]},
            {"input": [theirs] * 4, "previous_response_id": first["id"]},
        ):
            status, _, error = await one.ask("POST", path, body | fields)
            assert (400, "input") == (status, error["error"]["param"])
            assert "at most 3000 can be used" in error["error"]["message"]
        assert asked == len(one.server.requests)


async def test_an_item_that_is_named_twice() -> None:
    """An item that is named twice stands there twice, with two ids."""
    async with client(says(HELLO)) as one:
        first = await one.create("Hey")
        _, _, inputs = await one.ask("GET", f"/responses/{first['id']}/input_items")
        reference = {"type": "item_reference", "id": inputs["data"][0]["id"]}
        again = await one.create([reference, reference])
        _, _, inputs = await one.ask("GET", f"/responses/{again['id']}/input_items")

        assert ["Hey", "Hey"] == [message["content"] for message in one.prompt()]
    assert 2 == len({item["id"] for item in inputs["data"]})


@pytest.mark.parametrize(
    ("item", "where"),
    [
        ({"type": "computer_screen"}, "items[1]"),
        ({"type": "item_reference", "id": "msg_1"}, "items[1]"),
        ({"type": "message", "role": "nobody", "content": "x"}, "items[1].role"),
        ({"type": "compaction", "encrypted_content": "abc"}, "items[1].encrypted_content"),
        (5, "items[1]"),
    ],
)
async def test_items_that_no_response_can_read(item: Any, where: str) -> None:
    """An item that no response could be made with is refused, and none of its request is kept."""
    async with client(says(HELLO)) as one:
        _, _, talk = await one.ask("POST", "/conversations", {})
        path = f"/conversations/{talk['id']}/items"
        for asked in (path, "/conversations"):
            status, _, body = await one.ask("POST", asked, {"items": [USER, item]})
            assert (400, where) == (status, body["error"]["param"])
        _, _, items = await one.ask("GET", path)

    assert [] == items["data"]


async def test_an_output_that_is_added_later() -> None:
    """The output of a call may be added to a conversation after the call, and a response is made with both."""
    made = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    async with client(says(HELLO)) as one:
        _, _, talk = await one.ask("POST", "/conversations", {"items": [USER, made]})
        status, _, _ = await one.ask("POST", f"/conversations/{talk['id']}/items", {"items": [output]})  # fmt: skip
        assert status == 200
        await one.create("And?", conversation=talk["id"])
        assert ["user", "assistant", "tool", "user"] == [said["role"] for said in one.prompt()]


async def test_a_handed_over_conversation() -> None:
    """A shortened conversation keeps what the user said, and goes on from the summary."""
    summary = frames(delta(role="assistant", content="Ada wants tea."), delta(finish="stop"), USAGE, DONE)  # fmt: skip
    async with client(says(summary, HELLO)) as one:
        as_json = {"format": {"type": "json_object"}}
        _, _, short = await one.ask("POST", "/responses/compact", {"input": [{"role": "user", "content": "I am Ada."}], "text": as_json})  # fmt: skip
        assert "response_format" not in one.server.requests[-1].json()
        await one.create([*short["output"], {"role": "user", "content": "Go on."}])

        said = [message["content"] for message in one.prompt()]
    assert ("response.compaction", "compaction") == (short["object"], short["output"][-1]["type"])
    assert ("I am Ada.", "Go on.") == (said[0], said[-1])
    assert said[1].endswith("Ada wants tea.")


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"n": 2}, "n"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [F, F]}, "tools[1]"),
        ({"tools": [F | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [{"type": "teapot"}]}, "tools[0].type"),
        ({"tools": [F], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"previous_response_id": "a", "conversation": "b"}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_length": 3}, "max_length"),
        ({"do_sample": False}, "do_sample"),
        ({"n_cmpl": 2}, "n_cmpl"),
        ({"chat_template_kwargs": {"a": [0] * 10_000}}, "chat_template_kwargs"),
        ({"tools": [{"type": "web_search", "x": DEEP}]}, "tools"),
        ({"tool_choice": {"type": "web_search", "x": DEEP}}, "tool_choice"),
        ({"input": [{"role": "user", "content": "x", "x": DEEP}]}, "input"),
        ({"text": {"format": {"type": "text", "x": DEEP}}}, "text.format"),
        ({"tools": [{"type": "custom", "name": "f", "format": GRAMMAR}]}, "tools[0].format"),
    ],
)
async def test_what_is_refused(fields: dict[str, Any], where: str) -> None:
    """What cannot be had is refused by the name that this API has for it."""
    async with client(says(HELLO)) as one:
        status, _, body = await one.ask("POST", "/responses", {"input": "x"} | fields)

    assert (400, where) == (status, body["error"]["param"])


async def test_a_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silence before the first token is broken by the first events and a keep-alive of the API, in one count with all others."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.01)
    heard = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await heard.wait()
        await exchange.send(stream_of(HELLO))
        exchange.close()

    async with client(script) as one, one.app.post("/v1/responses", input="x", stream=True) as response:  # fmt: skip
        data = b""
        while b"keepalive" not in data:
            data += await response.content.readuntil(b"\n\n")
        heard.set()
        data += await response.read()

    kinds = [event["type"] for event in events(data)]
    assert ["response.created", "response.in_progress", "keepalive"] == kinds[:3]
    assert "response.completed" == kinds[-1]


async def test_others_see_nothing() -> None:
    """What one key has stored is not there for another: not the response, its items, its chain nor its conversation."""
    config = Config(api_keys=["sk-a", "sk-b"])
    store = in_memory()
    a, b = ({"Authorization": f"Bearer {key}"} for key in config.api_keys)
    async with scripted(says(HELLO)) as server, serving(upstream(server.url), config, store=store) as app:  # fmt: skip

        async def ask(
            who: dict[str, str], method: str, path: str, body: Any = None
        ) -> tuple[int, Any]:
            url = f"http://127.0.0.1:{app.port}/v1{path}"
            async with app.session.request(method, url, json=body, headers=who) as response:
                return response.status, await response.json()

        _, talk = await ask(a, "POST", "/conversations", {})
        _, mine = await ask(a, "POST", "/responses", {"input": "x", "conversation": talk["id"]})
        id, item = mine["id"], mine["output"][0]["id"]
        theirs = [
            await ask(b, "GET", f"/responses/{id}"),
            await ask(b, "GET", f"/responses/{id}/input_items"),
            await ask(b, "POST", f"/responses/{id}/cancel"),
            await ask(b, "DELETE", f"/responses/{id}"),
            await ask(b, "POST", "/responses", {"input": "y", "previous_response_id": id}),
            await ask(b, "POST", "/responses", {"input": [{"type": "item_reference", "id": item}]}),
            await ask(b, "POST", "/responses", {"input": "y", "conversation": talk["id"]}),
            await ask(b, "GET", f"/conversations/{talk['id']}/items"),
        ]
        still, _ = await ask(a, "GET", f"/responses/{id}")
    await store.aclose()

    assert [404, 404, 404, 404, 400, 404, 404, 404] == [status for status, _ in theirs]
    assert 200 == still


async def test_a_server_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response whose server ended without a word is told as failed by the next one that is asked."""
    monkeypatch.setattr(_background, "_STALE_S", 0.0)
    store = in_memory()
    assert store.answers is not None
    item = Item("msg_1", b'{"id":"msg_1","type":"message","role":"user","content":"x"}')
    body = b'{"id":"resp_1","status":"in_progress","background":true}'
    await store.answers.save(StoredResponse("resp_1", "anonymous", "in_progress", body, [item], [], None, None, time.time(), instance="dead"))  # fmt: skip
    async with client(says(HELLO), store) as one:
        _, _, found = await one.ask("GET", "/responses/resp_1")

    assert ("failed", "server_error") == (found["status"], found["error"]["code"])


async def test_nothing_is_stored() -> None:
    """Where the operator wants nothing stored, answers are as ever, say so, and cannot be gone on from."""
    async with (
        scripted(says(HELLO)) as server,
        serving(upstream(server.url), store=in_memory(responses=False)) as app,
    ):
        async with app.post("/v1/responses", input="x") as response:
            body = await response.json()
        async with app.post("/v1/responses", input="y", previous_response_id=body["id"]) as next:
            error = (await next.json())["error"]
        status, _ = await app.get(f"/v1/responses/{body['id']}")

    assert (False, "completed", "previous_response_not_found", 404) == (body["store"], body["status"], error["code"], status)  # fmt: skip


async def test_a_shortened_prompt() -> None:
    """With `truncation: auto` the oldest turns go until the prompt fits; what the system says and the last turn stay."""
    async with engine(context=512) as model, serving(model) as app:
        turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} " + "word " * 150} for n in range(20)]  # fmt: skip
        items = [{"role": "system", "content": "Be brief."}, *turns, {"role": "user", "content": "Hi"}]  # fmt: skip
        async with app.post("/v1/responses", input=items, max_output_tokens=4) as response:
            refused = response.status, (await response.json())["error"]["code"]
        async with app.post("/v1/responses", input=items, truncation="auto", max_output_tokens=4) as response:  # fmt: skip
            answered = response.status, response.headers.get("X-Unilect-Ignored")

    assert ((400, "context_length_exceeded"), (200, "truncation")) == (refused, answered)


async def test_a_prompt_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that is too long is told by the code at which agents shorten it, also once a keep-alive has opened the stream."""
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.01)
    heard = asyncio.Event()
    error = {"code": "context_length_exceeded", "message": "maximum context length is 4096 tokens"}

    async def script(exchange: Exchange) -> None:
        await heard.wait()
        await exchange.send(stream_of(frames({"error": error})))
        exchange.close()

    async with client(script) as one:
        async with one.app.post("/v1/responses", input="x", stream=True) as response:
            data = b""
            while b"keepalive" not in data:
                data += await response.content.readuntil(b"\n\n")
            heard.set()
            data += await response.read()
        status, _, body = await one.ask("POST", "/responses", {"input": "x"})

    failed = events(data)[-1]
    assert ("response.failed", "context_length_exceeded") == (failed["type"], failed["response"]["error"]["code"])  # fmt: skip
    assert (400, "context_length_exceeded", "input") == (status, body["error"]["code"], body["error"]["param"])  # fmt: skip


async def test_a_server_that_stops() -> None:
    """A response in the background that is not whole when its server stops is stored as failed."""
    begun = asyncio.Event()
    store = in_memory()

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(role="assistant", content="Hel"))))
        begun.set()
        await exchange.client_gone()

    async with scripted(script) as server:
        async with serving(upstream(server.url), store=store) as app:
            async with app.post("/v1/responses", input="x", background=True) as response:
                first = await response.json()
            await begun.wait()
        assert store.answers is not None
        found = await store.answers.get("anonymous", first["id"])
    await store.aclose()

    assert found is not None
    assert ("failed", "server_error") == (found.status, msgspec.json.decode(found.body)["error"]["code"])  # fmt: skip
