"""Tests of unilect.dialects.messages._request and what it stands on: a body becomes a chat request."""

from typing import Any

import msgspec
import pytest

from support.clients.messages_bodies import HEAD, OBJECT, TOOLS
from unilect.api.backend import Capabilities
from unilect.api.parameters.prefixes import without_billing
from unilect.core.errors import InvalidRequest, UnilectError, UnsupportedParameter
from unilect.core.requests import (
    FunctionCall,
    ImagePart,
    ImageUrl,
    Message,
    MessageToolCall,
    NamedFunction,
    TextPart,
    ToolChoice,
)
from unilect.dialects.messages._conversation import MARK, sign_thought
from unilect.dialects.messages._errors import ThreadNotFound, envelope
from unilect.dialects.messages._request import DecodedBody, decode, read
from unilect.runtime.context import CURRENT_REQUEST, Context

USER = {"role": "user", "content": "x"}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "AAAA"}


def decoded(*messages: Any, **fields: Any) -> DecodedBody:
    """What a body with these messages asks; a user's turn where there are none."""
    return read(decode(msgspec.json.encode({"messages": messages or [USER]} | fields)))


def user(*blocks: Any) -> dict[str, Any]:
    """A user's turn of blocks."""
    return {"role": "user", "content": blocks}


def assistant(*blocks: Any) -> dict[str, Any]:
    """An assistant's turn of blocks."""
    return {"role": "assistant", "content": blocks}


def text(words: str) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": words}


def call(id: str = "toolu_1", name: str = "f", **input: Any) -> dict[str, Any]:
    """A call's block."""
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(content: Any = None, id: str = "toolu_1", **fields: Any) -> dict[str, Any]:
    """A result's block."""
    return {"type": "tool_result", "tool_use_id": id, "content": content} | fields


def refused(*messages: Any, **fields: Any) -> InvalidRequest:
    """The error that a body gets."""
    with pytest.raises(InvalidRequest) as caught:
        decoded(*messages, **fields)
    return caught.value


def test_a_text_is_a_chat() -> None:
    """A body of one text, with what it says of the answer, is a chat with the same parameters under OpenAI's names."""
    request = decoded(
        max_tokens=16, temperature=0.5, top_p=0.9, top_k=4, stop_sequences=["END"], stream=True
    ).request

    assert request.messages == [Message("user", "x")]
    assert (16, 0.5, 0.9, 4, ["END"], True) == (
        request.max_tokens,
        request.temperature,
        request.top_p,
        request.top_k,
        request.stop,
        request.stream,
    )


def test_the_head_of_claude_code() -> None:
    """Claude Code's first body has one system message, of both texts, and nothing to name; the service leaves the billing header out."""
    asked = read(decode(msgspec.json.encode(HEAD)))

    assert without_billing(asked.request).messages == [
        Message("system", "S\n\n# Environment"),
        Message("user", "hi"),
    ]
    assert ("high", None) == (asked.request.reasoning_effort, asked.request.enable_thinking)
    assert asked.omits_thoughts
    assert asked.left_out == ()


def test_the_billing_header_changes_no_prompt() -> None:
    """Two bodies that differ in the billing header only make the same prompt; a system that is nothing else is none."""
    body = msgspec.json.encode(HEAD)
    one, other = (
        read(decode(each)).request for each in (body, body.replace(b"cch=ab12c", b"cch=0000f"))
    )

    assert without_billing(one) == without_billing(other)
    alone = {"system": HEAD["system"][:1], "messages": [USER]}
    assert [Message("user", "x")] == read(decode(msgspec.json.encode(alone))).request.messages


def test_a_later_system_turn_is_text_of_the_user() -> None:
    """A system turn after the first answer stays where it is, so that the prefix before it is unchanged."""
    asked = decoded(
        USER, assistant(text("a")), user(text("b")), {"role": "system", "content": "now"}
    )

    assert asked.request.messages == [
        Message("user", "x"),
        Message("assistant", "a"),
        Message("user", "b\n\nnow"),
    ]


@pytest.mark.parametrize(
    "after",
    [
        [],
        [user(text("and?"))],
        [assistant(text("done"))],
        [user(result("a", id="other"))],
        [user(text("and?")), assistant(text("b")), user(result("late"))],
        [{"role": "system", "content": "now"}, assistant(text("b")), user(result("late"))],
    ],
)
def test_calls_without_results(after: list[Any]) -> None:
    """A call whose result does not come in the turn after it is refused, in words at which clients mend the conversation."""
    other = call("other")
    error = refused(USER, assistant(text("a"), other, call(x=1)), user(result("r", id="other")), *after)  # fmt: skip
    assert "messages[1].content[2]" == error.param
    assert (
        "`tool_use` ids were found without `tool_result` blocks immediately after: "
        in error.message
    )


