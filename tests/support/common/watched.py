"""Texts and bytes that note what is done with them, for tests that a secret is compared with nothing."""

from collections.abc import Callable
from typing import Any

_LOOKS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__contains__", "__getitem__", "__iter__")  # fmt: skip


def _noting(base: type, name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        self.looks.append((name, *args))
        return getattr(base, name)(self, *args)

    return method


class _Named:
    """Notes the names of the methods that are asked for."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if callable(found):
            self.looks.append((name,))
        return found


class WatchedText(_Named, str):
    """
    A text.

    Attributes:
        looks: What was done with it: the name of a method, and for operators the other side.
    """

    def __new__(cls, text: str) -> "WatchedText":
        """The same text, watched from now on."""
        self = super().__new__(cls, text)
        self.looks = []
        return self

    looks: list[tuple[Any, ...]]


class WatchedBytes(bytes):
    """
    Bytes.

    Attributes:
        looks: As of `WatchedText`, of operators alone.
    """

    def __new__(cls, data: bytes) -> "WatchedBytes":
        """The same bytes, watched from now on."""
        self = super().__new__(cls, data)
        self.looks = []
        return self

    looks: list[tuple[Any, ...]]


for _each, _base in ((WatchedText, str), (WatchedBytes, bytes)):
    for _name in _LOOKS:
        setattr(_each, _name, _noting(_base, _name))
