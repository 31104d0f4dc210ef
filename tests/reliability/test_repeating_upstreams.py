"""Tests of upstreams that fail and repeat the request in all that they say: the log, and the errors of others, have none of it."""

import base64
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from support.backends.scripted import Exchange, Script, answer, delta, frames, scripted, stream_of
from support.servers.appserver import serving, upstream
from unilect.config.server import Config
from unilect.scheduling.pooled_backend import PooledBackend

PROMPT = 'Wolkenkratzer "Brieftaube"\nGrünspecht\tZwiebelfisch \\ Mondkalb'
SYSTEM = "Apfelstrudel"


def _pieces(text: str, length: int) -> set[str]:
    return {text[at : at + length].lower() for at in range(len(text) - length + 1)}


#: What is looked for in upper and lower case: all short pieces of the texts, and longer ones where they are digits, as ids are too.
PIECES = _pieces(PROMPT, 6) | _pieces(SYSTEM, 6) | _pieces(json.dumps(PROMPT), 6)
PIECES |= _pieces(PROMPT.encode().hex(), 16) | _pieces(
    base64.b64encode(PROMPT.encode()).decode(), 12
)

FORMS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "in JSON": json.dumps,
    "in JSON in JSON": lambda text: json.dumps({"a": json.dumps(text)}),
    "cut": lambda text: text[:7],
    "behind much": lambda text: "x" * 290 + text,
    "upper case": str.upper,
    "as a literal": repr,
    "hex": lambda text: text.encode().hex(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
}
STATUSES = (301, 400, 401, 403, 404, 413, 422, 429, 500, 501, 502, 503, 504)


def told_by(exchange: Exchange) -> str:
    """All texts of a request."""
    return " ".join(one["content"] for one in exchange.json()["messages"])


def refusing(status: int, form: Callable[[str], str]) -> Script:
    """An error answer that has the texts wherever one may have a text."""

    async def script(exchange: Exchange) -> None:
        text = form(told_by(exchange))
        error = {"message": text, "type": text, "code": text, "param": text, text: text}
        one_line = json.dumps(text)[1:-1]
        body = answer(
            json.dumps({"error": error}).encode(),
            f"{status} {one_line}",
            location=f"https://elsewhere/{one_line}",
            retry_after=one_line,
        )
        await exchange.send(body)
        exchange.close()

    return script


def says_no_json(form: Callable[[str], str]) -> Script:
    """A page, of status 502, that has the texts."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(answer(f"<h1>{form(told_by(exchange))}".encode(), "502 Oops"))
        exchange.close()

    return script


def midway(row: Callable[[str], Any], form: Callable[[str], str]) -> Script:
    """A stream that breaks off with a row that has the texts."""

    async def script(exchange: Exchange) -> None:
        begun = stream_of(frames(delta(role="assistant", content="Hel")))
        said = row(form(told_by(exchange)))
        data = said if isinstance(said, str) else json.dumps(said)
        await exchange.send(begun + f"data: {data}\n\n".encode())
        exchange.close()

    return script


ROWS: dict[str, Callable[[str], Any]] = {
    "error": lambda text: {"error": {"message": text, "code": text, "type": text}},
    "error text": lambda text: {"error": text},
    "detail": lambda text: {"detail": [{"loc": ["body", text], "msg": text}]},
    "no JSON": lambda text: json.dumps(text)[1:-1],
    "no chunk": lambda text: {"choices": text},
    "a wrong finish": lambda text: {"choices": [{"index": 0, "delta": {}, "finish_reason": text}]},
}


def another_kind(form: Callable[[str], str]) -> Script:
    """An answer of status 200 whose content type has the texts."""

    async def script(exchange: Exchange) -> None:
        kind = json.dumps(form(told_by(exchange)))[1:-1]
        data = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: 0\r\n\r\n"
        await exchange.send(data.encode())
        exchange.close()

    return script


async def check(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    """Ask twice of each kind, with and without another backend, and ask something else after that: only the first may be told its own words."""
    caplog.set_level(logging.DEBUG)

    async def well_known(exchange: Exchange) -> None:
        if exchange.head.startswith(b"GET"):
            await exchange.send(answer(b'{"data":[]}'))
            exchange.close()
        else:
            await script(exchange)

    texts = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
    async with scripted(well_known) as first, scripted(well_known) as second:
        for servers in ([first], [first, second]):
            async with serving(
                [PooledBackend(upstream(one.url), one.url) for one in servers], Config()
            ) as app:
                for stream in (True, False) * 2:
                    async with app.chat(messages=texts, stream=stream) as response:
                        await response.read()
                async with app.chat(stream=False) as response:
                    other = await response.text()
                _, metrics = await app.get("/metrics")
    assert any(one.name.startswith("unilect") for one in caplog.records)
    for where, seen in (("log", caplog.text), ("other", other), ("metrics", metrics.decode())):
        found = [piece for piece in PIECES if piece in seen.lower()]
        assert not found, (where, found, seen)


@pytest.mark.parametrize("status", STATUSES)
async def test_statuses(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """An error answer of any status."""
    await check(refusing(status, FORMS["plain"]), caplog)


@pytest.mark.heavy
@pytest.mark.parametrize("form", FORMS)
async def test_forms(form: str, caplog: pytest.LogCaptureFixture) -> None:
    """An error answer, a page instead of one, and a content type, in any form."""
    for script in (
        refusing(500, FORMS[form]),
        says_no_json(FORMS[form]),
        another_kind(FORMS[form]),
    ):
        await check(script, caplog)


@pytest.mark.heavy(but=3)
@pytest.mark.parametrize("row", ROWS)
async def test_midway(row: str, caplog: pytest.LogCaptureFixture) -> None:
    """A row of a stream that has begun."""
    for form in ("plain", "in JSON", "cut"):
        await check(midway(ROWS[row], FORMS[form]), caplog)
