"""The chat, in a real browser, against a real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from server.test_admin import Operated, operated
from support.backends.scripted import STREAM_HEAD, Exchange, answer, delta, frames, scripted
from support.clients.browsers import Visitor, holds, visiting
from support.common.waiting import until
from support.models.thinking_templates import BEGUN
from unilect.demo import MODEL

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

_PAINTER = '''
[models.painter]
source = "echo:I do not know."
[[models.painter.options.answers]]
when = "paint it"
text = """<think>Which colour?</think>I look first.
<tool_call>{"name": "read", "arguments": {"path": "colour.txt"}}</tool_call>"""
[[models.painter.options.answers]]
when = "the colour is red"
text = "It is **red** now."
'''
_MODELS = f"""
[models.story]
source = "echo:"
options = {{ text = "Once upon a time. {"word " * 400}", tokens_per_s = 60.0 }}
[models.copy]
source = "echo:"
{_PAINTER}
"""
_TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
_ANSWER = ".message.assistant footer"
_ANSWER_AT_ONCE = """new MutationObserver(() => document.querySelector(".thoughts button")?.click()).observe(document.body, { childList: true, subtree: true })"""


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def server(tmp_path_factory: Any) -> AsyncIterator[Operated]:
    """A server with a slow model, one that repeats what it hears, and one that calls a tool."""
    async with operated(tmp_path_factory.mktemp("chat"), _MODELS) as one:
        yield one


async def opened(visitor: Visitor, server: Operated, model: str = "copy") -> "Page":
    """The page, with a model picked."""
    page = await visitor.open(f"{server.url}/")
    await holds(page, "document.querySelector('select.model option')")
    await page.select_option("select.model", model)
    return page


async def say(page: "Page", text: str) -> None:
    """Write, and press Enter."""
    await page.fill("#composer", text)
    await page.press("#composer", "Enter")


async def test_three_actions(visitor: Visitor, server: Operated) -> None:
    """Who opens the address, writes and presses Enter reads a streamed answer."""
    page = await visitor.open(f"{server.url}/")
    await page.wait_for_selector("#composer:focus")
    await page.keyboard.type("Tell me a story")
    await page.keyboard.press("Enter")

    await holds(
        page,
        "document.querySelector('.message.assistant')?.textContent.includes('Once upon a time')",
    )
    assert await page.is_visible("text=Stop")


async def test_stop(visitor: Visitor, server: Operated) -> None:
    """Stop ends the answer, what has come stays, and the server generates no more."""
    page = await opened(visitor, server, "story")
    await say(page, "Go on")
    await holds(page, "document.querySelector('.message.assistant')?.textContent.includes('Once')")
    await page.click("button.stop")
    await page.wait_for_selector(_ANSWER)
    await server.until_idle()

    text = await page.inner_text(".message.assistant")
    assert "Once" in text
    assert "Stopped." in text


async def test_branches(visitor: Visitor, server: Operated) -> None:
    """Another answer and an edit are branches beside the first, and the arrows lead back."""
    page = await opened(visitor, server)
    await say(page, "first *words*")
    await page.wait_for_selector(_ANSWER)
    assert "words" == await page.inner_text(".message.assistant em")
    await page.click(".message.assistant >> text=Again")
    await page.wait_for_selector("text=2 / 2")
    await page.click(".message.user >> text=Edit")
    await page.fill(".message.user textarea", "other words")
    await page.click("text=Send as another branch")
    await holds(
        page,
        "document.querySelector('.message.assistant footer') && document.querySelector('.message.assistant').textContent.includes('other words')",
    )
    await page.click(".message.user [aria-label='Earlier version']")
    await page.wait_for_selector(".message.assistant em")

    assert "2 / 2" in await page.inner_text(".message.assistant")


async def test_a_call_is_answered_by_hand(visitor: Visitor, server: Operated) -> None:
    """A model that calls a tool shows its call, and goes on with the result that is typed; its thoughts are folded."""
    page = await opened(visitor, server, "painter")
    await page.click("text=Settings")
    await page.fill("label:has-text('list of functions') textarea", json.dumps(_TOOLS))
    await page.click(".panel [aria-label=Close]")
    await say(page, "paint it")
    await page.fill("[aria-label='Result of read']", "the colour is red")
    assert await page.evaluate("document.querySelector('details.thoughts').open") is False
    assert "colour.txt" in await page.inner_text(".call")
    await page.click("text=Give the result")
    await page.wait_for_selector(".message.assistant strong >> text=red")

    assert ["user", "assistant", "tool", "assistant"] == await page.evaluate(
        "[...document.querySelectorAll('.message')].map((one) => one.classList[1])"
    )


async def test_what_is_sent(visitor: Visitor, server: Operated) -> None:
    """The settings are sent: a system prompt, parameters, a schema; a parameter that the model refuses cannot be set."""
    page = await opened(visitor, server)
    await page.click("text=Settings")
    await page.wait_for_selector("#parameter-logprobs:disabled")
    await page.fill("label:has-text('System prompt') textarea", "Be brief.")
    await page.fill("#parameter-max_tokens", "17")
    await page.fill("label:has-text('JSON Schema') textarea", '{"type": "object"}')
    await page.click("text=Code")
    await page.wait_for_selector(".panel pre")
    shown = await page.inner_text(".panel pre")
    async with page.expect_request("**/v1/chat/completions") as asked:
        await say(page, "Hello")
    body = (await asked.value).post_data_json

    assert "max_tokens" in shown
    assert {"role": "system", "content": "Be brief."} == body["messages"][0]
    assert 17 == body["max_tokens"]
    assert {"type": "object"} == body["response_format"]["json_schema"]["schema"]


async def test_two_models(visitor: Visitor, server: Operated) -> None:
    """Two models beside each other are asked the same, each in a conversation of its own."""
    page = await opened(visitor, server)
    await page.click("text=Compare")
    await page.locator("select.model").nth(1).select_option("painter")
    await say(page, "Hello, both")
    await holds(page, f"document.querySelectorAll('{_ANSWER}').length === 2")

    texts = await page.locator(".message.assistant").all_inner_texts()
    assert "Hello, both" in texts[0]
    assert "I do not know." in texts[1]


async def test_conversations_are_kept(visitor: Visitor, server: Operated, tmp_path: Path) -> None:
    """A reload shows the conversation again, a search finds it, and an export brings it to another browser."""
    page = await opened(visitor, server)
    await say(page, "about penguins")
    await page.wait_for_selector(_ANSWER)
    await page.reload()
    await page.wait_for_selector(_ANSWER)
    await page.fill("[type=search]", "penguin")
    assert ["about penguins"] == await page.locator(".history li a").all_inner_texts()
    await page.fill("[type=search]", "nothing of it")
    await holds(page, "!document.querySelector('.history li')")
    await page.fill("[type=search]", "")
    async with page.expect_download() as saving:
        await page.click("text=Export")
    await (await saving.value).save_as(tmp_path / "all.json")
    await page.click("[aria-label='Delete about penguins']")
    await holds(page, "!document.querySelector('.history li')")
    await page.set_input_files("input[type=file][accept*=json]", tmp_path / "all.json")
    await page.click("text=about penguins")

    await page.wait_for_selector(_ANSWER)


async def test_a_long_conversation(visitor: Visitor, server: Operated, tmp_path: Path) -> None:
    """One of 200 turns that another page has exported is opened, and goes on."""
    messages = [
        {"id": n, "role": ("user", "assistant")[n % 2], "content": f"turn {n} " * 40, "parent": n - 1, "timestamp": n}
        for n in range(400)
    ]  # fmt: skip
    conversation = {"id": "c", "name": "long one", "currNode": 399, "lastModified": 1}
    (tmp_path / "long.json").write_text(json.dumps([{"conv": conversation, "messages": messages}]))
    page = await opened(visitor, server)
    await page.set_input_files("input[type=file][accept*=json]", tmp_path / "long.json")
    await page.click("text=long one")
    await holds(page, "document.querySelectorAll('.message').length === 400")
    await say(page, "and on")

    await holds(page, "document.querySelectorAll('.message.assistant footer').length === 201")


async def test_the_key_is_asked_for(visitor: Visitor, tmp_path: Path) -> None:
    """A server with keys has its page ask for one, which is kept over a reload, and shared with another tab."""
    visitor.expected.append("401")
    async with operated(tmp_path, _MODELS, "api_keys = ['sk-visitor']\n") as server:
        page = await visitor.open(f"{server.url}/")
        for key in ("wrong", "sk-visitor"):
            await page.wait_for_selector("dialog[open]")
            await page.fill("#key-input", key)
            await page.click("text=Use it")
            await holds(page, "!document.querySelector('#key-input')?.value")
        await holds(page, "document.querySelectorAll('select.model option').length")
        await page.reload()
        await holds(page, "document.querySelectorAll('select.model option').length")
        other = await visitor.open(f"{server.url}/")
        await holds(other, "sessionStorage.getItem('unilect.key.client') === 'sk-visitor'")
        await holds(other, "document.querySelectorAll('select.model option').length")

    assert "sk-visitor" not in page.url


async def test_models_are_asked_for_early(visitor: Visitor, server: Operated) -> None:
    """The list of models is asked for while the chat's modules are on their way, and once."""
    page = await visitor.context.new_page()
    visitor.origins.add(server.url)
    asked, chat = list[str](), asyncio.Event()
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))

    async def hold(route: Any) -> None:
        await chat.wait()
        await route.continue_()

    await page.route("**/page/chat.js", hold)
    await page.goto(f"{server.url}/", wait_until="commit")
    await until(lambda: "models" in asked)
    assert not await page.query_selector("select.model")
    chat.set()
    await holds(page, "document.querySelectorAll('select.model option').length")

    assert 1 == asked.count("models")


