"""Hypothesis as these tests use it: the same examples in every run, few enough to be quick, and no clock."""

import os
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import HealthCheck, settings

#: That making examples is slow says more of the machine than of them.
_SETTINGS = settings(
    max_examples=60,
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
        chosen = settings(_SETTINGS, max_examples=int(os.environ.get("UNILECT_FUZZ", examples)))
    return lambda test: chosen(hypothesis.given(*strategies, **named)(test))
