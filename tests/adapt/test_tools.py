"""Tests of unilect.adapt.tools: tools and response formats on backends without them, through the service."""

import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from support.servers.appserver import chunks, serving
from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Run, Service
from unilect.api.backend import Backend, Batches, Capabilities
from unilect.api.parameters.support import declare_support, names
from unilect.constraints.checker import Checker
from unilect.core.errors import (
    ConstraintViolated,
    InvalidRequest,
    UnilectError,
    UnsupportedParameter,
)
from unilect.core.events import (
    Answer,
    Event,
    Finish,
    Fold,
    Progress,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from unilect.core.requests import ChatRequest, CompletionRequest, Prompt
from unilect.models.model import Model
from unilect.models.registry import Registry
from unilect.scheduling.pooled_backend import PooledBackend
from unilect.testing import chat

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
NOW: Any = {"type": "function", "function": {"name": "now"}}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
PARIS = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
CALL = f"<tool_call>\n{PARIS}\n</tool_call>"
ROME = CALL.replace("Paris", "Rome")
FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "a",
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
PLAIN = names("max_tokens temperature seed stop")


class Says(Backend):
    """
    A backend that says one text after the other, letter by letter.

    Attributes:
        asked: What it was asked.
    """

    def __init__(
        self, *texts: str | Sequence[Event], native: Sequence[str] = (), **can: Any
    ) -> None:
        parameters = declare_support((*PLAIN, *native), ("n",))
        self.capabilities = Capabilities(
            parameters=parameters, **{"fans_out": True, "tool_form": "hermes"} | can
        )
        self.asked: list[ChatRequest] = []
        self._texts = list(texts)

    async def start(self) -> None:
        """Nothing to do."""

    async def generate(self, request: ChatRequest | CompletionRequest) -> Batches:
        """Say the next text."""
        assert isinstance(request, ChatRequest)
        self.asked.append(request)
        text = self._texts.pop(0)
        yield [Progress(3, 3)]
        if not isinstance(text, str):
            yield [*text, Usage(3, len(text))]
            return
        for letter in text:
            yield [TextDelta(letter)]
        yield [Finish("stop"), Usage(3, len(text))]

    async def count_tokens(self, request: ChatRequest | CompletionRequest | Prompt) -> int:
        """The characters of all messages."""
        assert isinstance(request, ChatRequest)
        return sum(len(str(message.content)) for message in request.messages)

    async def tokenize(self, text: str, special: bool = False) -> list[int]:
        """The code points."""
        return list(map(ord, text))

    async def detokenize(self, tokens: list[int]) -> str:
        """The text of code points."""
        return "".join(map(chr, tokens))

    async def aclose(self) -> None:
        """Nothing to do."""

    @property
    def told(self) -> list[tuple[str, Any]]:
        """The last conversation that it was asked to go on with."""
        return [(message.role, message.content) for message in self.asked[-1].messages]


def request(**fields: Any) -> ChatRequest:
    """A chat about the weather, as a body would say it."""
    body = {"messages": [{"role": "user", "content": "Weather?"}], "tools": [WEATHER, NOW]} | fields
    return msgspec.convert(body, ChatRequest)


async def ran(backend: Any, asked: ChatRequest) -> tuple[Answer, Run, list[Event]]:
    """The answer of a service in front of a backend, its run and its events."""
    service = Service(Registry([Model("m", backend)]), Accounts(Metrics()))
    run, events = service.run(asked), list[Event]()
    try:
        async with aclosing(run.batches()) as batches:
            async for batch in batches:
                events += batch
    finally:
        await service.registry.checker.aclose()
    folding = Fold()
    folding.add(events)
    return folding.answer(), run, events


def calls(answer: Answer, index: int = 0) -> list[tuple[str, Any]]:
    """The calls of a choice, their arguments decoded."""
    return [(call.name, json.loads(call.arguments)) for call in answer.choices[index].tool_calls]


@pytest.mark.parametrize("stream", [False, True])
async def test_auto(stream: bool) -> None:
    """Tools stand in the system message, and what the model writes as a call is one; the text before it is told as it comes."""
    backend = Says(f"I look.\n{CALL}\n{ROME}")
    answer, run, events = await ran(backend, request(stream=stream))

    choice = answer.choices[0]
    assert ("I look.", "tool_calls") == (choice.text, choice.finish_reason)
    assert [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})] == calls(answer)
    assert 2 == len({call.id for call in choice.tool_calls} - {""})
    assert ((), 0) == (run.ignored, run.attempts)
    (system, told), (user, _) = backend.told
    assert ("system", "user") == (system, user)
    assert told.startswith(
        '# Tools\n\nYou may call these functions:\n<tools>\n{"type": "function", "function": {"name": "get_weather"'
    )
    assert backend.asked[0].tools is None
    pieces = [event.text for event in events if isinstance(event, TextDelta)]
    assert list("I look.") == pieces
    assert sum(event.tokens for event in events) <= answer.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_no_call(stream: bool) -> None:
    """An answer without a call is told letter by letter, and so is what only looks like one."""
    other = CALL.replace("get_weather", "get rain")
    answer, _, _ = await ran(Says(f"Fine < {other}"), request(stream=stream))

    assert (f"Fine < {other}", []) == (answer.choices[0].text, answer.choices[0].tool_calls)
    assert "stop" == answer.choices[0].finish_reason


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_tool(stream: bool) -> None:
    """A call of a tool that there is not is told as a call, for the client to answer; where a call must come it is asked for again."""
    other = CALL.replace("get_weather", "get_rain")
    answer, _, _ = await ran(Says(other), request(stream=stream))
    again, run, _ = await ran(Says(other, CALL), request(stream=stream, tool_choice="required"))

    assert [("get_rain", {"city": "Paris"})] == calls(answer)
    assert "tool_calls" == answer.choices[0].finish_reason
    assert ([("get_weather", {"city": "Paris"})], 2) == (calls(again), run.attempts)


