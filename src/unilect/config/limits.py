"""
Limits of a key, an owner or a model: their names, their bounds, and the tables `[limits]` and `[owners.NAME]` of a configuration.
"""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from unilect.config.mistakes import ErrorCollector, OptionPath
from unilect.config.option import Table, option
from unilect.config.store import has_port
from unilect.config.values import convert, nearest
from unilect.core.errors import ConfigError
from unilect.runtime import extras
from unilect.runtime.redact import redact

_Number = Annotated[int, Meta(ge=1, le=10**15)]
_Minute = Annotated[int, Meta(ge=1, le=50_000_000)]  # a bucket's level is exact in a double
_Parallel = Annotated[int, Meta(ge=1, le=100_000)]
_Money = Annotated[float, Meta(gt=0, le=1_000_000_000)]
_URL = re.compile(r"rediss?://\S+|unix://\S+")


class Limits(Table, frozen=True, kw_only=True):
    """Limits of one key, one owner or one model; None is none."""

    requests_per_minute: _Minute | None = option(
        None, "Requests per minute. A minute's requests may come at once.", live=True, example=60
    )
    tokens_per_minute: _Minute | None = option(
        None, "Tokens per minute, of prompts and answers.", live=True, example=100_000
    )
    parallel: _Parallel | None = option(None, "Concurrent requests.", live=True, example=4)
    tokens_per_day: _Number | None = option(
        None, "Tokens per day (UTC), of prompts and answers.", live=True, example=1_000_000
    )
    tokens_per_month: _Number | None = option(
        None, "Tokens per calendar month (UTC).", live=True, example=20_000_000
    )
    money_per_day: _Money | None = option(
        None, "Cost per day (UTC), in the currency of the models' `price`.", live=True, example=1.5
    )
    money_per_month: _Money | None = option(
        None, "Cost per calendar month (UTC).", live=True, example=20.0
    )


class LimitChanges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits to be changed: None takes one away, and one that is left out stays."""

    requests_per_minute: _Minute | UnsetType | None = UNSET
    tokens_per_minute: _Minute | UnsetType | None = UNSET
    parallel: _Parallel | UnsetType | None = UNSET
    tokens_per_day: _Number | UnsetType | None = UNSET
    tokens_per_month: _Number | UnsetType | None = UNSET
    money_per_day: _Money | UnsetType | None = UNSET
    money_per_month: _Money | UnsetType | None = UNSET


def _check_redis(url: str) -> str:
    """Return why a URL is that of no Redis server that can be used; empty where it is one. Nothing is opened, and no password told."""
    if not _URL.fullmatch(url) or not has_port(url):
        scheme = url.partition(":")[0][:20]
        return f"`{scheme}:...` is not the URL of a Redis server; expected `redis://:PASSWORD@HOST:PORT/0`, percent-encoded."
    if find_spec("redis") is None:
        return (
            f"`{redact(url[:200])}` requires the package redis, which is not installed; install it with "
            f"`{extras.install('redis')}`."
        )
    return ""


class LimitsConfig(Limits, frozen=True, kw_only=True):
    """The table `[limits]`: what holds for every key that has no such limit of its own, and where is counted."""

    url: str | None = option(
        None,
        "Redis server where several unilect servers count together: `redis://:PASSWORD@HOST:6379/0`, or `rediss://` with "
        "TLS (requires the extra *redis*). `$NAME` takes it from the environment. Default: each server counts by itself, in memory.",
        secret="url",
        check=_check_redis,
        example="redis://127.0.0.1:6379/0",
    )


NAMES = Limits.__struct_fields__
#: Those that are counted from the ledger after a restart.
BUDGETS = frozenset({"tokens_per_day", "tokens_per_month", "money_per_day", "money_per_month"})


def check_budgets(
    path: OptionPath,
    limits: Limits | None,
    has_price: bool,
    has_ledger: bool,
    found: ErrorCollector,
) -> None:
    """
    Note budgets that would not hold.

    Args:
        path: Where the limits stand, if there are any.
        has_price: Something that they hold for has a price.
        has_ledger: The ledger is not turned off.
    """
    for name in sorted(BUDGETS):
        where = (*path, name)
        if getattr(limits, name, None) is None:
            continue
        if not has_ledger:
            found.at(
                where,
                'needs the ledger, from which budgets are counted after a restart; leave out `store.ledger = "off"`, or this limit.',
            )
        elif name.startswith("money") and not has_price:
            found.at(
                where,
                "no model that it holds for has a `price`, so nothing would ever be spent; set a price, or leave this limit out.",
            )


def parse_limits(texts: Sequence[str], where: str = "--limit") -> dict[str, float]:
    """
    Parse limits as the command line has them, `tokens_per_day=1000`.

    Raises:
        ConfigError: One is none; all mistakes are told.
    """
    fields = {field.name: field for field in structs.fields(Limits)}
    found, limits = ErrorCollector(), dict[str, float]()
    for text in texts:
        name, equals, number = text.partition("=")
        name = name.strip()
        if name not in fields or not equals:
            found.add(f"{where}: {text[:60]!r} is not NAME=NUMBER; {_hint(name)}")
            continue
        if name in limits:
            found.add(f"{where}: {name} is given twice.")
            continue
        mistakes = ErrorCollector()
        value = convert(fields[name].type, _number(number.strip()), (name,), mistakes)
        for error in mistakes.errors:
            found.add(f"{where}: {error}")
        if value is not None:
            limits[name] = value
    found.raise_all()
    return limits


def check_limit_names(texts: Sequence[str], where: str = "--none") -> list[str]:
    """
    Check names of limits.

    Raises:
        ConfigError: One is none.
    """
    for text in texts:
        if text not in NAMES:
            raise ConfigError(f"{where}: {text[:60]!r} is no limit; {_hint(text)}")
    return list(texts)


def _hint(name: str) -> str:
    """Say which limit is meant, or which there are."""
    near = nearest(name, NAMES)
    return f"did you mean `{near}`?" if near and near != name else f"one of {', '.join(NAMES)}."


def _number(text: str) -> int | float | str:
    """Parse a number of the command line; a text that is none stays one."""
    if re.fullmatch(r"-?\d{1,20}", text, re.ASCII):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d{1,20}\.\d{1,20}", text, re.ASCII) else text
