"""Tests of unilect.engines.chatglm._request."""

from typing import Any

import msgspec
import pytest

from support.backends.engine import completion
from unilect.api.parameters.rules import ACCEPTED
from unilect.core.errors import InvalidRequest
from unilect.core.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from unilect.engines.chatglm._request import PARAMETERS, generate_body, sampling, turns

USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def chat(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    """A chat of these messages."""
    return msgspec.convert({"messages": list(messages)} | fields, ChatRequest)


def test_every_parameter_is_judged() -> None:
    """There is no parameter of a chat or a completion that the engine says nothing of."""
    names = {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__} - {"raw_fields"}

    assert (
        set()
        == names
        - set(PARAMETERS)
        - ACCEPTED
        - ChatRequest.gateway_fields
        - CompletionRequest.gateway_fields
    )
    assert set() == set(PARAMETERS) & {*EmbeddingRequest.gateway_fields}


def test_turns_of_chatglm3() -> None:
    """Roles are ChatGLM3's: a developer is a system, a tool's result an observation, a call a turn with a name."""
    found = turns(
        chat(
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "7"},
        ),
        "ChatGLM3",
    )  # fmt: skip

    assert [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "metadata": "f", "content": "```python\ntool_call(a=1)\n```"},
        {"role": "observation", "content": "7"},
    ] == found


def test_a_system_text_goes_before_the_user_for_older_models() -> None:
    """ChatGLM and ChatGLM2 know no system, so the user says its text."""
    for family in ("ChatGLM", "ChatGLM2"):
        system = {"role": "system", "content": "Be kind."}

        assert [{"role": "user", "content": "Be kind.\n\nHi"}] == turns(chat(system, USER), family)  # type: ignore[arg-type]
        assert [{"role": "user", "content": "Be kind.\n\nHi"}] == turns(chat(USER, system), family)  # type: ignore[arg-type]


ANSWER = {"role": "assistant", "content": "Hello"}
SYSTEM = {"role": "system", "content": "x"}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


@pytest.mark.parametrize("family", ["ChatGLM", "ChatGLM2", "ChatGLM3", "ChatGLM4"])
@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([SYSTEM], "no user message"),
        ([ANSWER], "no user message"),
        ([{"role": "tool", "content": "x"}], "no user message"),
        ([USER, ANSWER], "ends with an assistant message"),
        ([IMAGE], "content other than text"),
    ],
)
def test_conversations_that_no_model_takes(messages: list[Any], said: str, family: Any) -> None:
    """What the library would end its process over, or could not read, is refused with a reason."""
    with pytest.raises(InvalidRequest, match=said):
        turns(chat(*messages), family)


def test_older_models_get_roles_in_turn() -> None:
    """Turns of one role in a row are one turn for ChatGLM and ChatGLM2, and a later system text is the user's."""
    for family in ("ChatGLM", "ChatGLM2"):
        found = turns(chat(USER, USER, ANSWER, ANSWER, SYSTEM), family)  # type: ignore[arg-type]
        said = [USER["content"], ANSWER["content"]]
        assert [
            ("user", f"{said[0]}\n\n{said[0]}"),
            ("assistant", f"{said[1]}\n\n{said[1]}"),
            ("user", SYSTEM["content"]),
        ] == [(turn["role"], turn["content"]) for turn in found]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([ANSWER, USER], "messages[0]"),
        ([USER, {"role": "tool", "content": "x"}], "messages[1]"),
        ([USER, {"role": "assistant", "tool_calls": [CALL]}, USER], "messages[1]"),
    ],
)
def test_conversations_that_older_models_do_not_take(messages: list[Any], param: str) -> None:
    """ChatGLM and ChatGLM2 want user and assistant in turn; what is not so is refused by its place."""
    for family in ("ChatGLM", "ChatGLM2"):
        with pytest.raises(InvalidRequest) as caught:
            turns(chat(*messages), family)  # type: ignore[arg-type]

        assert param == caught.value.param


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"do_sample": True, "temperature": 0.95, "top_p": 0.7, "top_k": 0}),
        ({"temperature": 0.5, "top_p": 1, "top_k": 5}, {"temperature": 0.5, "top_p": 1, "top_k": 5}),
        ({"top_p": 0}, {"do_sample": False}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"repeat_penalty": 1.3}, {"repetition_penalty": 1.3}),
    ],
)  # fmt: skip
def test_sampling(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """Sampling is the library's, with its own values where a request does not say."""
    assert expected.items() <= sampling(chat(USER, **fields)).items()


def test_token_ids_beyond_the_vocabulary() -> None:
    """An id that the model does not have is refused by name: the library would end its process over it."""
    assert [1, 99] == generate_body(completion([1, 99]), "ChatGLM3", 100)["prompt"]
    with pytest.raises(InvalidRequest) as caught:
        generate_body(completion([1, 100]), "ChatGLM3", 100)

    assert "prompt" == caught.value.param