def test_results_in_several_turns() -> None:
    """The turn after a call may be sent in several, with a turn of the system between them; and calls may stand in two."""
    calls = assistant(call("one")), assistant(call("two"))
    results = user(result("1", id="one")), {"role": "system", "content": "now"}, user(result("2", id="two"))  # fmt: skip
    messages = decoded(USER, *calls, *results).request.messages

    assert ["user", "assistant", "tool", "tool", "user"] == [one.role for one in messages]


def test_results_stand_before_the_users_text() -> None:
    """A turn with a thought, a call, an error and a text is reasoning, a call, the tool's error, and then the user's text."""
    asked = decoded(
        USER,
        assistant(text(""), {"type": "thinking", "thinking": "h", "signature": "zz"}, call(x=1)),
        user(text("and?"), result([text("boom")], is_error=True)),
    )

    assert asked.request.messages == [
        Message("user", "x"),
        Message(
            "assistant",
            "",
            tool_calls=[MessageToolCall("toolu_1", FunctionCall("f", '{"x":1}'))],
            reasoning_content="h",
        ),
        Message("tool", "Error: boom", tool_call_id="toolu_1"),
        Message("user", "and?"),
    ]


def test_adjacent_turns_of_one_role_are_one_message() -> None:
    """Templates want user and assistant in turns, so adjacent turns of one role are joined, with their calls."""
    asked = decoded(
        USER,
        USER,
        assistant(text("a"), call("1")),
        assistant(call("2")),
        user(result("r", "2"), result("q", "1")),
    )

    first, answer, *results = asked.request.messages
    assert first == Message("user", "x\n\nx")
    assert [one.id for one in answer.tool_calls or ()] == ["1", "2"]
    assert [(one.tool_call_id, one.content) for one in results] == [("2", "r"), ("1", "q")]


def test_results_without_content() -> None:
    """A result without content is an empty text."""
    asked = decoded(
        USER, assistant(call()), user({"type": "tool_result", "tool_use_id": "toolu_1"})
    )

    assert asked.request.messages[-1] == Message("tool", "", tool_call_id="toolu_1")


def test_images_of_results_are_the_users() -> None:
    """A result's image stands in a user's part after the result, since a tool message is text to most templates."""
    asked = decoded(
        USER, assistant(call()), user(result([text("shot"), {"type": "image", "source": PIXEL}]))
    )

    assert asked.request.messages[2:] == [
        Message("tool", "shot", tool_call_id="toolu_1"),
        Message("user", [ImagePart(ImageUrl("data:image/png;base64,AAAA"))]),
    ]


def test_images_by_url() -> None:
    """An image may be named by its URL, also in a result; whether it is fetched is the service's to say."""
    url = {"type": "image", "source": {"type": "url", "url": "HTTPS://x/y.png"}}
    asked = decoded(user(url), assistant(call()), user(result([url])))

    image = [ImagePart(ImageUrl("HTTPS://x/y.png"))]
    first, _, _, last = asked.request.messages
    assert (image, image) == (first.content, last.content)


def test_images_stand_between_texts() -> None:
    """A user's texts and images keep their order."""
    asked = decoded(user(text("a"), {"type": "image", "source": PIXEL}, text("b")))

    (message,) = asked.request.messages
    assert message.content == [
        TextPart("a"),
        ImagePart(ImageUrl("data:image/png;base64,AAAA")),
        TextPart("b"),
    ]


def test_documents_and_search_results_are_text() -> None:
    """A document is its title, its context and its text; a search result its title, its source and its text."""
    asked = decoded(
        user(
            {
                "type": "document",
                "title": "T",
                "context": "C",
                "source": {"type": "text", "media_type": "text/plain", "data": "D"},
            },
            {"type": "document", "source": {"type": "content", "content": [text("E")]}},
            {"type": "search_result", "source": "http://s", "title": "R", "content": [text("F")]},
        )
    )

    assert asked.request.messages == [Message("user", "T\nC\nD\n\nE\n\nR\nhttp://s\nF")]


