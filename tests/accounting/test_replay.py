"""Tests of unilect.accounting.replay: requests of the past with another memory."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from unilect.accounting.replay import PastRequest, replay

NEEDS = {"a": 4, "b": 4, "c": 4, "large": 20}


def asked(text: str, duration_s: float = 0.0) -> list[PastRequest]:
    """A request every second, to models by their letters."""
    return [PastRequest(float(at), name, duration_s) for at, name in enumerate(text)]


def test_the_least_recently_used_goes() -> None:
    """A model stays until another one needs its place, and the one that was asked last stays longest."""
    assert Counter(a=1, b=1, c=1) == replay(asked("abcabc"), NEEDS, 12).loads
    assert Counter(a=2, b=2, c=2) == replay(asked("abcabc"), NEEDS, 8).loads
    assert Counter(a=1, b=2, c=1) == replay(asked("abacb"), NEEDS, 8).loads
    assert 6 * 4 == replay(asked("abcabc"), NEEDS, 8).read_bytes


def test_an_answer_is_waited_for() -> None:
    """A model that answers keeps its place; who needs it waits for the end, and so do those who come to the new one meanwhile."""
    told = replay([*asked("a", 10.0), PastRequest(1, "b", 1), PastRequest(3, "b", 1)], NEEDS, 4)

    assert (2, 9.0 + 7.0) == (told.queued, told.queued_s)
    assert Counter(a=1, b=1) == told.loads


def test_what_cannot_be_loaded() -> None:
    """A model that is larger than the memory is counted, and one without a known size is left out."""
    requests = [PastRequest(0.0, name, 1.0) for name in ("large", "large", "far", "a")]
    told = replay(requests, NEEDS, 8)

    assert (2, Counter(a=1), 0) == (told.too_large, told.loads, told.queued)


def test_pinned_models_stay() -> None:
    """A pinned model is loaded at the start, whether it is asked for or not, and leaves others what is left; without room for it nothing is answered."""
    told = replay(asked("bcbca"), NEEDS, 8, ["a", "far"])
    none = replay(asked("ab"), NEEDS, 7, ["a", "c"])

    assert (Counter(a=1, b=2, c=2), 5 * 4, 0) == (told.loads, told.read_bytes, told.too_large)
    assert Counter(a=1, b=1) == replay(asked("bb"), NEEDS, 8, ["a"]).loads
    assert (2, Counter(), 0) == (none.too_large, none.loads, none.read_bytes)
    assert 1 == replay(asked("b"), NEEDS, 7, ["a"]).too_large


@given(st.text("abc", max_size=60), st.integers(0, 3), st.integers(4, 16))
def test_more_memory_is_never_worse(text: str, duration_s: int, memory: int) -> None:
    """Of models of one size a larger memory needs no more loads, each that is asked for at least one, and none more than it is asked."""
    few = replay(asked(text), NEEDS, memory)
    many = replay(asked(text), NEEDS, memory + 4)
    slow = replay(asked(text, duration_s), NEEDS, memory)

    assert many.loads.total() <= few.loads.total()
    assert set(text) == set(few.loads) == set(slow.loads)
    assert few.loads <= Counter(text)
    assert 0 == few.queued
