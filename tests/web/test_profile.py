"""Tests of unilect.web.profile: a dialect's choices, and a listener's own options."""

from typing import Any

import pytest

from support.servers.appserver import serving
from unilect.config.server import Config
from unilect.testing.echo import Echo
from unilect.web.profile import OPENAI, PROFILES, profile_of


@pytest.mark.parametrize("dialect", PROFILES)
def test_a_listener_has_the_profile_of_its_dialect(dialect: Any) -> None:
    """Without options of its own a listener does as its dialect does."""
    assert PROFILES[dialect] == profile_of(Config(dialect=dialect))


def test_options_are_stronger_than_a_dialect() -> None:
    """A listener's own options stand above its dialect."""
    found = profile_of(Config(dialect="alpaca", done=False, on_unknown_model="error"))

    assert (False, "error", True) == (found.done, found.unknown_model, found.conversation_choices)
    assert (True, "error") == (OPENAI.done, OPENAI.unknown_model)


@pytest.mark.parametrize(
    ("dialect", "where"),
    [
        ("openai", None),
        ("llamacpp", None),
        ("chatglm", ["body", "messages"]),
        ("alpaca", ["body", "messages"]),
        ("fastchat", ["body", "messages"]),
    ],
)
async def test_where_clients_look_for_an_error(dialect: Any, where: Any) -> None:
    """Only clients that look for FastAPI's `detail` get the sentence of an error there, too."""
    async with serving(Echo(), Config(dialect=dialect)) as app:
        async with app.post("/v1/chat/completions", messages=1) as response:
            body = await response.json()

    assert 400 == response.status
    assert body["error"]["message"] == body["message"]
    assert where == (body["detail"][0]["loc"] if "detail" in body else None)