def test_an_omitted_thought_comes_back() -> None:
    """The text of a thought that was omitted is read from the signature that it was put into."""
    block = {"type": "thinking", "thinking": "", "signature": sign_thought("so be it")}

    asked = decoded(USER, assistant(block, text("a")), USER)

    assert asked.request.messages[1].reasoning_content == "so be it"


@pytest.mark.parametrize("signature", ["", "zz", f"{MARK}!", f"{MARK}/w==", None])
def test_foreign_signatures_are_accepted(signature: str | None) -> None:
    """A signature of another server, a broken one or none is no error, and holds no thought."""
    block = {"type": "thinking", "thinking": "", "signature": signature}

    asked = decoded(USER, assistant(block, text("a")), USER)

    assert asked.request.messages[1] == Message("assistant", "a")


def test_broken_calls_of_claude_code_come_back() -> None:
    """Claude Code's note of a call that was no JSON is the input of the call."""
    asked = decoded(USER, assistant(call(__unparsedToolInput={"raw": "{"})), user(result("wrong")))

    (said,) = asked.request.messages[1].tool_calls or ()
    assert said.function.arguments == '{"__unparsedToolInput":{"raw":"{"}}'


def test_deferred_and_hosted_tools() -> None:
    """A deferred tool is not in the prompt, and a hosted one is left out and named."""
    asked = decoded(tools=TOOLS)

    assert [tool.function.name for tool in asked.request.tools or ()] == ["A"]
    assert asked.left_out == ("tools[2]:web_search",)


def test_a_reference_makes_a_deferred_tool_available() -> None:
    """A `tool_reference` in a result puts its tool into the prompt, and says so."""
    reference = {"type": "tool_reference", "tool_name": "B"}
    asked = decoded(USER, assistant(call()), user(result([reference])), tools=TOOLS)

    assert [tool.function.name for tool in asked.request.tools or ()] == ["A", "B"]
    assert asked.request.messages[-1].content == "Tool B is now available."


def test_a_hosted_search_defers_nothing() -> None:
    """Where a hosted tool was to find the deferred ones, which is left out, they are in the prompt."""
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    asked = decoded(tools=[*TOOLS[:2], search])

    assert [tool.function.name for tool in asked.request.tools or ()] == ["A", "B"]


@pytest.mark.parametrize(
    ("choice", "ours"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "A"}, ToolChoice(NamedFunction("A"))),
        ({"type": "tool", "name": "B"}, ToolChoice(NamedFunction("B"))),
    ],
)
def test_tool_choice(choice: dict[str, Any], ours: Any) -> None:
    """Each choice has its word in a chat; a named tool may be a deferred one."""
    assert decoded(tools=TOOLS, tool_choice=choice).request.tool_choice == ours


def test_one_call_at_a_time() -> None:
    """`disable_parallel_tool_use` is `parallel_tool_calls: false`."""
    choice = {"type": "any", "disable_parallel_tool_use": True}

    assert decoded(tools=TOOLS, tool_choice=choice).request.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("thinking", "ours"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "disabled"}, False),
        ({"type": "adaptive"}, None),
        ({"type": "between_tools"}, None),
    ],
)
def test_thinking(thinking: dict[str, Any], ours: bool | None) -> None:
    """Thinking is switched on or off, or left to the model."""
    assert decoded(thinking=thinking).request.enable_thinking is ours


def test_a_budget_for_thoughts() -> None:
    """A budget is a chat's; beside another type than `enabled` it means nothing, and is named."""
    enabled = decoded(thinking={"type": "enabled", "budget_tokens": 2000})
    adaptive = decoded(thinking={"type": "adaptive", "budget_tokens": 2000})

    assert (2000, ()) == (enabled.request.thinking_budget_tokens, enabled.left_out)
    assert (None, ("thinking.budget_tokens",)) == (
        adaptive.request.thinking_budget_tokens,
        adaptive.left_out,
    )


@pytest.mark.parametrize(("effort", "ours"), [("low", "low"), ("xhigh", "xhigh"), ("max", "xhigh")])
def test_effort(effort: str, ours: str) -> None:
    """An effort keeps its word; the one that a chat does not have is its highest."""
    assert decoded(output_config={"effort": effort}).request.reasoning_effort == ours


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_formats(place: str) -> None:
    """A schema binds the answer, in its place of today or of older betas."""
    form = {"type": "json_schema", "schema": OBJECT}
    fields = {place: form if place == "output_format" else {"format": form}}

    assert decoded(**fields).request.answer_schema == OBJECT


