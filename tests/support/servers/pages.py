"""The page's own files over loopback, with the page's policy and without a server behind them: for tests of one module of the page."""

import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

import unilect

FOLDER = Path(unilect.__file__).parent / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; "
    "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_BARE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Bare</title>{}<body></body></html>'
)


async def _bare(request: web.Request) -> web.Response:
    """An empty document; `?css=base.css,markdown.css` links style sheets."""
    sheets = [name for name in request.query.get("css", "").split(",") if name]
    links = "".join(f'<link rel="stylesheet" href="/page/{name}">' for name in sheets)
    return web.Response(text=_BARE.format(links), content_type="text/html", headers=_headers())


async def _file(request: web.Request) -> web.Response:
    file = FOLDER / request.match_info["name"]
    if file.parent != FOLDER or not file.is_file():
        raise web.HTTPNotFound
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return web.Response(
        text=file.read_text(), content_type=kind, charset="utf-8", headers=_headers()
    )


def _headers() -> dict[str, str]:
    return {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}


@asynccontextmanager
async def pages() -> AsyncIterator[str]:
    """The URL of a server of `/`, a bare document, and of `/page/NAME`, the files."""
    app = web.Application()
    app.router.add_get("/", _bare)
    app.router.add_get("/page/{name}", _file)
    app.router.add_get("/favicon.ico", _nothing)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def _nothing(request: web.Request) -> web.Response:
    return web.Response(status=204)
