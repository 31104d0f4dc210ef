"""Tests of unilect.cli._remedies."""

from unilect.cli import _remedies as remedies
from unilect.core import errors
from unilect.core.errors import UnilectError


def test_every_error_has_a_remedy() -> None:
    """Each error that a client can get says in docs/errors.md what to do about it."""
    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, UnilectError) and one.code]  # fmt: skip
    assert len(found) > 30
    assert [] == [one.__name__ for one in found if not remedies.of_error(one)]
    assert [] == [one.__name__ for one in found if not remedies.of_code(one.code)]


def test_a_code_that_several_errors_have() -> None:
    """The remedy for a code is that of the most general error with it."""
    assert remedies.of_error(errors.InvalidRequest) == remedies.of_code("invalid_value")
    assert "" == remedies.of_code("nothing")
    assert "" == remedies.of_code(None)
