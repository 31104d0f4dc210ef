"""Tests of unilect.dialects.ollama._chat: Ollama's chats and continued texts, on the bundled model and in front of a scripted server."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import ENGINES_IN_CI, Spy, engine
from support.backends.scripted import (
    DONE,
    USAGE,
    Exchange,
    delta,
    frames,
    says,
    scripted,
    small,
    stream_of,
)
from support.clients.ollamaside import ASK, COUNTS, SAY, WEATHER, post, rows_of, streamed
from support.servers.appserver import App, serving, upstream
from unilect.core.requests import ChatRequest, CompletionRequest
from unilect.testing.echo import Echo, Options

in_one_loop = pytest.mark.asyncio(loop_scope="module")
GREEDY = {"temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"],
    "additionalProperties": False,
}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(40)).decode()
ANSWERED = frames(delta(role="assistant", content="ok"), delta(finish="stop"), USAGE, DONE)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ENGINES_IN_CI)
async def spy(request: pytest.FixtureRequest) -> AsyncIterator[Spy]:
    """The bundled model on each engine, and what it is asked."""
    async with engine(request.param, parallel=2) as running:
        yield Spy(running)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(spy: Spy) -> AsyncIterator[App]:
    """An application in front of it."""
    async with serving(spy) as running:
        yield running


async def asked_of(app_body: dict[str, Any], path: str = "/api/chat", **settings: Any) -> Any:
    """What a server of OpenAI's API is asked for a request, and the names of what was ignored."""
    async with scripted(says(stream_of(ANSWERED))) as server:
        async with serving(upstream(server.url), **settings) as app:
            status, body, ignored = await post(app, path, **app_body)
            assert 200 == status, body
        return server.requests[-1].json(), ignored


@in_one_loop
async def test_a_stream(app: App) -> None:
    """Every row of a chat has its model, time, role and `done`, and the last one all counts."""
    got = await streamed(app, "/api/chat", model="m:latest", messages=SAY, options=GREEDY)

    assert "Hello! How can I help you?" == "".join(row["message"]["content"] for row in got)
    assert {("m:latest", "assistant")} == {(row["model"], row["message"]["role"]) for row in got}
    assert all(row["created_at"].endswith("Z") for row in got)
    assert [False] * (len(got) - 1) + [True] == [row["done"] for row in got]
    last = got[-1]
    assert ("stop", "", 10, 11) == (
        last["done_reason"],
        last["message"]["content"],
        last["prompt_eval_count"],
        last["eval_count"],
    )
    assert {int} == {type(last[name]) for name in COUNTS}
    assert last["total_duration"] >= last["prompt_eval_duration"] + last["eval_duration"] > 0


@in_one_loop
async def test_a_whole_answer(app: App) -> None:
    """With `stream: false` there is one object, of one content type, with all of it."""
    async with app.post("/api/chat", model="m", stream=False, messages=SAY, options=GREEDY) as one:
        body = await one.json()

    assert "application/json" == one.headers["content-type"]
    assert {"role": "assistant", "content": "Hello! How can I help you?"} == body["message"]
    assert (True, "stop", "m") == (body["done"], body["done_reason"], body["model"])
    assert set(COUNTS) <= set(body)


@in_one_loop
@pytest.mark.parametrize(
    ("path", "empty", "said"),
    [
        ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
        ("/api/generate", {"prompt": ""}, {"response": ""}),
    ],
)
async def test_loading(path: str, empty: Any, said: Any) -> None:
    """A request that asks nothing loads the model, and with `keep_alive: 0` unloads it."""
    async with engine("gguf") as running:
        await running.aclose()
        spy = Spy(running)
        async with serving(spy) as app:
            before = await app.get("/api/ps")
            _, loaded, _ = await post(app, path, **empty)
            while_loaded = await app.get("/api/ps")
            _, unloaded, _ = await post(app, path, **empty, keep_alive=0)
            after = await app.get("/api/ps")

    assert [b'{"models":[]}'] * 2 == [before[1], after[1]]
    assert ["m:latest"] == [one["name"] for one in json.loads(while_loaded[1])["models"]]
    assert (1, 1, []) == (spy.starts, spy.stops - 1, spy.asked)  # the end of the application too
    for body, reason in ((loaded, "load"), (unloaded, "unload")):
        assert (True, reason) == (body["done"], body["done_reason"])
        assert said == {name: body[name] for name in said}


