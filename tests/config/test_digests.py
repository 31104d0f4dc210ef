"""Tests of unilect.config.digests: keys that a configuration does not hold."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.cli._secrecy import plain_keys
from unilect.config import load as config_load
from unilect.config.digests import hash_keys, is_digest, key_digest
from unilect.core.errors import ConfigError

DIGEST = f"sha256:{hashlib.sha256(b'sk-a').hexdigest()}"
TEXT = """
api_keys = {keys}
[admin]
listen = "./admin.sock"
api_keys = {admin}
[models.m]
source = "echo:"
"""


@given(st.text())
def test_a_digest_stands_for_its_key(key: str) -> None:
    """The digest of a key, and of what stands for it, is the same; what is written does not hold the key."""
    [written] = hash_keys([key])

    assert is_digest(written)
    assert key_digest(key) == key_digest(written) == key_digest(written.upper().replace("SHA", "sha"))  # fmt: skip
    assert [written] == hash_keys([written])


@pytest.mark.parametrize("wrong", ["sha256:", "sha256:abc", f"{DIGEST}0", f"sha256:{'g' * 64}"])
@pytest.mark.parametrize("which", ["keys", "admin"])
def test_what_is_no_digest(tmp_path: Path, wrong: str, which: str) -> None:
    """A text that begins as a digest and is none is a mistake, and no key."""
    values = {"keys": "[]", "admin": "[]", which: f'["{wrong}"]'}
    (tmp_path / "c.toml").write_text(TEXT.format(**values))
    option = "api_keys" if which == "keys" else "admin.api_keys"

    with pytest.raises(ConfigError, match=f"{option}: `sha256:` is not followed by 64") as raised:
        config_load.load(tmp_path / "c.toml", environment={})
    assert wrong not in str(raised.value) or wrong == "sha256:"


def test_two_keys_that_would_be_one_caller(tmp_path: Path) -> None:
    """Two keys with the same first 16 digits of their digests are a mistake; a key beside its own digest is not."""
    alike = [f"sha256:{'5' * 16}{digit * 48}" for digit in "ab"]
    (tmp_path / "c.toml").write_text(TEXT.format(keys=alike, admin="[]"))
    with pytest.raises(ConfigError, match="api_keys: two keys have the same identity, key-5555555555555555"):  # fmt: skip
        config_load.load(tmp_path / "c.toml", environment={})

    (tmp_path / "c.toml").write_text(TEXT.format(keys=["sk-a", DIGEST], admin="[]"))
    assert ["sk-a", DIGEST] == config_load.load(tmp_path / "c.toml", environment={}).api_keys


@pytest.mark.parametrize(
    ("keys", "admin", "whose"), [([DIGEST], [], "api_keys"), ([], ["sk-a"], "[admin]")]
)
def test_keys_for_metrics(tmp_path: Path, keys: list[str], admin: list[str], whose: str) -> None:
    """A key for metrics opens nothing else, and comes out of the environment, or as its digest, as others do."""
    file = tmp_path / "c.toml"
    file.write_text('metrics_keys = ["sk-a"]\n' + TEXT.format(keys=keys, admin=admin))
    with pytest.raises(ConfigError) as raised:
        config_load.load(file, environment={})
    assert f"metrics_keys: one of them is a key of {whose}, too." in str(raised.value)

    without = TEXT.format(keys="[]", admin="[]")
    file.write_text(f'metrics_keys = ["$A", "{DIGEST}"]\n{without}')
    read = config_load.load(file, environment={"A": "sk-of-prometheus"})
    assert ["sk-of-prometheus", DIGEST] == read.metrics_keys
    file.write_text(without)
    assert ["sk-b"] == config_load.load(
        file, environment={"UNILECT_METRICS_KEYS": "sk-b"}
    ).metrics_keys
    for wrong, why in (("a b", "has spaces"), ("sha256:1", "not followed by 64")):
        file.write_text(f'metrics_keys = ["{wrong}"]\n{without}')
        with pytest.raises(ConfigError, match=f"metrics_keys: .*{why}"):
            config_load.load(file, environment={})


def test_a_key_of_both(tmp_path: Path) -> None:
    """A key of clients does not administer the server, also where one of the two is a digest."""
    (tmp_path / "c.toml").write_text(TEXT.format(keys='["sk-a"]', admin=f'["{DIGEST}"]'))

    with pytest.raises(ConfigError, match="one of them is in api_keys, too"):
        config_load.load(tmp_path / "c.toml", environment={})


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ({}, []),
        ({"api_keys": ["$NAME", DIGEST]}, []),
        ({"api_keys": [DIGEST, "sk-a", "sk-b"]}, ["api_keys"]),
        ({"api_keys": "sk-a", "admin": {"api_keys": ["sk-b"]}}, ["api_keys", "admin.api_keys"]),
        ({"models": {"m": {"api_key": "a"}, "n": {"api_key": "$A"}}}, ["models.m.api_key"]),
        ({"fastchat_token": "a"}, ["fastchat_token"]),
        ({"metrics_keys": [DIGEST, "sk-m"]}, ["metrics_keys"]),
        ({"api_keys": 7, "admin": "x", "models": [1], "fastchat_token": ""}, []),
    ],
)
def test_keys_in_plain_text(values: dict[str, object], options: list[str]) -> None:
    """What holds a key itself is told, in whatever form the file is."""
    assert options == plain_keys(values)
