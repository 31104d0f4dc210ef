"""The failed requests of late, for an operator: listed, and explained."""

from aiohttp import web
from msgspec import structs

from unilect.accounting.failures import MOST_FAILURES, Failures
from unilect.core.errors import InvalidRequest, NotStored
from unilect.server._admin_keys import json_of
from unilect.web.route import Route


def routes(failures: Failures) -> list[Route]:
    """Return the routes about failures."""

    async def list_failures(request: web.Request) -> web.StreamResponse:
        """List the last failed requests of clients, the latest first: `limit` of them (20)."""
        limit = request.query.get("limit", "20")
        if not limit.isdecimal() or len(limit) > 4:
            raise InvalidRequest("limit: expected a number from 0 to 9999.", param="limit")
        return json_of({"failures": list(map(structs.asdict, failures.latest(int(limit))))})

    async def get_failure(request: web.Request) -> web.StreamResponse:
        """Tell why a request of a client failed, and which backends it was sent to."""
        name = request.match_info["request"]
        found = failures.get(name)
        if found is None:
            raise NotStored(
                f"No failure of a request `{name[:100]}` is known. It has not failed, it runs still, or it failed long ago: the last "
                f"{MOST_FAILURES:,} failures are kept, until the server ends."
            )
        return json_of(structs.asdict(found))

    return [
        Route("GET", "/failures", list_failures, summary="List the last failed requests"),
        Route("GET", "/failures/{request}", get_failure, summary="Why a request failed"),
    ]