@in_one_loop
async def test_unloading_after_an_answer() -> None:
    """With `keep_alive: 0` an answer comes whole, and the model is unloaded behind it."""
    backend = Spy(Echo())
    async with serving(backend) as app:
        got = await streamed(app, "/api/chat", messages=SAY, keep_alive=0)
        model = app.service.model("m")
        while model.stopping is not None:
            await model.stopping
        assert not model.runs_here

    assert "Hello!" == "".join(row["message"]["content"] for row in got)
    assert 2 == backend.stops


@in_one_loop
async def test_results_are_tied_to_calls(spy: Spy, app: App) -> None:
    """Results without ids and names answer the calls before them in order."""
    calls = [
        {"function": {"name": "f", "arguments": {"x": 1}}},
        {"function": {"name": "g", "arguments": {}}},
    ]
    turns = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "r1"},
        {"role": "tool", "content": "r2"},
    ]
    status, _, _ = await post(app, "/api/chat", messages=turns, options={"num_predict": 1})

    request = spy.asked[-1]
    assert isinstance(request, ChatRequest)
    _, said, *results = request.messages
    assert 200 == status
    assert [("f", '{"x":1}'), ("g", "{}")] == [
        (call.function.name, call.function.arguments) for call in said.tool_calls or ()
    ]
    ids = [call.id for call in said.tool_calls or ()]
    assert 2 == len(set(ids))
    assert [(ids[0], "f", "r1"), (ids[1], "g", "r2")] == [
        (one.tool_call_id, one.name, one.content) for one in results
    ]


@in_one_loop
async def test_a_call(app: App) -> None:
    """A call comes whole, in one row, with its arguments as an object; whole answers have the same."""
    fields: Any = {"messages": ASK, "tools": [WEATHER], "options": GREEDY}
    got = await streamed(app, "/api/chat", **fields)
    _, whole, _ = await post(app, "/api/chat", **fields)

    [row] = [row for row in got if "tool_calls" in row["message"]]
    for message in (row["message"], whole["message"]):
        [call] = message["tool_calls"]
        assert call["id"]
        assert {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}} == call["function"]  # fmt: skip
    assert ("stop", "stop") == (got[-1]["done_reason"], whole["done_reason"])


@pytest.mark.parametrize("stream", [True, False])
async def test_two_calls(stream: bool) -> None:
    """Calls of one answer have indices that count up, even where their pieces come mixed."""

    def piece(index: int, arguments: str, **first: Any) -> dict[str, Any]:
        name = {"name": first.pop("name")} if first else {}
        return {"index": index, **first, "function": {"arguments": arguments, **name}}

    body = frames(
        delta(tool_calls=[piece(0, "", id="a", name="f"), piece(1, "", id="b", name="g")]),
        delta(tool_calls=[piece(1, '{"y"')]),
        delta(tool_calls=[piece(0, '{"x": 1}')]),
        delta(tool_calls=[piece(1, ": [2]}")]),
        delta(finish="tool_calls"),
        USAGE,
        DONE,
    )
    async with scripted(says(stream_of(body))) as server, serving(upstream(server.url)) as app:
        fields: Any = {"messages": ASK, "tools": [WEATHER]}
        if stream:
            got = await streamed(app, "/api/chat", **fields)
            [calls] = [row["message"]["tool_calls"] for row in got if "tool_calls" in row["message"]]  # fmt: skip
        else:
            calls = (await post(app, "/api/chat", **fields))[1]["message"]["tool_calls"]

    assert [
        {"id": "a", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}},
        {"id": "b", "function": {"index": 1, "name": "g", "arguments": {"y": [2]}}},
    ] == calls


@pytest.mark.parametrize("written", ["[1]", '{"x": ', "7"])
async def test_arguments_that_are_no_object(written: str) -> None:
    """Arguments that are no JSON object are an error, in a stream its last row."""
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": written}}
    read = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.send(stream_of(frames(delta(content="so"))))
        await read.wait()
        body = frames(delta(tool_calls=[call]), delta(finish="tool_calls"), USAGE, DONE)
        await exchange.send(body)
        exchange.close()

    fields: Any = {"model": "m", "messages": ASK, "tools": [WEATHER]}
    async with scripted(script) as server, serving(upstream(server.url)) as app:
        async with app.post("/api/chat", **fields) as response:
            first = json.loads(await response.content.readline())
            read.set()
            rest = await rows_of(response)
        status, whole, _ = await post(app, "/api/chat", **fields)

    assert (502, "so", {"error"}) == (status, first["message"]["content"], set(whole))
    assert "`f` with arguments that are no JSON object" in whole["error"]
    assert [whole] == rest


