"""JSON files of clients, of any form: a setting is in the file then, and all else is as it was."""

import json
from typing import Any

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.cli.connect import _json
from unilect.web.connect.settings import Named, Setting, merge

NAMES = st.text(max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
GIVEN = VALUES.filter(lambda value: value is not None)  # None is no setting
INDENTS = st.sampled_from([None, 1, 4, "\t"])


def with_comments(text: str) -> str:
    """The same data with comments and trailing commas wherever they may be, for a text with one member a line."""
    lines = []
    for line in text.split("\n"):
        opens = not line or line[-1] in "{["
        last = not opens and line[-1] != ","
        lines.append(
            f'{line}{"," if last and line.strip()[0] not in "}]" else ""} // it\'s "x", {{'
        )
    return "/* begin } */\n" + "\n".join(lines) + "\n/* end */"


@given(st.dictionaries(NAMES, VALUES, max_size=4), INDENTS, st.lists(NAMES, min_size=1, max_size=3), GIVEN)  # fmt: skip
def test_any_object(data: dict[str, Any], indent: Any, path: list[str], value: Any) -> None:
    """A value is put into an object of any form, at any depth, whatever is there."""
    for depth in range(1, len(path)):  # where something else is in the way, nothing is edited
        if not isinstance(at(data, path[:depth]), dict):
            path = path[:depth]
            break
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    setting = Setting(tuple(path), value)

    assert merged(data, setting) == json.loads(_json.edit(text, setting))


@given(st.lists(VALUES, max_size=4), INDENTS, VALUES)
def test_any_list(data: list[Any], indent: Any, value: Any) -> None:
    """An entry is added to a list of any form, or takes the place of the one with its name."""
    entry = {"name": "unilect", "value": value}
    setting = Setting((Named("name", "unilect"),), entry)
    for there in (data, [*data, {"name": "unilect"}, 1]):
        text = json.dumps(there, indent=indent, ensure_ascii=False)

        assert merged(there, setting) == json.loads(_json.edit(text, setting))


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4), NAMES, GIVEN)
def test_comments(data: dict[str, Any], name: str, value: Any) -> None:
    """Comments and trailing commas stay where they are."""
    text = with_comments(json.dumps(data, indent=2, ensure_ascii=False))
    setting = Setting((name, "unilect"), value)
    if isinstance(data.get(name, {}), dict):
        edited = _json.edit(text, setting)

        assert data == _json.parse(text)
        assert merged(data, setting) == _json.parse(edited)
        assert text.count("// it's") == edited.count("// it's")


@pytest.mark.parametrize("text", ["{" * 2_000_000, "/*" * 2_000_000, '"' + "\\" * 4_000_000, "[1," * 1_000_000, "// \n" * 1_000_000 + "x"], ids=range(5))  # fmt: skip
def test_large_files_that_are_broken(text: str) -> None:
    """A file of megabytes that is no JSON is refused, and does not end the process."""
    with pytest.raises(ValueError, match="expected"):
        _json.parse(text)


def at(data: Any, path: list[str]) -> Any:
    """What is at a path; an empty object where nothing is."""
    for step in path:
        data = data.get(step, {})
    return data


def merged(data: Any, setting: Setting) -> Any:
    """The data with the setting, as `merge` has it; a value that is there already is no change."""
    return merge(data, [setting]).data
