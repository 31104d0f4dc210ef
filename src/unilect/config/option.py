"""The declaration of an option: a field of a table, with all that is known of it."""

from collections.abc import Container, Iterable
from typing import Any, TypeVar, cast

from msgspec import Struct, StructMeta

from unilect.config.kinds import KINDS
from unilect.config.values import OptionPath, dotted
from unilect.mistakes import Mistakes

T = TypeVar("T")


class Option(Struct, frozen=True, kw_only=True):
    """
    An option, as it is declared.

    Attributes:
        default: Its value where none is set.
        description: Its documentation, in Markdown.
        kinds: The kinds of sources of the models that have it; empty for all.
        of_replicas: Every model that runs as replicas has it, too.
        live: A reload changes it in a running server, or for a running model; what is not live needs a restart of these.
        needs: The option of the same table without which it has no effect.
    """

    default: Any
    description: str
    kinds: tuple[str, ...] = ()
    of_replicas: bool = False
    live: bool = False
    needs: str = ""

    def applies_to(self, kinds: Iterable[str]) -> bool:
        """Return True if it has an effect on a model with sources of these kinds; a kind of a plugin may have any option."""
        return not self.kinds or any(kind in self.kinds or kind not in KINDS for kind in kinds)


def option(default: T, description: str, **facts: Any) -> T:
    """Declare an option of a table: `context: int | None = option(None, "Context size.")`. The facts are those of `Option`."""
    return cast(T, Option(default=default, description=description, **facts))


class TableType(StructMeta):
    """
    The type of tables.

    Attributes:
        declared: The options of a table by name, in order.
    """

    declared: dict[str, Option]

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **config: Any
    ) -> "TableType":
        """Make a table whose fields have the defaults of their options."""
        own = {key: value for key, value in namespace.items() if isinstance(value, Option)}
        defaults = {key: one.default for key, one in own.items()}
        made = super().__new__(cls, name, bases, namespace | defaults, **config)
        inherited = (base.declared for base in bases if isinstance(base, TableType))
        made.declared = {key: one for each in (*inherited, own) for key, one in each.items()}
        return made


class Table(Struct, metaclass=TableType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a configuration, whose fields are options."""

    def is_set(self, name: str) -> bool:
        """Return True if an option differs from its default."""
        return bool(getattr(self, name) != type(self).declared[name].default)


def check_needs(
    table: Table, path: OptionPath, found: Mistakes, broken: Container[object] = ()
) -> None:
    """
    Note the options that have no effect without another one.

    Args:
        path: The table's.
        found: Gets the mistakes.
        broken: Options that were meant to be set.
    """
    for name, one in type(table).declared.items():
        if one.needs and table.is_set(name) and one.needs not in broken and not table.is_set(one.needs):  # fmt: skip
            found.add(
                f"{dotted((*path, name))}: has no effect without {one.needs}; set {one.needs} too, or leave this out.",
                (*path, name),
            )