@pytest.mark.parametrize("finish", ["length", "stop"])
async def test_a_call_that_is_cut(finish: str) -> None:
    """A call that `num_predict` or the client's stop word has cut is none."""
    calls = [
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"y": '}},
    ]
    end = delta(finish=finish)
    end["choices"][0]["stop_reason"] = "END" if finish == "stop" else None
    body = stream_of(frames(delta(tool_calls=calls), end, USAGE, DONE))
    options = {"stop": ["END"], "num_predict": 9}
    fields: Any = {"messages": ASK, "tools": [WEATHER], "options": options}
    async with scripted(says(body)) as server, serving(upstream(server.url)) as app:
        told = await streamed(app, "/api/chat", **fields)
        whole = (await post(app, "/api/chat", **fields))[1]

    call = {"id": "a", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}}
    assert [call] == whole["message"]["tool_calls"]
    assert [[call]] == [row["message"]["tool_calls"] for row in told if "tool_calls" in row["message"]]  # fmt: skip
    assert [finish] * 2 == [whole["done_reason"], told[-1]["done_reason"]]


async def test_thoughts() -> None:
    """Thoughts stand apart from the text, in rows and whole, and go back into the model's history."""
    body = frames(delta(reasoning_content="hm"), delta(content="ok"), delta(finish="stop"), USAGE, DONE)  # fmt: skip
    turns = [*SAY, {"role": "assistant", "content": "Hi.", "thinking": "hm, hm"}, *SAY]
    async with scripted(says(stream_of(body))) as server, serving(upstream(server.url)) as app:
        got = await streamed(app, "/api/chat", messages=turns, think=True)
        _, whole, _ = await post(app, "/api/generate", prompt="x", think="max")

    assert [("", "hm"), ("ok", None), ("", None)] == [
        (row["message"]["content"], row["message"].get("thinking")) for row in got
    ]
    assert ("ok", "hm") == (whole["response"], whole["thinking"])
    first, second = (request.json() for request in server.requests)
    assert "hm, hm" == first["messages"][1]["reasoning_content"]
    assert {"enable_thinking": True} == first["chat_template_kwargs"]
    assert "xhigh" == second["reasoning_effort"]


@in_one_loop
async def test_thoughts_of_a_model_that_has_none(app: App) -> None:
    """`think: true` is refused in the words that clients look for; false asks for nothing."""
    status, body, _ = await post(app, "/api/chat", messages=SAY, think=True)
    plain, _, ignored = await post(app, "/api/chat", messages=SAY, think=False, options={"num_predict": 1})  # fmt: skip
    wrong, told, _ = await post(app, "/api/chat", messages=SAY, think="hard")

    assert (400, 200, "", 400) == (status, plain, ignored, wrong)
    assert '"m" does not support thinking' in body["error"]
    assert "low, medium, high, max" in told["error"]


async def test_thoughts_that_a_template_switches() -> None:
    """A template that knows thoughts is told of `think`, and /api/show tells that the model thinks."""
    template = "{% if enable_thinking %}Think of it. {% endif %}{{ messages[0].content }}"
    async with engine("gguf", chat_template=template) as running, serving(running) as app:
        counts = []
        for think in (None, False, True):
            fields: Any = {"messages": SAY, "think": think, "options": {"num_predict": 1}}
            _, body, _ = await post(app, "/api/chat", **fields)
            counts.append(body["prompt_eval_count"])
        _, shown, _ = await post(app, "/api/show")

    assert counts[0] == counts[1] < counts[2]
    assert "thinking" in shown["capabilities"]


@pytest.mark.parametrize("unsupported", ["refuse", "report"])
@pytest.mark.parametrize("stream", [True, False])
async def test_tools_of_a_model_that_has_none(unsupported: Any, stream: bool) -> None:
    """A model without tools has them in its prompt, whatever is configured for other parameters."""
    async with serving(Echo(), unsupported=unsupported) as app:
        fields: Any = {"messages": SAY, "tools": [WEATHER], "stream": stream}
        async with app.post("/api/chat", model="m", **fields) as response:
            rows = [json.loads(line) for line in (await response.read()).splitlines()]
        _, without, _ = await post(app, "/api/chat", messages=SAY, stream=False)

    assert (200, True) == (response.status, rows[-1]["done"])
    assert rows[-1]["prompt_eval_count"] > without["prompt_eval_count"]


