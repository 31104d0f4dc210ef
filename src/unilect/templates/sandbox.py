"""
Jinja's sandbox with a bound on work: a template that another has made may not take the processor or the memory of whoever renders it.

Jinja's own sandbox keeps a template from what lies outside of it, and from lists that it was given; it bounds no loop but `range`, no text
and no number. Here each step (an iteration, a call, a filter, a piece of text) looks at the clock now and then, and whatever could make much
of little is looked at before it is done. What is bounded is the processor time of the thread, which a busy machine does not change.

Source: https://jinja.palletsprojects.com/en/stable/sandbox/
"""

import functools
import re
import string
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_CHARACTERS = 16 * 1024 * 1024  # of any text, and items of any list
_MAX_BITS = 4096  # of a number
_LOOK_EVERY = 64  # steps
_LARGE = 64 * 1024  # characters, after which the clock is looked at at once
_MAX_WIDTH = 1000  # of what is padded
_MAX_INDENT = 16
_MAX_WEIGHT = (
    200_000  # of what is written out or compared; a list that stands in another twice weighs twice
)
#: A width, or one that an argument gives, in a format of `%` (flags, lengths and a point may stand before it) and in one of `strftime`.
_WIDE = re.compile(r"%[-+ #.hlL\d]*(?:\d{4}|\*)")
_WIDE_BY_NAME = re.compile(r"[%)][-+ #.hlL\d]*(?:\d{4}|\*)")
_WIDE_TIME = re.compile(r"%[-+_^#:EO\d]*\d{4}")
_WIDE_FIELD = re.compile(r"\d{4}|\{")  # behind the colon in a format of `{}`
_PADDING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "round", "to_bytes"))  # fmt: skip
_SLOW = frozenset(("urlize", "striptags", "wordwrap", "pprint", "xmlattr"))
#: Filters that look at the items of a list and not into them.
_SHALLOW = frozenset((
    "length", "count", "first", "last", "list", "map", "select", "selectattr", "reject", "rejectattr", "default", "d", "items", "reverse",
    "batch", "slice", "attr", "sum", "random",
))  # fmt: skip
_GROWING = _PADDING | _SLOW | {"tojson", "translate", "replace", "join"}
_HOLDERS = frozenset((list, tuple, dict))
_METHODS_OF = (str, bytes, int)


class TooMuch(jinja2.TemplateError):
    """A template takes more time or memory than it may."""


class _Meter(threading.local):
    """The time of the rendering that runs in this thread."""

    end_s = float("inf")  # of the thread's processor time
    steps = 0


_meter = _Meter()


@contextmanager
def limit_time(time_s: float) -> Iterator[None]:
    """Limit the processor time of the templates that this thread renders to so many seconds."""
    before = _meter.end_s
    _meter.end_s = min(before, time.thread_time() + time_s)
    try:
        yield
    finally:
        _meter.end_s = before


def _step() -> None:
    """
    Raises:
        TooMuch: The time is over.
    """
    _meter.steps += 1
    if not _meter.steps % _LOOK_EVERY:
        _look()


def _look() -> None:
    if time.thread_time() > _meter.end_s:
        raise TooMuch("it takes too long")


def _check(size: int) -> None:
    """
    Raises:
        TooMuch: A text or a list would be too long, or the time is over.
    """
    if size > MAX_CHARACTERS:
        raise TooMuch("it makes a text or a list that is too long")
    if size > _LARGE:
        _look()


class _Each:
    """The items of a loop, each of which takes a step."""

    __slots__ = ("_items",)

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            _step()
            yield item