async def test_no_choice() -> None:
    """With `tool_choice: none` the model is told of no tools, and what it writes is text."""
    backend = Says(CALL)
    answer, _, _ = await ran(backend, request(tool_choice="none"))

    assert [("user", "Weather?")] == backend.told
    assert CALL == answer.choices[0].text


@pytest.mark.parametrize(
    "form", ["plain", "llama3", "llama4", "mistral", "glm", "kimi", "kimi3", "harmony"]
)
async def test_history(form: str) -> None:
    """Earlier calls and results are text in the form of the family, results as the user's, and the user's next words behind them."""
    backend = Says("Sunny.", tool_form=form)
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
                {"id": "b", "type": "function", "function": {"name": "now", "arguments": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "noon"},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "21 degrees"}]},
        {"role": "user", "content": "And?"},
    ]  # fmt: skip
    await ran(backend, request(messages=history))

    roles = [role for role, _ in backend.told]
    assert ["system", "user", "assistant", "user"] == roles
    assert "Be brief." in backend.told[0][1]
    called, results = backend.told[2][1], backend.told[3][1]
    assert called.startswith("I look.\n")
    assert called.index("get_weather") < called.index("now")
    assert results.index("noon") < results.index("21 degrees") < results.index("And?")
    assert not any(
        message.tool_calls or message.tool_call_id for message in backend.asked[0].messages
    )


async def test_history_without_tools() -> None:
    """A conversation with calls that offers no tools any more is written in the same way, and the answer is text."""
    backend = Says(CALL)
    history = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}},
        {"role": "function", "name": "now", "content": "noon"},
    ]
    answer, _, _ = await ran(backend, request(messages=history, tools=None))

    assert ["user", "assistant", "user"] == [role for role, _ in backend.told]
    assert '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>' == backend.told[1][1]
    assert CALL == answer.choices[0].text


async def test_images_of_results() -> None:
    """An image in a tool's result stands in the user's turn."""
    backend = Says("A cat.", vision=True)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}}
    history = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "here"}, image]},
    ]  # fmt: skip
    await ran(backend, request(messages=history))

    words, seen = backend.told[-1][1]
    assert "<tool_response>\nhere\n</tool_response>" == words.text
    assert image["image_url"] == {"url": seen.image_url.url}


async def test_tools_in_a_turn_of_their_own() -> None:
    """Kimi's tools stand behind the system's text, in a turn of their own, and rules before it."""
    backend = Says("Fine.", tool_form="kimi")
    await ran(backend, request(parallel_tool_calls=False, tools=[NOW]))

    told = backend.told[0][1]
    turn = "<|im_end|><|im_system|>tool_declare<|im_middle|>"
    assert (
        f'Call one function at most.{turn}[{{"type": "function", "function": {{"name": "now"}}}}]'
        == told
    )


