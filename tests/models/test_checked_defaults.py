"""Tests of unilect.models.checked_defaults."""

from typing import Any

import pytest

from unilect.core.errors import ConfigError
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.models.checked_defaults import check_defaults


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ({"nonsense": 1}, "models.m.defaults.nonsense: there is no such parameter"),
        ({"temperature": "hot"}, "models.m.defaults.temperature: "),
        ({"temperature": 3}, "models.m.defaults.temperature: "),
        ({"stream": True}, "models.m.defaults.stream: "),
        ({"prompt": "x"}, "models.m.defaults.prompt: "),
    ],
)
def test_check_defaults(defaults: dict[str, Any], said: str) -> None:
    """Defaults are held to the same bounds as a request, and name themselves where they are wrong."""
    check_defaults("m", {"temperature": 0.5, "echo": True}, ChatRequest, CompletionRequest)
    with pytest.raises(ConfigError) as raised:
        check_defaults("m", defaults, ChatRequest, CompletionRequest)

    assert said in str(raised.value)