@in_one_loop
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_formats(app: App, path: str) -> None:
    """`format` binds an answer to a schema, or to JSON; an empty one asks for nothing, and another is refused."""
    text: Any = {"messages": SAY, "prompt": "Hello!", "options": {"num_predict": 60} | GREEDY}
    if path == "/api/chat":
        del text["prompt"]
    else:
        del text["messages"]

    async def said(form: Any) -> str:
        _, body, _ = await post(app, path, **text, format=form)
        found: str = body["response"] if path == "/api/generate" else body["message"]["content"]
        return found

    assert {"a"} == set(json.loads(await said(SCHEMA)))
    assert "Hello! How can I help you?" == await said("") == await said(None)
    for form in ("yaml", 5, []):
        status, body, _ = await post(app, path, **text, format=form)
        assert 400 == status
        assert "invalid format" in body["error"]


@in_one_loop
async def test_a_form_with_bounds(app: App) -> None:
    """A stream is bound to what no engine enforces while it writes, too: the bounds of a number, as Home Assistant's AI tasks have them."""
    form = {
        "type": "object",
        "properties": {"age": {"type": "number", "minimum": 0.0, "maximum": 20.0}},
        "required": ["age"],
        "additionalProperties": False,
    }
    ask = [{"role": "user", "content": "How old is a cat?"}]
    fields: Any = {"keep_alive": -1.0, "think": False, "options": {"num_ctx": 1024.0}}
    got = await streamed(app, "/api/chat", model="m:latest", messages=ask, format=form, **fields)

    assert 0 <= json.loads("".join(row["message"]["content"] for row in got))["age"] <= 20
    assert "stop" == got[-1]["done_reason"]


async def test_any_json() -> None:
    """`format: "json"` is OpenAI's `json_object`."""
    asked, _ = await asked_of({"messages": SAY, "format": "json"})

    assert {"type": "json_object"} == asked["response_format"]


