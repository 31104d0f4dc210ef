"""Answers of Ollama's API that break: an error row ends them, and never a row that says `done`."""

from support.clients.ollamaside import SAY, post, streamed
from support.servers.appserver import serving
from unilect.api.backend import Batches
from unilect.core.errors import EngineOverloaded
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.testing.echo import Echo, Options


async def test_an_answer_that_breaks_off() -> None:
    """What breaks after a row is told in the last row, with status 200; before, and whole, it is a 502."""
    options = Options(text="long enough", failing_answers=100, breaks_after=3)
    async with serving(Echo(options)) as app:
        got = await streamed(app, "/api/chat", messages=SAY)
        status, whole, _ = await post(app, "/api/chat", messages=SAY)
    async with serving(Echo(Options(failing_answers=100))) as app:
        async with app.post("/api/chat", model="m", messages=SAY) as response:
            before, told = response.status, await response.json()

    assert ["l", "o", "n"] == [row["message"]["content"] for row in got[:-1]]
    assert {"error": "The echo broke off: `failing_answers`."} == got[-1] == whole == told
    assert (502, 502) == (status, before)


async def test_a_full_queue() -> None:
    """A backend that has more requests than it takes is a 503 in the words that clients look for."""

    class Full(Echo):
        def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
            raise EngineOverloaded("All places are taken.", retry_after_s=3)

    async with serving(Full()) as app:
        async with app.post("/api/chat", model="m", messages=SAY) as response:
            body = await response.json()

    assert (503, "3") == (response.status, response.headers["Retry-After"])
    assert body["error"].startswith("server busy, please try again.")
    assert body["error"].endswith("All places are taken.")
