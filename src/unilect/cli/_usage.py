"""The work of `unilect usage`."""

import asyncio
import csv
import json
import sys
import time
from contextlib import aclosing
from pathlib import Path

import msgspec
from msgspec import structs

from unilect.accounting import usage
from unilect.cli._screen import tell, tell_table, visible
from unilect.config import load as config_load
from unilect.config.server import process_environment
from unilect.config.store import StoreConfig
from unilect.core.errors import ConfigError, StoreUnavailable
from unilect.runtime.logs import escape
from unilect.store.records import UsageSum
from unilect.store.store import Store

_FIELDS = usage.Line.__struct_fields__
_NUMBERS = frozenset(_FIELDS[3:])
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the beginning of one


def show(config: Path | None, by: str, since: str, as_json: bool, as_csv: bool) -> None:
    """Print what was used, as a table, as a JSON list or as CSV."""
    if as_json and as_csv:
        raise ConfigError("--json: cannot be combined with --csv; leave one of them out.")
    asked = usage.parse_query(by, since, time.time(), ("--by", "--since"))
    lines = usage.lines(asyncio.run(_sums(config_load.load(config).store, asked)))
    if as_json:
        tell(json.dumps(msgspec.to_builtins(lines)))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(_FIELDS)
        writer.writerows(map(_plain, map(structs.astuple, lines)))
    else:
        _print_table(lines)


async def _sums(config: StoreConfig, asked: usage.UsageQuery) -> list[UsageSum]:
    """
    Read the sums of a store's ledger.

    Raises:
        ConfigError: It cannot be read.
    """
    async with aclosing(Store(config, process_environment(), is_permanent=True)) as store:
        try:
            return await store.ledger.sums(asked.by, asked.since)
        except StoreUnavailable as error:
            raise ConfigError(error.for_operator) from error


def _plain(values: tuple[object, ...]) -> list[object]:
    """
    Return the values of a line without a formula: the names of models come from other servers, too.

    Source: https://owasp.org/www-community/attacks/CSV_Injection
    """
    texts = (visible(one) if isinstance(one, str) else one for one in values)
    return [
        f"'{one}" if isinstance(one, str) and one.startswith(_FORMULA) else one for one in texts
    ]


def _print_table(lines: list[usage.Line]) -> None:
    """Print a table without the columns that nobody has asked for."""
    shown = [
        name
        for name in _FIELDS
        if name in _NUMBERS or any(getattr(line, name) is not None for line in lines)
    ]
    head = [name.upper().replace("_TOKENS", "") for name in shown]
    rows = [[_cell(getattr(line, name)) for name in shown] for line in lines]
    tell_table(head, rows, [number for number, name in enumerate(shown) if name in _NUMBERS])


def _cell(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else escape(str(value))
