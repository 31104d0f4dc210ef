"""What a page meets that is open all day: other conversations, other tabs, models that go, a network that fails for a moment."""

from typing import TYPE_CHECKING, Any

from page.test_chat import opened, say, server
from server.test_admin import Operated
from support.clients.browsers import Visitor, holds

if TYPE_CHECKING:
    from playwright.async_api import Page

__all__ = ["server"]
_ANSWER = ".message.assistant footer"
_TITLES = "[...document.querySelectorAll('.history li a')].map((one) => one.textContent).join()"


async def test_settings_of_another_conversation(visitor: Visitor, server: Operated) -> None:
    """The fields of the parameters are those of the conversation that is shown."""
    page = await opened(visitor, server)
    await page.click("text=Settings")
    await page.fill("#parameter-max_tokens", "17")
    await say(page, "short")
    await page.wait_for_selector(_ANSWER)
    await page.click("text=New conversation")
    await holds(page, "document.querySelector('#parameter-max_tokens').value === ''")
    await page.click("text=short")
    await holds(page, "document.querySelector('#parameter-max_tokens').value === '17'")


async def test_a_model_that_is_gone(visitor: Visitor, server: Operated) -> None:
    """A conversation whose model is served no longer names it, and not another one that it would not ask."""
    page = await opened(visitor, server)
    await say(page, "remember")
    await page.wait_for_selector(_ANSWER)

    async def list_one(route: Any) -> None:
        await route.fulfill(json={"object": "list", "data": [{"id": "other"}]})

    await page.route("**/v1/models", list_one)
    await page.reload()
    await page.wait_for_selector(_ANSWER)
    await holds(page, "document.querySelectorAll('select.model option').length === 2")

    assert "copy" == await page.input_value("select.model")


async def test_the_list_of_conversations(visitor: Visitor, server: Operated) -> None:
    """A conversation is listed as soon as it begins, and in another tab once that is looked at."""
    other = await opened(visitor, server)
    page = await opened(visitor, server, "story")
    await say(page, "begun")
    await holds(page, f"{_TITLES} === 'begun' && document.querySelector('button.stop')")
    await other.evaluate("dispatchEvent(new Event('focus'))")
    await holds(other, f"{_TITLES} === 'begun'")


async def test_a_conversation_deleted_while_it_goes_on(visitor: Visitor, server: Operated) -> None:
    """A conversation that is deleted while an answer comes stays deleted, and the answer ends."""
    page = await opened(visitor, server, "story")
    await say(page, "to go")
    await holds(page, "document.querySelector('.message.assistant')?.textContent.includes('Once')")
    await page.click("[aria-label='Delete to go']")
    await holds(page, f"{_TITLES} === '' && !document.querySelector('.message, button.stop')")
    await server.until_idle()
    await say(page, "next")
    await holds(page, f"{_TITLES} === 'next'")
    assert "next" == await page.evaluate(_KEPT)


_KEPT = """import("/page/history.js").then((history) => history.listHeads()).then((heads) => heads.map((one) => one.title).join())"""


async def test_stop_gives_the_keyboard_back(visitor: Visitor, server: Operated) -> None:
    """Behind Stop the next message is written at once."""
    page = await opened(visitor, server, "story")
    await say(page, "go on")
    await page.click("button.stop")
    await page.wait_for_selector("text=Stopped.")
    await page.keyboard.type("and")

    assert "and" == await page.input_value("#composer")


async def test_copying_twice(page: "Page") -> None:
    """A button that is pressed twice says what it does again afterwards."""
    said = await page.evaluate("""async () => {
      const { copyText } = await import("/page/clipboard.js");
      const button = document.createElement("button");
      button.textContent = "Copy";
      const ends = [];
      window.setTimeout = (run) => ends.push(run);
      await copyText("a", button);
      await copyText("a", button);
      const during = button.textContent;
      for (const run of ends) run();
      return [during, button.textContent];
    }""")

    assert ["Copied", "Copy"] == said


async def test_styles_that_could_not_be_read(visitor: Visitor, server: Operated) -> None:
    """Styles that the network failed to bring are asked for again with the next view."""
    visitor.expected.append("ERR_")
    page = await opened(visitor, server)
    await visitor.context.set_offline(True)
    await page.click("nav >> text=Connect")
    await page.wait_for_selector("main [role=alert]")
    await visitor.context.set_offline(False)
    await page.click("nav >> text=Chat")
    await page.wait_for_selector("#composer")
    await page.click("nav >> text=API")
    await page.wait_for_selector("main h1:has-text('API')")

    await holds(
        page, "document.querySelector('link[href=\"page/live.css\"]').sheet?.cssRules.length"
    )


async def test_the_first_of_two_is_closed(visitor: Visitor, server: Operated) -> None:
    """The conversation beside one that is closed stays, goes on, and is the one that a reload shows."""
    page = await opened(visitor, server)
    await page.click("text=Compare")
    await page.locator("select.model").nth(1).select_option("story")
    await say(page, "both")
    await holds(page, "document.querySelector('.messages').textContent.includes('both')")
    await page.click("button:text-is('Close') >> nth=0")
    await holds(page, "document.querySelectorAll('.thread').length === 1")
    await page.click("button.stop")
    await page.wait_for_selector(".message.assistant:has-text('story') >> text=Stopped.")
    await page.reload()
    await page.wait_for_selector(".message.assistant:has-text('story') >> text=Stopped.")


async def test_escape(visitor: Visitor, server: Operated) -> None:
    """Escape ends an edit, and closes the panel that is written in."""
    page = await opened(visitor, server)
    await say(page, "as it is")
    await page.wait_for_selector(_ANSWER)
    await page.click(".message.user >> text=Edit")
    await page.press(".message.user textarea", "Escape")
    await page.wait_for_selector(".message.user >> text=as it is")
    await page.click("text=Settings")
    await page.press(".panel textarea >> nth=0", "Escape")
    await holds(page, "!document.querySelector('.panel')")


async def test_an_answer_behind_another_conversation(visitor: Visitor, server: Operated) -> None:
    """An answer goes on while other conversations are shown, is seen coming again on the way back, stopped there, and whole where it has ended meanwhile."""
    page = await opened(visitor, server, "story")
    await page.click("text=Settings")
    await say(page, "long one")
    await page.wait_for_selector("button.stop")
    await page.click("text=New conversation")
    await page.wait_for_selector("button:has-text('Send')")
    await page.select_option("select.model", "copy")
    await page.fill("#parameter-max_tokens", "17")
    await say(page, "short one")
    await page.wait_for_selector(_ANSWER)
    await page.click("li >> text=long one")
    await page.wait_for_selector("button.stop")
    before = await page.evaluate("document.querySelector('.message.assistant').textContent.length")
    await holds(page, f"document.querySelector('.message.assistant').textContent.length > {before}")
    await holds(page, "document.querySelector('#parameter-max_tokens').value === ''")
    await page.click("button.stop")
    await page.wait_for_selector("text=Stopped.")
    await page.click("li >> text=short one")
    await holds(page, "document.querySelector('#parameter-max_tokens').value === '17'")
    assert "short one" in await page.inner_text(".messages")
