"""Tests of unilect.web.site: what a dialect has going on apart from requests."""

import asyncio

from support.backends.engine import chat
from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.core.events import Fold
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.runtime.context import CURRENT_REQUEST, Context
from unilect.testing.echo import Echo
from unilect.web.site import Site


async def test_background_work_of_a_dialect() -> None:
    """Work that a dialect has begun asks models with a context of its own, and is cancelled once no more requests are taken."""
    site = Site(Service(Registry([Model("m", Echo())]), Accounts(Metrics())))
    answered, said = asyncio.Event(), Fold()

    async def batch() -> None:
        CURRENT_REQUEST.set(Context(endpoint="batches", priority=-1))
        async for events in site.service.run(chat("Hello", model="m")).batches():
            said.add(events)
        answered.set()
        await asyncio.Future()

    work = site.background.start("a batch", batch())
    async with asyncio.timeout(60):
        await answered.wait()
    site.shut()
    await site.end_background()
    assert work.cancelled()
    assert "Hello" == said.answer().choices[0].text
    text = "".join(site.service.accounts.metrics.exposition())
    assert 'endpoint="batches",model="m",status="200"} 1.0' in text
    await site.aclose()
    await site.service.registry.aclose()
