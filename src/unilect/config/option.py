"""The declaration of an option: a field of a table, with all that is known of it."""

from collections.abc import Callable, Container, Iterable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args, get_origin

from msgspec import Struct, StructMeta
from msgspec.structs import fields

from unilect.config.digests import check_secrets
from unilect.config.kinds import KINDS
from unilect.config.mistakes import ErrorCollector, OptionPath

T = TypeVar("T")
Move: TypeAlias = Callable[[str], str]


class Flag(NamedTuple):
    """
    The flag of an option.

    Attributes:
        name: As it is typed: `--worker-address`.
        help: Its line in the help.
        metavar: What stands for its value there; None for the type.
    """

    name: str
    help: str
    metavar: str | None = None


class Option(Struct, frozen=True, kw_only=True):
    """
    An option, as it is declared.

    Attributes:
        default: Its value where none is set.
        description: Its documentation, in Markdown.
        kinds: The kinds of sources of the models that have it; empty for all.
        of_replicas: Every model that runs as replicas has it, too.
        of_presets: A preset has its own; of all else its base's holds.
        live: A reload changes it in a running server, or for a running model; what is not live needs a restart of these.
        needs: The option of the same table without which it has no effect.
        path: Replaces the path in its text, or in each of its texts, if there is one.
        check: Returns what is wrong with its text, with each of its texts, or with the list of its numbers; empty for nothing.
        secret: `key` if it holds keys, of which a file may hold `$NAME` instead; `url` if it is a URL that may hold a password.
        flag: Its flag on the command line.
        example: A value for unilect.example.toml; None for the default.
    """

    default: Any
    description: str
    kinds: tuple[str, ...] = ()
    of_replicas: bool = False
    of_presets: bool = False
    live: bool = False
    needs: str = ""
    path: Callable[[str, Move], str] | None = None
    check: Callable[[Any], str] | None = None
    secret: Literal["", "key", "url"] = ""
    flag: Flag | None = None
    example: Any = None

    @property
    def flag_name(self) -> str:
        """Its flag as it is typed; empty for none."""
        return self.flag.name if self.flag else ""

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
        declared: The options of a table by name, in order, those of its bases at the end.
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
        made.declared = {key: one for each in (own, *inherited) for key, one in each.items()}
        return made


class Table(Struct, metaclass=TableType, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a configuration, whose fields are options."""

    def is_set(self, name: str) -> bool:
        """Return True if an option differs from its default."""
        return bool(getattr(self, name) != type(self).declared[name].default)


def check_table(
    table: Table, path: OptionPath, found: ErrorCollector, broken: Container[object] = ()
) -> None:
    """
    Note what is wrong with the values of a table and of those in it, and the options that have no effect without another one.

    Args:
        path: The table's.
        found: Gets the mistakes.
        broken: Options that are not as they were meant to be.
    """
    for name, one in type(table).declared.items():
        where, value = (*path, name), getattr(table, name)
        if isinstance(value, Table) and name not in broken:
            check_table(value, where, found)
        if one.secret == "key" and isinstance(value, list):
            check_secrets(value, where, found)
        texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        for item in value if texts else [value]:
            if one.check and isinstance(item, str | list) and (why := one.check(item)):
                found.at(where, why)
        if one.needs and table.is_set(name) and one.needs not in broken and not table.is_set(one.needs):  # fmt: skip
            found.at(
                where, f"has no effect without {one.needs}; set {one.needs} too, or leave this out."
            )


@cache
def tables_in(table: type[Table]) -> dict[str, tuple[type[Table], bool]]:
    """Return the options of a table that are tables themselves, with the type of these; True where there are several by name."""
    found: dict[str, tuple[type[Table], bool]] = {}
    for field in fields(table):
        for kind in (field.type, *get_args(field.type)):
            if isinstance(kind, type) and issubclass(kind, Table):
                found[field.name] = kind, get_origin(field.type) is dict
    return found


def map_texts(
    values: Mapping[str, Any],
    table: type[Table],
    change: Callable[[Option, str, OptionPath], str],
    path: OptionPath = (),
) -> dict[str, Any]:
    """
    Return the values of a table, which need not be right, with each text of its options and of the tables in it changed.

    Args:
        change: Given an option, a text that is its value or in the list that is, and the path of the option, returns what to write instead.
        path: The table's.
    """
    inner, done = tables_in(table), dict(values)
    for name, value in values.items():
        if name not in table.declared:
            continue
        option, where = table.declared[name], (*path, name)
        if name in inner and isinstance(value, dict):
            kind, several = inner[name]
            each = {key: one for key, one in value.items() if isinstance(one, dict)}
            done[name] = (
                value
                | {key: map_texts(one, kind, change, (*where, key)) for key, one in each.items()}
                if several
                else map_texts(value, kind, change, where)
            )
        elif isinstance(value, str):
            done[name] = change(option, value, where)
        elif isinstance(value, list):
            done[name] = [
                change(option, one, where) if isinstance(one, str) else one for one in value
            ]
    return done
