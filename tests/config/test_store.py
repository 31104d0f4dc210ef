"""Tests of unilect.config.store; what is wrong in a table is in test_mistakes_settings.py."""

from pathlib import Path

import pytest

from unilect.config.load import load
from unilect.config.store import StoreConfig, default_url


def test_the_table(tmp_path: Path) -> None:
    """The table `[store]` says where responses are kept, whether, for how long and how much."""
    path = tmp_path / "unilect.toml"
    path.write_text(
        '[store]\nurl = "postgresql://me:pw@host/db"\nresponses = false\nledger = "required"\nledger_days = 40\nmax_age_days = 0.5\nmax_size_mib = 10\nmax_count = 7\n'
    )

    assert load(path, environment={}).store == StoreConfig(
        url="postgresql://me:pw@host/db",
        responses=False,
        ledger="required",
        ledger_days=40.0,
        max_age_days=0.5,
        max_size_mib=10,
        max_count=7,
    )
    assert StoreConfig() == load(environment={}).store


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///x.db", "sqlite:///{folder}/x.db"),
        ("sqlite:///../x.db", "sqlite:///{folder}/../x.db"),
        ("sqlite:////srv/x.db", "sqlite:////srv/x.db"),
        ("sqlite:///~/x.db", "sqlite:///{home}/x.db"),
        ("sqlite://", "sqlite://"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("$THE_STORE", "postgresql://me:pw@host/db"),
    ],
)
def test_where_a_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, expected: str
) -> None:
    """A relative file is relative to the folder of the configuration, and a URL with a password may be in the environment."""
    monkeypatch.setenv("HOME", "/home/me")
    path = tmp_path / "unilect.toml"
    path.write_text(f'[store]\nurl = "{url}"\n')
    config = load(path, environment={"THE_STORE": "postgresql://me:pw@host/db"})

    assert expected.format(folder=tmp_path, home="/home/me") == config.store.url


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/home/me"}, "sqlite:////home/me/.local/share/unilect/unilect.db"),
        ({"HOME": "/home/me", "XDG_DATA_HOME": "/data"}, "sqlite:////data/unilect/unilect.db"),
        ({"HOME": "/home/me", "XDG_DATA_HOME": "data"}, "sqlite:////home/me/.local/share/unilect/unilect.db"),
        ({"XDG_DATA_HOME": "/data"}, "sqlite:////data/unilect/unilect.db"),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_default_place(environment: dict[str, str], expected: str | None) -> None:
    """The database is in the user's data folder, as far as the environment has one."""
    assert expected == default_url(environment)
