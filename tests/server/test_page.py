"""Tests of unilect.server._page: the files of the page as a browser gets them."""

import gzip
import re
from pathlib import Path

import pytest

from server.test_admin import operated
from unilect.server._page import FOLDER

BROWSER = {"Accept": "text/html,application/xhtml+xml"}


async def test_a_browser_gets_the_page(tmp_path: Path) -> None:
    """A browser gets the page without a key, under a policy that lets nothing run but its modules; a program gets links."""
    async with operated(tmp_path, options="api_keys = ['sk-client']\n") as server:
        async with server.client.get(f"{server.url}/", headers=BROWSER) as response:
            text, policy = await response.text(), response.headers["Content-Security-Policy"]
        async with server.client.get(f"{server.url}/") as response:
            told = await response.json()

    assert (FOLDER / "index.html").read_text() == text
    assert "script-src 'self';" in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
    assert "unilect" == told["name"]


async def test_files_are_sent_once(tmp_path: Path) -> None:
    """A file is sent compressed to who takes that, and not again while it is the same."""
    plain = {"Accept-Encoding": "identity"}
    async with operated(tmp_path) as server:
        url = f"{server.url}/page/view.js"
        async with server.client.get(url, headers=plain) as response:
            body, tag = await response.read(), response.headers["ETag"]
        async with server.client.get(url, headers=plain | {"If-None-Match": tag}) as response:
            again = response.status, await response.read()
        async with server.client.get(url, auto_decompress=False) as response:  # type: ignore[call-arg]
            packed = await response.read()

    assert (FOLDER / "view.js").read_bytes() == body
    assert (304, b"") == again
    assert body == (gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed)


def _sizes(names: list[str]) -> dict[str, int]:
    """Return the bytes of files and of all that they import, by their names."""
    found = dict[str, int]()
    while names:
        name = names.pop()
        if name not in found:
            text = (FOLDER / name).read_text()
            found[name] = len(text.encode())
            names += re.findall(r' from "\./([\w.]+)";', text)
    return found


def test_the_first_visit() -> None:
    """A first visit loads at most 70 KB until the models are listed, all modules at once, 150 KB with all of the chat, and nothing of the other views."""
    page, chat = (FOLDER / "index.html").read_text(), (FOLDER / "chat.js").read_text()
    first = ["index.html", *re.findall(r'="page/([\w.]+)"', page)]
    behind = re.findall(r'import\("\./([\w.]+)"\)|addStyles\("([\w.]+)"\)', chat)
    loaded, all = _sizes(first[:]), _sizes([*first, *("".join(one) for one in behind)])

    assert {"main.js", "chat.js", "view.js", "base.css"} < loaded.keys()
    assert {"message.js", "markdown.js", "markdown.css", "panel.js"} < all.keys() - loaded.keys()
    assert not {"api.js", "try.js", "connect.js", "keys.js", "live.js"} & all.keys()
    assert 70_000 >= sum(loaded.values())
    assert 150_000 >= sum(all.values())
    early = {"main.js", *re.findall(r'="modulepreload" href="page/([\w.]+)"', page)}
    assert early == {name for name in loaded if name.endswith(".js")}


@pytest.mark.parametrize("name", ["nothing.js", "..%2fpage%2fview.js", "view.py", "%00"])
async def test_no_other_file(tmp_path: Path, name: str) -> None:
    """What is no file of the page is not found."""
    async with operated(tmp_path) as server:
        async with server.client.get(f"{server.url}/page/{name}") as response:
            assert 404 == response.status


async def test_the_page_is_off(tmp_path: Path) -> None:
    """With `page = false` there is a list of the models, and none of the page's files."""
    async with operated(tmp_path, options="page = false\n") as server:
        async with server.client.get(f"{server.url}/", headers=BROWSER) as response:
            text = await response.text()
        async with server.client.get(f"{server.url}/page/view.js") as response:
            assert 404 == response.status

    assert "<script" not in text
    assert "org/slow" in text


async def test_settings(tmp_path: Path) -> None:
    """The page is told its title, what a conversation begins with, and if there are keys; anybody may read that."""
    options = "api_keys = ['sk-client']\n[page]\ntitle = 'Lab'\nsystem = 'Be brief.'\n"
    async with operated(tmp_path, options=options) as server:
        async with server.client.get(f"{server.url}/page/settings") as response:
            told = await response.json()

    assert {"title": "Lab", "system": "Be brief.", "needs_key": True} == {
        name: told[name] for name in ("title", "system", "needs_key")
    }
