"""Tests of unilect.http.base_url."""

import pytest

from unilect.config.model import ModelConfig
from unilect.config.server import Config
from unilect.core.errors import ConfigError
from unilect.http.base_url import check_base, root_of
from unilect.models import sources


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h/v1/chat/completions", "http://h/v1"),
        ("https://h/v1/completions/", "https://h/v1"),
        ("http://h/v1/models?api-version=1", "http://h/v1?api-version=1"),
        ("http://me:pw@h/v1/embeddings", "http://***@h/v1"),
    ],
)
def test_the_url_of_a_call(url: str, base: str) -> None:
    """The URL of one call is no base URL, and the base URL is told."""
    with pytest.raises(ConfigError) as raised:
        check_base(url)

    assert str(raised.value).endswith(f"write {base}.")
    assert "pw" not in str(raised.value)


def test_the_url_of_a_call_as_a_source() -> None:
    """A source that is the URL of one call is taken as its base URL."""
    model = sources.registry(Config(models={"m": ModelConfig(source="http://h/v1/embeddings")}))

    assert "http://h/v1" == model.get("m").pool.members[0].backend._server.shown  # type: ignore[attr-defined]


@pytest.mark.parametrize("url", ["http://h/v1", "http://h", "http://h/completions-of-us/v1"])
def test_a_base_url(url: str) -> None:
    """A base URL is taken."""
    check_base(url)


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://h/v1", "http://h"),
        ("http://h/a/v1/?k=1", "http://h/a?k=1"),
        ("http://u:p@h/x", "http://u:p@h/x"),
    ],
)
def test_root_of(url: str, root: str) -> None:
    """What lies beside the base is found without its `/v1`, with the same query and user."""
    assert root == root_of(url)
