"""_request_defaults.py: what a model's settings make of a request, in front of every kind of backend."""

import pytest

from unilect.api.parameters.rules import Settings
from unilect.config.server import ModelConfig
from unilect.core.errors import ConfigError
from unilect.core.requests import ChatRequest, CompletionRequest, Message
from unilect.models.request_defaults import request_defaults
from unilect.web.decode import BodyDecoder

HI = [Message("user", "Hi")]
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n"
    "    \n### Instruction:\n{}\n\n### Response: "
)


def test_stop_words_join_those_of_the_request() -> None:
    """A model's stop words stand beside the request's, one word once."""
    prepare = request_defaults(ModelConfig(stop=["a", "b"]))
    request = prepare(ChatRequest(messages=HI, stop="b"))
    written = prepare(BodyDecoder(CompletionRequest).decode(b'{"prompt": "x"}'))

    assert ["b", "a"] == request.stop_words
    assert {} == request.raw_fields
    assert b'["a","b"]' == bytes(written.raw_fields["stop"])


def test_prompts_are_wrapped() -> None:
    """Each prompt that is a text becomes the turn of a user, and the format's stop words count."""
    prepare = request_defaults(ModelConfig(completion_template="alpaca-completion"))
    one = prepare(CompletionRequest(prompt="x"))
    many = prepare(CompletionRequest(prompt=["x", "y"]))
    ids = prepare(CompletionRequest(prompt=[1, 2]))

    assert isinstance(one, CompletionRequest)
    assert ALPACA.format("x") == one.prompt
    assert ["</s>", "### Instruction:"] == one.stop_words
    assert [ALPACA.format("x"), ALPACA.format("y")] == many.prompts  # type: ignore[union-attr]
    assert [[1, 2]] == ids.prompts  # type: ignore[union-attr]


def test_a_conversation_is_not_wrapped() -> None:
    """The template of plain completions is none of chats."""
    request = ChatRequest(messages=HI)

    assert request == request_defaults(ModelConfig(completion_template="alpaca-completion"))(
        request
    )


def test_a_wrong_template_is_told_at_start() -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match=r"completion_template: alpacca.* alpaca"):
        request_defaults(ModelConfig(completion_template="alpacca"))


def test_a_system_message_stands_where_a_chat_has_none() -> None:
    """A model's system message comes first in a chat that has none, wherever its own would stand; completions have no messages."""
    prepare = request_defaults(ModelConfig(system="Be brief."))
    own = ChatRequest(messages=[*HI, Message("developer", "Be long.")])
    written = prepare(
        BodyDecoder(ChatRequest).decode(b'{"messages": [{"role": "user", "content": "Hi"}]}')
    )
    billed = [Message("system", "x-anthropic-billing-header: cc_version=1;"), *HI]

    assert [Message("system", "Be brief."), *HI] == prepare(ChatRequest(messages=HI)).messages
    dropped = Settings(True, prepare, {}, "refuse").apply(ChatRequest(messages=billed))
    assert [Message("system", "Be brief."), *HI] == dropped.messages
    assert own == prepare(own)
    assert b"Be brief." in bytes(written.raw_fields["messages"])
    assert "x" == prepare(CompletionRequest(prompt="x")).prompt
