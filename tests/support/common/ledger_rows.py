"""Rows of a ledger, for tests."""

import itertools
from typing import Any

from unilect.store.records import LedgerRow

_NUMBERS = itertools.count(1)


def row(**fields: Any) -> LedgerRow:
    """A row with an id of its own."""
    given = {"at": 1_800_000_000.0, "key": "key_A", "model": "m", "prompt": 1, "completion": 2}
    return LedgerRow(**({"id": f"req_{next(_NUMBERS)}"} | given | fields))


_PARTS = "day, key, owner, model"
_OF_ROWS = f"SELECT {_PARTS}, count(*), sum(prompt), sum(completion), sum(cost) FROM ledger GROUP BY {_PARTS}"
_OF_TOTALS = f"SELECT {_PARTS}, requests, prompt, completion, cost FROM ledger_totals"
#: What differs between the totals and the rows, in the words of every database; nothing should.
DIFFERENCES = f"SELECT * FROM ({_OF_ROWS} EXCEPT {_OF_TOTALS}) AS a UNION ALL SELECT * FROM ({_OF_TOTALS} EXCEPT {_OF_ROWS}) AS b"