async def test_a_broken_answer(visitor: Visitor, tmp_path: Path) -> None:
    """An answer that breaks off keeps what has come, and says why; the next one is whole."""
    broken = '[models.b]\nsource = "echo:Hello there"\noptions = { failing_answers = 1, breaks_after = 5 }\n'
    async with operated(tmp_path, broken) as server:
        page = await opened(visitor, server, "b")
        await say(page, "Hi")
        await page.wait_for_selector(".message.assistant [role=alert]")
        assert "Hello" in await page.inner_text(".message.assistant")
        await page.click(".message.assistant >> text=Again")
        await page.wait_for_selector("text=2 / 2")
        await holds(
            page, "document.querySelector('.message.assistant').textContent.includes('Hello there')"
        )


async def test_thoughts_are_ended(visitor: Visitor, tmp_path: Path) -> None:
    """A model that thinks is told to answer: it gets what it has thought, behind which its template ends the thoughts, and goes on."""
    text = f"[models.thinker]\nsource = '{MODEL}'\ncontext = 512\nchat_template = {json.dumps(BEGUN)}\ndefaults = {{ ignore_eos = true }}\n"
    async with operated(tmp_path, text) as server:
        page = await opened(visitor, server, "thinker")
        asked: list[Any] = []
        page.on(
            "request",
            lambda one: one.url.endswith("/completions") and asked.append(one.post_data_json),
        )
        await page.evaluate(_ANSWER_AT_ONCE)
        await say(page, "Tell me.")
        await page.wait_for_selector(_ANSWER)
        await page.wait_for_selector("summary:text-is('Thoughts, ended by hand')")
        thoughts = await page.text_content(".thoughts .plain") or ""
        answer = await page.inner_text(".message.assistant > div:last-of-type")
        first, second = asked
        url, wanted = f"{server.url}/apply-template", {"stream": False, "stream_options": None}
        async with server.client.post(url, json=second | wanted) as got:
            prompt = (await got.json())["prompt"]

    assert answer
    assert first | {"continue_final_message": "content", "messages": second["messages"]} == second
    assert {"role": "assistant", "content": "", "reasoning_content": thoughts} == second["messages"][-1]  # fmt: skip
    assert prompt.endswith(f"[assistant] <think>{thoughts}</think>")


