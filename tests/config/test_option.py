"""Tests of unilect.config.option."""

from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from unilect.config.option import Option, Table, option


class Base(Table, frozen=True, kw_only=True):
    """A table."""

    size: Annotated[int, Meta(ge=1)] | None = option(None, "Size.")


class Longer(Base, frozen=True, kw_only=True):
    """The same with more."""

    port: int
    names: list[str] = option([], "Names.")


def test_a_table_is_a_struct() -> None:
    """Its fields have the types and the defaults that are declared, and no value is shared."""
    one, other = msgspec.convert({"port": 1}, Longer), Longer(port=1)
    one.names.append("a")

    assert (None, 1, []) == (other.size, other.port, other.names)
    assert Longer(port=2, size=3) == msgspec.convert({"port": 2, "size": 3}, Longer)
    for wrong in ({"port": 1, "size": 0}, {"port": 1, "other": 0}, {}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Longer)


def test_what_is_declared() -> None:
    """A table knows its options with all that is declared of them, and those of the table that it is made from."""
    size = Option(default=None, description="Size.")

    assert {"size": size} == Base.declared
    assert {"size": size, "names": Option(default=[], description="Names.")} == Longer.declared
