"""Entries of books, as an account opens and closes them."""

from typing import Any

from unilect.accounting.account import RequestRecorder
from unilect.core.events import Usage
from unilect.core.requests import Request
from unilect.runtime.context import Context


async def entry_of(book: RequestRecorder, context: Context, request: Request) -> Any:
    """What a book opens for a request."""
    return await book.open(context, request)


async def closed(entry: Any, usage: Usage, status: int = 200) -> None:
    """Close an entry, and wait for what an answer would wait for."""
    await entry.close(usage, status)
