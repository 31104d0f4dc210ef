#!/usr/bin/env python3
"""
The least that a proxy on aiohttp and uvloop can do: bytes in, the same bytes out, nothing looked at.

What a gateway costs more than this is its own work. It is the yardstick of bench/gateway.py.

usage: bare_proxy.py PORT UPSTREAM_BASE fresh|reuse
"""

import sys

import aiohttp
import uvloop
from aiohttp import web


class Proxy:
    """Forwards every POST to the same path of one upstream."""

    def __init__(self, upstream: str, reuse: bool) -> None:
        self.upstream, self.reuse = upstream, reuse

    async def session(self, app: web.Application) -> None:
        """Open the client in the server's loop."""
        connector = aiohttp.TCPConnector(force_close=not self.reuse, limit=0)
        self.client = aiohttp.ClientSession(connector=connector, auto_decompress=False)

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """Pass one request on, and its answer back as it comes."""
        body, headers = await request.read(), {"Content-Type": "application/json"}
        async with self.client.post(self.upstream + request.path, data=body, headers=headers) as up:
            kind = {"Content-Type": up.headers["Content-Type"]}
            if up.content_length is not None:
                return web.Response(status=up.status, body=await up.read(), headers=kind)
            response = web.StreamResponse(status=up.status, headers=kind)
            await response.prepare(request)
            while data := await up.content.readany():
                await response.write(data)
            await response.write_eof()
            return response


async def main(port: int, upstream: str, reuse: bool) -> None:
    """Serve until killed."""
    proxy, app = Proxy(upstream, reuse), web.Application()
    app.on_startup.append(proxy.session)
    app.router.add_post("/{path:.*}", proxy.forward)
    await web._run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "reuse"))
