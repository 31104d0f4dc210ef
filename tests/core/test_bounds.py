"""Tests of unilect.core.bounds."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.core import bounds
from unilect.core.bounds import (
    MAX_ESCAPES,
    MAX_LEVELS,
    MAX_PARTS,
    MAX_VALUES,
    check_body,
    check_free_form,
    check_levels,
    is_deeper,
)
from unilect.core.errors import InvalidRequest

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
        b'{"a":"' + rb"\"," * 1_400_000 + b'"}',
        b'{"a":"' + rb"\\" * 700_000 + b'","b":[' + b"1," * 900_000 + b"1]}",
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
        b'{"a":"' + rb"\n" * 1_600_000 + b'"}',
        b'"' + b"x" * (SLICE - 2) + rb"\\" + b'",' + b"[]," * 200_000,
    ],
    ids=["names", "nested", "texts", "objects", "numbers", "escapes", "behind a cut escape"],
)
async def test_what_is_too_much(body: bytes) -> None:
    """A body of too many values is refused with the number that is read."""
    with pytest.raises(
        InvalidRequest,
        match=rf"more than ({MAX_PARTS} texts|{MAX_VALUES} values|{MAX_ESCAPES} escapes)",
    ):
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


@given(json_values, st.integers(20, 60), st.booleans())
def test_only_long_texts_are_shortened(value: Any, size: int, ascii: bool) -> None:
    """However a body is cut into slices, what is returned differs from it in texts only: in escaped marks and in what is long."""
    body = json.dumps({"filled": "x" * 200, "value": value}, ensure_ascii=ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "_SLICE_BYTES", size)
        patch.setattr(bounds, "_LONG_BYTES", 8)
        patch.setattr(bounds, "_SHOWN_BYTES", 4)
        short = asyncio.run(check_body(body))

    assert len(short) < len(body)
    pairs = zip(leaves(body), leaves(short), strict=True)
    for whole, found in pairs:
        if isinstance(whole, str) and "..." in str(found):
            assert len(json.dumps(whole, ensure_ascii=ascii).encode()) > 8 + 2
        elif isinstance(whole, str):
            assert whole.replace("\\", "__").replace('"', "__") == found
        else:
            assert whole == found


def leaves(body: bytes) -> list[Any]:
    """Every value and name in its order; for a list or an object the number of its items."""
    found: list[Any] = []

    def walk(value: Any) -> None:
        found.append(len(value) if isinstance(value, list | tuple) else value)
        for item in value if isinstance(value, list | tuple) else ():
            walk(item)

    walk(json.loads(body, object_pairs_hook=list))
    return found


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
    """A schema of too many values is refused with how many are read."""
    check_free_form("x", {"enum": list(range(9_000))})
    with pytest.raises(
        InvalidRequest, match=r"holds more than 10000 values; at most so many"
    ) as raised:
        check_free_form("x", {"enum": [0] * 11_000})
    with pytest.raises(InvalidRequest, match=r"has 70010 bytes of JSON; at most 65536"):
        check_free_form("x", {"enu": "b" * 70_000})

    assert "x" == raised.value.param


def test_free_forms_together() -> None:
    """Parts of a kind are bounded together: a hundred tools may not each be as large as one may be."""
    values = 0
    with pytest.raises(InvalidRequest, match=r"`tools\[5\]`: up to here there are more than 50000"):
        for number in range(128):
            values = check_free_form(f"tools[{number}]", {"enum": [0] * 9_000}, before=values)


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
    assert expected is is_deeper(_deep(deep, kind), levels)


def test_nested_is_found_beside_flat_ones() -> None:
    """A deep part beside many flat ones is found."""
    assert is_deeper({"a": [1, 2, {"b": []}], "c": _deep(40, list)}, 32)


@pytest.mark.parametrize(
    "written",
    ["[" * MAX_LEVELS + "]" * MAX_LEVELS, json.dumps(["[{" * 200]), "[" + "{}," * 999 + "0]"],
)
def test_levels_that_may_be(written: str) -> None:
    """What is as deep as may be, or has brackets side by side or in its texts, is taken."""
    check_levels("x", written.encode(), json.loads(written))


@pytest.mark.parametrize(
    "written", ["[" * (MAX_LEVELS + 1) + "]" * (MAX_LEVELS + 1), '{"a":' * 500 + "1" + "}" * 500]
)
def test_levels_that_may_not_be(written: str) -> None:
    """What is deeper is refused by its name."""
    with pytest.raises(InvalidRequest, match="`x` is nested more than 128 levels"):
        check_levels("x", written.encode(), json.loads(written))
