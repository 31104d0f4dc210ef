"""Entries of books, as an account opens and closes them."""

from typing import Any

from unilect.accounting.account import Accounts, RequestAccounting, RequestRecorder
from unilect.accounting.metrics import Metrics
from unilect.core.events import Usage
from unilect.core.requests import Request
from unilect.runtime.context import Context


async def entry_of(book: RequestRecorder, context: Context, request: Request) -> Any:
    """What a book opens for a request; None where it keeps nothing of it."""
    return await book.open(context, request) if book.is_on or context.limits else None


async def closed(entry: Any, usage: Usage, status: int = 200) -> None:
    """Close an entry, and wait for what an answer would wait for."""
    await entry.close(usage, status)


def meter_of(metrics: Metrics) -> RequestAccounting:
    """What measures a chat of the model `m`, and is in no book."""
    return Accounts(metrics).open(Context(endpoint="chat"), "m", Request())
