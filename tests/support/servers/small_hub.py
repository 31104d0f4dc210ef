"""A small Hugging Face hub on loopback, which breaks in the ways of the real one; its storage serves as any web server of files."""

import asyncio
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from support.backends.loopback import served

TIMEOUT_S = 60.0
COMMIT, OTHER_COMMIT = "c0ffee" + "0" * 34, "decade" + "0" * 34


@dataclass
class Hub:
    """
    A hub that keeps its files elsewhere, as the real one does: `resolve` redirects to a storage of another name.

    Attributes:
        files: Contents by `org/repo/file`.
        sent: What it sends instead of the content, by the same name.
        ends: For each request of a content in turn, how many bytes are sent, and what happens then.
        ranges: The Range header of each request of a content.
        listing: Sent in place of the list of any repository.
        shift: By how many bytes its parts begin too late.
        keys: The Authorization headers that came to the hub, and to its storage.
    """

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    sent: dict[str, bytes] = field(default_factory=dict)
    ends: list[tuple[int, str]] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)
    listing: bytes | None = None
    takes_ranges: bool = True
    shift: int = 0
    keys: tuple[set[str | None], set[str | None]] = field(default_factory=lambda: (set(), set()))
    stalled: threading.Event = field(default_factory=threading.Event)

    async def resolve(self, request: web.Request) -> web.Response:
        """HEAD and GET /{org}/{repo}/resolve/{revision}/{file}."""
        repo, name = _repository(request), request.match_info["file"]
        self.keys[0].add(request.headers.get("Authorization"))
        if repo == "org/gated":
            return web.Response(status=403, headers={"X-Error-Code": "GatedRepo"})
        if repo == "org/broken":
            return web.Response(status=500)
        if repo == "org/nohub":
            return web.Response(text="hello")
        if not any(file.startswith(f"{repo}/") for file in self.files):
            return web.Response(status=401, headers={"X-Error-Code": "RepoNotFound"})
        content = self.files.get(f"{repo}/{name}")
        if content is None:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}
            return web.Response(status=404, headers=headers)
        headers = {
            "Location": f"http://localhost:{self.port}/storage/{repo}/{name}",
            "X-Repo-Commit": COMMIT if "@" not in repo else OTHER_COMMIT,
            "X-Linked-Etag": f'"{_sha256(content)}"',
            "X-Linked-Size": str(len(content)),
        }
        return web.Response(status=302, headers=headers)

    async def info(self, request: web.Request) -> web.Response:
        """GET /api/models/{org}/{repo}."""
        repo = _repository(request)
        if self.listing is not None:
            return web.Response(body=self.listing, content_type="application/json")
        names = [
            name.removeprefix(f"{repo}/") for name in self.files if name.startswith(f"{repo}/")
        ]
        if not names:
            return web.Response(status=401, headers={"X-Error-Code": "RepoNotFound"})
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "lfs": {"sha256": _sha256(content), "size": len(content), "pointerSize": 1},
            }
            for name in names
            for content in [self.files[f"{repo}/{name}"]]
        ]
        return web.json_response({"id": repo, "siblings": siblings})

    async def storage(self, request: web.Request) -> web.StreamResponse:
        """GET /storage/{file}."""
        name = request.match_info["file"]
        self.ranges.append(request.headers.get("Range"))
        self.keys[1].add(request.headers.get("Authorization"))
        if name not in self.files:
            return web.Response(status=404)
        content, start = self.sent.get(name, self.files[name]), 0
        headers, asked = {"Content-Length": str(len(content))}, request.headers.get("Range")
        tag = f'"{_sha256(content)[:8]}"'
        same = request.headers.get("If-Range", tag) == tag
        if self.takes_ranges and asked is not None and same:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first) + self.shift, int(last or len(content) - 1)
            headers = {
                "Content-Length": str(stop + 1 - start),
                "Content-Range": f"bytes {start}-{stop}/{len(content)}",
            }
            content = content[: stop + 1]
        headers |= {"ETag": tag}
        length, end = (
            self.ends.pop(0) if self.ends and asked != "bytes=0-0" else (len(content), "whole")
        )
        if end == "end":  # in order, as if that were all
            headers["Content-Length"] = str(min(length, len(content) - start))
        response = web.StreamResponse(
            status=206 if "Content-Range" in headers else 200, headers=headers
        )
        await response.prepare(request)
        await response.write(content[start : start + length])
        assert request.transport is not None
        if end == "stall":
            self.stalled.set()
            await asyncio.sleep(TIMEOUT_S)
        elif end == "reset":
            request.transport.abort()
        elif end == "close":
            request.transport.close()
        return response

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


def _repository(request: web.Request) -> str:
    """The repository of a request; of another revision than the main one with that behind `@`."""
    revision = request.match_info.get("revision", "main")
    revision = "v1" if revision == OTHER_COMMIT else revision
    return "{org}/{repo}".format(**request.match_info) + f"@{revision}" * (revision not in ("main", COMMIT))  # fmt: skip


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def serve_hub(**files: bytes) -> Iterator[Hub]:
    """Serve a hub."""
    hub = Hub(files=files)
    routes = (
        web.route("*", "/{org}/{repo}/resolve/{revision}/{file:.+}", hub.resolve),
        web.get("/storage/{file:.+}", hub.storage),
        web.get("/api/models/{org}/{repo}", hub.info),
        web.get("/api/models/{org}/{repo}/revision/{revision}", hub.info),
    )
    with served(*routes) as hub.port:
        yield hub


def environment(endpoint: str | Hub, home: Path) -> dict[str, str]:
    """The environment of a process that uses a hub, a cache and a data folder of its own: what other tests have loaded is not known there."""
    hub = endpoint if isinstance(endpoint, str) else f"http://127.0.0.1:{endpoint.port}"
    ours = {n: v for n, v in os.environ.items() if not n.startswith(("HF_", "UNILECT_"))}
    return ours | {
        "HF_ENDPOINT": hub,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(home),
        "XDG_DATA_HOME": str(home / "data"),
        "HF_TOKEN": "hf_secret",
        "NO_PROXY": "*",
    }
