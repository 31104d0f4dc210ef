"""Tests of unilect.dialects.responses._items: what each kind of item is to the model."""

from typing import Any

import pytest

from support.backends.scripted import HELLO
from support.clients.responses_client import client, says
from support.servers.appserver import serving
from unilect.testing.echo import Echo

PIXEL = "data:image/png;base64,AAAA"
F = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


def said(role: str, *parts: Any) -> dict[str, Any]:
    """A message of texts and other parts."""
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": one} if isinstance(one, str) else one for one in parts]
    return {"type": "message", "role": role, "content": content}


def called(id: str, name: str = "f", **more: Any) -> dict[str, Any]:
    """A call."""
    return {"type": "function_call", "call_id": id, "name": name, "arguments": "{}"} | more


def output(id: str, result: Any = "r") -> dict[str, Any]:
    """A call's output."""
    return {"type": "function_call_output", "call_id": id, "output": result}


def shown(**more: Any) -> dict[str, Any]:
    """An image."""
    return {"type": "input_image", "image_url": PIXEL} | more


async def prompt(*items: Any, **fields: Any) -> list[Any]:
    """The messages that a model is asked with."""
    async with client(says(HELLO)) as one:
        await one.create(list(items), **fields)
        return one.prompt()


async def test_systems_texts() -> None:
    """What the system and the developer say first is one message with the instructions; later it is a turn of the user, in its place."""
    found = await prompt(
        said("system", "b"),
        {"role": "developer", "content": "c"},
        said("user", "x"),
        said("developer", "y"),
        said("assistant", "z"),
        said("system", "now"),
        said("user", "go"),
        instructions="a",
    )

    assert [
        ("system", "a\n\nb\n\nc"), ("user", "x"), ("user", "y"), ("assistant", "z"), ("user", "now"), ("user", "go"),
    ] == [(one["role"], one["content"]) for one in found]  # fmt: skip


async def test_neighbours_are_one_message() -> None:
    """What the assistant thought, said and called in a row is one message; its outputs follow, in their own order."""
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}  # fmt: skip
    found = await prompt(
        said("user", "x"), thought, said("assistant", "so"), called("1"), called("2", "g"), output("2"), output("1"), said("user", "y"),
    )  # fmt: skip

    assert ["user", "assistant", "tool", "tool", "user"] == [one["role"] for one in found]
    turn = found[1]
    assert ("hm", "so", ["f", "g"]) == (
        turn["reasoning_content"],
        turn["content"],
        [call["function"]["name"] for call in turn["tool_calls"]],
    )
    assert ["2", "1"] == [one["tool_call_id"] for one in found[2:4]]


async def test_outputs_with_images() -> None:
    """The text of an output is the tool's, and its images are the user's, behind all outputs in a row."""
    first = [{"type": "input_text", "text": "one"}, shown(detail="low")]
    found = await prompt(
        said("user", "x"), called("1"), called("2"), output("1", first), output("2", [shown()])
    )

    assert [("tool", "one"), ("tool", "")] == [(one["role"], one["content"]) for one in found[2:4]]
    assert [{"url": PIXEL, "detail": "low"}, {"url": PIXEL}] == [
        {name: value for name, value in part["image_url"].items() if value is not None}
        for part in found[4]["content"]
    ]
    assert 5 == len(found)


async def test_parts_of_messages() -> None:
    """Texts may be of either side's kind, a refusal is a text, and what is only for clients is told to no model."""
    refusal = {"type": "refusal", "refusal": "no"}
    found = await prompt(
        said("user", {"type": "output_text", "text": "a", "annotations": []}, shown()),
        said("assistant", {"type": "input_text", "text": "b"}, refusal) | {"id": "msg_1", "phase": "commentary"},
        said("user", "c"),
    )  # fmt: skip

    assert [{"type": "text", "text": "a"}] == found[0]["content"][:1]
    assert PIXEL == found[0]["content"][1]["image_url"]["url"]
    assert {"role": "assistant", "content": "b\nno"} == found[1]


async def test_items_that_are_named_by_their_ids() -> None:
    """An id alone is a reference, as some clients send it."""
    async with client(says(HELLO)) as one:
        first = await one.create("My name is Ada.")
        await one.create([{"id": first["output"][0]["id"]}, {"role": "user", "content": "Who?"}])
        found = one.prompt()
        status, _, body = await one.ask("POST", "/responses", {"input": [{"id": "msg_none"}]})

    assert [("assistant", "Hello"), ("user", "Who?")] == [(m["role"], m["content"]) for m in found]
    error = body["error"]
    assert (404, "Item with id 'msg_none' not found.", "invalid_request_error", "input") == (
        status, error["message"], error["type"], error["param"],
    )  # fmt: skip


async def test_ids_that_cannot_be_kept() -> None:
    """An item whose id no database takes gets another one, before the model is asked for an answer that could not be stored."""
    async with client(says(HELLO)) as one:
        item = said("user", "x") | {"id": "msg_\0"}
        first = await one.create([item])
        _, _, kept = await one.ask("GET", f"/responses/{first['id']}/input_items")
        status, _, _ = await one.ask("POST", "/conversations", {"items": [item]})

    assert (["x"], 200) == ([part["text"] for part in kept["data"][0]["content"]], status)


