"""Tests of unilect.config.cors: what can be an origin, a method and a header, and what cannot."""

from pathlib import Path

import pytest

from unilect.config.cors import is_origin
from unilect.config.load import load
from unilect.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*", True),
        ("null", True),
        ("https://chat.example.org", True),
        ("http://localhost:3000", True),
        ("http://[::1]:3000", True),
        ("chrome-extension://abcdefgh", True),
        ("file://", True),
        ("", False),
        ("example.org", False),
        ("https://", False),
        ("https://example.org/", False),
        ("https://example.org/chat", False),
        ("https://me@example.org", False),
        ("https://*.example.org", False),
        ("https://example.org:", False),
        ("https://example.org\n", False),
        ("https://example.org\r\nX: y", False),
    ],
)
def test_origins(text: str, expected: bool) -> None:
    """An origin is a scheme, a host and perhaps a port, as a browser sends it, and nothing behind them."""
    assert expected is is_origin(text)


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("allowed_origins", "https://example.org/", "without a path or a slash"),
        ("allowed_methods", "GET\\nX: y", "the name of a method"),
        ("allowed_headers", "X Team", "the name of a header"),
        ("allowed_headers", "X-Team: 1", "the name of a header"),
        ("allowed_headers", "x\\r\\nX: y", "the name of a header"),
    ],
)
def test_mistakes(tmp_path: Path, option: str, text: str, expected: str) -> None:
    """A text that can be none is told with its option and line, and what was expected; no line of a header gets into an answer."""
    file, origins = tmp_path / "c.toml", "allowed_origins = ['null']\n"
    file.write_text(f'{origins if option != "allowed_origins" else ""}{option} = ["{text}"]\n')
    with pytest.raises(ConfigError) as raised:
        load(file, environment={})

    assert f": {option}: expected " in str(raised.value)
    assert expected in str(raised.value)


def test_what_is_allowed(tmp_path: Path) -> None:
    """Names of methods and headers, and `*` for any of these, are taken."""
    (tmp_path / "c.toml").write_text(
        "allowed_origins = '*'\nallowed_methods = ['GET', 'M-SEARCH']\nallowed_headers = ['*', 'X_y~1']\n"
    )

    assert ["*", "X_y~1"] == load(tmp_path / "c.toml", environment={}).allowed_headers
