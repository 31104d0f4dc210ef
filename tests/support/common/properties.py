"""Hypothesis as these tests use it: the same examples in every run, a third of them in a quick one, and no clock."""

import os
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import HealthCheck, settings

from support.backends.engine import THOROUGH

_SHARE = 1 if THOROUGH else 3
#: That making examples is slow says more of the machine than of them.
_SETTINGS = settings(
    max_examples=60 // _SHARE,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def given(
    *strategies: Any, examples: int | None = None, **named: Any
) -> Callable[[Callable[..., Any]], Any]:
    """
    As Hypothesis's own `given`.

    Args:
        examples: How many, of a test of microseconds; UNILECT_FUZZ asks for more.
    """
    chosen = _SETTINGS
    if examples is not None:
        chosen = settings(
            _SETTINGS, max_examples=int(os.environ.get("UNILECT_FUZZ", examples // _SHARE))
        )
    return lambda test: chosen(hypothesis.given(*strategies, **named)(test))