async def test_thoughts_that_cannot_be_ended(visitor: Visitor, tmp_path: Path) -> None:
    """A model of a server that may not go on behind thoughts has no such button, and its answer is stopped in the midst of them."""

    async def think(exchange: Exchange) -> None:
        if exchange.head.startswith(b"GET"):
            return await exchange.send(answer(json.dumps({"data": [{"id": "m"}]}).encode()))
        await exchange.send(STREAM_HEAD + frames(delta(reasoning_content="word word")))
        await exchange.client_gone()

    async with scripted(think) as far:
        text = f'[models.thinks]\nsource = "{far.url}"\nmodel = "m"\n'
        async with operated(tmp_path, text) as server:
            page = await opened(visitor, server, "thinks")
            await page.evaluate(_ANSWER_AT_ONCE)
            await say(page, "Tell me.")
            await holds(page, "document.querySelector('.thoughts')?.textContent.includes('word')")
            await page.click("button.stop")
            await page.wait_for_selector("text=Stopped.")

            assert "word word" == await page.text_content(".thoughts .plain")
            assert "Thoughts" == await page.inner_text(".thoughts summary")


async def test_two_tabs(visitor: Visitor, server: Operated) -> None:
    """What two tabs say in one conversation is kept of both, as branches."""
    page = await opened(visitor, server)
    await say(page, "first of both")
    await page.wait_for_selector(_ANSWER)
    await holds(page, "document.querySelector('.history li')")
    other = await visitor.open(page.url)
    await other.wait_for_selector(_ANSWER)
    for tab, text in ((page, "said in one"), (other, "said in the other")):
        await say(tab, text)
        await holds(tab, f"document.querySelectorAll('{_ANSWER}').length === 2")
        await holds(tab, f"document.querySelector('.messages').textContent.includes('{text}')")
    await page.reload()
    await page.wait_for_selector("text=2 / 2")
    await page.click("[aria-label='Earlier version']")

    await holds(page, "document.querySelector('.messages').textContent.includes('said in one')")


