"""The official `ollama` package for Python against a running server: its own types check every row."""

import asyncio
import importlib.metadata
import json
from datetime import UTC, datetime
from typing import Any, Literal

from checks import check, equal, main, raises
from ollama import AsyncClient, Client, ResponseError
from pydantic import BaseModel, ConfigDict, Field

HELLO = [{"role": "user", "content": "Hello!"}]
ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY = {"temperature": 0, "num_predict": 64}


class Verdict(BaseModel):
    """A verdict, and nothing else: without that an answer may go on with further fields."""

    model_config = ConfigDict(extra="forbid")

    likes_it: bool
    stars: int = Field(ge=1, le=5)


def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """
    Get the weather.

    Args:
        city: The city.
    """
    return f"sunny in {city}"


def client(base: str, key: str, kind: Any = Client) -> Any:
    """A client of the server."""
    return kind(host=base.removesuffix("/v1"), headers={"Authorization": f"Bearer {key}"})


@check
def chats(base: str, key: str) -> None:
    """A chat has text, counts and durations."""
    answer = client(base, key).chat("demo", HELLO, options=GREEDY)

    assert answer.message.content
    equal(("demo", True, "stop"), (answer.model, answer.done, answer.done_reason))
    assert answer.eval_count > 0
    assert answer.total_duration >= answer.eval_duration > 0
    assert answer.created_at.endswith("Z")


@check
def streams(base: str, key: str) -> None:
    """A stream gives the text of the whole answer, synchronously and not."""

    async def later() -> list[Any]:
        stream = await client(base, key, AsyncClient).chat("demo:latest", HELLO, options=GREEDY, stream=True)  # fmt: skip
        return [row async for row in stream]

    whole = client(base, key).chat("demo", HELLO, options=GREEDY).message.content
    for rows in (
        list(client(base, key).chat("demo", HELLO, options=GREEDY, stream=True)),
        asyncio.run(later()),
    ):
        equal(whole, "".join(row.message.content for row in rows))
        equal([False] * (len(rows) - 1) + [True], [row.done for row in rows])


@check
def generates(base: str, key: str) -> None:
    """A text is answered, continued with its context, and continued as it stands."""
    whole = client(base, key).generate("demo", "Hello!", options=GREEDY)
    stream = client(base, key).generate("demo", "Hello!", options=GREEDY, stream=True)
    more = client(base, key).generate("demo", "And?", context=whole.context, options=GREEDY)
    raw = client(base, key).generate("demo", "Once upon a time", raw=True, options=GREEDY)

    equal(whole.response, "".join(row.response for row in stream))
    assert more.prompt_eval_count > whole.prompt_eval_count
    assert raw.response
    assert raw.context is None


@check
def calls_tools(base: str, key: str) -> None:
    """A function of the client's is called, and its result goes back, streamed and whole."""
    for stream in (False, True):
        answer = client(base, key).chat("demo", ASK, tools=[get_weather], options=GREEDY, stream=stream)  # fmt: skip
        messages = [row.message for row in answer] if stream else [answer.message]
        [message] = [one for one in messages if one.tool_calls]
        [call] = message.tool_calls
        equal(("get_weather", {"city": "Paris"}), (call.function.name, call.function.arguments))
        result = {"role": "tool", "content": get_weather(**call.function.arguments)}
        last = client(base, key).chat("demo", [*ASK, message, result], options=GREEDY)
        assert last.message.content


@check
def fills_schemas(base: str, key: str) -> None:
    """A schema in `format` binds the answer; `json` gives JSON."""
    schema = Verdict.model_json_schema()
    whole = client(base, key).chat("demo", HELLO, format=schema, options=GREEDY)
    free = client(base, key).generate("demo", "Hello!", format="json", options=GREEDY)

    Verdict.model_validate_json(whole.message.content)
    assert free.response.lstrip().startswith("{")
    if free.done_reason == "stop":
        json.loads(free.response)


@check
def tells_probabilities(base: str, key: str) -> None:
    """Log probabilities come with the rows."""
    answer = client(base, key).chat("demo", HELLO, logprobs=True, top_logprobs=2, options={"num_predict": 2})  # fmt: skip

    equal([2, 2], [len(token.top_logprobs) for token in answer.logprobs])


@check
def embeds(base: str, key: str) -> None:
    """Embeddings of several texts, of one, and by the older call."""
    two = client(base, key).embed("demo", ["a cat", "a dog"])
    one = client(base, key).embed("demo", "a cat", dimensions=8)
    older = client(base, key).embeddings("demo", "a cat")

    equal((2, 8), (len(two.embeddings), len(one.embeddings[0])))
    equal(len(two.embeddings[0]), len(older.embedding))


@check
def lists_models(base: str, key: str) -> None:
    """The list, the description and what is loaded are as the client's types have them."""
    [listed] = client(base, key).list().models
    shown = client(base, key).show("demo")
    client(base, key).chat("demo", [], keep_alive="5m")
    [loaded] = client(base, key).ps().models

    equal(("demo:latest", "demo:latest"), (listed.model, loaded.model))
    equal("llama", listed.details.family)
    equal(2048, shown.modelinfo["llama.context_length"])
    equal(["completion", "tools"], shown.capabilities)
    equal(64, len(loaded.digest))
    assert loaded.expires_at > datetime.now(UTC)


@check
def pulls(base: str, key: str) -> None:
    """A model that is there is pulled at once, and another one is an error."""
    equal("success", client(base, key).pull("demo").status)
    equal(["success"], [row.status for row in client(base, key).pull("demo", stream=True)])
    raises(ResponseError, lambda: client(base, key).pull("other"), "file does not exist")
    raises(ResponseError, lambda: list(client(base, key).pull("other", stream=True)), "not exist")


@check
def tells_errors(base: str, key: str) -> None:
    """What is wrong is told by the client's own exception, with its status and our words."""
    wrong = client(base, "sk-wrong")
    for status, call, word in (
        (404, lambda: client(base, key).chat("none", HELLO), "model 'none' not found"),
        (401, lambda: wrong.list(), "key"),
        (400, lambda: client(base, key).chat("demo", HELLO, options={"seed": "x"}), "seed"),
        (400, lambda: client(base, key).chat("demo", HELLO, think=True), "does not support thinking"),
        (501, lambda: client(base, key).create("new", from_="demo"), "created"),
        (501, lambda: client(base, key).copy("demo", "new"), "copied"),
        (501, lambda: client(base, key).delete("demo"), "deleted"),
    ):  # fmt: skip
        error = raises(ResponseError, call, word)
        equal(status, error.status_code)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(importlib.metadata.version("ollama"))