@pytest.mark.parametrize(
    "kind",
    ["web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call", "mcp_list_tools", "tool_search_call"],
)  # fmt: skip
async def test_calls_of_hosted_tools(kind: str) -> None:
    """What a hosted tool has done elsewhere is left out, and named by its place."""
    async with client(says(HELLO)) as one:
        items = [{"type": kind, "id": "x_1", "status": "completed"}, said("user", "x")]
        status, headers, _ = await one.ask("POST", "/responses", {"input": items})

        assert [{"role": "user", "content": "x"}] == one.prompt()
    assert (200, f"input%5B0%5D%3A{kind}") == (status, headers["X-Unilect-Ignored"])


@pytest.mark.parametrize("kind", ["computer_call", "local_shell_call", "shell_call", "apply_patch_call", "compaction_trigger"])  # fmt: skip
async def test_calls_that_clients_have_to_answer(kind: str) -> None:
    """A call whose output is the client's cannot be read here, and is refused by its place."""
    async with client(says(HELLO)) as one:
        items = [said("user", "x"), {"type": kind, "call_id": "1"}]
        status, _, body = await one.ask("POST", "/responses", {"input": items})

        assert not one.server.requests
    assert (400, "input[1]") == (status, body["error"]["param"])
    assert kind in body["error"]["message"]


async def test_tools_that_an_item_brings() -> None:
    """Tools in an item are offered beside those of the request, and their calls come back by their names."""
    more = {"type": "additional_tools", "role": "developer", "tools": [F | {"name": "g"}, {"type": "web_search"}]}  # fmt: skip
    async with client(says(HELLO)) as one:
        status, headers, _ = await one.ask("POST", "/responses", {"input": [more, said("user", "x")], "tools": [F]})  # fmt: skip
        asked = one.server.requests[-1].json()

    assert (200, "input%5B0%5D.tools%5B1%5D%3Aweb_search") == (status, headers["X-Unilect-Ignored"])
    assert ["f", "g"] == [tool["function"]["name"] for tool in asked["tools"]]


async def test_calls_of_namespaces_come_back() -> None:
    """A call that has a namespace goes back to the model under the name that the model knows."""
    space = {"type": "namespace", "name": "ns", "description": "d", "tools": [F]}
    found = await prompt(said("user", "x"), called("1", namespace="ns"), output("1"), tools=[space])

    assert "ns__f" == found[1]["tool_calls"][0]["function"]["name"]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([said("user", shown(detail="some"))], "input[0].content[0].detail"),
        ([said("user", shown(detail=["low"]))], "input[0].content[0].detail"),
        ([said("user", {"type": "input_image", "image_url": {"url": PIXEL}})], "input[0].content[0].image_url"),
        ([said("user", {"type": "input_audio"})], "input[0].content[0]"),
        ([said("system", shown())], "input[0].content"),
        ([said("user", "x"), called("1"), output("1", 5)], "input[2].output"),
        ([said("user", "x"), called("1"), called("1")], "input[2].call_id"),
        ([said("user", "x"), called("1"), output("1"), output("1")], "input[3].call_id"),
        ([{"type": "additional_tools", "tools": 5}, said("user", "x")], "input[0].tools"),
    ],
)  # fmt: skip
async def test_items_that_are_wrong(items: list[Any], param: str) -> None:
    """What is wrong with an item is named by its place."""
    async with client(says(HELLO)) as one:
        status, _, body = await one.ask("POST", "/responses", {"input": items})

    assert (400, param) == (status, body["error"]["param"])


async def test_what_a_model_cannot_read() -> None:
    """What the model's backend refuses is named by its place in the body, whole, streamed, in the background and for a summary."""
    items = [said("system", "s"), said("user", "x"), said("assistant", "y"), said("user", "z", shown())]  # fmt: skip
    async with serving(Echo()) as app:
        errors = []
        for path, more in (("", {}), ("", {"stream": True}), ("/compact", {})):
            async with app.post(f"/v1/responses{path}", input=items, **more) as response:
                errors.append((response.status, (await response.json())["error"]))
        async with app.post("/v1/responses", input=items, background=True, stream=True) as response:
            told = await response.text()

    assert [(400, "input[3].content")] * 3 == [(status, one["param"]) for status, one in errors]
    assert all("`input[3].content` holds an image" in one["message"] for _, one in errors)
    assert "response.failed" in told
    assert "`input[3].content` holds an image" in told


async def test_a_long_patch() -> None:
    """The text of a custom call is one value, however many brackets and commas are in it."""
    patch = {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch"}

    found = await prompt(
        said("user", "x"),
        patch | {"input": "+ f(a, b)\n, {[," * 40_000},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "done"},
    )

    assert ["user", "assistant", "tool"] == [one["role"] for one in found]
