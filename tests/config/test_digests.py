"""Tests of unilect.config.digests: keys that a configuration does not hold."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import strategies as st

from properties import given
from unilect.config import load as config_load
from unilect.config.digests import hashed, is_digest, key_digest, plain_keys
from unilect.errors import ConfigError

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
    [written] = hashed([key])

    assert is_digest(written)
    assert key_digest(key) == key_digest(written) == key_digest(written.upper().replace("SHA", "sha"))  # fmt: skip
    assert [written] == hashed([written])


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
        ({"api_keys": 7, "admin": "x", "models": [1], "fastchat_token": ""}, []),
    ],
)
def test_keys_in_plain_text(values: dict[str, object], options: list[str]) -> None:
    """What holds a key itself is told, in whatever form the file is."""
    assert options == list(plain_keys(values))
