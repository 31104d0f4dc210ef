"""The settings of a client's configuration file, merged with what is there."""

import copy
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias


class Named(NamedTuple):
    """
    A step into a list: to the object in it whose field has a value.

    Attributes:
        field: The field.
        value: Its value.
    """

    field: str
    value: str


Step: TypeAlias = str | Named
Rule: TypeAlias = Literal["own", "shared", "default"]


class Setting(NamedTuple):
    """
    One value of a file.

    Attributes:
        path: Where it is, from the file's root.
        value: The value; None is no setting.
        rule: `own` is replaced, since nothing else than unilect uses it, but for tables that the user has put into it; `shared` has the user's value if there is one, which is
            replaced on demand only; `default` is set only where there is no value.
    """

    path: tuple[Step, ...]
    value: Any
    rule: Rule = "own"

    @property
    def name(self) -> str:
        """Its path in words: `env.ANTHROPIC_MODEL`."""
        return ".".join(step.value if isinstance(step, Named) else step for step in self.path)


class OtherShape(Exception):
    """A file has something else where a setting needs an object or a list; the message names it."""


class Merged(NamedTuple):
    """
    The result of settings and a file.

    Attributes:
        data: All that is in the file then.
        changes: The settings that are not there yet.
        kept: The shared settings that have another value, which stays.
    """

    data: Any
    changes: list[Setting]
    kept: list[Setting]


def merge(data: Any, settings: Sequence[Setting], replace: bool = False) -> Merged:
    """
    Put settings into the data of a file.

    Args:
        data: The file's data; None for an empty file.
        replace: Replace shared settings that have other values.

    Raises:
        OtherShape: The file has something else where an object or a list must be.
    """
    settings = [setting for setting in settings if setting.value is not None]
    data = copy.deepcopy(data)
    if data is None and settings:
        data = {} if isinstance(settings[0].path[0], str) else []
    done = Merged(data, [], [])
    for setting in settings:
        found, old = lookup(data, setting.path)
        if setting.rule == "own":
            setting = setting._replace(value=_with_tables(old, setting.value))
        if found and (old == setting.value or setting.rule == "default"):
            continue
        if found and setting.rule == "shared" and not replace:
            done.kept.append(setting)
            continue
        _put(data, setting)
        done.changes.append(setting)
    return done


def _with_tables(old: Any, value: Any) -> Any:
    """Return a value with the tables that the one before has beside what is set."""
    if not isinstance(old, dict) or not isinstance(value, dict):
        return value
    return value | {
        name: one for name, one in old.items() if isinstance(one, dict) and name not in value
    }


def lookup(data: Any, path: Sequence[Step]) -> tuple[bool, Any]:
    """
    Return True and the value at a path; False where there is none.

    Raises:
        OtherShape: There is something else than an object or a list on the way.
    """
    for depth, step in enumerate(path):
        if not isinstance(data, dict if isinstance(step, str) else list):
            where = Setting(tuple(path[:depth]), None).name or "the file"
            raise OtherShape(f"{where} is no {'object' if isinstance(step, str) else 'list'}")
        index = key_of(data, step)
        if index is None:
            return False, None
        data = data[index]
    return True, data


def key_of(data: Any, step: Step) -> Any:
    """Return the key or the index of a step in an object or a list; None where there is none."""
    if isinstance(step, str):
        return step if step in data else None
    same = (
        index
        for index, entry in enumerate(data)
        if isinstance(entry, dict) and entry.get(step.field) == step.value
    )
    return next(same, None)


def nest(path: Sequence[Step], value: Any) -> Any:
    """Put a value inside the objects and lists of a path."""
    for step in reversed(path):
        value = {step: value} if isinstance(step, str) else [value]
    return value


def _put(data: Any, setting: Setting) -> None:
    for depth, step in enumerate(setting.path, 1):
        index = key_of(data, step)
        if index is not None and depth < len(setting.path):
            data = data[index]
            continue
        value = nest(setting.path[depth:], setting.value)
        if isinstance(step, Named) and index is None:
            data.append(value)
        else:
            data[step if index is None else index] = value
        return