@pytest.mark.parametrize(
    ("here", "there", "shown", "left"),
    [
        ("abc", "ab-c", "b", "ab"),
        ("ab-c", "abc", "b", "ab"),
        ("abc", "a-bc", "a", "a"),
        ("abcd", "ab-c", "d", "abcd"),
        ("ab-c", "abcd", "b", "abcd"),
        ("abc", "", "c", "abc"),
    ],
)
async def test_messages_that_another_tab_removes(
    page: "Page", here: str, there: str, shown: str, left: str
) -> None:
    """A message that one tab removes stays away in both, with what was behind it, but for what the other has gone on behind."""
    found = await page.evaluate(
        """async (tabs) => {
          const { join } = await import("/page/conversation.js");
          const [own, other] = tabs.map((text) => {
            const [kept, removed = ""] = text.split("-");
            const nodes = Object.fromEntries([...kept].map((id, at) => [id, { id, parent: kept[at - 1] ?? null }]));
            return text && { nodes, removed: [...removed], leaf: kept.at(-1) };
          });
          const state = () => [own.leaf, Object.keys(own.nodes).sort().join("")];
          join(own, other || undefined);
          const once = state();
          join(own, structuredClone(own));
          return [once, state()];
        }""",
        [here, there],
    )

    assert [[shown, left]] * 2 == found


async def test_a_removed_message_of_a_file(page: "Page") -> None:
    """A message that was removed comes back with a file that has it, and not otherwise."""
    found = await page.evaluate(
        """async () => {
          const { add, newConversation, remove } = await import("/page/conversation.js");
          const { exportAll, importText, load, save } = await import("/page/history.js");
          const one = newConversation();
          add(one, null, { role: "user", content: "stays" });
          const gone = add(one, one.leaf, { role: "user", content: "goes" });
          await save(one);
          const [file, other] = [await exportAll(), await load(one.id)];
          remove(one, gone);
          await save(one);
          const told = async () => Object.values((await load(one.id)).nodes).map((node) => node.content).join();
          const states = [await told()];
          await save(other);
          states.push(await told());
          await importText(file);
          return [...states, await told()];
        }"""
    )

    assert ["stays", "stays", "stays,goes"] == found


async def test_a_page_that_is_left(visitor: Visitor, server: Operated) -> None:
    """An answer whose page is loaded again while it comes is there as far as it was kept, and says that it was left."""
    page = await opened(visitor, server, "story")
    await say(page, "Go on")
    await holds(page, "document.querySelector('.message.assistant')?.textContent.includes('word')")
    await page.reload()
    await page.wait_for_selector("text=The page was left while this came.")
    await page.click(".message.assistant button:text-is('Again')")
    await page.wait_for_selector("button.stop")


async def test_a_private_window(visitor: Visitor, server: Operated) -> None:
    """A browser that has no place for conversations says so, and chats."""
    hide = "Object.defineProperty(window, 'indexedDB', { value: undefined })"
    await visitor.context.add_init_script(hide)
    page = await opened(visitor, server)
    await say(page, "for now")
    await page.wait_for_selector(_ANSWER)

    await page.wait_for_selector(".notice:has-text('keeps no conversations')")