class _Bounds(NodeTransformer):
    """Puts the bounds into a parsed template, where Jinja calls nothing that could be replaced."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """Bound what is within, and then the node itself."""
        self.generic_visit(node)
        match node:
            case nodes.For():
                node.iter = _apply_filter(node.iter, "_each")
            case nodes.Compare():  # it looks into lists
                node.expr = _apply_filter(node.expr, "_weigh")
                for one in node.ops:
                    one.expr = _apply_filter(one.expr, "_weigh")
            case nodes.Pair():  # a hash is made of its key
                node.key = _apply_filter(node.key, "_weigh")
            case nodes.Concat():  # texts with `~` between them
                return _apply_filter(nodes.List(node.nodes, lineno=node.lineno), "_join")
        return node


def _apply_filter(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _weigh(value: Any) -> Any:
    """
    Return a value as it is.

    Raises:
        TooMuch: Too much would have to be gone through, to write it out or to compare it.
    """
    _characters(value)
    return value


def _characters(value: Any) -> int:
    """
    Return the characters of a text, or of all texts in a list or a dict.

    Raises:
        TooMuch: As of `_weigh`.
    """
    size = len(value) if isinstance(value, str | bytes) else 0
    if type(value) in _HOLDERS:
        waiting, weight = [value], 0
        while waiting:
            one = waiting.pop()
            inner: Any = (*one.keys(), *one.values()) if type(one) is dict else one
            weight += len(inner)
            for item in inner:
                kind = type(item)
                if kind is str:
                    size += len(item)
                elif kind is list or kind is tuple or kind is dict:
                    waiting.append(item)
            if weight > _MAX_WEIGHT or size > MAX_CHARACTERS:
                raise TooMuch("it makes a list that is too large")
    return size


def _join_pieces(pieces: Iterable[Any]) -> str:
    """Join pieces to one text."""
    found, size = [], 0
    for piece in pieces:
        _step()
        text = piece if isinstance(piece, str) else str(_weigh(piece))
        size += len(text)
        _check(size)
        found.append(text)
    return "".join(found)


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment whose templates take no more than `limit_time` allows, while they are compiled and while they are rendered."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))
    concat = staticmethod(_join_pieces)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.globals["lipsum"]
        self.filters = {name: _bound_filter(name, one) for name, one in self.filters.items()}
        self.filters |= {"_each": _Each, "_join": _join_pieces, "_weigh": _weigh}
        self.finalize = _weigh

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter beside Jinja's own, or in the place of one."""
        self.filters[name] = _bound_filter(name, function)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Run an operation on two values, if what it makes is not too large."""
        _step()
        if operator == "%" and isinstance(left, str | bytes):
            _check_percent(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        elif operator == "*":
            _check_product(left, right)
        elif hasattr(left, "__len__") and hasattr(right, "__len__"):
            _check(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, called: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a call, if what it makes is not too large."""
        _step()
        owner = getattr(called, "__self__", None)
        if isinstance(owner, _METHODS_OF):
            args = _list_first(args) if called.__name__ == "join" else args
            if called.__name__ in _GROWING:
                _check_growth(called.__name__, owner, (*args, *kwargs.values()))
        elif getattr(called, "__name__", "") in ("format", "format_map"):  # the sandbox's own
            form = getattr(getattr(called, "__wrapped__", None), "__self__", "")
            _check_fields(form, [*args, *kwargs.values()])
        return _check_result(super().call(context, called, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        found: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        return found


def _bound_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that makes no more of its arguments than it may."""
    if name in ("length", "count"):
        return function
    takes = getattr(function, "jinja_pass_arg", None) is not None  # what is no argument first

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        _step()
        first, given = (args[:1], args[1:]) if takes else ((), args)
        if name == "join":
            given = _list_first(given)
        if given:
            if name not in _SHALLOW:
                _weigh(given[0])
            if name == "format":
                _check_percent(given[0], [*given[1:], *kwargs.values()])
            elif name in _GROWING:
                _check_growth(name, given[0], (*given[1:], *kwargs.values()))
        return _check_result(function(*first, *given, **kwargs))

    return run


def _check_result(value: Any) -> Any:
    if isinstance(value, str | bytes | list | tuple):
        _check(len(value))
    return value


def _check_growth(name: str, value: Any, args: tuple[Any, ...]) -> None:
    """
    Raises:
        TooMuch: A filter or a method of this name may make too much of a value.
    """
    numbers = [abs(one) for one in args if isinstance(one, int)]
    texts = [one for one in args if isinstance(one, str | bytes)]
    size = len(value) if hasattr(value, "__len__") else 0
    if name in _PADDING:
        if max(numbers, default=0) > _MAX_WIDTH:
            _refuse(name)
        if name in ("indent", "expandtabs"):
            width = max([*numbers, *map(len, texts), 8])
            _check(size + width * (str(value).count("\n") + str(value).count("\t") + 1))
    elif (
        (name == "tojson" and max([*numbers, _characters(args)]) > _MAX_INDENT)
        or name == "translate"
        or (name in _SLOW and size > _LARGE)
    ):
        _refuse(name)
    elif name == "replace" and len(texts) > 1:
        _check(size + str(value).count(str(texts[0])) * len(texts[1]))
    elif name == "join":
        _check_join(value, args)


def _list_first(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments whose first one can be looked at before it is gone through."""
    if not args or hasattr(args[0], "__len__") or not hasattr(args[0], "__iter__"):
        return args
    return (list(_Each(args[0])), *args[1:])


def _check_join(value: Any, args: tuple[Any, ...]) -> None:
    """Check the filter, which has the items first, and the method of texts, which has the separator first."""
    items, others = (args[0], (value,)) if isinstance(value, str) and args else (value, args)
    if hasattr(items, "__len__"):
        between = max((len(one) for one in others if isinstance(one, str)), default=0)
        texts = sum(len(one) for one in items if isinstance(one, str))
        _check(texts + len(items) * between)


def _check_percent(form: Any, values: Any) -> None:
    """
    Raises:
        TooMuch: A format of `%` makes too much of values.
    """
    text = form.decode("latin-1") if isinstance(form, bytes) else str(form)
    by_name = (
        "%(" in text
    )  # a name may hold anything, so what stands behind any bracket may be a width
    if (_WIDE_BY_NAME if by_name else _WIDE).search(text.replace("%%", "")):
        _refuse("format")
    _check_fills(text.count("%"), len(text), values)


def _check_fields(form: Any, values: list[Any]) -> None:
    """
    Raises:
        TooMuch: A format of `{}` makes too much of values.
        ValueError: It is none.
    """
    count = 0
    for _, name, width, _ in string.Formatter().parse(str(form)):
        count += name is not None
        if width and _WIDE_FIELD.search(width):
            _refuse("format")
    _check_fills(count, len(form), values)


def _check_fills(count: int, size: int, values: Any) -> None:
    """Check the size of a format whose places are filled; each may be filled with all values."""
    _check(size + count * (_MAX_WIDTH + _characters(values)))


def _check_product(left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if hasattr(one, "__len__") and isinstance(other, int):
            _check(len(one) * other)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise TooMuch("it makes a number that is too large")


def _refuse(name: str) -> NoReturn:
    raise TooMuch(f"it makes too much by `{name}`")


def strftime(form: str, now: datetime) -> str:
    """Return a time in a form, which may hold no width."""
    if _WIDE_TIME.search(form.replace("%%", "")):
        _refuse("strftime_now")
    _check(len(form) + form.count("%") * _MAX_WIDTH)
    text: str = now.strftime(form)
    return text


class Generation(Extension):
    """The tag `{% generation %}`, with which templates mark what the model has written; it renders what is in it, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Read the tag, which stands first in the stream, to its end."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()
