"""Tests of unilect.bounds."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import strategies as st

from properties import given
from unilect import bounds
from unilect.bounds import MAX_PARTS, MAX_VALUES, check_body, check_free_form, count_nodes, nested
from unilect.errors import InvalidRequest

SLICE = 128 * 1024


def slices_of(body: bytes) -> int:
    """How often others are let in while a body is counted to its end, or to where it is refused."""

    async def count() -> int:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        await asyncio.sleep(0)
        try:
            await check_body(body)
        except InvalidRequest:
            pass
        finally:
            task.cancel()
        return turns

    return asyncio.run(count())


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"' + b"," * 4_000_000 + b'"}',
        b'{"a":"' + rb"\"," * 2_000_000 + b'"}',
        b'{"a":"' + rb"\\" * 2_000_000 + b'","b":[' + b"1," * 900_000 + b"1]}",
        b'{"a":"' + b"x" * (SLICE - 7) + rb"\",\"[[[[" + b"[" * MAX_PARTS + b'"}',
        json.dumps({"text": json.dumps([{"a": [1, "b"]}] * 50_000)}).encode(),
        b"[" + b"1," * (MAX_VALUES - 1) + b"1]",
    ],
    ids=["commas", "quotes", "backslashes", "a cut escape", "JSON as a text", "numbers"],
)
async def test_what_is_read(body: bytes) -> None:
    """Whatever stands in a text is not counted, and a million numbers are read."""
    await check_body(body)


@pytest.mark.parametrize(
    "body",
    [
        b"{" + b",".join(b'"k%d":1' % i for i in range(100_000)) + b"}",
        b"[" * 200_000,
        b'{"a":[' + b'"",' * 200_000 + b'""]}',
        b'{"a":"' + rb"\\" + b'","b":[' + b"{}," * 200_000 + b"1]}",
        b"[" + b"1," * 1_100_000 + b"1]",
        b'"' + b"x" * (SLICE - 2) + rb"\\" + b'",' + b"[]," * 200_000,
    ],
    ids=["names", "nested", "texts", "objects", "numbers", "behind a cut escape"],
)
async def test_what_is_too_much(body: bytes) -> None:
    """A body of too many values is refused with the number that is read."""
    with pytest.raises(InvalidRequest, match=rf"more than ({MAX_PARTS} texts|{MAX_VALUES} values)"):
        await check_body(body)


def test_others_are_served() -> None:
    """Others are let in after each slice of a body, and one of too many values is not read to its end."""
    assert 8 <= slices_of(b'"' + b"x" * SLICE * 8 + b'"') <= 12
    assert slices_of(b"[" * SLICE * 8) <= 4


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


@given(json_values, st.integers(1, 40))
def test_any_value_is_counted_as_the_parser_does(value: Any, size: int) -> None:
    """However a body is cut into slices, its texts, names, lists and objects are counted exactly."""
    found = parts_of(value)

    def refused(most: int) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bounds, "_SLICE_BYTES", size)
            patch.setattr(bounds, "MAX_PARTS", most)
            try:
                asyncio.run(check_body(json.dumps(value).encode()))
            except InvalidRequest:
                return True
            return False

    assert (refused(found), refused(found - 1)) == (False, True)


def parts_of(value: Any) -> int:
    """Texts, lists and objects once each, a member for its name and for being one."""
    if isinstance(value, str):
        return 1
    if isinstance(value, list):
        return 1 + sum(map(parts_of, value))
    if isinstance(value, dict):
        return 1 + sum(2 + parts_of(item) for item in value.values())
    return 0


def test_the_values_of_a_schema_are_bounded() -> None:
    """A schema of too many values is refused with how many it has and how many are read."""
    check_free_form("x", {"enum": list(range(9_000))})
    with pytest.raises(InvalidRequest, match=r"holds 11002 values; at most 10000") as raised:
        check_free_form("x", {"enum": [0] * 11_000})
    with pytest.raises(InvalidRequest, match=r"has 70010 bytes of JSON; at most 65536"):
        check_free_form("x", {"enu": "b" * 70_000})

    assert "x" == raised.value.param
    assert 4 == count_nodes({"a": [1, {}]})


def _deep(levels: int, kind: type) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value] if kind is list else {"a": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize(
    ("deep", "levels", "expected"),
    [(0, 1, False), (31, 32, False), (32, 32, True), (900, 32, True)],
)
def test_nested(kind: type, deep: int, levels: int, expected: bool) -> None:
    """A value is nested when it has at least so many levels of lists or objects."""
    assert expected is nested(_deep(deep, kind), levels)


def test_nested_is_found_beside_flat_ones() -> None:
    """A deep part beside many flat ones is found."""
    assert nested({"a": [1, 2, {"b": []}], "c": _deep(40, list)}, 32)