@in_one_loop
async def test_options(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """An option of the wrong type is refused by its name; a context beyond the model's is named, and logged once for the model."""
    options: Any = {"num_ctx": 999999, "num_predict": 3}
    wrong, body, _ = await post(app, "/api/chat", messages=SAY, options=options | {"seed": "x"})
    right, answer, ignored = await post(app, "/api/chat", messages=SAY, options=options)
    await post(app, "/api/generate", prompt="Hi", options=options)
    told = [one.getMessage() for one in caplog.records if "num_ctx" in one.getMessage()]

    assert 1 == len(told)
    assert "of the model m, and gets these. Set `context`" in told[0]
    assert (400, 200, "options.num_ctx") == (wrong, right, ignored)
    assert 'option "seed" must be of type integer' in body["error"]
    assert ("length", 3) == (answer["done_reason"], answer["eval_count"])


@in_one_loop
async def test_an_option_out_of_its_range(app: App) -> None:
    """A value that no model takes is refused by the option's own name."""
    status, body, _ = await post(app, "/api/chat", messages=SAY, options={"temperature": 9})

    assert 400 == status
    assert body["error"].startswith("`options.temperature`")


@in_one_loop
async def test_log_probabilities(app: App) -> None:
    """`logprobs` and `top_logprobs` come with the rows, and whole, with chats and with raw prompts."""
    fields: Any = {"logprobs": True, "top_logprobs": 2, "options": {"num_predict": 2} | GREEDY}
    got = await streamed(app, "/api/chat", messages=SAY, **fields)
    _, raw, _ = await post(app, "/api/generate", prompt="Once", raw=True, **fields)

    told = [token for row in got for token in row.get("logprobs") or ()]
    assert 2 == len(told) == len(raw["logprobs"])
    assert {"token", "logprob", "bytes", "top_logprobs"} == set(told[0])
    assert [2, 2] == [len(token["top_logprobs"]) for token in told]
    assert "Hello" == told[0]["top_logprobs"][0]["token"]


@in_one_loop
async def test_continued_texts(spy: Spy, app: App) -> None:
    """A prompt is answered by the model's template; with `raw` it is continued as it stands."""
    fields: Any = {"prompt": "Hello!", "options": GREEDY}
    got = await streamed(app, "/api/generate", **fields)
    _, told, _ = await post(app, "/api/generate", **fields, system="You are a dog.")
    with_system = spy.asked[-1]
    _, raw, _ = await post(app, "/api/generate", **fields | {"raw": True})

    assert "Hello! How can I help you?" == "".join(row["response"] for row in got)
    assert isinstance(with_system, ChatRequest)
    assert ["system", "user"] == [one.role for one in with_system.messages]
    assert isinstance(spy.asked[-1], CompletionRequest)
    assert told["prompt_eval_count"] > got[-1]["prompt_eval_count"] > raw["prompt_eval_count"]
    assert "context" not in raw
    assert ("context" in got[-1], "context" in got[0]) == (True, False)


@in_one_loop
async def test_the_context_of_a_text(spy: Spy, app: App) -> None:
    """The `context` of an answer, given back, is the conversation so far; a new system text replaces the older."""
    fields: Any = {"options": GREEDY | {"num_predict": 8}}
    _, first, _ = await post(app, "/api/generate", prompt="Hello!", system="Be 好.", **fields)
    more: Any = {"prompt": "And?", "context": first["context"]}
    _, second, _ = await post(app, "/api/generate", **more, **fields)
    request = spy.asked[-1]
    await post(app, "/api/generate", **more, system="Be bad.", **fields)
    replaced = spy.asked[-1]

    assert isinstance(request, ChatRequest)
    assert isinstance(replaced, ChatRequest)
    assert [("user", "Hello!"), ("assistant", first["response"]), ("user", "And?")] == [
        (one.role, one.content) for one in request.messages if one.role != "system"
    ]
    assert ["Be 好."] == [one.content for one in request.messages if one.role == "system"]
    assert ["Be bad."] == [one.content for one in replaced.messages if one.role == "system"]
    assert len(second["context"]) > len(first["context"])


@in_one_loop
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"template": "{{ .Prompt }}"}, "`template`"),
        ({"raw": True, "system": "a"}, "`system` cannot be combined with `raw`"),
        ({"raw": True, "context": [1]}, "`context` cannot be combined with `raw`"),
        ({"suffix": "b", "images": [PNG]}, "`images` cannot be combined with `suffix`"),
        ({"suffix": "b"}, "`suffix`"),
        ({"context": [1, 2, 3]}, "`context` is none that this server has given"),
        ({"context": [0x696E75, 4, 2**40]}, "`context` is none that this server has given"),
        ({"images": ["no image"]}, "`images[0]` is no image"),
        ({"keep_alive": "soon"}, "`keep_alive` is 'soon'"),
        ({"options": {"stop": [1]}}, 'option "stop" must be of type text or list of texts'),
        ({"options": {"num_predict": -7}}, 'option "num_predict" must be at least -2'),
        ({"options": []}, "`options`"),
        ({"model": ""}, "model is required"),
        ({"top_logprobs": 99}, "`top_logprobs`"),
    ],
)
async def test_texts_that_are_refused(app: App, fields: Any, named: str) -> None:
    """What cannot be done is refused by its name, as the client has written it."""
    status, body, _ = await post(app, "/api/generate", **{"prompt": "a"} | fields)

    assert 400 == status
    assert named in body["error"]


@in_one_loop
@pytest.mark.parametrize(
    ("turn", "named"),
    [
        ({"role": "robot", "content": "x"}, "`messages[0].role`"),
        ({"role": "user", "content": ["x"]}, "`messages[0].content`"),
        ({"role": "user", "content": "x", "images": ["?"]}, "`messages[0].images[0]` is no image"),
        ({"role": "user", "content": "x", "images": [PNG]}, "reads text only"),
        ({"content": "x"}, "`messages[0].role` is missing"),
    ],
)
async def test_turns_that_are_refused(app: App, turn: Any, named: str) -> None:
    """A message that is none is refused, with its place."""
    status, body, _ = await post(app, "/api/chat", messages=[turn])

    assert 400 == status
    assert named in body["error"]


async def test_images() -> None:
    """Images are `data:` URLs behind, of the kind that their bytes say, beside the text."""
    turn = {"role": "user", "content": "look", "images": [PNG, f"data:image/gif;base64,{PNG}"]}
    asked, _ = await asked_of({"messages": [turn]})

    text, first, second = asked["messages"][0]["content"]
    assert {"type": "text", "text": "look"} == text
    assert f"data:image/png;base64,{PNG}" == first["image_url"]["url"]
    assert second["image_url"]["url"].startswith("data:image/gif")


