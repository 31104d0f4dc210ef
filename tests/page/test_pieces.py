"""Text and plots, looked at by axe-core in light and in dark, wide and narrow."""

from typing import TYPE_CHECKING

import pytest

from support.clients.browsers import visiting

if TYPE_CHECKING:
    from playwright.async_api import Browser

COLOURS = {
    "light": {"text": "#1f2328", "muted": "#59636e", "line": "#d1d9e0", "panel": "#f6f8fa", "accent": "#0969da", "background": "#ffffff"},
    "dark": {"text": "#e6edf3", "muted": "#9aa4af", "line": "#30363d", "panel": "#161b22", "accent": "#6cb0ff", "background": "#0d1117"},
}  # fmt: skip
TEXT = """## Words

See [the docs](https://docs.python.org/) or ![a picture](https://a.b/c.png), and [not this](javascript:alert(1)).

- [x] done
- [ ] open

```python
words = Counter(open("a.txt").read().split()).most_common(10)
```

| Word | Count |
|:-----|------:|
| the | 1,204 |

> Note: `O(n)`
"""
SHOW = """async ([colours, text]) => {
  for (const [name, value] of Object.entries(colours)) document.documentElement.style.setProperty(`--${name}`, value);
  document.body.style.cssText = "background: var(--background); color: var(--text)";
  const [main, title, answer, box] = ["main", "h1", "div", "div"].map((tag) => document.createElement(tag));
  title.append("Page");
  main.append(title, answer, box);
  document.body.append(main);
  (await import("/page/markdown.js")).render(answer, text);
  const plot = new (await import("/page/plot.js")).Plot(box, { title: "Tokens", area: true });
  plot.draw([1, 2, 3], [{ name: "prompt", values: [1, 2, 3] }, { name: "answer", values: [3, null, 1] }]);
}"""


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe(browser: "Browser", files: str, scheme: str, width: int) -> None:
    """Nothing in a text or a plot hinders those who read by ear, by keyboard or with little contrast, or is wider than the screen."""
    from axe_playwright_python.async_playwright import Axe

    size = {"width": width, "height": 900}
    async with visiting(browser, color_scheme=scheme, viewport=size) as visitor:
        page = await visitor.open(f"{files}/?css=markdown.css,plot.css")
        await page.evaluate(SHOW, [COLOURS[scheme], TEXT])
        found = await Axe().run(page)
        wide = await page.evaluate("document.documentElement.scrollWidth")

    assert [] == [(one["id"], one["nodes"][0]["html"]) for one in found.response["violations"]]
    assert wide <= width
