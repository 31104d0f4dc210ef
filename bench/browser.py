#!/usr/bin/env python3
"""
What people wait for at the page, in Debian's Chromium without a screen, against a server of its own.

* a stranger's path: seconds from starting `unilect serve` (the bundled model) to the first words of an answer in the browser, in three
  actions (open the address, write, press Enter), of which the browser's part is told apart,
* the first load, from the request to the list of models, with nothing cached,
* the opening of a conversation of 200 turns among 300,
* Stop, from the click to the end of the answer on the screen,
* an answer of 10,000 tokens at 500 tokens/s: the frames that took longer than 100 ms, and the longest.

It needs the package chromium, and the dependency group `browser`.

usage: bench/browser.py [--rounds 5] [--tokens 10000]
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import processes
import report
from aiohttp import web

PROGRAM = processes.unilect()
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
#: A part of an answer as models write it, with each kind of Markdown that they use.
PART = """
## A heading with `code`

Some *words* and **others**, a [link](https://example.org/), and so on for a while.

- one
- two with `code`

```python
def add(one, other):
    return one + other
```

| a | b |
|---|---|
| 1 | 2 |
"""
TOKEN = re.compile(r"\s?\S{1,4}|\s")
PACE = 500.0  # tokens/s
CONFIG = """
[models.long]
source = "http://127.0.0.1:{upstream}/v1"
model = "long"
"""
TOKENS = web.AppKey("tokens", list[str])
ANSWER = "document.querySelector('.message.assistant')"
COMPOSER, ANSWERED = "#composer:focus", ".message.assistant footer"
#: Counts frames: a gap between two is what a person sees as a halt.
FRAMES = """() => {
  window.gaps = []; let last = performance.now();
  const look = (now) => { window.gaps.push(now - last); last = now; requestAnimationFrame(look); };
  requestAnimationFrame(look);
}"""

#: Prints the time of the frame that lists the models: who asks again and again takes the time that it measures.
LISTED = """{
  const seen = new MutationObserver(() => {
    if (!document.querySelector("select.model option")) return;
    seen.disconnect();
    requestAnimationFrame(() => setTimeout(() => console.debug(`listed ${performance.now()}`)));
  });
  seen.observe(document, { childList: true, subtree: true });
}"""


async def speak(request: web.Request) -> web.StreamResponse:
    """Stream the long answer at its pace, as a server behind unilect."""
    if request.method == "GET":
        return web.json_response({"object": "list", "data": [{"id": "long", "object": "model"}]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    with suppress(ConnectionResetError):  # the reader has stopped
        await write(response, request.app[TOKENS])
    return response


async def write(response: web.StreamResponse, tokens: list[str]) -> None:
    """Write the chunks of tokens, each at its time."""
    head = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "long"}
    begin = time.monotonic()
    for number, token in enumerate([*tokens, None]):
        await asyncio.sleep(max(0.0, begin + number / PACE - time.monotonic()))
        delta = {} if token is None else {"content": token}
        choice = {"index": 0, "delta": delta, "finish_reason": "stop" if token is None else None}
        await response.write(b"data: %s\n\n" % json.dumps(head | {"choices": [choice]}).encode())
    await response.write(b"data: [DONE]\n\n")


@asynccontextmanager
async def speaking(port: int, tokens: int) -> AsyncIterator[None]:
    """A server of the long answer until the block ends."""
    app = web.Application()
    found = TOKEN.findall(PART)
    app[TOKENS] = (found * (tokens // len(found) + 1))[:tokens]
    app.router.add_route("*", "/{path:.*}", speak)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield
    finally:
        await runner.cleanup()


async def say(page: Any, text: str) -> None:
    """Write, and press Enter."""
    await page.fill("#composer", text)
    await page.press("#composer", "Enter")


async def until(page: Any, expression: str) -> None:
    """Look at each frame until an expression holds."""
    while not await page.evaluate(f"Boolean({expression})"):
        await page.evaluate("new Promise((done) => requestAnimationFrame(done))")


async def stranger(browser: Any, folder: Path) -> dict[str, float]:
    """Start a server as the README says, and talk to it: seconds to the first words, and of them the browser's."""
    port = processes.free_port()
    begin = time.perf_counter()
    own = {"XDG_DATA_HOME": str(folder)}
    command: list[str | Path] = [PROGRAM, "serve", "--port", str(port)]
    with processes.running(command, port=port, log=folder / "log", environment=own):
        context = await browser.new_context()
        opened = time.perf_counter()
        page = await context.new_page()
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.wait_for_selector(COMPOSER)
        await page.keyboard.type("Hello!")
        await page.keyboard.press("Enter")
        await until(page, f"{ANSWER} && !{ANSWER}.querySelector('.waiting')")
        end = time.perf_counter()
        await context.close()
    return {"stranger_s": end - begin, "stranger_page_s": end - opened}


async def load(browser: Any, url: str) -> dict[str, float]:
    """
    Open the page with an empty cache; until the frame that lists the models, which the page notes itself.

    Nothing is asked of the page meanwhile: with each first question Playwright puts 330 KB of script into it, which take the place of the
    page's own for 100 ms.
    """
    context = await browser.new_context()
    page = await context.new_page()
    await page.add_init_script(LISTED)
    async with page.expect_console_message(lambda told: told.text.startswith("listed ")) as told:
        await page.goto(url, wait_until="commit")
    took = float((await told.value).text.split()[1])
    await context.close()
    return {"load_ms": took}


def conversations(count: int, turns: int) -> str:
    """Exported conversations, the first with many turns and the others with four."""

    def one(number: int) -> dict[str, Any]:
        size = 2 * turns if number == 0 else 4
        messages = [
            {"id": n, "role": ("user", "assistant")[n % 2], "content": PART if n % 2 else f"turn {n} " * 20, "parent": n - 1, "timestamp": n}
            for n in range(size)
        ]  # fmt: skip
        head = {"id": f"c{number}", "name": f"number {number}", "currNode": size - 1, "lastModified": count - number}  # fmt: skip
        return {"conv": head, "messages": messages}

    return json.dumps([one(number) for number in range(count)])


async def open_conversation(page: Any) -> dict[str, float]:
    """Open the longest conversation among the many, from the click to the frame that shows its last turn."""
    await page.click("text=New conversation")
    await until(page, "!document.querySelector('.message')")
    took = await page.evaluate("""async () => {
      const item = [...document.querySelectorAll('.history li a')].find((one) => one.textContent.trim() === 'number 0');
      const begin = performance.now();
      item.click();
      while (document.querySelectorAll('.message').length < 400) await new Promise((done) => requestAnimationFrame(done));
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
      return performance.now() - begin;
    }""")
    return {"open_ms": took}


async def stop(page: Any) -> dict[str, float]:
    """Stop an answer that runs."""
    await page.click("text=New conversation")
    await say(page, "Go on")
    await until(page, "document.querySelector('.message.assistant')?.textContent.length > 200")
    took = await page.evaluate("""async () => {
      const begin = performance.now();
      document.querySelector('button.stop').click();
      while (!document.querySelector('.message.assistant footer')) await new Promise((done) => requestAnimationFrame(done));
      return performance.now() - begin;
    }""")
    return {"stop_ms": took}


async def read_on(page: Any) -> dict[str, float]:
    """Read a whole long answer, and look at its frames."""
    await page.click("text=New conversation")
    await page.evaluate(FRAMES)
    begin = time.perf_counter()
    await say(page, "All of it")
    await page.wait_for_selector(ANSWERED, timeout=120_000)
    took_s = time.perf_counter() - begin
    gaps = await page.evaluate("window.gaps")
    return {
        "long_s": took_s,
        "frames": len(gaps),
        "gaps": sum(one > 100 for one in gaps),
        "longest_ms": max(gaps),
    }


async def measure(options: argparse.Namespace, folder: Path) -> None:
    """Start the servers, take the rounds, and write the table."""
    port, upstream = processes.free_port(), processes.free_port()
    (folder / "unilect.toml").write_text(CONFIG.format(upstream=upstream))
    command: list[str | Path] = [PROGRAM, "serve", "--config", folder / "unilect.toml", "--port", str(port), "--log-level", "warning"]  # fmt: skip
    own = {"XDG_DATA_HOME": str(folder)}
    async with speaking(upstream, options.tokens):
        with ExitStack() as stack:
            running = processes.running(command, port=port, log=folder / "log", environment=own)
            await asyncio.to_thread(stack.enter_context, running)  # it asks the other one
            rows = await use(options.rounds, folder, f"http://127.0.0.1:{port}/")
    show(rows, options.tokens)


async def use(rounds: int, folder: Path, url: str) -> list[dict[str, float]]:
    """Take the rounds in one browser."""
    from playwright.async_api import async_playwright

    rows: list[dict[str, float]] = []
    file = folder / "many.json"
    file.write_text(conversations(300, 200))
    async with async_playwright() as playwright:
        program = shutil.which("chromium")
        browser = await playwright.chromium.launch(executable_path=program, args=ARGS)
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(url)
        await until(page, "document.querySelector('select.model option')")
        await page.set_input_files("input[type=file][accept*=json]", file)
        await until(page, "document.querySelectorAll('.history li').length >= 300")
        for _ in range(rounds):
            found = await stranger(browser, folder)
            found |= await load(browser, url)
            found |= await open_conversation(page)
            found |= await stop(page)
            rows.append(found | await read_on(page))
        await browser.close()
    return rows


def show(rows: list[dict[str, float]], tokens: int) -> None:
    """Write the table."""
    names = {
        "stranger_s": ("`unilect serve` to the first words in the browser, three actions", "s"),
        "stranger_page_s": ("the browser's part of it", "s"),
        "load_ms": ("first load", "ms"),
        "open_ms": ("open 200 turns among 300 conversations", "ms"),
        "stop_ms": ("stop", "ms"),
        "long_s": (f"an answer of {tokens} tokens", "s"),
        "frames": ("its frames", ""),
        "gaps": ("of them over 100 ms", ""),
        "longest_ms": ("the longest", "ms"),
    }
    table: list[list[object]] = [
        [text, report.middle([one[name] for one in rows]), max(one[name] for one in rows), unit]
        for name, (text, unit) in names.items()
    ]
    print(report.table(["what", "median", "worst", "unit"], table))
    report.write("browser", report.versions("playwright"), rows=table)


def main() -> None:
    """Start the server, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=10_000)
    options = parser.parse_args()
    os.environ.pop("XDG_DATA_HOME", None)
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(measure(options, Path(name)))


if __name__ == "__main__":
    main()
