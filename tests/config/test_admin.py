"""admin.py: where the admin API may be, and who gets in."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilect.config import load as config_load
from unilect.config.admin import AdminConfig, check_admin
from unilect.config.server import Config
from unilect.core.errors import ConfigError


def loaded(tmp_path: Path, text: str, **environment: str) -> Config:
    """The configuration of a file."""
    file = tmp_path / "unilect.toml"
    file.write_text(text)
    return config_load.load(file, environment=environment)


@pytest.mark.parametrize(
    ("listen", "place"),
    [
        (None, None),
        ("127.0.0.1:8001", ("127.0.0.1", 8001)),
        ("[::1]:8001", ("::1", 8001)),
        ("localhost:0", ("localhost", 0)),
        ("/run/unilect/admin.sock", Path("/run/unilect/admin.sock")),
        ("./admin.sock", Path("admin.sock")),
    ],
)
def test_places(listen: str | None, place: Any) -> None:
    """An address or a path is told by its slash."""
    assert place == AdminConfig(listen=listen).place


@given(st.text(max_size=200))
def test_any_place(listen: str) -> None:
    """Whatever stands there is a path, a host and a port, or a mistake that names the option."""
    try:
        place = AdminConfig(listen=listen).place
    except ConfigError as error:
        assert str(error).startswith("admin.listen: ")
        return
    assert isinstance(place, Path) or (place is not None and 0 <= place[1] <= 65535)


def test_a_file(tmp_path: Path) -> None:
    """A socket is relative to the file's folder, and a key may be taken from the environment."""
    text = "[admin]\nlisten = './a.sock'\napi_keys = '$K'\n"
    admin = loaded(tmp_path, text, K="secret-1").admin

    assert tmp_path / "a.sock" == admin.place
    assert ["secret-1"] == admin.api_keys


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[admin]\nlisten = '127.0.0.1:8001'\n", "requires a key"),
        ("[admin]\nlisten = '0.0.0.0:8001'\n", "requires a key"),
        ("api_keys = ['k']\n[admin]\nlisten = './a'\napi_keys = ['k']\n", "could administer"),
        ("port = 8001\n[admin]\nlisten = '127.0.0.1:8001'\napi_keys = ['k']\n", "an address of"),
        ("[admin]\napi_keys = ['k']\n", "no effect without listen"),
        ("[admin]\nlisten = './a'\napi_keys = ['a b']\n", "a key is empty, or has spaces"),
        ("[admin]\nlisten = 8001\n", "admin.listen: expected text"),
        (f"[admin]\nlisten = '/{'a' * 200}'\n", "at most 107 bytes"),
        ("[admin]\nlisten = './a'\nkeys = []\n", "admin.keys: unknown option"),
        ("[admins]\nlisten = './a'\n", "did you mean [admin]?"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, told: str) -> None:
    """A listener that is open to clients, or to nobody, is refused by name."""
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)

    assert told in str(caught.value)
    assert "unilect.toml:" in str(caught.value)


def test_keys_are_not_told(tmp_path: Path) -> None:
    """No mistake repeats a key."""
    with pytest.raises(ConfigError) as caught:
        check_admin(AdminConfig(listen="nowhere", api_keys=["s3cret key"]), ["s3cret key"], [])

    assert "s3cret" not in str(caught.value)
