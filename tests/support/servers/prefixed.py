"""A proxy that serves a server below a path, for tests of what a browser then asks for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession, web

_KEPT = ("Content-Type", "Content-Security-Policy")
_LEFT_OUT = ("Host", "Origin", "Accept-Encoding")


@asynccontextmanager
async def prefixed(url: str, prefix: str = "/models") -> AsyncIterator[str]:
    """The address below which the proxy serves a server until the block ends; it ends with a slash."""
    async with ClientSession(skip_auto_headers=["Accept-Encoding"]) as client:

        async def forward(request: web.Request) -> web.StreamResponse:
            target = f"{url}/{request.match_info['rest']}?{request.query_string}"
            headers: dict[str, Any] = {
                name: value for name, value in request.headers.items() if name not in _LEFT_OUT
            }
            data = await request.read()
            async with client.request(request.method, target, headers=headers, data=data) as told:
                kept = {name: told.headers[name] for name in _KEPT if name in told.headers}
                return web.Response(status=told.status, body=await told.read(), headers=kept)

        proxy = web.Application()
        proxy.router.add_route("*", prefix + "/{rest:.*}", forward)
        runner = web.AppRunner(proxy)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}{prefix}/"
        finally:
            await runner.cleanup()