async def test_where_there_is_no_system() -> None:
    """A family without a turn for a system is told of its tools in the user's first."""
    backend = Says("Fine.", tool_form="gemma")
    await ran(backend, request())

    ((role, told),) = backend.told
    assert "user" == role
    assert told.startswith("You may call these functions:")
    assert told.endswith("\n\nWeather?")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_asked_again(choice: Any, stream: bool) -> None:
    """A call that must come is asked for until a whole answer has one whose arguments hold; all attempts are counted and told."""
    wrong = CALL.replace('"Paris"', "7")
    backend = Says("No.", wrong, CALL)
    answer, run, events = await ran(
        backend, request(tool_choice=choice, stream=stream, seed=5, temperature=0)
    )

    assert [("get_weather", {"city": "Paris"})] == calls(answer)
    assert ("tool_calls", None) == (answer.choices[0].finish_reason, answer.choices[0].text)
    assert 3 == run.attempts
    assert (9, len(f"No.{wrong}{CALL}")) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)  # fmt: skip
    assert 3 == len({one.seed for one in backend.asked})
    assert [0, 0.7, 0.7] == [one.temperature for one in backend.asked]
    assert "You must call a function now." in backend.told[0][1]
    assert ("now" in backend.told[0][1].split("You must")[0]) is (choice == "required")
    assert not any(isinstance(event, TextDelta) for event in events)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["No."] * 3, "no tool is called"),
        ([CALL.replace("Paris", "P").replace('"P"', "[]")] * 3, "the arguments for `get_weather`"),
        ([CALL.replace("get_weather", "now")] * 3, "another tool than `get_weather` is called"),
    ],
)
async def test_never_a_call(texts: list[str], why: str) -> None:
    """Where three answers are no call that holds the request fails with what was wrong, and nothing of them is told."""
    with pytest.raises(ConstraintViolated, match=why) as raised:
        await ran(Says(*texts), request(tool_choice=NAMED, stream=True))

    assert (422, "constraint_violated") == (raised.value.status, raised.value.code)


async def test_grammar() -> None:
    """Where the backend takes a grammar, one call follows it from its first letter on, and is told as it comes."""
    backend = Says(PARIS, native=["grammar"])
    answer, run, events = await ran(backend, request(tool_choice="required", stream=True))

    assert [("get_weather", {"city": "Paris"})] == calls(answer)
    assert 0 == run.attempts
    assert len([event for event in events if isinstance(event, ToolCallDelta)]) > 3
    grammar = backend.asked[0].grammar or ""
    assert grammar.startswith("root ::= ")
    checker = Checker()
    try:
        assert await checker.matches(grammar, PARIS) is None
        assert await checker.matches(grammar, '{"name": "now", "arguments": {}}') is None
        assert await checker.matches(grammar, '{"name": "now", "arguments": {"a": 1}}')
    finally:
        await checker.aclose()


async def test_response_format_of_the_backend() -> None:
    """Where the backend takes no grammar, and has formats of answers, a call that must come is one of them."""
    backend = Says(PARIS, native=["response_format"])
    answer, run, _ = await ran(backend, request(tool_choice="required"))

    assert ([("get_weather", {"city": "Paris"})], 1) == (calls(answer), run.attempts)
    schema = backend.asked[0].answer_schema or {}
    assert [["get_weather"], ["now"]] == [one["properties"]["name"]["enum"] for one in schema["anyOf"]]  # fmt: skip
    assert WEATHER["function"]["parameters"].items() <= schema["anyOf"][0]["properties"]["arguments"].items()  # fmt: skip


@pytest.mark.parametrize(
    ("native", "given", "asked"),
    [([], None, None), (["thinking_budget_tokens"], None, 0), (["thinking_budget_tokens"], 9, 9)],
)
async def test_no_thoughts_before_a_bound_call(
    native: list[str], given: int | None, asked: int | None
) -> None:
    """A call that a grammar bounds begins at once where the backend can do so, unless the client wants thoughts."""
    made = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
    backend = Says(made, native=["grammar", *native])
    fields = {} if given is None else {"thinking_budget_tokens": given}
    answer, _, _ = await ran(backend, request(tool_choice="required", **fields))

    assert [("get_weather", {"city": "Paris"})] == calls(answer)
    assert asked == backend.asked[0].thinking_budget_tokens


