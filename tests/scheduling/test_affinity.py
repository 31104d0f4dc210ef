"""Tests of unilect.scheduling.affinity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.backends.engine import chat, completion
from support.clients.callers import of
from unilect.core.requests import ChatRequest, EmbeddingRequest, Message
from unilect.scheduling.affinity import BLOCK_CHARS, MAX_KNOWN, Affinity, digests

ROLES = st.sampled_from(["system", "user", "assistant"])
TURNS = st.lists(st.builds(Message, ROLES, st.text(max_size=5)), min_size=1, max_size=6)


def talk(turns: list[Message]) -> ChatRequest:
    """A chat of these turns."""
    return ChatRequest(messages=turns)


@given(TURNS, TURNS)
def test_the_next_turn_is_known_by_the_last(turns: list[Message], more: list[Message]) -> None:
    """A conversation that goes on goes where it was."""
    affinity: Affinity[str] = Affinity()
    affinity.note(digests(talk(turns)), "here")

    assert "here" == affinity.find(digests(talk(turns + more)))


@given(TURNS, TURNS)
def test_another_conversation_is_unknown(turns: list[Message], other: list[Message]) -> None:
    """Only a conversation that begins with all turns of a known one is known."""
    affinity: Affinity[str] = Affinity()
    affinity.note(digests(talk(turns)), "here")
    found = affinity.find(digests(talk(other)))

    assert ("here" if other[: len(turns)] == turns else None) == found


@pytest.mark.parametrize(
    "request_", [chat("a secret"), completion("a secret " * BLOCK_CHARS)], ids=["chat", "text"]
)
def test_another_callers_conversation_is_unknown(request_: ChatRequest) -> None:
    """Where a request goes depends on what its own caller has asked."""
    affinity: Affinity[str] = Affinity()
    found = {}
    for caller in ("ada", "bob", "ada"):
        with of(caller):
            found[caller] = affinity.find(digests(request_))
            affinity.note(digests(request_), caller)

    assert {"ada": "ada", "bob": None} == found


def test_the_longest_beginning_counts() -> None:
    """Of two known beginnings the longer one decides."""
    turns = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    affinity: Affinity[str] = Affinity()
    affinity.note(digests(talk(turns)), "long")
    affinity.note(digests(talk(turns[:1])), "short")

    assert "long" == affinity.find(digests(talk([*turns, Message("user", "d")])))


def test_tools_and_parts_belong_to_the_beginning() -> None:
    """Other tools make another prompt; a content in parts is compared too."""
    tool = {"type": "function", "function": {"name": "f"}}
    assert digests(chat("x")) != digests(chat("x", tools=[tool]))
    one, two = (
        digests(chat(messages=[{"role": "user", "content": [{"type": "text", "text": text}]}]))
        for text in "ab"
    )
    assert one != two


def test_a_text_is_known_by_whole_blocks() -> None:
    """A prompt that goes on after its last whole block is the same beginning; a short one has none."""
    text = "x" * BLOCK_CHARS
    affinity: Affinity[str] = Affinity()
    affinity.note(digests(completion(text + "abc")), "here")

    assert "here" == affinity.find(digests(completion(text + "def" * BLOCK_CHARS)))
    assert [] == digests(completion("short"))
    assert [] == digests(completion(""))
    assert [] == digests(EmbeddingRequest(input="x"))
    ids = list(range(BLOCK_CHARS))
    assert digests(completion(ids)) == digests(completion([*ids, 1]))


def test_the_oldest_is_forgotten() -> None:
    """The conversations of the last `MAX_KNOWN` / 2 are known, and never more than twice as many; one that goes on stays."""
    affinity: Affinity[str] = Affinity()
    most, half = 2 * MAX_KNOWN + 7, MAX_KNOWN // 2
    for number in range(most):
        affinity.note([number], f"{number}")
        assert "0" == affinity.find([0])
        assert len(affinity._new) + len(affinity._old) <= MAX_KNOWN
    known = sorted({*affinity._old, *affinity._new})

    assert [0, *range(most - half + 2, most)] == known[:1] + known[2 - half :]
    assert affinity.find([1]) is None
    affinity.note([0], "there")
    assert "there" == affinity.find([0])
