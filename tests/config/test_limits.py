"""Tests of unilect.config.limits: limits in a file and on the command line, and what is wrong with them."""

from pathlib import Path

import pytest

from unilect.config import load as config_load
from unilect.config.limits import LimitChanges, Limits, check_limit_names, parse_limits
from unilect.config.model import Price
from unilect.core.errors import ConfigError

FILE = """
[limits]
url = "$REDIS"
requests_per_minute = 60
money_per_day = 2

[owners.team]
tokens_per_month = 1000000

[owners."Ann B."]
parallel = 2

[models.m]
source = "echo:"
price = { prompt = 0.5, completion = 1 }
limits = { parallel = 3 }
"""


def test_a_file(tmp_path: Path) -> None:
    """Limits are read of keys, owners and models, and the URL of Redis from the environment."""
    (tmp_path / "u.toml").write_text(FILE)
    config = config_load.load(tmp_path / "u.toml", environment={"REDIS": "redis://:pw@host:6379/1"})
    assert ("redis://:pw@host:6379/1", 60, 2.0) == (
        config.limits.url,
        config.limits.requests_per_minute,
        config.limits.money_per_day,
    )
    assert {"team": Limits(tokens_per_month=1_000_000), "Ann B.": Limits(parallel=2)} == config.owners  # fmt: skip
    assert Limits(parallel=3) == config.models["m"].limits
    assert Price(prompt=0.5, completion=1.0) == config.models["m"].price


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[limits]\ntokens_per_day = 1.5", "u.toml:2: limits.tokens_per_day: expected an integer of at least 1, found 1.5."),
        ("[limits]\ntokens_per_day = 0", "limits.tokens_per_day: expected an integer of at least 1, found 0."),
        ('[limits]\nparallel = "2"', 'limits.parallel: expected an integer from 1 to 100000, found "2". Leave the quotes out.'),
        ("[limits]\ntoken_per_day = 5", "limits.token_per_day: unknown option; did you mean `tokens_per_day`?"),
        ("[owners.a]\nparalel = 5", "u.toml:2: owners.a.paralel: unknown option; did you mean `parallel`?"),
        ("[owners.a]\nmoney_per_day = -1", "owners.a.money_per_day: expected a number above 0"),
        ("[owners]\na = 5", "owners.a: expected a table, found 5."),
        ('owners = "a"', "owners: expected a table"),
        ("[models.m.limits]\nparallel = -1", "models.m.limits.parallel: expected an integer from 1"),
        ("[models.m]\nprice = 5", "models.m.price: expected a table, found 5."),
        ('[limits]\nurl = "http://me:pw@host"', "limits.url: `http:...` is not the URL of a Redis server"),
        ('[limits]\nurl = "redis://me:pw@host:x"', "limits.url: `redis:...` is not the URL of a Redis server"),
    ],
)  # fmt: skip
def test_mistakes(text: str, told: str, tmp_path: Path) -> None:
    """A mistake is told with its place, what was expected, and what was found; never with a password."""
    (tmp_path / "u.toml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        config_load.load(tmp_path / "u.toml", environment={})
    assert told in str(raised.value)
    assert "pw" not in str(raised.value)


OFF = '[store]\nledger = "off"\n'


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("[limits]\nmoney_per_day = 1\n[models.m]\nsource = 'echo:'", ["limits.money_per_day"]),
        ("[owners.lab]\nmoney_per_month = 1", ["owners.lab.money_per_month"]),
        ("[models.m]\nsource = 'echo:'\nlimits = { money_per_day = 1 }\n[models.n]\nsource = 'echo:'\nprice = { prompt = 1 }", ["models.m.limits.money_per_day"]),
        ("[limits]\nmoney_per_day = 1\n[models.m]\nsource = 'echo:'\n[models.n]\nsource = 'echo:'\nprice = { prompt = 1 }", []),
        (OFF + "[limits]\ntokens_per_day = 5\ntokens_per_minute = 5\n[owners.lab]\ntokens_per_month = 5", ["limits.tokens_per_day", "owners.lab.tokens_per_month"]),
        (OFF + "[models.m]\nsource = 'echo:'\nprice = { prompt = 1 }\nlimits = { money_per_day = 1 }", ["models.m.limits.money_per_day"]),
        (OFF + "[limits]\ntoken_per_day = 5\ntokens_per_month = 5", ["limits.token_per_day"]),
        (OFF + "[limits]\ntokens_per_minute = 5\nparallel = 2", []),
        (OFF.replace("off", "best_effort") + "[limits]\ntokens_per_day = 5", []),
    ],
)  # fmt: skip
def test_budgets_that_would_not_hold(text: str, places: list[str], tmp_path: Path) -> None:
    """A limit of money without a price, and a budget without a ledger, are mistakes of the file, told by their places."""
    (tmp_path / "u.toml").write_text(text)
    _, found = config_load.read(tmp_path / "u.toml", environment={})
    assert places == [str(error).partition(": ")[2].partition(":")[0] for error in found.errors]


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package redis is not installed, a URL of Redis says how to install it."""
    monkeypatch.setattr("unilect.config.limits.find_spec", lambda name: None)
    (tmp_path / "u.toml").write_text('[limits]\nurl = "redis://me:pw@host"')
    with pytest.raises(ConfigError, match=r"limits.url: `redis://\*\*\*@host` requires .*pip install .*\[redis\]"):  # fmt: skip
        config_load.load(tmp_path / "u.toml", environment={})


def test_on_the_command_line() -> None:
    """Limits are given as NAME=NUMBER, each once, and all mistakes are told."""
    found = parse_limits(["tokens_per_day=1000", "money_per_day = 0.25"])
    assert {"tokens_per_day": 1000, "money_per_day": 0.25} == found
    assert isinstance(found["tokens_per_day"], int)
    assert {} == parse_limits([])
    with pytest.raises(ConfigError) as raised:
        parse_limits(["tokens=5", "parallel=1e3", "=", "parallel=99999999999999999999999", *["tokens_per_day=1"] * 2])  # fmt: skip
    lines = str(raised.value).splitlines()
    assert 5 == len(lines)
    assert all(line.startswith("--limit: ") for line in lines)


def test_changes() -> None:
    """Each limit can be changed, and taken away by its name."""
    assert Limits.__struct_fields__ == LimitChanges.__struct_fields__
    assert ["parallel"] == check_limit_names(["parallel"])
    with pytest.raises(
        ConfigError, match=r"^--none: 'paralel' is no limit; did you mean `parallel`"
    ):
        check_limit_names(["parallel", "paralel"])