async def test_native_tools_without_a_choice() -> None:
    """A backend that has tools, and no way to demand one, is asked until it calls the right one."""
    right = [ToolCallDelta(0, '{"city": "Paris"}', "c", "get_weather"), Finish("tool_calls")]
    backend = Says("No.", right, native=["tools"])
    answer, run, _ = await ran(backend, request(tool_choice=NAMED))

    assert ([("get_weather", {"city": "Paris"})], 2) == (calls(answer), run.attempts)
    for asked in backend.asked:
        assert ["get_weather"] == [tool.function.name for tool in asked.tools or ()]
        assert asked.tool_choice is None
        assert [("user", "Weather?")] == backend.told


@pytest.mark.parametrize(
    ("finish", "called"),
    [
        (Finish("length"), '{"city": "Paris'),
        (Finish("stop", stop="END"), ""),
        (Finish("stop", stop="<|im_end|>"), '{"city": "Paris"}'),
        (Finish("stop"), '{"city": "Paris"}'),
    ],
)
async def test_a_call_that_is_cut(finish: Finish, called: str) -> None:
    """A limit leaves a call with what there is of its arguments, the client's stop word none; a model that forgets the end of one has made it."""
    text = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis"
    backend = Says([TextDelta(text), finish], tool_form="qwen-coder")
    answer, _, _ = await ran(backend, request(stop=["END"]))

    told = answer.choices[0].tool_calls
    assert ([("get_weather", called)] if called else []) == [
        (one.name, one.arguments) for one in told
    ]
    assert (None if called else text) == answer.choices[0].text
    assert ("tool_calls" if called[-1:] == "}" else finish.reason) == answer.choices[
        0
    ].finish_reason


@pytest.mark.parametrize("native", [[], ["tools"]])
async def test_one_call_at_most(native: list[str]) -> None:
    """With `parallel_tool_calls: false` no call is told but the first, whoever has read them."""
    two: list[Event] = [
        ToolCallDelta(0, '{"city": "Paris"}', "c", "get_weather"),
        ToolCallDelta(1, '{"city": "Rome"}', "d", "get_weather"),
        Finish("tool_calls"),
    ]
    backend = Says(two if native else CALL + ROME, native=native)
    answer, _, _ = await ran(backend, request(parallel_tool_calls=False))

    assert [("get_weather", {"city": "Paris"})] == calls(answer)
    assert "tool_calls" == answer.choices[0].finish_reason
    assert backend.asked[0].parallel_tool_calls is None


async def test_several_choices() -> None:
    """Each of several choices has its own calls, and is asked for again by itself."""
    backend = Says(*[CALL] * 3)
    answer, run, _ = await ran(backend, request(n=3, tool_choice="required"))

    assert [[("get_weather", {"city": "Paris"})]] * 3 == [calls(answer, n) for n in range(3)]
    assert (3, 1) == (len(backend.asked), run.attempts)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", [FORMAT, {"type": "json_object"}])
async def test_formats(kind: Any, stream: bool) -> None:
    """A format that the backend lacks stands in the prompt, and the first answer that has it is told, without a block of code around it."""
    backend = Says("Sure: {", '```json\n{"a": 1}\n```')
    answer, run, _ = await ran(backend, request(tools=None, response_format=kind, stream=stream))

    assert ('{"a": 1}', "stop", 2) == (answer.choices[0].text, answer.choices[0].finish_reason, run.attempts)  # fmt: skip
    assert backend.told[0][1].startswith("Answer with JSON that satisfies this JSON Schema")
    assert backend.asked[0].response_format is None


async def test_formats_never_had() -> None:
    """Where three answers do not have the format the request fails by the name of the parameter."""
    with pytest.raises(ConstraintViolated, match=r"None of 3 answers.*`response_format`"):
        await ran(Says("No.", "{}", '{"a": "x"}'), request(tools=None, response_format=FORMAT))


