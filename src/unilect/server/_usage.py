"""GET /v1/usage: what the caller's key has used."""

from collections import Counter
from collections.abc import Mapping, Sequence

from aiohttp import web

from unilect.accounting import usage
from unilect.core.errors import ConfigError, InvalidRequest, RateLimited, UnsupportedOperation
from unilect.runtime.context import current_request
from unilect.web.route import Route, json_answer
from unilect.web.site import Site

MOST_AT_ONCE = 2  # of one caller
NONE = "This server records no usage. It does where `ledger` is set in [store], or where there are API keys in its store."


def routes(site: Site) -> list[Route]:
    """Return the route."""
    running = Counter[str]()  # by caller

    async def get_usage(request: web.Request) -> web.StreamResponse:
        """
        Tell what the caller's key has used, a sum for each model and day.

        Query: `by` (some of `key`, `model` and `day`, with commas between them; default all) and `since` (such as `7d`, or a day such
        as `2026-11-01`; default `30d`). `cost` is in the currency of the prices in the configuration.
        """
        check_query(request.query, ("by", "since"))
        ledger = site.ledger
        if ledger is None or not ledger.kept:
            raise UnsupportedOperation(NONE)
        asked, caller = read_query(request.query, ledger.clock()), current_request().caller
        if running[caller] >= MOST_AT_ONCE:
            raise RateLimited(
                f"{MOST_AT_ONCE} sums of what this API key has used are being made, the most at a time. Try again in 1 s.",
                retry_after_s=1,
            )
        running[caller] += 1
        try:
            sums = await ledger.ledger.sums(asked.by, asked.since, caller)
        finally:
            running[caller] -= 1
            if not running[caller]:
                del running[caller]
        body = {"object": "list", "data": usage.lines(sums)}
        return json_answer(request, body)

    return [Route("GET", "/v1/usage", get_usage, summary="What the caller's key has used")]


def read_query(query: Mapping[str, str], now: float) -> usage.UsageQuery:
    """
    Read what a query asks for with `by` and `since`.

    Raises:
        InvalidRequest: One of the two is wrong; the message names it.
    """
    try:
        return usage.parse_query(
            query.get("by", usage.DEFAULT_BY), query.get("since", usage.DEFAULT_SINCE), now
        )
    except ConfigError as error:
        raise InvalidRequest(str(error), param=str(error).partition(":")[0]) from error


def check_query(query: Mapping[str, str], known: Sequence[str]) -> None:
    """
    Raises:
        InvalidRequest: A parameter is unknown, empty, or given twice.
    """
    found = set[str]()
    for name, value in query.items():
        if name not in known:
            raise InvalidRequest(f"`{name[:100]}`: unknown parameter; known: {', '.join(known)}.", param=name[:100])  # fmt: skip
        if name in found:
            raise InvalidRequest(f"`{name}` is given twice; give one value.", param=name)
        if not value:
            raise InvalidRequest(f"`{name}` is empty; give a value, or leave it out.", param=name)
        found.add(name)
