"""Hypothesis as these tests use it: the same examples in every run, few enough to be quick, and no clock."""

from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import settings

_SETTINGS = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def given(*strategies: Any, **named: Any) -> Callable[[Callable[..., Any]], Any]:
    """As Hypothesis's own `given`."""
    return lambda test: _SETTINGS(hypothesis.given(*strategies, **named)(test))