def test_what_is_left_out_is_named() -> None:
    """Fields of Anthropic's servers, and what no backend has, are named; what asks for nothing is not."""
    asked = decoded(
        service_tier="auto",
        betas=[],
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]},
        thinking={"type": "disabled", "budget_tokens": 2000},
        speed=None,
    )

    assert asked.left_out == ("service_tier", "context_management", "thinking.budget_tokens")


@pytest.mark.parametrize(
    ("messages", "fields", "param"),
    [
        ([], {"messages": []}, "messages"),
        ([], {"messages": 5}, "messages"),
        ([{"role": "tool", "content": "x"}], {}, "messages[0].role"),
        ([{"role": "user"}], {}, "messages[0].content"),
        ([user({"text": "x"})], {}, "messages[0].content[0].type"),
        ([user({"type": "text"})], {}, "messages[0].content[0].text"),
        ([user({"type": "text", "text": 5})], {}, "messages[0].content[0].text"),
        ([user({"type": "hologram"})], {}, "messages[0].content[0].type"),
        ([assistant({"type": "image", "source": PIXEL}), USER], {}, "messages[0].content[0].type"),
        ([USER, assistant(call()), user(result(5))], {}, "messages[2].content[0].content"),
        ([USER, assistant(call()), user(result([{"type": 5}]))], {}, "messages[2].content[0].content[0].type"),
        ([USER, user(result("x", "toolu_9"))], {}, "messages[1].content[0].tool_use_id"),
        ([USER, assistant({"type": "tool_use", "id": "1", "name": "f", "input": "{}"})], {}, "messages[1].content[0].input"),
        ([user({"type": "image", "source": {"type": "file", "file_id": "f"}})], {}, "messages[0].content[0].source.type"),
        ([user({"type": "image", "source": {"type": "url"}})], {}, "messages[0].content[0].source.url"),
        ([user({"type": "image", "source": {"type": "url", "url": "file:///x"}})], {}, "messages[0].content[0].source.url"),
        ([user({"type": "image", "source": {"type": "url", "url": "AAAA"}})], {}, "messages[0].content[0].source.url"),
        ([user({"type": "image"})], {}, "messages[0].content[0].source"),
        ([user({"type": "image", "source": PIXEL | {"media_type": "image/tiff"}})], {}, "messages[0].content[0].source.media_type"),
        ([user({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}})], {}, "messages[0].content[0].source"),
        ([user({"type": "document", "source": {"type": "url", "url": "http://x/y.pdf"}})], {}, "messages[0].content[0].source"),
        ([{"role": "system", "content": "x"}], {}, "messages"),
        ([], {"system": [{"type": "image"}]}, "system[0].type"),
        ([], {"max_tokens": -1}, "max_tokens"),
        ([], {"max_tokens": "5"}, "max_tokens"),
        ([], {"stop_sequences": [""]}, "stop_sequences[0]"),
        ([], {"temperature": 3}, "temperature"),
        ([], {"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ([], {"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ([], {"tools": [{"name": 'a"', "input_schema": {}}]}, "tools[0].name"),
        ([], {"tools": [TOOLS[0], {"type": "bash_20250124", "name": "bash"}]}, "tools[1]"),
        ([], {"tools": [{"name": "f", "input_schema": {"a": [[]] * 20_000}}]}, "tools[0].input_schema"),
        ([], {"tools": [TOOLS[0] | {"name": f"f{n}"} for n in range(129)]}, "tools"),
        ([], {"tools": [TOOLS[0] | {"input_schema": {"a": [0] * 9000}}] * 6}, "tools[5].input_schema"),
        ([], {"tool_choice": {"type": "any"}}, "tool_choice"),
        ([], {"tools": [TOOLS[2]], "tool_choice": {"type": "tool", "name": "web_search"}}, "tools[0]"),
        ([], {"tools": [TOOLS[2]]}, "tools[0]"),
        ([], {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}, TOOLS[2]]}, "tools[0]"),
        ([], {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "C"}}, "tool_choice.name"),
        ([], {"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ([], {"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ([], {"thinking": {"type": "deep"}}, "thinking.type"),
        ([], {"output_config": {"effort": "huge"}}, "output_config.effort"),
        ([], {"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ([], {"container": "c"}, "container"),
        ([], {"metadata": {"a": [[]] * 20_000}}, "metadata"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(messages: list[Any], fields: dict[str, Any], param: str) -> None:
    """An error names the parameter as the client wrote it."""
    error = refused(*messages, **fields)

    assert error.param == param
    assert f"`{param}" in error.message


def test_blocks_of_server_tools_are_left_out() -> None:
    """What Anthropic's own tools left in the conversation is not in the prompt, and is named by its place."""
    said = assistant(
        text("a"), {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    )
    asked = decoded(
        USER, said, user(text("b"), {"type": "web_search_tool_result", "content": {"error": 1}})
    )

    assert [message.content for message in asked.request.messages] == ["x", "a", "b"]
    assert asked.left_out == (
        "messages[1].content[1]:server_tool_use",
        "messages[2].content[1]:web_search_tool_result",
    )


def test_threads() -> None:
    """No conversation is held: a new thread is named, and one to be continued is not found, by the code that clients look for."""
    CURRENT_REQUEST.set(Context(request_id="req_1"))

    assert decoded(thread={"type": "create"}).left_out == ("thread",)
    with pytest.raises(ThreadNotFound) as caught:
        decoded(thread={"type": "continue", "previous_message_id": "msg_1"})
    assert envelope(caught.value)["error"]["details"] == {"error_code": "thread_not_found"}


def test_too_many_results_are_refused() -> None:
    """Turns that become more messages than a template takes are refused."""
    turns = [USER, assistant(*(call(str(n)) for n in range(1000)))]
    turns += [user(*(result("r", str(n)) for n in range(1000)))] * 3

    assert refused(*turns).param == "messages"


def test_places_of_the_body() -> None:
    """An error that names a message or a tool of the chat is told with its place in the body."""
    asked = decoded(
        USER,
        {"role": "system", "content": "s"},
        user(text("a"), {"type": "image", "source": PIXEL}, text(""), {"type": "image", "source": PIXEL}),
        assistant(text("b"), call()),
        user(text("y"), result([text("r"), {"type": "image", "source": PIXEL}])),
        tools=[TOOLS[2], TOOLS[0]],
    )  # fmt: skip

    def named(param: str) -> str | None:
        error = asked.places.rename(UnilectError(f"`{param}` is wrong.", param=param))
        assert error.message == f"`{error.param}` is wrong."
        return error.param

    assert ["system", "user", "assistant", "tool", "user"] == [
        message.role for message in asked.request.messages
    ]
    assert named("messages[0].content") == "system"
    assert named("messages[1].content") == "messages[2].content[1]"
    assert named("messages[1].content[0]") == "messages[0].content[0]"
    assert named("messages[1].content[2].image_url") == "messages[2].content[1].source"
    assert named("messages[1].content[3].image_url") == "messages[2].content[3].source"
    assert named("messages[2].tool_calls[0].function.arguments") == "messages[3].content[1]"
    assert named("messages[3].content") == "messages[4].content[1].content"
    assert named("messages[4].content[1].image_url") == "messages[4].content[1].content[1].source"
    assert named("tools[0].function.parameters") == "tools[1].input_schema"
    assert named("stop") == "stop_sequences"
    assert named("messages[77]") == "messages[77]"


def test_fields_of_tools_that_change_no_prompt() -> None:
    """Marks and hints that newer clients send with each tool are accepted; `strict` is kept."""
    more = {
        "type": "custom",
        "strict": True,
        "cache_control": {"type": "ephemeral"},
        "eager_input_streaming": True,
        "input_examples": [{"x": 1}],
        "allowed_callers": ["direct"],
    }
    asked = decoded(tools=[TOOLS[0] | more])

    (tool,) = asked.request.tools or ()
    assert ("A", OBJECT, True, ()) == (
        tool.function.name,
        tool.function.parameters,
        tool.function.strict,
        asked.left_out,
    )


def test_thoughts_that_nobody_can_read() -> None:
    """A redacted thought is dropped, and a turn that holds nothing else is none."""
    hidden = {"type": "redacted_thinking", "data": "zz"}
    asked = decoded(USER, assistant(hidden, text("a")), USER, assistant(hidden), USER)

    assert [("user", "x"), ("assistant", "a"), ("user", "x\n\nx")] == [
        (message.role, message.content) for message in asked.request.messages
    ]
    assert ((), None) == (asked.left_out, asked.request.max_tokens)


def test_a_last_turn_of_the_assistant() -> None:
    """A conversation that ends with the assistant is for a backend that goes on with it, and else refused by its place."""
    asked = decoded(USER, assistant(text("The")))

    asked.check(Capabilities(continues=True))
    with pytest.raises(UnsupportedParameter) as caught:
        asked.check(Capabilities())
    assert caught.value.param == "messages[1]"
