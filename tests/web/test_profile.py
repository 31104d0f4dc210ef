"""Tests of unilect.web.profile: a dialect's choices, and a listener's own options."""

from typing import Any

import pytest

from unilect.config.server import Config
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
