"""Tests of unilect.core.errors."""

import re

import pytest

from unilect.core import errors
from unilect.core.errors import AuthenticationError, ConfigError, UnilectError


def tree(root: type[UnilectError] = UnilectError) -> list[type[UnilectError]]:
    """A class of error and all below it."""
    return [root, *(below for child in root.__subclasses__() for below in tree(child))]


OURS = [kind for kind in tree() if kind.__module__ == "unilect.core.errors"]
RAISED = [kind for kind in OURS if kind is not UnilectError]


@pytest.mark.parametrize("kind", RAISED)
def test_a_kind(kind: type[UnilectError]) -> None:
    """Every error has OpenAI's four fields, the code a text; its body can be read by OpenAI's clients and by FastChat's; its status says whose fault it is, and its type agrees."""
    detail, body = kind("No.", param="n").detail(), kind("No.").envelope()

    assert ["message", "type", "param", "code"] == list(detail)
    assert ("No.", "n") == (detail["message"], detail["param"])
    assert isinstance(detail["type"], str)
    assert isinstance(detail["code"], str)
    assert body["error"] == kind("No.").detail()
    assert ("error", "No.") == (body["object"], body["message"])
    assert isinstance(body["code"], int)
    assert 400 <= kind.status <= 599
    assert (kind.type == "invalid_request_error") == (kind.status < 500 and kind.status != 429)


def test_a_wrong_key_is_told_where_fastchat_looks() -> None:
    """The 401's body has the error under `detail` too."""
    error = AuthenticationError("No.")

    assert {"error": error.detail()} == error.envelope()["detail"]


def test_codes_are_unique() -> None:
    """No two kinds of error share a code, but a kind may have its parent's."""
    codes = [kind.code for kind in RAISED if "code" in vars(kind)]

    assert sorted(set(map(str, codes))) == sorted(map(str, codes))


def test_the_drawn_tree() -> None:
    """The tree in the module's docstring is the tree that there is, with its statuses."""
    drawn = re.findall(r"\+ (\w+) +(\d{3})", errors.__doc__ or "")

    assert sorted(drawn) == sorted((kind.__name__, str(kind.status)) for kind in RAISED)


def test_the_drawn_tree_has_its_levels() -> None:
    """A class that is drawn one level deeper is derived from the one above it."""
    above = UnilectError
    for deeper, name in re.findall(r"^ +(\| )?\+ (\w+)", errors.__doc__ or "", re.MULTILINE):
        kind = getattr(errors, name)
        assert kind.__bases__[-1] is (above if deeper else UnilectError)
        above = above if deeper else kind


def test_a_config_error_is_no_answer() -> None:
    """A mistake in the configuration is never an HTTP answer."""
    assert not issubclass(ConfigError, UnilectError)
