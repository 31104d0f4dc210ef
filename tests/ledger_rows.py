"""Rows of a ledger, for tests."""

import itertools
from typing import Any

from unilect.store.ledger import Row

_NUMBERS = itertools.count(1)


def row(**fields: Any) -> Row:
    """A row with an id of its own."""
    given = {"at": 1_800_000_000.0, "key": "key_A", "model": "m", "prompt": 1, "completion": 2}
    return Row(**({"id": f"req_{next(_NUMBERS)}"} | given | fields))
