"""Tests of unilect.runtime.redact: no credential is shown, and everything else is."""

import pytest
from hypothesis import strategies as st

from support.common.properties import given
from unilect.runtime.redact import Secrets, basic, redact, secrets_of, shorten


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://me:pw@host:1/v1", "http://***@host:1/v1"),
        ("https://sk-token@host/v1", "https://***@host/v1"),
        ("fastchat+http://me:p%40w@host", "fastchat+http://***@host"),
        ("http://me:p/w@host/v1", "http://***@host/v1"),
        ("http://me:p?w#@host/v1", "http://***@host/v1"),
        ("http://:p/w@host/v1", "http://***@host/v1"),
        ("redis://:12345/secret@host", "redis://***@host"),
        ("rediss://me:7/secret@host/0", "rediss://***@host/0"),
        ("PostgreSQL+asyncpg://me:7/secret@host/db", "PostgreSQL+asyncpg://***@host/db"),
        ("postgres://host:5432/db", "postgres://host:5432/db"),
        ("http://host:8000/v1?user=a@b", "http://host:8000/v1?user=a@b"),
        ("me:pw@host/v1", "***@host/v1"),
        ("http://host:8000/v1@2", "http://host:8000/v1@2"),
        ("http://host/v1?api-version=2024-10-21", "http://host/v1?api-version=2024-10-21"),
        ("http://host/v1?key=abc&x=1", "http://host/v1?key=***&x=1"),
        ("http://host/v1?x=1&API_KEY=abc", "http://host/v1?x=1&API_KEY=***"),
        ("http://host/v1?access_token=a#b", "http://host/v1?access_token=***#b"),
        ("http://host/v1?q=0123456789abcdef01234567", "http://host/v1?q=***"),
        (
            "models.a: http://u:p@h/v1?sig=x: no http://v:q@h2, see",
            "models.a: http://***@h/v1?sig=*** no http://***@h2, see",
        ),
        ("hf:org/name@main", "hf:org/name@main"),
        ("gguf:./model.gguf", "gguf:./model.gguf"),
        ("no URL at all; a=b", "no URL at all; a=b"),
    ],
)
def test_redacted(text: str, expected: str) -> None:
    """Users, passwords and what may be a key in a query are masked, and nothing else is."""
    assert expected == redact(text)
    assert expected == redact(expected)


@pytest.mark.heavy(but=3)
@pytest.mark.parametrize(
    "piece", ["//", "?a=", "&", "//a@", "a:@", "#;=", "http://a:", "//:", "redis://a:", "redis+"]
)
def test_redacted_of_much(piece: str) -> None:
    """A text of a megabyte is no harder than a short one."""
    assert redact(piece * (2**20 // len(piece)))


def test_secrets_of_a_url() -> None:
    """The user, the password, both as they are sent, and keys of the query are secrets of a URL."""
    found = set(secrets_of("https://me:p%40w@host/v1?api_key=k%2B1&api-version=2024-10-21"))

    assert {"me", "p@w", basic("me", "p@w"), "k+1"} == found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("http://me:pw@Host:8000/v1?key=abc", "http://host:8000"),
        ("fastchat+http://host/", "fastchat+http://host"),
        ("gguf:/models/a.gguf", "a.gguf"),
        ("echo://[x", "echo://[x"),
        ("echo://me:pw@[x/secret?key=abc", "echo://***@[x"),
        ("odd://me:pw@a\u2100b/secret", "odd://***@a\u2100b"),
        ("http://host:99999/v1", "http://host:99999"),
        ("http://[", "http://["),
        ("", ""),
    ],
)
def test_shortened(source: str, expected: str) -> None:
    """Of a server its scheme, host and port are shown, of a file its name, also where a text is no URL at all."""
    assert expected == shorten(source)


@given(st.text(alphabet="abe:/@[]?#%1\u2100\n ."))
def test_any_source_can_be_shown(source: str) -> None:
    """No text of a source ends whatever shows it."""
    assert isinstance(shorten(f"echo:{source}"), str)


KEY = "sk-abcdefghijklmnop"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"the key {KEY} is wrong", "the key *** is wrong"),
        (f"Bearer {KEY}{KEY}x", "Bearer ******x"),
        ("Incorrect API key provided: sk-abcd", "Incorrect API key provided: ***"),
        ("my pw is PW, not pwd", "my *** is PW, not pwd"),
        ("p%40w%2F was sent", "*** was sent"),
        ("none of it", "none of it"),
    ],
)
def test_secrets(text: str, expected: str) -> None:
    """A secret is taken out whole, percent-encoded, and where the text was cut in its middle; a short one only as a word."""
    assert expected == Secrets([KEY, "pw", "p@w/", "none", "", None]).remove_from(text)


def test_no_secrets() -> None:
    """Where there are no secrets a text stays as it is."""
    assert "sk-abc" == Secrets().remove_from("sk-abc")


@given(st.text(), st.text(min_size=8))
def test_no_secret_is_left(text: str, secret: str) -> None:
    """Whatever a text and a secret are, the secret is not in the text."""
    assert secret.lower() in "none" or secret not in Secrets([secret]).remove_from(text + secret)