async def test_formats_beside_tools() -> None:
    """With a format and tools a call is as good as an answer that has the format."""
    backend = Says(CALL, '{"a": 1}')
    called, _, _ = await ran(backend, request(response_format=FORMAT))
    said, _, _ = await ran(backend, request(response_format=FORMAT))

    assert [("get_weather", {"city": "Paris"})] == calls(called)
    assert '{"a": 1}' == said.choices[0].text
    assert "get_weather" in backend.told[0][1]
    assert "JSON Schema" in backend.told[0][1]


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"logprobs": True}, "logprobs", UnsupportedParameter),
        ({"grammar": 'root ::= "a"'}, "grammar", UnsupportedParameter),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "nothing"}}}]}, "tools[0].function.parameters", InvalidRequest),
        ({"tools": None, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string", "format": "ipv9"}}}}, "response_format", UnsupportedParameter),
    ],
)  # fmt: skip
async def test_what_is_refused(
    fields: dict[str, Any], param: str, kind: type[UnilectError]
) -> None:
    """What cannot be had together with tools in the prompt is refused by its name, before the model is asked."""
    backend = Says(CALL, native=["logprobs", *(["grammar"] if "grammar" in fields else [])])
    with pytest.raises(kind) as raised:
        await ran(backend, request(**fields))

    assert (param, []) == (raised.value.param, backend.asked)


async def test_counted() -> None:
    """The tokens of a prompt are counted with the tools that stand in it."""
    service = Service(Registry([Model("m", Says())]), Accounts(Metrics()))
    with_tools = await service.count_tokens(request())

    assert with_tools > 200 > 10 > await service.count_tokens(request(tools=None))


async def test_who_has_tools_comes_first() -> None:
    """Of backends that differ, one that has tools itself gets a request with tools; without it, the other does."""
    without = Says("Hi.", CALL)
    right: list[Event] = [ToolCallDelta(0, "{}", "c", "now"), Finish("tool_calls")]
    having = Says(*[right] * 4, native=["tools"])
    for _ in range(4):
        answer, _, _ = await ran([PooledBackend(without), PooledBackend(having)], request())
        assert [("now", {})] == calls(answer)
    assert (0, 4) == (len(without.asked), len(having.asked))


@pytest.mark.parametrize("stream", [False, True])
async def test_over_http(stream: bool) -> None:
    """A client reads calls and `tool_calls`, how many answers were made, and in the model's description that tools are emulated."""
    backend = Says("No.", CALL)
    async with serving(backend) as app:
        async with app.chat(tools=[WEATHER], tool_choice="required", stream=stream) as response:
            assert (200, "2") == (response.status, response.headers["X-Unilect-Attempts"])
            if stream:
                told = [one["choices"][0] for one in (await chunks(response))[:-1]]
                message = {"tool_calls": [call for one in told for call in one["delta"].get("tool_calls", ())]}  # fmt: skip
                reason = told[-1]["finish_reason"]
            else:
                choice = (await response.json())["choices"][0]
                message, reason = choice["message"], choice["finish_reason"]
        card = json.loads((await app.get("/v1/models/m"))[1])["unilect"]["parameters"]
    assert ("get_weather", "tool_calls") == (message["tool_calls"][0]["function"]["name"], reason)
    for name in ("tools", "tool_choice", "parallel_tool_calls", "response_format"):
        assert "emulated" == card[name]


async def test_never_over_http() -> None:
    """A stream whose answers never hold is an error and no half an answer."""
    async with serving(Says(*["No."] * 3)) as app:
        async with app.chat(tools=[WEATHER], tool_choice="required") as response:
            assert (422, "constraint_violated") == (response.status, (await response.json())["error"]["code"])  # fmt: skip


async def test_the_largest_request() -> None:
    """As many tools and results as a request may have are written, in turns that no template refuses, and named where there are more."""
    backend = Says("Fine.", tool_form="qwen-coder")
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": {"type": "object", "properties": {f"p{m}": {"type": "integer"} for m in range(40)}}}} for n in range(128)]  # fmt: skip
    call = {"id": "c", "type": "function", "function": {"name": "f1", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call] * 128},
        *[{"role": "tool", "tool_call_id": "c", "content": "y" * 1000}] * 2046,
    ]
    await ran(backend, request(tools=tools, messages=history))

    assert ["system", "user", "assistant", "user"] == [role for role, _ in backend.told]
    assert "<name>f127</name>" in backend.told[0][1]
    assert 2046 == backend.told[3][1].count("<tool_response>")
    async with serving(Says()) as app:
        async with app.chat(tools=tools[:1] * 129) as response:
            assert (400, "tools") == (response.status, (await response.json())["error"]["param"])


def test_what_needs_nothing() -> None:
    """A request without tools and formats is asked as it is."""
    from unilect.adapt.tools import plan

    assert plan(chat("Hi"), Says().capabilities) is None
    assert plan(request(), Capabilities(passes_unknown=True)) is None
