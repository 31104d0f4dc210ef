"""The endpoints on the page, in a real browser, against a real server: what a model honours, and each tried."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from page.test_connect import named
from server.test_admin import operated
from support.clients.browsers import Visitor, holds
from support.servers.prefixed import prefixed

if TYPE_CHECKING:
    from playwright.async_api import Page

_MODELS = """
[models.a]
source = "echo:a"
[models.lenient]
source = "echo:b"
unsupported = "report"
[models.slow]
source = "echo:"
options = { text = "word word word word word", tokens_per_s = 2.0 }
"""
#: Parameters of other APIs, as a model honours what they become in a chat.
_TRANSLATED = [
    ("/v1/responses", "max_output_tokens", "honoured"),
    ("/v1/responses", "reasoning.effort", "ignored"),
    ("/v1/messages", "tools", "made by unilect"),
    ("/v1/messages", "thinking.budget_tokens", "ignored"),
    ("/api/chat", "options.num_predict", "honoured"),
    ("/api/chat", "logprobs", "refused"),
]
_STATUS = "document.querySelector('.answer strong').textContent"


async def _opened(visitor: Visitor, url: str, endpoint: str = "/v1/chat/completions") -> "Page":
    """The view, with an endpoint unfolded."""
    page = await visitor.open(f"{url}#api")
    await page.click(f".operation summary:has(code:text-is('{endpoint}'))")
    await page.wait_for_selector(".try")
    return page


async def _send(page: "Page", **changes: object) -> None:
    """Change fields of the body, and send it."""
    if changes:
        body = json.loads(await page.input_value(".try textarea")) | changes
        await page.fill(".try textarea", json.dumps(body))
    await page.click(".try button:text-is('Send')")


async def test_the_list(visitor: Visitor, tmp_path: Path) -> None:
    """OpenAI's endpoints come first, an alias stands beside its endpoint, and a search by a parameter leaves those that have it."""
    async with operated(tmp_path, _MODELS) as server:
        page = await _opened(visitor, f"{server.url}/")
        paths = await page.locator(".operation summary code").all_inner_texts()
        assert "/chat/completions" in await page.inner_text(".operation[open]")
        await page.fill("[type=search]", "return_documents")
        await holds(page, "[...document.querySelectorAll('.operation:not([hidden])')].length < 8")
        await page.wait_for_selector(".operation summary:has-text('/v1/rerank')")
        await page.fill("[type=search]", "nothing of it")
        await page.wait_for_selector("text=There is no such endpoint.")

    assert ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"] == paths[:4]
    assert len(set(paths)) >= 40
    assert "/chat/completions" not in paths


async def test_parameters_by_model(visitor: Visitor, tmp_path: Path) -> None:
    """A parameter is honoured by one model, refused with the reason by another, and ignored by one that reports."""
    async with operated(tmp_path, _MODELS) as server:
        page = await _opened(visitor, f"{server.url}/")
        row = "tr:has(code:text-is('{}')) >> text={}"
        await page.wait_for_selector(
            row.format("logprobs", "this model's backend does not support it")
        )
        await page.wait_for_selector(row.format("logprobs", "refused"))
        await page.wait_for_selector(row.format("max_tokens", "honoured"))
        await page.wait_for_selector(row.format("tools", "made by unilect"))
        await page.wait_for_selector(row.format("user", "accepted, without an effect"))
        await page.wait_for_selector(row.format("seed", "ignored"))
        for endpoint, name, told in _TRANSLATED:
            operation = f".operation:has(summary:has(code:text-is('{endpoint}')))"
            await page.evaluate(
                "(path) => { for (const one of document.querySelectorAll('.operation')) if (one.querySelector('code').textContent === path) one.open = true; }",
                endpoint,
            )
            await page.wait_for_selector(f"{operation} {row.format(name, told)}")
        await page.select_option(".fields select", "lenient")
        await page.wait_for_selector(row.format("logprobs", "and named in X-Unilect-Ignored"))
        body = json.loads(await page.input_value(".try textarea"))

    assert "lenient" == body["model"]


async def test_an_answer(visitor: Visitor, tmp_path: Path) -> None:
    """The example is taken as it stands, below a path too, and its answer is shown whole with its status and headers."""
    async with operated(tmp_path, _MODELS) as server, prefixed(server.url) as url:
        page = await _opened(visitor, url)
        await _send(page)
        await holds(page, f"{_STATUS}.startsWith('200 OK after')")
        answer = json.loads(await page.inner_text(".answer pre"))
        headers = await page.inner_text(".answer dl")

    assert "a" == answer["choices"][0]["message"]["content"]
    assert "content-type" in headers