async def test_storage_that_is_full(visitor: Visitor, server: Operated) -> None:
    """A conversation for which there is no more room is shown, with a word that it is not kept."""
    page = await opened(visitor, server)
    session = await visitor.context.new_cdp_session(page)
    quota = {"origin": server.url, "quotaSize": 20_000}
    await session.send("Storage.overrideQuotaForOrigin", quota)
    await say(page, "long " * 10_000)
    await page.wait_for_selector(_ANSWER)

    await page.wait_for_selector(".notice:has-text('no more room')")


async def test_an_import_that_goes_round(page: "Page") -> None:
    """Messages of a file that are each other's parents are shown, the first of them without one."""
    nodes = {
        one: {"role": "user", "content": one, "parent": parent}
        for one, parent in {"a": "b", "b": "a", "c": "b", "d": "d", "e": "nobody"}.items()
    }
    found = await page.evaluate(
        """async (found) => {
          const { branch } = await import("/page/conversation.js");
          const { readExport } = await import("/page/exports.js");
          const read = readExport(found);
          return Object.keys(read.nodes).map((leaf) => branch(read, leaf).map((one) => one.id).join(""));
        }""",
        {"id": "round", "nodes": nodes},
    )

    assert ["ba", "b", "bc", "d", "e"] == found


async def test_conversations_on_a_narrow_screen(browser: "Browser", server: Operated) -> None:
    """On a phone the conversations unfold, and fold again behind the one that is opened."""
    async with visiting(browser, viewport={"width": 360, "height": 640}) as visitor:
        page = await opened(visitor, server)
        await say(page, "about whales")
        await page.wait_for_selector(_ANSWER)
        await page.click("text=New conversation")
        await holds(page, "!document.querySelector('.message')")
        assert not await page.is_visible(".history li")
        await page.click("button:text-is('Conversations')")
        await page.click("text=about whales")
        await page.wait_for_selector(_ANSWER)

        assert not await page.is_visible(".history li")


async def test_what_a_program_fills_in(visitor: Visitor, server: Operated) -> None:
    """A setting counts as it is written, also by what writes for a person and tells of no change at the end."""
    page = await opened(visitor, server)
    await page.click("text=Settings")
    await page.wait_for_selector(".panel textarea")
    await page.evaluate("""(() => {
      const field = document.querySelector(".panel textarea");
      field.value = "Be brief.";
      field.dispatchEvent(new Event("input", { bubbles: true }));
    })()""")
    await page.click("text=Code")

    await page.wait_for_selector(".panel pre:has-text('Be brief.')")


@pytest.mark.parametrize(
    ("later_ms", "told"),
    [(100, "The page was left while this came."), (5000, "The echo broke off")],
)
async def test_a_navigation_that_is_called_off(
    visitor: Visitor, tmp_path: Path, later_ms: int, told: str
) -> None:
    """An answer that breaks off at once behind a navigation has been left; what breaks it off later, on the page that stayed, is told."""
    broken = '[models.b]\nsource = "echo:Hello there"\noptions = { failing_answers = 1, breaks_after = 5, tokens_per_s = 5.0 }\n'
    async with operated(tmp_path, broken) as server:
        page = await opened(visitor, server, "b")
        await page.route("**/nothing", lambda route: route.fulfill(status=204))
        await say(page, "Hi")
        await page.wait_for_selector("button.stop")
        await page.evaluate(
            """(later) => new Promise((done) => {
              addEventListener("beforeunload", done, { once: true });
              location.href = "nothing";
            }).then(() => {
              const now = performance.now() + later;
              performance.now = () => now;
            })""",
            later_ms,
        )

        await page.wait_for_selector(f"text={told}")


async def test_what_is_dropped(visitor: Visitor, server: Operated) -> None:
    """Each image that is dropped on the composer is attached; a text that is dropped is left to the browser."""
    page = await opened(visitor, server)
    drop = """(put) => {
      const data = new DataTransfer();
      if (put === "text") data.setData("text/plain", "a text");
      else data.items.add(new File([new Uint8Array(9)], "a.png", { type: "image/png" }));
      const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
      return !document.querySelector("#composer").dispatchEvent(event);
    }"""

    assert not await page.evaluate(drop, "text")
    assert await page.evaluate(
        f"(() => {{ const drop = {drop}; return drop('image') && drop('image') }})()"
    )
    await holds(page, "document.querySelectorAll('.attachment img').length === 2")
