"""The declaration of an option: a field of a table, with all that is known of it."""

from typing import Any, TypeVar, cast

from msgspec import Struct, StructMeta

T = TypeVar("T")


class Option(Struct, frozen=True, kw_only=True):
    """
    An option, as it is declared.

    Attributes:
        default: Its value where none is set.
        description: Its documentation, in Markdown.
    """

    default: Any
    description: str


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