async def test_what_a_server_behind_is_asked() -> None:
    """Options arrive by OpenAI's names; what is about loading does not, and what nobody knows is named."""
    options = {
        "num_predict": 7, "temperature": 0.5, "top_k": 4.0, "stop": "x", "seed": 3, "num_gpu": 1, "mirostat": None, "y": 1,
    }  # fmt: skip
    asked, ignored = await asked_of({"messages": SAY, "options": options, "shift": True, "zz": 1})

    assert (7, 0.5, 4, ["x"], 3) == tuple(
        asked[name] for name in ("max_tokens", "temperature", "top_k", "stop", "seed")
    )
    assert set() == {"num_gpu", "mirostat", "y", "options", "zz", "shift", "n"} & set(asked)
    assert "options.y, shift, zz" == ignored


async def test_too_large_a_limit() -> None:
    """`num_predict` beyond what the prompt leaves at a server is lowered to that, and named by its own name."""
    async with scripted(small(4096, 1000)) as server, serving(upstream(server.url)) as app:
        status, body, ignored = await post(app, "/api/chat", messages=SAY, options={"num_predict": 9000})  # fmt: skip

    assert (200, "Hello", "options.num_predict") == (status, body["message"]["content"], ignored)
    assert [9000, 3096] == [one.json()["max_tokens"] for one in server.requests]


@pytest.mark.parametrize("unlimited", [-1, -2])
async def test_no_limit(unlimited: int) -> None:
    """`num_predict` of -1 and -2 is no limit."""
    asked, _ = await asked_of({"messages": SAY, "options": {"num_predict": unlimited}})

    assert not {"max_tokens", "max_completion_tokens"} & set(asked)


async def test_a_model_that_makes_several_answers() -> None:
    """A row has place for one answer, so one is asked for, whatever the model's defaults say."""
    asked, _ = await asked_of({"messages": SAY}, defaults={"n": 3})

    assert 1 == asked["n"]


async def test_a_model_without_a_template() -> None:
    """A model without a template continues a prompt as it stands, as nothing else can be made of it."""

    class Plain(Echo):
        capabilities = Echo.capabilities.__class__(parameters=Echo.capabilities.parameters, chat=False)  # fmt: skip

    async with serving(Spy(Plain())) as app:
        status, body, _ = await post(app, "/api/generate", prompt="abc")
        refused, told, _ = await post(app, "/api/chat", messages=SAY)

    assert (200, "abc") == (status, body["response"])
    assert 400 == refused
    assert "has no chat template" in told["error"]


async def test_old_turns_are_left_out() -> None:
    """A conversation beyond the context loses its oldest turns, which is named; the system's text and the last turn stay."""
    turns = [{"role": "system", "content": "Be good."}]
    for number in range(120):
        turns += [
            {"role": "user", "content": f"Question number {number} about dogs and cats."},
            {"role": "assistant", "content": f"Answer number {number} about cats and dogs."},
        ]
    turns += [{"role": "user", "content": "Hello!"}]
    fields: Any = {"messages": turns, "options": {"num_predict": 1}}
    async with engine("gguf", context=512) as running:
        spy = Spy(running)
        async with serving(spy) as app:
            status, body, ignored = await post(app, "/api/chat", **fields)
            request = spy.asked[-1]
            refused, told, _ = await post(app, "/api/chat", **fields, truncate=False)
            longest = await spy.count_tokens(request)

    assert (200, "truncated") == (status, ignored)
    assert isinstance(request, ChatRequest)
    first, second, *_, last = request.messages
    assert ("Be good.", "user", "Hello!") == (first.content, second.role, last.content)
    assert 512 - 60 < longest == body["prompt_eval_count"] < 512
    assert 400 == refused
    assert "maximum context length is 512" in told["error"]


async def test_a_last_turn_that_is_too_long() -> None:
    """A single message beyond the context is an error that says so: there is nothing to leave out."""
    async with engine("gguf") as running, serving(running) as app:
        turns = [{"role": "user", "content": "dogs and cats " * 2000}]
        status, body, _ = await post(app, "/api/chat", messages=turns)

    assert 400 == status
    assert "maximum context length is 2048" in body["error"]


async def test_a_silence() -> None:
    """What breaks a silence is a row without text, after which the answer goes on."""
    from unilect.dialects.ollama._answer import RowEncoder, chat_shape

    async with serving(Echo(Options(text="x"))) as app:
        run = app.service.run(ChatRequest(messages=[], model="m"))
        row = json.loads(RowEncoder("m", run, chat_shape).keep_alive())

    assert {"role": "assistant", "content": ""} == row["message"]
    assert (False, "m") == (row["done"], row["model"])
