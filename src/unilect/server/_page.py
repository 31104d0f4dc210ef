"""
The page: `index.html` for browsers at `/`, and the modules and styles below `/page/`, as they lie in `unilect/page`.

They are public and have no data: what the page shows it asks for with the key that a person gives it. The policy of `HEADERS` lets it
load what comes from here alone, and has a browser refuse each text that would be read as HTML or as a script.

Source: https://www.w3.org/TR/CSP3/, https://www.w3.org/TR/trusted-types/
"""

import gzip
import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct

import unilect
from unilect.core.errors import RouteNotFound, StoreUnavailable
from unilect.server._connect import clients_route
from unilect.web.pages import HEADERS as PAGE_HEADERS
from unilect.web.route import Route
from unilect.web.site import Site

FOLDER = Path(unilect.__file__).parent / "page"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    **{name: value for name, value in PAGE_HEADERS.items() if name != "Content-Type"},
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # a later version is another page
    "Vary": "Accept, Accept-Encoding",
}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class _File(Struct, frozen=True):
    """A file as it is sent: its bytes, the same compressed, its type and its tag."""

    body: bytes
    packed: bytes
    type: str
    tag: str


@cache
def _names() -> frozenset[str]:
    return frozenset(file.name for file in FOLDER.iterdir() if file.suffix in _TYPES)


@cache
def _read(name: str) -> _File:
    """Read one of the files when it is asked for first: to compress all of them at once would hold the server."""
    body = (FOLDER / name).read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    return _File(body, gzip.compress(body, mtime=0), _TYPES[Path(name).suffix], tag)


def respond_file(request: web.Request, name: str) -> web.Response:
    """
    Answer with a file of the page, compressed where the browser takes that, or with 304 where it has it.

    Raises:
        RouteNotFound: There is no such file.
    """
    if name not in _names():
        raise RouteNotFound(f"The page has no file `{name[:100]}`.")
    file = _read(name)
    headers = {**HEADERS, "Content-Type": file.type, "ETag": file.tag}
    if file.tag in request.headers.get("If-None-Match", ""):
        return web.Response(status=304, headers=headers)
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        return web.Response(body=file.packed, headers={**headers, "Content-Encoding": "gzip"})
    return web.Response(body=file.body, headers=headers)


def _needs_key(site: Site) -> bool:
    """Return True if clients need a key; while nobody knows it none is let in without one."""
    try:
        return site.keys.required
    except StoreUnavailable:
        return True


def routes(site: Site) -> list[Route]:
    """Return the routes below `/page/`; all but the one of clients' lines are public."""

    own_version = version("unilect")

    async def get_page_settings(request: web.Request) -> web.StreamResponse:
        """Tell the page what this server is called, what a conversation begins with, and which keys it asks for."""
        page = site.config.page
        body = {
            "title": page.title,
            "model": page.model,
            "system": page.system,
            "needs_key": _needs_key(site),
            "steer": page.steer,
            "version": own_version,
        }
        return web.Response(
            body=msgspec.json.encode(body),
            headers={**HEADERS, "Content-Type": "application/json", "Cache-Control": "no-store"},
        )

    async def get_page_file(request: web.Request) -> web.StreamResponse:
        """Give a module or a style of the page."""
        return respond_file(request, request.match_info["file"])

    return [
        Route(
            "GET", "/page/settings", get_page_settings, public=True, summary="Settings of the page"
        ),
        clients_route(site),
        Route("GET", "/page/{file}", get_page_file, public=True, summary="A file of the page"),
    ]
