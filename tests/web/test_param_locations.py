"""Tests of unilect.web.param_locations: errors about a chat, in the words of the body that it was made of."""

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core.errors import InvalidRequest
from unilect.web.param_locations import MessageLocation, ParamLocations

PLACES = ParamLocations(
    {"messages": "input", "max_completion_tokens": "max_output_tokens", "enable_thinking": ""},
    ".source",
    ".schema",
    [
        MessageLocation("instructions", "instructions"),
        MessageLocation(
            "input[1]", "input[1].content", ["input[1].content[0]", "input[1].content[2]"]
        ),
        MessageLocation("input[2]", "input[2]", calls=["input[3]", "input[5]"]),
    ],
    ["tools[4]"],
)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("messages", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("enable_thinking", "enable_thinking"),
        ("top_k", "top_k"),
        ("messages[0]", "instructions"),
        ("messages[0].content", "instructions"),
        ("messages[1].role", "input[1]"),
        ("messages[1].content", "input[1].content"),
        ("messages[1].content[1]", "input[1].content[2]"),
        ("messages[1].content[1].image_url", "input[1].content[2].source"),
        ("messages[1].content[9]", "input[1].content"),
        ("messages[2].tool_calls[1].function.arguments", "input[5]"),
        ("messages[2].tool_calls[7]", "input[2]"),
        ("messages[3]", "messages[3]"),
        ("tools[0]", "tools[4]"),
        ("tools[0].function.parameters", "tools[4].schema"),
        ("tools[1]", "tools[1]"),
    ],
)
def test_names(ours: str, theirs: str) -> None:
    """A parameter, a message, a part, a call and a tool have the client's names, in the message and as the parameter."""
    error = InvalidRequest(f"`{ours}` is wrong.", param=ours)
    told = PLACES.rename(error)

    assert (theirs, f"`{theirs}` is wrong.") == (told.param, told.message)
    assert (ours, f"`{ours}` is wrong.") == (error.param, error.message)


@given(st.text(alphabet="messagtool[]0123456789.`content_ur", max_size=80))
def test_any_text(text: str) -> None:
    """Whatever an upstream writes into a message, it can be told."""
    assert PLACES.rename(InvalidRequest(text)).message is not None


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("Invalid 'messages[1].content[1].image_url'.", "Invalid 'input[1].content[2].source'."),
        ("tools[0].function.name is wrong.", "tools[4].function.name is wrong."),
        ("`tools[0].function.parameters.x` and messages", "`tools[4].schema.x` and messages"),
    ],
)
def test_the_words_of_a_server(ours: str, theirs: str) -> None:
    """What a server quotes in its own way is named as the client has sent it, too."""
    assert theirs == PLACES.rename(InvalidRequest(ours)).message
