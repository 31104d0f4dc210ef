"""Tests of unilect.config.option."""

from typing import Annotated

import msgspec
import pytest
from msgspec import Meta
from msgspec.structs import fields

from unilect.config.admin import AdminConfig
from unilect.config.model import ModelConfig
from unilect.config.option import Option, Table, option
from unilect.config.server import Config
from unilect.config.store import StoreConfig


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


@pytest.mark.parametrize("table", [Config, ModelConfig, StoreConfig, AdminConfig])
def test_declarations_fit_together(table: type[Table]) -> None:
    """What an option needs is an option of its table, no two have a flag, and what may be a path or a secret is a text or a list of such."""
    names = [one.flag.name for one in table.declared.values() if one.flag]
    texts = {field.name: str(field.type) for field in fields(table)}

    assert len(names) == len(set(names))
    for name, one in table.declared.items():
        assert one.needs in ("", *table.declared)
        assert "str" in texts[name] or not (one.path or one.secret)
