"""Tests of unilect.wire.tool_calls."""

import pytest

from support.common.effort import effort_s
from unilect.wire.tool_calls import Calls

Piece = tuple[int | None, str, str, str]


def told(*pieces: Piece) -> list[tuple[str, str, str]]:
    """The id, the name and the arguments of the calls that pieces tell, each piece in a delta of its own."""
    calls = Calls()
    texts: dict[int, list[str]] = {}
    found = {}
    for piece in pieces:
        if (taken := calls.assign_delta(*piece)) is not None:
            call, text = taken
            call.is_sent = True
            found[call.number] = call
            texts.setdefault(call.number, []).append(text)
    assert list(range(len(found))) == sorted(found)
    return [(call.id, call.name, "".join(texts[call.number])) for call in found.values()]


ONE = [("c", "f", '{"a":1}')]
TWO = [("c", "f", '{"a":1}'), ("d", "g", "{}")]


@pytest.mark.parametrize(
    ("name", "pieces", "expected"),
    [
        ("OpenAI", [(0, "c", "f", ""), (0, "", "", '{"a":'), (0, "", "", "1}")], ONE),
        ("repeated", [(0, "c", "f", '{"a":'), (0, "c", "f", "1}"), (0, "c", "f", "")], ONE),
        ("repeated name", [(0, "c", "f", '{"a":'), (0, "", "f", "1}"), (0, "", "f", "")], ONE),
        ("an id for each piece", [(0, "c", "f", '{"a":'), (0, "x", "", "1}")], ONE),
        ("an id and the name for each", [(0, "c", "f", '{"a":'), (0, "x", "f", "1}")], ONE),
        ("no numbers", [(None, "c", "f", '{"a":'), (None, "", "", "1}")], ONE),
        ("number in the first only", [(0, "c", "f", '{"a":'), (None, "", "", "1}")], ONE),
        ("late name", [(0, "c", "", ""), (0, "", "f", '{"a":'), (0, "", "", "1}")], ONE),
        ("late name after arguments", [(0, "c", "", '{"a":'), (0, "", "f", "1}")], ONE),
        ("two", [(0, "c", "f", '{"a":1}'), (1, "d", "g", "{}")], TWO),
        ("mixed", [(0, "c", "f", ""), (1, "d", "g", "{}"), (0, "", "", '{"a":1}')], TWO),
        ("all 0", [(0, "c", "f", '{"a":1}'), (0, "d", "g", "{}")], TWO),
        ("all 0, in pieces", [(0, "c", "f", '{"a":'), (0, "", "", "1}"), (0, "d", "g", ""), (0, "", "", "{}")], TWO),
        ("all 0, one name", [(0, "c", "f", "{}"), (0, "d", "f", "{}")], [("c", "f", "{}"), ("d", "f", "{}")]),
        ("all 0, no ids", [(0, "", "f", "{}"), (0, "", "f", "{}")], [("", "f", "{}"), ("", "f", "{}")]),
        ("two without numbers", [(None, "c", "f", '{"a":1}'), (None, "d", "g", "{}")], TWO),
        ("ids instead of numbers", [(None, "c", "f", ""), (None, "d", "g", "{}"), (None, "c", "", '{"a":1}')], TWO),
        ("numbers from 1, with a gap", [(1, "c", "f", '{"a":1}'), (3, "d", "g", "{}")], TWO),
    ],
)  # fmt: skip
def test_pieces(name: str, pieces: list[Piece], expected: list[tuple[str, str, str]]) -> None:
    """Pieces find their calls, however a server numbers them."""
    assert expected == told(*pieces)


def test_a_call_without_a_name() -> None:
    """A call whose name never comes is not told before the end, and not lost."""
    calls = Calls()

    assert calls.assign_delta(0, "c", "", "{") is None
    assert calls.assign_delta(0, "", "", "}") is None
    (call,) = calls.nameless()
    assert ("c", "", ["{", "}"]) == (call.id, call.name, call.pieces)


def test_arguments_that_only_look_whole() -> None:
    """Arguments that are no object, broken or deep never end a call."""
    for text in ("1", "{", "{}}", '{"a":' * 5000, "null"):
        calls = Calls()
        calls.assign_delta(0, "c", "f", text)
        again = calls.assign_delta(0, "x", "f", "{")
        assert again is not None
        assert 0 == again[0].number


@pytest.mark.parametrize("id", ["", "call_{}"])
def test_many_pieces_with_a_name(id: str) -> None:
    """Pieces that repeat the call's name, also with an id of their own, are one call, however many, and put together in linear time."""
    pieces = [(0, id.format(n), "f", "abcd") for n in range(12_000)]
    pieces = [(0, id.format("a"), "f", '{"a":"'), *pieces, (0, "", "f", '"}')]

    assert effort_s(lambda: told(*pieces), 0.3) < 0.3
    assert [(id.format("a"), "f", '{"a":"' + "abcd" * 12_000 + '"}')] == told(*pieces)
