"""The reader of Markdown: what it makes of texts that others wrote, while they arrive and when they are whole, and of hostile ones."""

import re
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.clients.browsers import Visitor, visiting
from support.models.published import commonmark, markdown_fixtures

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

HERE = Path(__file__).parent
#: Sections of what is left out, and how an example of another section shows that it uses some of it.
LEFT_OUT = {
    "HTML blocks": r"</?[a-zA-Z]|<[!?]",
    "Raw HTML": r"</?[a-zA-Z]|<[!?]",
    "Link reference definitions": r"(?m)^[ >]*(- +)?\[[^\n]*\n?.*\]:",
    "Setext headings": r"(?m)^[ >]*(=+|-+)[ \t]*$",
}
#: The other examples that come out otherwise, and why.
OTHERWISE = {
    12: r"`\[...\]` is a formula",
    25: "names of characters that nobody writes",
    517: "an image in a link is the link's text",
    520: "an image has no link in its text",
    575: "an image has no link in its text",
    608: "a bare address is a link, as in GFM",
    611: "a bare address is a link, as in GFM",
}
STREAMED = """async (texts) => {
  const { Markdown, render } = await import("/page/markdown.js");
  let seed = 7;
  const random = (most) => { seed = (seed * 1103515245 + 12345) % 2147483648; return seed % most; };
  const rendered = (text) => { const element = document.createElement("div"); render(element, text); return element.innerHTML; };
  const differences = [];
  const compare = (text, element) => { if (rendered(text) !== element.innerHTML) differences.push([text, element.innerHTML]); };
  for (const text of texts) {
    const element = document.createElement("div");
    const reader = new Markdown(element);
    const isLong = text.length > 3000;
    for (let at = 0; at < text.length;) {
      const size = 1 + random(isLong ? 300 : 6);
      reader.push(text.slice(at, at + size));
      at += size;
      if (random(3)) reader.draw();
      if (random(isLong ? 50 : 3)) continue;
      reader.draw();
      compare(text.slice(0, at), element);
    }
    reader.end();
    compare(text, element);
  }
  return differences;
}"""
GROWN = """async ([start, token, times]) => {
  const { Markdown } = await import("/page/markdown.js");
  const element = document.createElement("div");
  const reader = new Markdown(element);
  reader.push(start);
  const seen = new MutationObserver(() => {});
  seen.observe(element, { childList: true, characterData: true, subtree: true });
  let most = 0;
  for (let time = 0; time < times; time += 1) {
    reader.push(token);
    reader.draw();
    const nodes = seen.takeRecords().flatMap((record) => [...record.addedNodes, ...(record.type === "characterData" ? [record.target] : [])]);
    most = Math.max(most, nodes.reduce((sum, node) => sum + node.textContent.length, 0));
  }
  reader.end();
  return [most, element.textContent.length];
}"""
#: Returns what a page may never hold, and how deep its elements stand in each other.
LOOK = """async (text) => {
  const { render } = await import("/page/markdown.js");
  const element = document.createElement("div");
  document.body.replaceChildren(element);
  render(element, text);
  const allowed = new Set("a,span,p,em,strong,del,code,pre,br,hr,ul,ol,li,blockquote,div,table,thead,tbody,tr,th,td,input,button,h1,h2,h3,h4,h5,h6".split(","));
  const attributes = new Set("class,href,rel,target,title,type,disabled,aria-label,tabindex,start".split(","));
  const bad = [];
  let depth = 0;
  for (const one of element.querySelectorAll("*")) {
    if (!allowed.has(one.localName)) bad.push(one.localName);
    for (const name of one.getAttributeNames()) if (!attributes.has(name)) bad.push(name);
    if (one.href !== undefined && !/^(?:https?|mailto):/.test(one.href)) bad.push(one.href);
    if (one.localName === "a" && (one.querySelector("a") || one.target !== "_blank" || one.rel !== "noopener noreferrer")) bad.push(one.outerHTML);
  }
  for (let level = [...element.children]; level.length; level = level.flatMap((one) => [...one.children])) depth += 1;
  if (/[\\u202a-\\u202e\\u2066-\\u2069\\u0000-\\u0008]/.test(element.textContent) || !element.textContent.isWellFormed()) bad.push("hidden characters");
  return [bad, depth];
}"""
SCRIPTS = [
    "<script>window.ran = 1</script>",
    "<img src=x onerror=window.ran=1>",
    "<svg onload=window.ran=1><script>window.ran=1</script></svg>",
    "<style>*{background:url(http://127.0.0.2:9/)}</style>",
    "<iframe srcdoc='<script>parent.ran=1</script>'></iframe>",
    "<base href=http://127.0.0.2:9/>",
    "<a href='javascript:window.ran=1'>x</a>",
    "![x](http://127.0.0.2:9/x.png)",
    "![x](x \"y\" onerror=window.ran=1)",
    '[x](http://a.b/"onmouseover="window.ran=1)',
    "```js onload=window.ran=1\n</code></pre><script>window.ran=1</script>\n```",
    '```"><img/src/onerror=window.ran=1>\n```',
    "| a |\n| - |\n| <script>window.ran=1</script> |",
    "[a](http://b [c](javascript:window.ran=1))",
    "[[a](http://b.c)](http://d.e)",
    "[![a](http://b.c)](http://d.e) ![[a](http://b.c)](http://d.e)",
    "<http://a.b/\u202egnp.exe> [\u202eexe.png](http://a.b) [a\u200bb](http://a.b/\u200b)",
    "\ud800 [\udfff](http://a.b/\ud800) `\ud800` \ud800\n\n```\n\udfff\n```",
    "\u0000\u0007\u001b[31mred\u0085",
    "[x](http://user:password@a.b@c.d/)",
]  # fmt: skip
ADDRESSES = [
    "javascript:window.ran=1",
    "JaVaScRiPt:window.ran=1",
    "&#106;avascript:window.ran=1",
    "&#x6A;&#x61;vascript:window.ran=1",
    "javascript&colon;window.ran=1",
    "javascript&#58;window.ran=1",
    "java\\script:window.ran=1",
    "java&Tab;script:window.ran=1",
    "java&#9;script:window.ran=1",
    "&#1;javascript:window.ran=1",
    "\u0001javascript:window.ran=1",
    "\u00a0javascript:window.ran=1",
    "javascript\u200b:window.ran=1",
    "vbscript:x",
    "data:text/html,<script>window.ran=1</script>",
    "data:text/html;base64,PHNjcmlwdD53aW5kb3cucmFuPTE8L3NjcmlwdD4=",
    "blob:http://127.0.0.1/x",
    "file:///etc/passwd",
    "filesystem:http://127.0.0.1/x",
    "about:blank",
    "view-source:http://a.b",
    "intent://a#Intent;scheme=x;end",
    "//a.b/c",
    "/v1/models",
    "#top",
    "http:",
    "http://",
    "https:javascript:window.ran=1",
]
#: Each is repeated to 400 kB.
REPEATED = ["[", "]", "![", "*", "*a ", "*a **b ", "a**b_c*", ">", "> > > > x\n", "`", "|", "|\n", "- ", "-\n", "1. ", "[a](", '[a](b "', "[[a](b)", "&", "<a:", "http://a.b/(",
            "$$", "\\(", "~~a", " ", "\t", "\n", "    a\n\n\n", "#", "\u202e", "\ud800", "x"]  # fmt: skip
