"""Tests of unilect.dialects.fastchat._prompt: a conversation through a FastChat server's own prompt and back."""

from hypothesis import given
from hypothesis import strategies as st

from unilect.core.requests import Message
from unilect.dialects.fastchat._prompt import TurnMarkers
from unilect.upstreams.fastchat._conversation import Conv, chat_prompt

MARKS = TurnMarkers("http://a:1", "m")
CONV = Conv(**{name: value for name, value in MARKS.conv(True).items() if name != "offset"})


def messages() -> st.SearchStrategy[list[Message]]:
    """Conversations that begin with a system message or not."""
    turns = st.lists(
        st.builds(Message, st.sampled_from(["user", "assistant"]), st.text(min_size=1)), min_size=1
    )
    system = st.lists(st.builds(Message, st.just("system"), st.text(min_size=1)), max_size=1)
    return st.tuples(system, turns).map(lambda parts: parts[0] + parts[1])


@given(messages())
def test_there_and_back(conversation: list[Message]) -> None:
    """What a server makes with the template that we give is read as the same conversation."""
    prompt = chat_prompt(CONV, conversation).text

    assert conversation == MARKS.messages(prompt)


def test_other_prompts_are_raw() -> None:
    """A prompt that was made with another template, or for another model, is no conversation."""
    other = chat_prompt(CONV, [Message("user", "Hi")]).text

    assert MARKS.messages("USER: Hi ASSISTANT:") is None
    assert MARKS.messages("") is None
    assert MARKS.messages("x" + other) is None
    assert TurnMarkers("http://a:1", "n").messages(other) is None
    assert TurnMarkers("http://b:1", "m").messages(other) is None


def test_the_template_is_the_same_after_a_restart() -> None:
    """FastChat's servers keep a template for ever, so the marks of an address and model never change."""
    assert TurnMarkers("http://a:1", "m").conv(True) == MARKS.conv(True)


def test_no_chat() -> None:
    """A model that does not chat gets prompts as they are."""
    raw = MARKS.conv(False)

    assert ("raw", ["", ""], "{system_message}") == (
        raw["name"],
        raw["roles"],
        raw["system_template"],
    )
