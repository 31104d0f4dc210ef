"""The requests of clients that are being answered, for an operator: listed, and ended."""

import time
from typing import Any

from aiohttp import web

from unilect.core.errors import NotStored, RequestCancelled
from unilect.runtime.context import Context, Requests
from unilect.server._admin_keys import check_no_body, json_of
from unilect.web.route import Route


def routes(requests: Requests) -> list[Route]:
    """Return the routes about requests."""

    async def list_requests(request: web.Request) -> web.StreamResponse:
        """List the requests of clients that are being answered, the oldest first; not what they say."""
        return json_of({"requests": describe_requests(requests)})

    async def cancel_request(request: web.Request) -> web.StreamResponse:
        """End a request; its client gets an error, as the last event of a stream that has begun."""
        check_no_body(await request.read())
        name = request.match_info["request"]
        context = requests.get(name)
        if context is None:
            raise NotStored(f"There is no running request `{name[:100]}`; it may have ended.")
        context.end(RequestCancelled("An operator of this server has ended the request."))
        return json_of(describe_request(context))

    return [
        Route("GET", "/requests", list_requests, summary="List the requests that run"),
        Route(
            "POST", "/requests/{request}/cancel", cancel_request, summary="End a request that runs"
        ),
    ]


def describe_requests(requests: Requests) -> list[dict[str, Any]]:
    """Describe the requests to dialects: not those of an operator, who looks on."""
    return [describe_request(one) for one in requests.values() if one.dialect]


def describe_request(context: Context) -> dict[str, Any]:
    """Describe a request in JSON, with its age in seconds, its tokens so far, and its place in the queue where it waits."""
    meter, queued = context.meter, context.queued
    usage = None if meter is None else meter.usage
    return {
        "id": context.request_id,
        "caller": context.caller,
        "address": context.address,
        "owner": context.owner,
        "model": context.model,
        "answering": context.answering,
        "source": context.source,
        "endpoint": context.endpoint,
        "dialect": context.dialect,
        "state": "ending" if context.ended is not None else context.state,
        "age_s": round(time.perf_counter() - context.started, 3),
        "first_token_s": None if meter is None else meter.first_token_s,
        "position": None if queued is None else queued.position,
        "wait_s": None if queued is None else queued.wait_s,
        "prompt_tokens": 0 if usage is None else usage.prompt_tokens,
        "completion_tokens": 0 if usage is None else usage.completion_tokens,
    }
