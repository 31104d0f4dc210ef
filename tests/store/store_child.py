"""
A process that stores responses until it is killed, one after another, and prints the id of each that was confirmed.

Arguments: the URL of the database, a prefix of ids, how many to store (0: without end), and the bytes of each.
"""

import asyncio
import sys

from unilect.store.database import Database
from unilect.store.records import Item, StoredResponse
from unilect.store.responses import ResponseStore


async def main(url: str, prefix: str, count: int, size: int) -> None:
    """Store them, each after the one before, and all in one conversation."""
    database = Database(url, timeout_s=60)
    answers = ResponseStore(database)
    parent, number = None, 0
    while not count or number < count:
        id = f"{prefix}{number}"
        items = [Item(f"{id}-{part}", id.encode() * (size // 10 + 1)) for part in range(10)]
        await answers.save(
            StoredResponse(id, "me", "completed", b"{}", items, [], parent, prefix, 0.0)
        )
        print(id, flush=True)
        parent, number = id, number + 1
    await answers.aclose()
    await database.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
