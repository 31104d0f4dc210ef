"""
A process that writes rows of the ledger and stores responses, one transaction after the other, and says the id of each that was confirmed.

Arguments: the path of the database, how many transactions, and SQLite's `synchronous`.
"""

import asyncio
import random
import sys
from pathlib import Path

from unilect.store.database import Database
from unilect.store.ledger import Ledger
from unilect.store.records import Item, LedgerRow, StoredResponse
from unilect.store.responses import ResponseStore
from unilect.store.sql import sqlite


async def main(path: Path, count: int, synchronous: str) -> None:
    """Write them."""
    sqlite._SETTINGS = tuple(
        f"synchronous = {synchronous}" if setting.startswith("synchronous") else setting
        for setting in sqlite._SETTINGS
    )
    dice = random.Random(1)
    database = Database(f"sqlite:///{path}")
    ledger, answers = Ledger(database), ResponseStore(database)
    for number in range(count):
        if dice.random() < 0.6:
            ids = [f"row{number}.{n}" for n in range(dice.randint(1, 5))]
            await ledger.write(
                [LedgerRow(id=id, at=1_800_000_000.0, completion=number) for id in ids]
            )
        else:
            ids = [f"resp{number}"]
            size = dice.choice((100, 5_000, 400_000))
            items = [Item(f"{ids[0]}-0", dice.randbytes(size))]
            await answers.save(
                StoredResponse(ids[0], "me", "completed", b"{}", items, [], None, None, 0.0)
            )
        print(" ".join(ids), flush=True)
    await answers.aclose()
    await ledger.aclose()
    await database.aclose()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
