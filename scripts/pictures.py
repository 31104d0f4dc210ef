"""
Take the pictures of the page for the README and docs/page.md, of a running server: docs/images/page-*.png.

It needs Debian's chromium and the dependency group `browser`. The bundled model answers; what it says stands as it said it.
"""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
PROGRAM = str(Path(sys.executable).with_name("unilect"))
CONFIG = """
port = 0
[admin]
listen = "./admin.sock"
[models.demo]
source = "demo:"
[models.slow]
source = "echo:"
options = { text = "This goes on for a while. This goes on for a while.", tokens_per_s = 6.0 }
[models.far]
source = "http://127.0.0.1:9/v1"
model = "far"
"""
_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
_QUESTIONS = ["What is the capital of France?", "And of Italy?", "Who are you?"]


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    """The address of a server with the page's key, until the block ends."""
    (folder / "unilect.toml").write_text(CONFIG)
    server = await asyncio.create_subprocess_exec(
        *(PROGRAM, "serve", "--config", "unilect.toml"), cwd=folder, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        async for line in server.stdout:
            if b"stop: Ctrl-C" in line:
                break
        connector = aiohttp.UnixConnector(str(folder / "admin.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as admin,
            admin.get("http://localhost/page") as answer,
        ):
            yield str((await answer.json())["url"])
    finally:
        server.terminate()
        await server.wait()


async def use(root: str) -> None:
    """Ask the models for a while, as clients do."""
    async with aiohttp.ClientSession() as client:

        async def ask(model: str, text: str) -> None:
            messages = [{"role": "user", "content": text}]
            body = {"model": model, "messages": messages, "max_tokens": 60}
            async with client.post(f"{root}v1/chat/completions", json=body) as answer:
                await answer.read()

        slow = [asyncio.create_task(ask("slow", "Go on")) for _ in range(2)]
        await ask("far", "Hello?")
        for number in range(80):
            await ask("demo", _QUESTIONS[number % len(_QUESTIONS)])
            await asyncio.sleep(0.05 + 0.2 * (number % 7 == 0))
        for one in slow:
            one.cancel()


async def talk(page: Any, shot: Path) -> None:
    """A chat with the bundled model."""
    for number, text in enumerate(_QUESTIONS):
        await page.fill("#composer", text)
        await page.press("#composer", "Enter")
        await page.locator(".message.assistant footer").nth(number).wait_for()
    await page.click("button:text-is('Settings')")
    await page.locator(".panel .field").first.wait_for()
    await page.screenshot(path=shot)


async def try_endpoint(page: Any, shot: Path) -> None:
    """A request to the bundled model that is tried."""
    await page.click("nav a[href='#api']")
    await page.click(".operation summary >> nth=0")
    await page.click(".try button:text-is('Send')")
    await page.locator(".answer strong:has-text('after')").wait_for()
    await page.evaluate("document.querySelector('.operation').scrollIntoView()")
    await page.screenshot(path=shot)


async def main() -> None:
    """Take the pictures."""
    from playwright.async_api import async_playwright

    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder)) as url, async_playwright() as playwright:
            root = re.sub(r"#.*", "", url)
            browser = await playwright.chromium.launch(
                executable_path="/usr/bin/chromium", args=_ARGS
            )
            size = {"width": 1200, "height": 720}
            light = await (await browser.new_context(viewport=size)).new_page()
            await light.goto(root)
            await light.locator("select.model option").first.wait_for(state="attached")
            await talk(light, IMAGES / "page-chat.png")
            await try_endpoint(light, IMAGES / "page-api.png")
            context = await browser.new_context(viewport=size, color_scheme="dark")
            dark = await context.new_page()
            await dark.goto(url)
            await dark.locator(".model-card").first.wait_for()
            using = asyncio.create_task(use(root))
            await dark.wait_for_timeout(12_000)
            await dark.screenshot(path=IMAGES / "page-live.png")
            using.cancel()
            await browser.close()
    print(json.dumps({one.name: one.stat().st_size for one in IMAGES.glob("page-*.png")}))


if __name__ == "__main__":
    asyncio.run(main())
