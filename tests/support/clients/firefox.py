"""
Firefox for tests: Debian's own, driven by WebDriver BiDi, which it speaks itself over a WebSocket.

Source: https://w3c.github.io/webdriver-bidi/
"""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

#: A mouse is there (fine, and able to hover), and nothing is asked of the network beside what a test asks.
_PREFERENCES = """
user_pref("ui.primaryPointerCapabilities", 6);
user_pref("ui.allPointerCapabilities", 6);
user_pref("app.normandy.enabled", false);
user_pref("browser.safebrowsing.downloads.enabled", false);
user_pref("browser.safebrowsing.malware.enabled", false);
user_pref("browser.shell.checkDefaultBrowser", false);
user_pref("browser.startup.page", 0);
user_pref("datareporting.policy.dataSubmissionEnabled", false);
user_pref("extensions.update.enabled", false);
user_pref("network.captive-portal-service.enabled", false);
user_pref("network.connectivity-service.enabled", false);
user_pref("services.settings.server", "data:,");
user_pref("toolkit.telemetry.server", "");
"""
_LISTENS = b"WebDriver BiDi listening on "
_ENTER = "\ue007"


class Refused(Exception):
    """The browser refused a command, or a script in it failed."""


@dataclass
class Firefox:
    """
    A browser, and what went wrong in it.

    Attributes:
        faults: What its console told as errors: those of scripts, and violations of the policy.
    """

    socket: aiohttp.ClientWebSocketResponse
    faults: list[str] = field(default_factory=list)
    _answers: dict[int, asyncio.Future[Any]] = field(default_factory=dict)

    async def read(self) -> None:
        """Take what the browser says, until it ends."""
        async for message in self.socket:
            told = json.loads(message.data)
            if told["type"] == "event":
                if told["params"]["level"] == "error":
                    self.faults.append(told["params"]["text"])
                continue
            answer = self._answers.pop(told["id"])
            if told["type"] == "success":
                answer.set_result(told["result"])
            else:
                answer.set_exception(Refused(f"{told['error']}: {told['message']}"))

    async def ask(self, method: str, **parameters: Any) -> Any:
        """The result of a command."""
        number = len(self._answers) + 1
        while number in self._answers:
            number += 1
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(60):
            return await answer

    async def open(self, url: str) -> "Tab":
        """A new tab at this address."""
        made = await self.ask("browsingContext.create", type="tab")
        await self.ask("browsingContext.activate", context=made["context"])
        tab = Tab(self, made["context"])
        await self.ask("browsingContext.navigate", context=tab.context, url=url, wait="complete")
        return tab


@dataclass
class Tab:
    """A tab of a browser."""

    browser: Firefox
    context: str

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, out of JSON; a promise is waited for."""
        told = await self._evaluate(f"Promise.resolve({expression}).then(JSON.stringify)")
        return json.loads(told["value"]) if "value" in told else None

    async def _evaluate(self, expression: str) -> Any:
        told = await self.browser.ask(
            "script.evaluate",
            expression=expression,
            target={"context": self.context},
            awaitPromise=True,
        )
        if told["type"] == "exception":
            raise Refused(told["exceptionDetails"]["text"])
        return told["result"]

    async def holds(self, expression: str, deadline_s: float = 45.0) -> None:
        """
        Wait until an expression is true, looked at in each frame.

        Raises:
            TimeoutError: It is not in time.
        """
        async with asyncio.timeout(deadline_s):
            while not await self.evaluate(f"Boolean({expression})"):
                await self.evaluate(
                    "new Promise((done) => requestAnimationFrame(() => done(true)))"
                )

    async def type(self, text: str) -> None:
        """Press the keys of a text, and Enter."""
        steps = [{"type": kind, "value": key} for key in f"{text}{_ENTER}" for kind in ("keyDown", "keyUp")]  # fmt: skip
        await self.browser.ask(
            "input.performActions",
            context=self.context,
            actions=[{"type": "key", "id": "keys", "actions": steps}],
        )

    async def choose_file(self, selector: str, file: Path) -> None:
        """Pick a file in a field for files."""
        found = await self._evaluate(f"document.querySelector({json.dumps(selector)})")
        element = {"sharedId": found["sharedId"]}
        await self.browser.ask("input.setFiles", context=self.context, element=element, files=[str(file)])  # fmt: skip

    async def reload(self) -> None:
        """Load the page again."""
        await self.browser.ask("browsingContext.reload", context=self.context, wait="complete")


@asynccontextmanager
async def firefox(folder: Path) -> AsyncIterator[Firefox]:
    """A browser with a new profile in a folder until the block ends; the test is skipped where there is none, and fails in continuous integration."""
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        message = "needs Debian's package firefox-esr"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    (folder / "user.js").write_text(_PREFERENCES)
    process = await asyncio.create_subprocess_exec(
        program, "--headless", "--no-remote", "--profile", str(folder), "--remote-debugging-port", "0",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"HOME": str(folder), "MOZ_CRASHREPORTER_DISABLE": "1"},
    )  # fmt: skip
    try:
        url = await _listening(process)
        rest = asyncio.create_task(process.stderr.read())  # else it would wait for a reader
        async with aiohttp.ClientSession() as client, client.ws_connect(f"{url}/session", max_msg_size=0) as socket:  # fmt: skip
            browser = Firefox(socket)
            reading = asyncio.create_task(browser.read())
            await browser.ask("session.new", capabilities={})
            await browser.ask("session.subscribe", events=["log.entryAdded"])
            yield browser
            with suppress(Refused, TimeoutError):
                await browser.ask("browser.close")
            reading.cancel()
            rest.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _listening(process: asyncio.subprocess.Process) -> str:
    """The address that a browser says it listens on."""
    assert process.stderr is not None
    async with asyncio.timeout(60):
        async for line in process.stderr:
            if line.startswith(_LISTENS):
                return line.removeprefix(_LISTENS).strip().decode()
    raise RuntimeError("Firefox has ended.")
