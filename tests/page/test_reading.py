"""What is seen of a long conversation: what one says oneself, the answer as it comes, and what one reads above meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from page.test_chat import say
from server.test_admin import Operated, operated
from support.backends.scripted import HELLO, STREAM_HEAD, Exchange, answer, delta, frames, scripted
from support.clients.browsers import Visitor, holds
from support.common.waiting import until

if TYPE_CHECKING:
    from playwright.async_api import Page

_LIST = "document.querySelector('.messages')"
_IS_AT_END = f"{_LIST}.scrollTop + {_LIST}.clientHeight > {_LIST}.scrollHeight - 3"
_ANSWERS = "document.querySelectorAll('.message.assistant footer').length"
_LINES = "\n\n".join(f"line {number}" for number in range(60))
_PASTE = """(text) => {
  const data = new DataTransfer();
  data.setData("text/plain", text);
  const field = document.querySelector("#composer");
  const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
  if (field.dispatchEvent(event)) field.value = text;
}"""


class Slow:
    """A server of a model that says a line for each that it is asked for, and ends when it is told to."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[str | None] = asyncio.Queue()
        self.asked: list[Any] = []

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a request."""
        if exchange.head.startswith(b"GET"):
            return await exchange.send(answer(b'{"data": [{"id": "m"}]}'))
        self.asked.append(exchange.json())
        await exchange.send(STREAM_HEAD)
        while line := await self.lines.get():
            await exchange.send(frames(delta(content=line)))
        await exchange.send(HELLO)
        exchange.close()


@pytest_asyncio.fixture(loop_scope="session")
async def slow() -> Slow:
    """The model of the server."""
    return Slow()


@pytest_asyncio.fixture(loop_scope="session")
async def server(tmp_path_factory: Any, slow: Slow) -> AsyncIterator[Operated]:
    """A server with a model that answers as it is told to."""
    async with scripted(slow) as far:
        text = f'[models.slow]\nsource = "{far.url}"\nmodel = "m"\n'
        async with operated(tmp_path_factory.mktemp("reading"), text) as one:
            yield one


@pytest_asyncio.fixture(loop_scope="session")
async def reader(visitor: Visitor, server: Operated, slow: Slow) -> "Page":
    """The page with a long conversation of one answer, whose begin is read."""
    page = await visitor.open(f"{server.url}/")
    await holds(page, "document.querySelector('select.model option')")
    await say(page, "first of all")
    for line in (_LINES, None):
        slow.lines.put_nowait(line)
    await holds(page, f"{_ANSWERS} === 1 && {_IS_AT_END}")
    await page.hover(".messages")
    await page.mouse.wheel(0, -100_000)
    await holds(page, f"{_LIST}.scrollTop === 0")
    return page


async def test_what_one_says_oneself(reader: "Page", slow: Slow) -> None:
    """A message that one says is shown wherever one reads, and its answer is followed."""
    await say(reader, "and now?")
    await holds(reader, f"document.querySelectorAll('.message').length === 4 && {_IS_AT_END}")
    for number in range(3):
        slow.lines.put_nowait(f"{_LINES}\n\nend {number}")
        await holds(reader, f"{_LIST}.textContent.includes('end {number}') && {_IS_AT_END}")
    slow.lines.put_nowait(None)
    await holds(reader, f"{_ANSWERS} === 2 && {_IS_AT_END}")


async def test_what_one_reads_above(reader: "Page", slow: Slow) -> None:
    """What is read stays where it is while an answer goes on below, and when it ends."""
    await say(reader, "and now?")
    slow.lines.put_nowait(_LINES)
    await holds(reader, f"{_LIST}.textContent.split('line 59').length === 3 && {_IS_AT_END}")
    await reader.mouse.wheel(0, -400)
    await holds(reader, f"!({_IS_AT_END})")
    top = "document.querySelector('.message.user:nth-of-type(3)').getBoundingClientRect().top"
    before = await reader.evaluate(top)
    slow.lines.put_nowait(f"{_LINES}\n\nthe end")
    await holds(reader, f"{_LIST}.textContent.includes('the end')")
    slow.lines.put_nowait(None)
    await holds(reader, f"{_ANSWERS} === 2")

    assert before == await reader.evaluate(top)


async def test_another_conversation(reader: "Page") -> None:
    """A conversation that is opened is shown from its end, wherever the last one was read."""
    await reader.click("text=New conversation")
    await holds(reader, "!document.querySelector('.message')")
    await reader.click("text=first of all")
    await holds(reader, f"{_ANSWERS} === 1 && {_IS_AT_END} && {_LIST}.scrollTop > 0")


async def test_a_long_text_that_is_pasted(visitor: Visitor, server: Operated, slow: Slow) -> None:
    """A long text is attached, as one that is pasted for the composer, sent behind what was typed, shown folded, and kept by an edit."""
    page = await visitor.open(f"{server.url}/")
    await holds(page, "document.querySelector('select.model option')")
    for letter, length in (("a", 99_999), ("b", 100_000), ("c", 2_000_000)):
        await page.evaluate(_PASTE, letter * length)
    assert 99_999 == await page.evaluate("document.querySelector('#composer').value.length")
    await page.wait_for_selector(".attachment:has-text('2,000,000 characters')")
    await page.click("[aria-label='Remove the text']")
    await say(page, "Sum up:")
    await until(lambda: slow.asked)
    assert "Sum up:\n\n" + "c" * 2_000_000 == slow.asked[0]["messages"][-1]["content"]
    assert not await page.query_selector(".attachment")
    said = ".message.user"
    assert "cc" not in (await page.text_content(said) or "")
    await page.click(f"{said} summary")
    await holds(page, f"document.querySelector('{said}').textContent.includes('ccc')")
    slow.lines.put_nowait(None)
    await page.click(f"{said} button:text-is('Edit')")
    await page.fill(f"{said} textarea", "Count:")
    await page.click("text=Send as another branch")
    await until(lambda: len(slow.asked) == 2)
    slow.lines.put_nowait(None)
    await holds(page, f"{_ANSWERS} === 1 && {_LIST}.textContent.includes('2 / 2')")

    assert "Count:\n\n" + "c" * 2_000_000 == slow.asked[1]["messages"][-1]["content"]


async def test_a_look_at_another_view(reader: "Page", slow: Slow) -> None:
    """An answer goes on while another view is looked at, and the conversation and what is being written are there again."""
    await say(reader, "and now?")
    await until(lambda: len(slow.asked) == 2)
    await reader.fill("#composer", "half a thought")
    await reader.click("nav >> text=Connect")
    await holds(reader, f"location.hash === '#connect' && !{_LIST}")
    slow.lines.put_nowait("said meanwhile")
    await reader.click("nav >> text=Chat")
    await holds(reader, f"{_LIST}?.textContent.includes('said meanwhile') && {_IS_AT_END}")
    assert "half a thought" == await reader.input_value("#composer")
    slow.lines.put_nowait(None)
    await holds(reader, f"{_ANSWERS} === 2")