async def test_a_stream_and_stop(visitor: Visitor, tmp_path: Path) -> None:
    """A stream is shown as it comes; Stop ends it, in the server too, and what has come stays."""
    async with operated(tmp_path, _MODELS) as server:
        page = await _opened(visitor, f"{server.url}/")
        await page.select_option(".fields select", "slow")
        await page.check(".try [type=checkbox]")
        assert json.loads(await page.input_value(".try textarea"))["stream"] is True
        await _send(page)
        # a token of this model is a character
        await holds(
            page, "/content\": *\"w/.test(document.querySelector('.answer pre').textContent)"
        )
        assert "[DONE]" not in await page.inner_text(".answer pre")
        await page.click(".try button.stop")
        await holds(page, f"{_STATUS}.startsWith('200 OK, stopped after')")
        await server.until_idle()
        assert "chat.completion.chunk" in await page.inner_text(".answer pre")
        await page.select_option(".fields select", "a")
        await _send(page)
        await holds(page, "document.querySelector('.answer pre').textContent.includes('[DONE]')")


async def test_errors_are_shown_whole(visitor: Visitor, tmp_path: Path) -> None:
    """What is refused is shown as the server says it: a wrong value, and a body that is no JSON."""
    visitor.expected.append("400")
    async with operated(tmp_path, _MODELS) as server:
        page = await _opened(visitor, f"{server.url}/")
        await _send(page, temperature=9)
        await holds(page, f"{_STATUS}.startsWith('400 Bad Request after')")
        told = json.loads(await page.inner_text(".answer pre"))
        own = {"model": "a", "messages": [{"role": "user", "content": "x"}], "temperature": 9}
        async with server.client.post(f"{server.url}/v1/chat/completions", json=own) as response:
            expected = await response.json()
        await page.fill(".try textarea", "{no json")
        await _send(page)
        await holds(page, "document.querySelector('.answer pre').textContent.includes('JSON')")

    assert expected == told
    assert "temperature" == told["error"]["param"]


async def test_with_keys(visitor: Visitor, tmp_path: Path) -> None:
    """A server with keys asks for one; what is sent goes with it, and a key that is revoked meanwhile is asked for again."""
    visitor.expected.append("401")
    async with operated(tmp_path, _MODELS, "api_keys = ['sk-the-clients']\n") as server:
        _, made = await server.ask("POST", "/keys", {"name": "ann"})
        page = await visitor.open(f"{server.url}/#api")
        await page.fill("#key-input", made["key"])
        await page.click("text=Use it")
        await page.click(".operation summary >> nth=0")
        await _send(page)
        await holds(page, f"{_STATUS}.startsWith('200 OK after')")
        await server.ask("POST", f"/keys/{made['id']}/revoke")
        await _send(page)
        await holds(page, f"{_STATUS}.startsWith('401')")
        await page.fill("#key-input", "sk-the-clients")
        await page.click("text=Use it")
        await _send(page)
        await holds(page, f"{_STATUS}.startsWith('200 OK after')")


async def test_a_long_answer(visitor: Visitor, tmp_path: Path) -> None:
    """Of an answer of a megabyte the end stays in sight; all of it can be copied."""
    await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = f'[models.long]\nsource = "echo:"\noptions = {{ text = "{"word " * 4000}" }}\n'
    async with operated(tmp_path, text) as server:
        page = await _opened(visitor, f"{server.url}/")
        await page.check(".try [type=checkbox]")
        await _send(page)
        await holds(page, f"{_STATUS}.startsWith('200 OK after')")
        shown = await page.evaluate("document.querySelector('.answer pre').textContent")
        await page.click(".answer button:text-is('Copy')")
        copied = await page.evaluate("navigator.clipboard.readText()")

    assert shown.rstrip().endswith("[DONE]")
    assert len(shown) <= 200_000 < len(copied)
    assert copied.endswith(shown)


async def test_each_endpoint_has_a_form(visitor: Visitor) -> None:
    """Every endpoint unfolds without a fault, and a name in a path is that of the model."""
    async with named("org/a b?") as url:
        page = await visitor.open(f"{url}/#api")
        await page.wait_for_selector(".operation")
        await page.evaluate(
            "for (const one of document.querySelectorAll('.operation')) one.open = true"
        )
        await holds(
            page,
            "document.querySelectorAll('.try').length === document.querySelectorAll('.operation').length",
        )
        form = page.locator("form[aria-label='Try /v1/models/{model}']")
        await form.get_by_text("Send").click()
        await holds(
            page,
            "[...document.querySelectorAll('.answer pre')].some((one) => one.textContent.includes('not_honoured'))",
        )

    assert "v1/models/org/a%20b%3F" == await form.locator("input").input_value()
