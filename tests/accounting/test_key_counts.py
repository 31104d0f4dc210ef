"""Tests of unilect.accounting.key_counts."""

from support.common.samples import sample
from unilect.accounting.account import Accounts
from unilect.accounting.key_counts import KeyCounts
from unilect.accounting.metrics import Metrics
from unilect.core.events import Usage
from unilect.core.requests import ChatRequest
from unilect.runtime.context import Context

CHAT = ChatRequest(messages=[])


async def test_a_request() -> None:
    """A request is counted with its status and its tokens, for the key that sent it."""
    metrics = Metrics(per_key=True)
    account = Accounts(metrics).open(Context(caller="key_a"), "m", CHAT)
    async with account:
        account.see([Usage(5, 3, 2)])

    def value(name: str, **labels: str) -> float | None:
        return sample(metrics, f"unilect_key_{name}_total", labels)

    assert 1 == value("requests", key="key_a", status="200")
    assert [5, 3, 2] == [
        value("tokens", key="key_a", kind=kind) for kind in ("prompt", "completion", "cached")
    ]


def test_off_by_default() -> None:
    """Keys are not told apart unless that is asked for, and no request costs more then."""
    assert () == Accounts(Metrics()).books


async def test_many_keys() -> None:
    """Keys beyond the bound are counted together, and those that were counted before go on by themselves."""
    counts = KeyCounts(most=2)
    for name in ("a", "b", "c", "d", "a"):
        await (await counts.open(Context(caller=name), CHAT)).close(Usage(1, 0), 200)

    requests, *_ = counts.collect()
    assert {"a": 2, "b": 1, "other": 2} == {labels[0]: count for labels, count in requests.rows}