GROWING = [
    ("", "word "),
    ("", "x"),
    ("- ", "*a* "),
    ("> 1. ", "**b "),
    ("```\n", "x = 1\n"),
    ("- ```\n  ", "xyz "),
    ("", "*"),
    ("    ", "a b\n    "),
]


async def test_commonmark(browser: "Browser", files: str) -> None:
    """Every example of CommonMark's specification comes out as its reference does, but for what is left out."""
    examples = commonmark()
    pairs = [[one["markdown"], one["html"]] for one in examples]
    async with visiting(browser, bypass_csp=True) as visitor:  # which reads the references as HTML
        page = await visitor.open(files)
        trees = await page.evaluate((HERE / "same.js").read_text(), pairs)
        visitor.faults.clear()  # images of the references
    other = {one["example"] for one, (made, wanted) in zip(examples, trees, strict=True) if made != wanted}  # fmt: skip
    without = {one["example"] for one in examples if _is_supported(one)}

    assert set(OTHERWISE) == other & without
    assert len(examples) - len(other) >= 477


def _is_supported(example: dict[str, Any]) -> bool:
    left_out = any(re.search(pattern, example["markdown"]) for pattern in LEFT_OUT.values())
    return example["section"] not in LEFT_OUT and not left_out


async def test_streamed(page: "Page") -> None:
    """A text that arrives in pieces is shown at every moment as if what has come were all of it."""
    texts = [one["markdown"] for one in commonmark()] + list(markdown_fixtures().values())
    texts += [readme for one in distributions() if (readme := one.metadata.get_payload())][:30]

    assert [] == await page.evaluate(STREAMED, [text[:30_000] for text in texts])


@pytest.mark.parametrize(("start", "token"), GROWING)
async def test_grown(page: "Page", start: str, token: str) -> None:
    """However long a paragraph or code has grown, the next token has only its end drawn again."""
    most, length = await page.evaluate(GROWN, [start, token * (600 // len(token)), 300])

    assert length >= 80_000
    assert most <= 20_000


async def test_hostile(page: "Page") -> None:
    """No text makes an element that runs or loads something, an anchor to what is no site, or hides a character."""
    texts = [*SCRIPTS, *markdown_fixtures().values()]
    for address in ADDRESSES:
        texts += [f"[x]({address})", f"[x](<{address}>)", f"<{address}>", f"![x]({address})", f"*[**x**]({address} 'y')*", f"| [x]({address}) |\n|-|\n"]  # fmt: skip
    for text in texts:
        assert [] == (await page.evaluate(LOOK, text))[0], text
    for link in await page.locator(".md-link").all():
        await link.hover()

    assert await page.evaluate("window.ran === undefined")


@pytest.mark.parametrize("repeated", REPEATED)
async def test_large(page: "Page", repeated: str) -> None:
    """400 kB of one mark are read, and make no deep tree."""
    bad, depth = await page.evaluate(LOOK, (repeated * 400_000)[:400_000])

    assert [] == bad
    assert depth <= 90


@pytest.mark.parametrize("has_clipboard", [True, False])
async def test_copy(visitor: Visitor, page: "Page", has_clipboard: bool) -> None:
    """The button of code copies it as it was written, with a clipboard of today or of yesterday."""
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.evaluate(
        """async (has) => {
          const { render } = await import("/page/markdown.js");
          window.clipboard = navigator.clipboard;
          if (!has) Object.defineProperty(navigator, "clipboard", { value: undefined });
          render(document.body, "```py\\n\\tx = 1\\n\\n```");
        }""",
        has_clipboard,
    )
    await page.get_by_role("button", name="Copy").click()
    await page.get_by_role("button", name="Copied").wait_for()

    assert "\tx = 1\n" == await page.evaluate("clipboard.readText()")
