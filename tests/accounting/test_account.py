"""The account of a request: entries of every book, opened before it is answered and closed before its last frame."""

import asyncio

import pytest

from support.common.samples import sample
from unilect.accounting.account import Accounts, RequestAccounting
from unilect.accounting.metrics import Metrics
from unilect.core.errors import RateLimited, UnilectError
from unilect.core.events import Tally, TextDelta, Usage
from unilect.core.requests import ChatRequest, Request
from unilect.runtime.context import Context


class Written:
    """A book that writes down what it is told, and fails where it is asked to."""

    is_on = True

    def __init__(self, name: str, lines: list[str], fails: str = "") -> None:
        self.name, self.lines, self.fails = name, lines, fails

    async def open(self, context: Context, request: Request) -> "Written | None":
        """Open an entry, of a request that has a caller."""
        if not context.caller:
            return None
        self._say("open")
        return self

    def note_usage(self, usage: Tally) -> None:
        """Take note."""
        self._say(f"made {usage.completion_tokens}")

    async def close(self, usage: Tally | Usage, status: int) -> None:
        """Close the entry."""
        self._say(f"close {usage.completion_tokens} {status}")

    def _say(self, line: str) -> None:
        self.lines.append(f"{self.name} {line}")
        if self.fails and line.startswith(self.fails):
            raise RateLimited(f"{self.name} refuses.")


def account_of(*fails: str) -> tuple[RequestAccounting, list[str], Metrics]:
    """An account with a book for each word, which fails where the word says, and what they write."""
    lines: list[str] = []
    books = tuple(Written(str(n), lines, word) for n, word in enumerate(fails))
    metrics = Metrics()
    account = Accounts(metrics, books).open(Context(caller="a"), "m", ChatRequest(messages=[]))
    return account, lines, metrics


def counted(metrics: Metrics, status: int) -> float | None:
    """How many requests ended with a status."""
    labels = {"model": "m", "endpoint": "", "status": str(status)}
    return sample(metrics, "unilect_requests_total", labels)


async def test_books_that_keep_nothing_of_it() -> None:
    """A request of which no book keeps anything is measured only."""
    lines: list[str] = []
    async with Accounts(Metrics(), (Written("0", lines),)).open(Context(), "m", ChatRequest(messages=[])) as account:  # fmt: skip
        account.see([Usage(5, 3)])
    assert [] == lines


async def test_an_answer() -> None:
    """Every book is asked in its order, told of each batch, and closed in the opposite order."""
    account, lines, metrics = account_of("", "")
    async with account:
        account.see([TextDelta(0, "Hi", tokens=2)])
        account.see([Usage(5, 3)])

    assert lines == [
        *("0 open", "1 open", "0 made 2", "1 made 2", "0 made 3", "1 made 3"),
        *("1 close 3 200", "0 close 3 200"),
    ]
    assert 1 == counted(metrics, 200)


async def test_a_refusal() -> None:
    """A request that one book refuses is closed in those that were asked before, and counted once."""
    account, lines, metrics = account_of("", "open", "")
    with pytest.raises(RateLimited):
        async with account:
            pytest.fail("it is not let through")

    assert lines == ["0 open", "1 open", "0 close 0 429"]
    assert 1 == counted(metrics, 429)


async def test_an_end_in_the_middle() -> None:
    """A book ends an answer by raising; all books are told so."""
    account, lines, metrics = account_of("made 2", "")
    with pytest.raises(RateLimited):
        async with account:
            account.see([TextDelta(0, "Hi", tokens=2)])

    assert lines[-2:] == ["1 close 2 429", "0 close 2 429"]
    assert 1 == counted(metrics, 429)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), RateLimited("x")], ids=["left", "failed"])  # fmt: skip
async def test_what_cannot_be_kept(error: BaseException) -> None:
    """A whole answer that cannot be kept is an error; one that has failed already stays what it is; the other books are closed."""
    account, lines, metrics = account_of("", "close")
    with pytest.raises(UnilectError, match="1 refuses"):
        async with account:
            account.see([Usage(1, 1)])
    assert lines[-2:] == ["1 close 1 200", "0 close 1 429"]
    assert 1 == counted(metrics, 429)

    account, lines, metrics = account_of("", "close")
    with pytest.raises(type(error)) as raised:
        async with account:
            raise error
    assert raised.value is error
    assert [line.split()[1] for line in lines[-2:]] == ["close", "close"]
