"""
The official `openai` package against a running server, one check after the other.

    python python_client.py BASE_URL KEY [--knowledge]

It runs with any version of the package from 1.109 on and needs nothing else, so that an interpreter of its own can run it. For
each check it prints one line of JSON: name, ok, detail. `--knowledge` adds the checks of what the bundled model knows.
"""

import asyncio
import json
import math
import sys
import traceback
from collections.abc import Callable
from typing import Any, Literal

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

CHECKS: dict[str, Callable[["Client"], None]] = {}
KNOWLEDGE: set[str] = set()


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    """A tool whose parameters are all required."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


CITIES = ["Paris", "Berlin", "Oslo"]
WEATHER = tool("get_weather", "Get the weather.", city={"type": "string", "enum": CITIES})
TIME = tool("get_time", "Get the time.", zone={"type": "string", "enum": ["UTC", "CET"]})
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
LONG: list[Any] = [{"role": "user", "content": "Tell me a story about a cat."}]


class Verdict(BaseModel):
    """A schema that any model can fill: nothing in it is unbounded."""

    model_config = ConfigDict(extra="forbid")

    likes_it: bool
    colour: str = Field(pattern="^(red|green|blue)$")
    stars: int = Field(ge=1, le=5)


class Client:
    """
    What the checks work with.

    Attributes:
        base, key: The server.
        sync: A client of it, which never retries.
        context: The model's context, in tokens.
    """

    model = "demo"

    def __init__(self, base: str, key: str) -> None:
        self.base, self.key = base, key
        self.sync = OpenAI(base_url=base, api_key=key, max_retries=0, timeout=60)
        self.context: int = self.sync.models.retrieve(self.model).to_dict()["unilect"]["context"]

    def chat(self, messages: list[Any] = HELLO, **rest: Any) -> Any:
        """A chat completion of at most 16 tokens, greedy."""
        fields = {"max_tokens": 16, "temperature": 0} | rest
        return self.sync.chat.completions.create(model=self.model, messages=messages, **fields)

    def complete(self, prompt: Any = "Once upon a time", **rest: Any) -> Any:
        """A plain completion of at most 8 tokens, greedy."""
        fields = {"max_tokens": 8, "temperature": 0} | rest
        return self.sync.completions.create(model=self.model, prompt=prompt, **fields)

    def embed(self, texts: Any, **rest: Any) -> Any:
        """The embeddings of texts."""
        return self.sync.embeddings.create(model=self.model, input=texts, **rest)

    def helped(self, messages: list[Any], **rest: Any) -> tuple[set[str], Any]:
        """The kinds of events and the whole answer that the helper `stream()` gives; it was in beta in 1.x."""
        fields = {"max_tokens": 16, "temperature": 0} | rest
        completions: Any = self.sync.chat.completions
        if not hasattr(completions, "stream"):
            completions = self.sync.beta.chat.completions
        with completions.stream(model=self.model, messages=messages, **fields) as stream:
            kinds = {event.type for event in stream}
            return kinds, stream.get_final_completion()

    def parsed(self, messages: list[Any], **rest: Any) -> Any:
        """The first choice that the helper `parse()` gives; it was in beta in 1.x."""
        fields = {"max_tokens": 64, "temperature": 0} | rest
        completions: Any = self.sync.chat.completions
        if not hasattr(completions, "parse"):
            completions = self.sync.beta.chat.completions
        return completions.parse(model=self.model, messages=messages, **fields).choices[0]


def check(function: Callable[[Client], None]) -> Callable[[Client], None]:
    """Make a function a check."""
    CHECKS[function.__name__] = function
    return function


def knows(function: Callable[[Client], None]) -> Callable[[Client], None]:
    """Make a function a check of what the model knows."""
    KNOWLEDGE.add(function.__name__)
    return check(function)


def equal(expected: Any, actual: Any) -> None:
    """Fail unless two values are equal."""
    assert expected == actual, f"expected {expected!r}, got {actual!r}"


def among(allowed: Any, actual: Any) -> None:
    """Fail unless a value is one of those allowed."""
    assert actual in allowed, f"expected one of {allowed!r}, got {actual!r}"


def raises(
    error_class: type[openai.APIStatusError], call: Callable[[], Any], **expected: Any
) -> Any:
    """Fail unless a call raises this class of error with these attributes, and give the error."""
    error = None
    try:
        answer = call()
    except openai.APIStatusError as raised:
        error = raised
    assert error is not None, f"no error, but {answer!r}"
    equal(error_class, type(error))
    for name, value in expected.items():
        equal((name, value), (name, getattr(error, name)))
    assert isinstance(error.body, dict), error.body
    assert error.body.get("message"), error.body
    assert error.request_id, "no x-request-id"
    return error


def text_of(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice of a chat stream."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def sound_chunks(chunks: list[Any], choices: int = 1) -> None:
    """Fail unless chunks are one answer: one id, the role first, a finish reason last, for each choice."""
    equal(1, len({chunk.id for chunk in chunks}))
    equal({"chat.completion.chunk"}, {chunk.object for chunk in chunks})
    equal([], [chunk for chunk in chunks if not chunk.choices and chunk.usage is None])
    for index in range(choices):
        mine = [c for chunk in chunks for c in chunk.choices if c.index == index]
        equal(["assistant"] + [None] * (len(mine) - 1), [choice.delta.role for choice in mine])
        reasons = [choice.finish_reason for choice in mine]
        equal([None] * (len(mine) - 1), reasons[:-1])
        assert reasons[-1] is not None, "no finish reason"


def sound_call(call: Any, name: str = "get_weather") -> dict[str, Any]:
    """Fail unless this is a call of a function, and give its arguments."""
    equal(("function", name), (call.type, call.function.name))
    assert call.id, "no id"
    arguments: dict[str, Any] = json.loads(call.function.arguments)
    return arguments


# chat


@check
def chat_whole(client: Client) -> None:
    """A whole chat answer has what the specification requires."""
    answer = client.chat()
    equal(("chat.completion", "demo"), (answer.object, answer.model))
    assert answer.id.startswith("chatcmpl-"), answer.id
    assert answer.created > 1_700_000_000, answer.created
    equal([0], [choice.index for choice in answer.choices])
    choice = answer.choices[0]
    equal("assistant", choice.message.role)
    assert choice.message.content, choice
    equal((None, None), (choice.message.refusal, choice.logprobs))
    among(("stop", "length"), choice.finish_reason)
    usage = answer.usage
    assert usage.prompt_tokens > 0, usage
    assert usage.completion_tokens > 0, usage
    equal(usage.prompt_tokens + usage.completion_tokens, usage.total_tokens)


@check
def chat_stream(client: Client) -> None:
    """A streamed answer is the whole answer in pieces; each has a choice, and none a usage."""
    chunks = list(client.chat(stream=True))
    sound_chunks(chunks)
    equal(client.chat().choices[0].message.content, text_of(chunks))
    equal({None}, {chunk.usage for chunk in chunks})


@check
def chat_stream_usage(client: Client) -> None:
    """include_usage adds one last chunk, without choices, with the usage of the whole answer."""
    chunks = list(client.chat(stream=True, stream_options={"include_usage": True}))
    sound_chunks(chunks)
    equal([], chunks[-1].choices)
    equal({None}, {chunk.usage for chunk in chunks[:-1]})
    whole, usage = client.chat().usage, chunks[-1].usage
    equal(
        (whole.prompt_tokens, whole.completion_tokens, whole.total_tokens),
        (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens),
    )


@check
def chat_stream_left(client: Client) -> None:
    """A stream that is left in the middle harms no later request of the same client."""
    stream = client.chat(LONG, stream=True, max_tokens=200)
    next(iter(stream))
    stream.close()
    assert client.chat().choices, "no answer"


@check
def chat_stream_raw(client: Client) -> None:
    """A stream is announced as server-sent events in UTF-8, is data lines only, and ends with [DONE]."""
    request = client.sync.chat.completions.with_streaming_response
    fields: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "stream": True}
    with request.create(model="demo", messages=HELLO, **fields) as response:
        equal("text/event-stream; charset=utf-8", response.headers["content-type"])
        lines = [line for line in response.iter_lines() if line]
    equal("data: [DONE]", lines[-1])
    equal([], [line for line in lines[:-1] if not line.startswith("data: {")])


@check
def chat_stream_helper(client: Client) -> None:
    """The helper `stream()` puts the same answer together as the server does."""
    kinds, final = client.helped(HELLO, max_tokens=64, stream_options={"include_usage": True})
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    whole = client.chat(max_tokens=64)
    equal(whole.choices[0].message.content, final.choices[0].message.content)
    equal(whole.choices[0].finish_reason, final.choices[0].finish_reason)
    equal(whole.usage.total_tokens, final.usage.total_tokens)


@check
def chat_parse(client: Client) -> None:
    """`parse()` with a pydantic class gives an instance of it."""
    choice = client.parsed(HELLO, response_format=Verdict)
    equal("stop", choice.finish_reason)
    equal(Verdict, type(choice.message.parsed))


@check
def chat_parse_stream(client: Client) -> None:
    """`stream()` with a pydantic class gives the same instance of it as `parse()`."""
    _, final = client.helped(HELLO, response_format=Verdict, max_tokens=64)
    whole = client.parsed(HELLO, response_format=Verdict)
    equal(whole.message.parsed, final.choices[0].message.parsed)


@check
def chat_json_object(client: Client) -> None:
    """json_object gives one JSON object, unless the tokens end before it does."""
    answer = client.chat(response_format={"type": "json_object"}, max_tokens=64).choices[0]
    assert answer.message.content.lstrip().startswith("{"), answer
    if answer.finish_reason == "stop":
        equal(dict, type(json.loads(answer.message.content)))


@check
def chat_n(client: Client) -> None:
    """n=2 gives two choices, numbered, whole and streamed; the prompt is counted once."""
    fields: dict[str, Any] = {"temperature": 1, "seed": 1}
    answer = client.chat(n=2, **fields)
    equal([0, 1], [choice.index for choice in answer.choices])
    one = client.chat(**fields)
    equal(one.usage.prompt_tokens, answer.usage.prompt_tokens)
    assert answer.usage.completion_tokens > one.usage.completion_tokens, answer.usage
    equal(one.choices[0].message.content, answer.choices[0].message.content)
    sound_chunks(list(client.chat(n=2, stream=True, **fields)), choices=2)


@check
def chat_stop(client: Client) -> None:
    """The answer ends before a stop word, which is not a part of it, whole and streamed."""
    full = client.chat(LONG, max_tokens=32).choices[0].message.content
    word = full[len(full) // 2 :][:3]
    before = full.partition(word)[0]
    for stop in (word, [word, "never said"]):
        answer = client.chat(LONG, max_tokens=32, stop=stop).choices[0]
        equal((before, "stop"), (answer.message.content, answer.finish_reason))
    equal(before, text_of(list(client.chat(LONG, max_tokens=32, stop=word, stream=True))))


@check
def chat_length(client: Client) -> None:
    """max_tokens and max_completion_tokens bound the answer, and the finish reason says so."""
    for name in ("max_tokens", "max_completion_tokens"):
        fields: dict[str, Any] = {name: 1}
        answer = client.sync.chat.completions.create(model="demo", messages=HELLO, **fields)
        equal(("length", 1), (answer.choices[0].finish_reason, answer.usage.completion_tokens))


@check
def chat_seed(client: Client) -> None:
    """One seed gives one answer, again and again; other seeds give others."""

    def said(seed: int) -> Any:
        answer = client.chat(LONG, temperature=2, top_p=1, max_tokens=24, seed=seed)
        return answer.choices[0].message.content

    equal(said(42), said(42))
    assert len({said(seed) for seed in range(6)}) > 1, "six seeds, one answer"


@check
def chat_logprobs(client: Client) -> None:
    """logprobs tells every token of the answer, with the likeliest ones beside it."""
    choice = client.chat(logprobs=True, top_logprobs=3, max_tokens=6).choices[0]
    tokens = choice.logprobs.content
    equal(
        choice.message.content,
        b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace"),
    )
    for token in tokens:
        assert token.logprob <= 0, token
        assert math.isfinite(token.logprob), token
        equal(3, len(token.top_logprobs))
        equal(token.token, token.top_logprobs[0].token)


@check
def chat_logprobs_stream(client: Client) -> None:
    """The log probabilities of a stream are those of the whole answer."""
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "max_tokens": 6}
    whole = client.chat(**fields).choices[0].logprobs.content
    choices = [c for chunk in client.chat(stream=True, **fields) for c in chunk.choices]
    streamed = [t for choice in choices if choice.logprobs for t in choice.logprobs.content]
    equal([token.token for token in whole], [token.token for token in streamed])
    for one, other in zip(whole, streamed):  # noqa: B905
        assert abs(one.logprob - other.logprob) < 0.01, (one, other)


@check
def chat_roles(client: Client) -> None:
    """A developer's message is a system message, and content may come in parts."""
    said = [
        client.chat([{"role": role, "content": "Be short."}, *HELLO]).choices[0].message.content
        for role in ("system", "developer")
    ]
    equal(said[0], said[1])
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]
    equal(client.chat().choices[0].message.content, client.chat(parts).choices[0].message.content)


@check
def chat_ignored(client: Client) -> None:
    """A parameter that nobody knows is named as ignored, in a header and in the body."""
    raw = client.sync.chat.completions.with_raw_response.create(
        model="demo", messages=HELLO, max_tokens=1, extra_body={"no_such_parameter": 1}
    )
    assert raw.headers["x-request-id"], raw.headers
    equal("no_such_parameter", raw.headers["x-unilect-ignored"])
    equal({"ignored": ["no_such_parameter"]}, raw.parse().to_dict()["unilect"])


# tools


@check
def tools_required(client: Client) -> None:
    """tool_choice required gives a sound call of one of the tools."""
    choice = client.chat(ASK, tools=[WEATHER, TIME], tool_choice="required", max_tokens=64).choices[
        0
    ]
    equal("tool_calls", choice.finish_reason)
    call = choice.message.tool_calls[0]
    among(("get_weather", "get_time"), call.function.name)
    sound_call(call, call.function.name)


@check
def tools_named(client: Client) -> None:
    """The tool that tool_choice names is called, with arguments that satisfy its schema."""
    named = {"type": "function", "function": {"name": "get_time"}}
    choice = client.chat(ASK, tools=[WEATHER, TIME], tool_choice=named, max_tokens=64).choices[0]
    equal("tool_calls", choice.finish_reason)
    arguments = sound_call(choice.message.tool_calls[0], "get_time")
    equal(["zone"], list(arguments))
    among(("UTC", "CET"), arguments["zone"])


@check
def tools_none(client: Client) -> None:
    """tool_choice none gives no call."""
    message = client.chat(ASK, tools=[WEATHER], tool_choice="none").choices[0].message
    assert not message.tool_calls, message
    assert message.content, message


@check
def tools_stream(client: Client) -> None:
    """A streamed call has its id and name in its first delta only, and the whole call's arguments."""
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 64}
    chunks = list(client.chat(ASK, stream=True, **fields))
    sound_chunks(chunks)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    equal("tool_calls", choices[-1].finish_reason)
    calls = [call for choice in choices for call in choice.delta.tool_calls or ()]
    equal({0}, {call.index for call in calls})
    equal(("get_weather", "function"), (calls[0].function.name, calls[0].type))
    assert calls[0].id, calls[0]
    equal(set(), {(call.id, call.function.name) for call in calls[1:]} - {(None, None)})
    whole = client.chat(ASK, **fields).choices[0].message.tool_calls[0]
    equal(whole.function.arguments, "".join(call.function.arguments or "" for call in calls))


@check
def tools_round_trip(client: Client) -> None:
    """A call, its result, and an answer: whole, and the same with the streaming helper."""
    fields: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 64}
    message = client.chat(ASK, tool_choice="required", **fields).choices[0].message
    result = {
        "role": "tool",
        "tool_call_id": message.tool_calls[0].id,
        "content": '{"weather": "sunny", "temperature": 21}',
    }
    history = [*ASK, message.to_dict(), result]
    whole = client.chat(history, **fields).choices[0]
    among(("stop", "tool_calls"), whole.finish_reason)
    _, final = client.helped(history, **fields)
    equal(whole.message.content, final.choices[0].message.content)
    equal(whole.finish_reason, final.choices[0].finish_reason)


@check
def tools_stream_helper(client: Client) -> None:
    """The helper `stream()` puts a call together from its deltas."""
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 64}
    kinds, final = client.helped(ASK, **fields)
    assert "tool_calls.function.arguments.done" in kinds, kinds
    among(CITIES, sound_call(final.choices[0].message.tool_calls[0])["city"])


@check
def tools_no_arguments(client: Client) -> None:
    """A call without arguments, as some clients keep it, is read as history."""
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": ""}}
    history = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    assert client.chat(history, tools=[TIME]).choices, "no answer"


@check
def functions_legacy(client: Client) -> None:
    """The older `functions` are answered with `function_call`, whole and streamed."""
    fields: dict[str, Any] = {
        "functions": [WEATHER["function"]],
        "function_call": {"name": "get_weather"},
        "max_tokens": 64,
    }
    choice = client.chat(ASK, **fields).choices[0]
    equal("function_call", choice.finish_reason)
    assert not choice.message.tool_calls, choice
    call = choice.message.function_call
    equal(("get_weather", ["city"]), (call.name, list(json.loads(call.arguments))))
    chunks = list(client.chat(ASK, stream=True, **fields))
    deltas = [chunk.choices[0].delta.function_call for chunk in chunks if chunk.choices]
    deltas = [delta for delta in deltas if delta]
    equal(["get_weather"], [delta.name for delta in deltas if delta.name])
    equal(call.arguments, "".join(delta.arguments or "" for delta in deltas))
    equal("function_call", chunks[-1].choices[0].finish_reason)


@check
def functions_legacy_history(client: Client) -> None:
    """An older `function_call` and its result are read as the tool call and the result that they are."""
    call = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    old = [
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "get_weather", "content": '{"weather": "sunny"}'},
    ]
    tool_call = {"id": "call_1", "type": "function", "function": call}
    new = [
        {"role": "assistant", "content": None, "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"weather": "sunny"}'},
    ]
    before = client.chat([*ASK, *old], functions=[WEATHER["function"]])
    now = client.chat([*ASK, *new], tools=[WEATHER])
    equal(now.usage.prompt_tokens, before.usage.prompt_tokens)
    equal(now.choices[0].message.content, before.choices[0].message.content)


# completions


@check
def completions_whole(client: Client) -> None:
    """A plain completion has what the specification requires."""
    answer = client.complete()
    equal(("text_completion", "demo"), (answer.object, answer.model))
    choice = answer.choices[0]
    equal((0, None), (choice.index, choice.logprobs))
    assert choice.text, choice
    among(("stop", "length"), choice.finish_reason)
    assert answer.usage.prompt_tokens > 0, answer.usage
    assert answer.usage.completion_tokens > 0, answer.usage


@check
def completions_stream(client: Client) -> None:
    """A streamed completion is the whole one in pieces; its usage comes last, when asked for."""
    whole = client.complete()
    for options in (None, {"include_usage": True}):
        chunks = list(client.complete(stream=True, stream_options=options))
        choices = [choice for chunk in chunks for choice in chunk.choices]
        equal(whole.choices[0].text, "".join(choice.text for choice in choices))
        reasons = [choice.finish_reason for choice in choices]
        equal([None] * (len(choices) - 1) + [whole.choices[0].finish_reason], reasons)
        usages = [chunk.usage.total_tokens for chunk in chunks if chunk.usage]
        equal([whole.usage.total_tokens] if options else [], usages)
        equal(len(usages), sum(not chunk.choices for chunk in chunks))


@check
def completions_n(client: Client) -> None:
    """n choices for each of several prompts are numbered prompt by prompt."""
    answer = client.complete(["One day", "Once"], n=2, temperature=1, seed=3)
    equal([0, 1, 2, 3], [choice.index for choice in answer.choices])


@check
def completions_best_of(client: Client) -> None:
    """best_of makes more than it gives, and counts all; it cannot be streamed."""
    answer = client.complete(best_of=3, n=1, temperature=1, seed=3, max_tokens=4)
    equal([0], [choice.index for choice in answer.choices])
    assert answer.usage.completion_tokens > 4, answer.usage
    raises(
        openai.BadRequestError,
        lambda: client.complete(best_of=3, n=1, stream=True),
        param="best_of",
    )


@check
def completions_echo(client: Client) -> None:
    """echo gives the prompt back before its continuation; with max_tokens 0, the prompt alone."""
    plain = client.complete().choices[0].text
    equal("Once upon a time" + plain, client.complete(echo=True).choices[0].text)
    nothing = client.complete(echo=True, max_tokens=0)
    equal("Once upon a time", nothing.choices[0].text)
    equal((0, "length"), (nothing.usage.completion_tokens, nothing.choices[0].finish_reason))


@check
def completions_logprobs(client: Client) -> None:
    """logprobs of a completion: its tokens, their log probabilities, alternatives and offsets."""
    choice = client.complete(logprobs=2).choices[0]
    found = choice.logprobs
    equal(choice.text, "".join(found.tokens))
    counts = {len(found.token_logprobs), len(found.top_logprobs), len(found.text_offset)}
    equal({len(found.tokens)}, counts)
    offsets = [len("".join(found.tokens[:number])) for number in range(len(found.tokens))]
    equal(offsets, found.text_offset)
    equal([], [value for value in found.token_logprobs if value > 0])
    equal({2}, {len(top) for top in found.top_logprobs})


@check
def completions_prompt_lists(client: Client) -> None:
    """A list of texts gives one choice each, in order, as if each had been asked alone."""
    prompts = ["One day", "Once upon a time", "The cat"]
    answer = client.complete(prompts)
    equal([0, 1, 2], [choice.index for choice in answer.choices])
    alone = [client.complete(prompt).choices[0].text for prompt in prompts]
    equal(alone, [choice.text for choice in answer.choices])


@check
def completions_token_ids(client: Client) -> None:
    """Token ids are a prompt, and lists of them are several."""
    answer = client.complete([10, 11, 12])
    equal((1, 3), (len(answer.choices), answer.usage.prompt_tokens))
    equal(2, len(client.complete([[10, 11, 12], [13]]).choices))


# embeddings


@check
def embeddings_forms(client: Client) -> None:
    """The base64 that the client asks for unasked and floats are the same numbers, of unit length."""
    text = "A cat sat on a mat."
    default = client.embed(text).data[0].embedding
    floats = client.embed(text, encoding_format="float").data[0].embedding
    equal(len(floats), len(default))
    assert all(abs(a - b) < 1e-6 for a, b in zip(default, floats)), "not equal"  # noqa: B905
    assert abs(math.fsum(x * x for x in floats) - 1) < 1e-3, "not of unit length"
    equal(str, type(client.embed(text, encoding_format="base64").data[0].embedding))


@check
def embeddings_many(client: Client) -> None:
    """Several inputs, texts or lists of token ids, give their vectors in order, and their tokens counted."""
    answer = client.embed(["one", "two", "one"])
    equal("list", answer.object)
    equal([(0, "embedding"), (1, "embedding"), (2, "embedding")],
          [(item.index, item.object) for item in answer.data])  # fmt: skip
    one, two, again = (item.embedding for item in answer.data)
    assert all(abs(a - b) < 1e-4 for a, b in zip(one, again)), "one text, two vectors"  # noqa: B905
    assert any(abs(a - b) > 1e-4 for a, b in zip(one, two)), "two texts, one vector"  # noqa: B905
    equal(answer.usage.prompt_tokens, answer.usage.total_tokens)
    assert answer.usage.prompt_tokens >= 3, answer.usage
    equal(2, len(client.embed([[10, 11], [12]]).data))


@check
def embeddings_dimensions(client: Client) -> None:
    """dimensions shortens the vectors, which stay of unit length; more than there are is refused."""
    short = client.embed("A cat.", dimensions=4, encoding_format="float").data[0].embedding
    equal(4, len(short))
    assert abs(math.fsum(x * x for x in short) - 1) < 1e-3, "not of unit length"
    raises(
        openai.BadRequestError,
        lambda: client.embed("A cat.", dimensions=65536),
        param="dimensions",
    )


# models


@check
def models_list(client: Client) -> None:
    """The models are listed; iterating over the page gives them too."""
    page = client.sync.models.list()
    equal("list", page.object)
    equal(["demo"], [model.id for model in page])
    equal(("model", "unilect"), (page.data[0].object, page.data[0].owned_by))
    assert page.data[0].created > 1_700_000_000, page.data[0]


@check
def models_retrieve(client: Client) -> None:
    """A model tells what it can do; one that is not there is not found."""
    model = client.sync.models.retrieve("demo")
    equal(("demo", "model"), (model.id, model.object))
    equal("native", model.to_dict()["unilect"]["parameters"]["temperature"])
    for name in ("gone", "gone/with:wind"):
        raises(
            openai.NotFoundError,
            lambda name=name: client.sync.models.retrieve(name),  # type: ignore[misc]
            code="model_not_found",
        )


# responses


def respond(client: Client, input: Any = "Hello!", **rest: Any) -> Any:
    """A response of at most 32 tokens, greedy."""
    fields = {"max_output_tokens": 32, "temperature": 0} | rest
    return client.sync.responses.create(model=client.model, input=input, **fields)


def flat(tool: dict[str, Any]) -> Any:
    """A tool as the Responses API has it."""
    return {"type": "function", "strict": False, **tool["function"]}


@check
def responses_whole(client: Client) -> None:
    """A response has the chat's text, an id, and a usage that adds up."""
    answer = respond(client)
    equal(("response", "completed"), (answer.object, answer.status))
    chat = client.chat(max_tokens=32)
    equal(chat.choices[0].message.content, answer.output_text)
    usage = answer.usage
    equal(usage.input_tokens + usage.output_tokens, usage.total_tokens)


@check
def responses_stream(client: Client) -> None:
    """Events are typed, numbered without gaps, and add up to the whole text."""
    events = list(respond(client, stream=True))
    equal(list(range(len(events))), [event.sequence_number for event in events])
    equal(("response.created", "response.completed"), (events[0].type, events[-1].type))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    equal(text, events[-1].response.output_text)
    equal(respond(client).output_text, text)


@check
def responses_stream_helper(client: Client) -> None:
    """The helper `stream()` puts the same response together as the server does."""
    fields: dict[str, Any] = {"max_output_tokens": 32, "temperature": 0}
    with client.sync.responses.stream(model=client.model, input="Hello!", **fields) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.output_text.delta", "response.output_text.done"} <= kinds, kinds
    equal(respond(client).output_text, final.output_text)


@check
def responses_parse(client: Client) -> None:
    """`parse()` with a pydantic class gives an instance of it."""
    fields: dict[str, Any] = {"max_output_tokens": 64, "temperature": 0}
    answer = client.sync.responses.parse(model=client.model, input="Hello!", text_format=Verdict, **fields)  # fmt: skip
    equal(Verdict, type(answer.output_parsed))


@check
def responses_parse_stream(client: Client) -> None:
    """`stream()` with a pydantic class gives the same instance of it as `parse()`."""
    fields: dict[str, Any] = {"max_output_tokens": 64, "temperature": 0, "text_format": Verdict}
    whole = client.sync.responses.parse(model=client.model, input="Hello!", **fields)
    with client.sync.responses.stream(model=client.model, input="Hello!", **fields) as stream:
        equal(whole.output_parsed, stream.get_final_response().output_parsed)


@check
def responses_tools_stream_helper(client: Client) -> None:
    """The helper `stream()` puts a call together from its deltas, and `parse()` its arguments."""
    fields: dict[str, Any] = {"tools": [flat(WEATHER)], "tool_choice": "required", "temperature": 0}
    whole = client.sync.responses.parse(model=client.model, input=ASK, **fields).output[-1]
    with client.sync.responses.stream(model=client.model, input=ASK, **fields) as stream:
        kinds = {event.type for event in stream}
        call = stream.get_final_response().output[-1]
    assert "response.function_call_arguments.done" in kinds, kinds
    equal((whole.name, whole.arguments), (call.name, call.arguments))
    among(CITIES, json.loads(call.arguments)["city"])


@check
def responses_tools(client: Client) -> None:
    """A call comes whole and as a stream, and its output goes back by the response before it."""
    forced: dict[str, Any] = {"tools": [flat(WEATHER)], "tool_choice": "required"}
    answer = respond(client, ASK, **forced)
    call = answer.output[-1]
    equal(("function_call", "get_weather"), (call.type, call.name))
    among(CITIES, json.loads(call.arguments)["city"])
    events = list(respond(client, ASK, stream=True, **forced))
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    equal(call.arguments, done[0].arguments)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "It is sunny."}
    after = respond(client, [output], previous_response_id=answer.id, tools=[flat(WEATHER)])
    equal(answer.id, after.previous_response_id)


@check
def responses_stored(client: Client) -> None:
    """A response is told again as it was, its input is listed page by page, and it is gone once it is removed."""
    answer = respond(client, [{"role": "user", "content": text} for text in ("a", "b", "c")])
    stored = client.sync.responses
    equal(answer.output_text, stored.retrieve(answer.id).output_text)
    equal(3, len(list(stored.input_items.list(answer.id, limit=1))))
    stored.delete(answer.id)
    raises(openai.NotFoundError, lambda: stored.retrieve(answer.id))
    raises(openai.BadRequestError, lambda: respond(client, previous_response_id=answer.id), code="previous_response_not_found")  # fmt: skip


@check
def responses_background(client: Client) -> None:
    """A response in the background is queued, and then completed; its events can be read from any on."""
    answer = respond(client, background=True)
    equal("queued", answer.status)
    events = list(client.sync.responses.retrieve(answer.id, stream=True, starting_after=1))
    equal((2, "response.completed"), (events[0].sequence_number, events[-1].type))
    equal("completed", client.sync.responses.retrieve(answer.id).status)


@check
def responses_cancelled(client: Client) -> None:
    """A response in the background is cancelled, and stays so; one that its client waits for cannot be."""
    more: dict[str, Any] = {"max_output_tokens": 2000, "extra_body": {"ignore_eos": True}}
    answer = respond(client, background=True, **more)
    equal("cancelled", client.sync.responses.cancel(answer.id).status)
    equal("cancelled", client.sync.responses.retrieve(answer.id).status)
    raises(openai.BadRequestError, lambda: client.sync.responses.cancel(respond(client).id))


@check
def responses_counted(client: Client) -> None:
    """The tokens of an input are those that an answer's usage tells."""
    if not hasattr(client.sync.responses, "input_tokens"):
        return among("12", openai.__version__[0])
    counted = client.sync.responses.input_tokens.count(model=client.model, input="Hello!")
    equal(respond(client).usage.input_tokens, counted.input_tokens)


@check
def responses_compacted(client: Client) -> None:
    """A conversation is shortened, and goes on from what is left of it."""
    if not hasattr(client.sync.responses, "compact"):
        return among("12", openai.__version__[0])
    talk: list[Any] = [{"role": "user", "content": "My name is Ada."}, *respond(client).output]
    short = client.sync.responses.compact(model=client.model, input=talk)
    equal(["message", "compaction"], [item.type for item in short.output])
    left = [item.to_dict(warnings=False) for item in short.output]  # some are of the input's types
    assert respond(client, [*left, {"role": "user", "content": "Hello!"}]).output_text


@check
def responses_conversation(client: Client) -> None:
    """A conversation takes in what is asked and answered."""
    if not hasattr(client.sync, "conversations"):
        return  # of versions before 2
    talk = client.sync.conversations.create(metadata={"a": "b"})
    respond(client, conversation=talk.id)
    items = list(client.sync.conversations.items.list(talk.id, order="asc"))
    equal(["user", "assistant"], [item.role for item in items])
    client.sync.conversations.delete(talk.id)
    raises(openai.NotFoundError, lambda: client.sync.conversations.retrieve(talk.id))


@check
def responses_error(client: Client) -> None:
    """What is wrong with a response's request is told by its own names."""
    raises(openai.BadRequestError, lambda: respond(client, "word " * 5000), code="context_length_exceeded")  # fmt: skip
    raises(openai.BadRequestError, lambda: respond(client, []), param="input")


# async


@check
def async_client(client: Client) -> None:
    """The asynchronous client gets eight answers at once, a stream, embeddings and the list of models."""

    async def run() -> None:
        async with AsyncOpenAI(base_url=client.base, api_key=client.key, max_retries=0) as many:
            fields: dict[str, Any] = {"model": "demo", "messages": HELLO, "max_tokens": 8}
            create = many.chat.completions.create
            answers = await asyncio.gather(*(create(**fields, temperature=0) for _ in range(8)))
            equal(8, len({answer.id for answer in answers}))
            chunks = [chunk async for chunk in await create(**fields, temperature=0, stream=True)]
            sound_chunks(chunks)
            equal(answers[0].choices[0].message.content, text_of(chunks))
            embeddings = await many.embeddings.create(model="demo", input="x")
            equal(1, len(embeddings.data))
            equal(["demo"], [model.id async for model in many.models.list()])

    asyncio.run(run())


# errors


@check
def error_key(client: Client) -> None:
    """A wrong key, and none, are AuthenticationError with code invalid_api_key."""
    for wrong in ("sk-wrong", client.key[:-1], client.key + "x"):
        with OpenAI(base_url=client.base, api_key=wrong, max_retries=0) as other:
            raises(
                openai.AuthenticationError,
                other.models.list,
                code="invalid_api_key",
                type="invalid_request_error",
                status_code=401,
            )
    raises(
        openai.AuthenticationError,
        lambda: client.sync.models.list(extra_headers={"Authorization": ""}),
        code="invalid_api_key",
    )


@check
def error_model(client: Client) -> None:
    """A model that is not served is NotFoundError with code model_not_found, on every endpoint."""
    chat, complete = client.sync.chat.completions, client.sync.completions
    calls: list[Callable[[], Any]] = [
        lambda: chat.create(model="gpt-x", messages=HELLO),
        lambda: chat.create(model="gpt-x", messages=HELLO, stream=True),
        lambda: complete.create(model="gpt-x", prompt="a"),
        lambda: client.sync.embeddings.create(model="gpt-x", input="a"),
    ]
    for call in calls:
        raises(openai.NotFoundError, call, code="model_not_found", param="model", status_code=404)


@check
def error_route(client: Client) -> None:
    """An endpoint that does not exist is NotFoundError with code unknown_url."""
    raises(
        openai.NotFoundError,
        lambda: client.sync.moderations.create(input="a"),
        code="unknown_url",
    )


@check
def error_value(client: Client) -> None:
    """A bad value is BadRequestError and names its parameter, streamed or not."""
    bad: dict[str, Any] = {
        "temperature": 9,
        "top_p": -1,
        "n": 0,
        "max_tokens": -5,
        "presence_penalty": 2.5,
        "seed": "abc",
        "stop": [1],
        "logit_bias": {"a": 200},
        "top_logprobs": 3,
        "tool_choice": "required",
        "stream_options": 7,
    }
    for name, value in bad.items():
        for stream in (False, True):
            fields = {"stream": stream, name: value}
            error = raises(
                openai.BadRequestError,
                lambda fields=fields: client.chat(**fields),  # type: ignore[misc]
                code="invalid_value",
                type="invalid_request_error",
                status_code=400,
            )
            assert str(error.param).startswith(name), (name, error.param)


@check
def error_messages(client: Client) -> None:
    """Messages that are missing, empty or wrong are BadRequestError, which names them."""
    wrong: list[Any] = [
        [],
        5,
        [{"role": "king", "content": "a"}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "smell"}]}],
    ]
    for messages in wrong:
        error = raises(
            openai.BadRequestError,
            lambda messages=messages: client.chat(messages),  # type: ignore[misc]
        )
        assert str(error.param).startswith("messages"), (messages, error.param)
    raises(
        openai.BadRequestError,
        lambda: client.sync.post("/chat/completions", cast_to=object, body={"model": "demo"}),
        param="messages",
    )


@check
def error_context(client: Client) -> None:
    """A prompt that does not fit is BadRequestError with code context_length_exceeded, everywhere."""
    long = "cat dog " * client.context
    messages = [{"role": "user", "content": long}]
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("messages", lambda: client.chat(messages)),
        ("messages", lambda: client.chat(messages, stream=True)),
        ("prompt", lambda: client.complete(long)),
        ("prompt", lambda: client.complete(long, stream=True)),
        ("prompt", lambda: client.complete([10] * (client.context + 1))),
        ("input", lambda: client.embed(long)),
        ("input", lambda: client.embed(["short", long])),
    ]
    for param, call in calls:
        raises(
            openai.BadRequestError,
            call,
            code="context_length_exceeded",
            param=param,
            status_code=400,
        )


@check
def error_parameter(client: Client) -> None:
    """A parameter that the model does not honour is BadRequestError with code unsupported_parameter."""
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("suffix", lambda: client.complete(suffix=" the end")),
        ("prediction", lambda: client.chat(prediction={"type": "content", "content": "Hi"})),
        ("verbosity", lambda: client.chat(extra_body={"verbosity": "high"})),
    ]
    for param, call in calls:
        raises(openai.BadRequestError, call, code="unsupported_parameter", param=param)
    assert client.complete(suffix=None, best_of=1, n=1, echo=False).choices, "neutral values"


# what the bundled model knows


@knows
def knows_capitals(client: Client) -> None:
    """The model names capitals, in English and Chinese."""
    for question, answer in (
        ("What is the capital of France?", "Paris"),
        ("告诉我中国的首都在哪里", "北京"),
    ):
        said = client.chat([{"role": "user", "content": question}]).choices[0].message.content
        assert answer in said, said


@knows
def knows_tools(client: Client) -> None:
    """Unforced, the model calls get_weather for the city it was asked about, and answers from the result."""
    weather = tool("get_weather", "Get the weather in a city.", city={"type": "string"})
    for city in ("Paris", "Tokyo"):
        question = {"role": "user", "content": f"What is the weather in {city}?"}
        choice = client.chat([question], tools=[weather], max_tokens=64).choices[0]
        equal("tool_calls", choice.finish_reason)
        call = choice.message.tool_calls[0]
        equal({"city": city}, sound_call(call))
        result = {
            "role": "tool",
            "tool_call_id": call.id,
            "content": '{"weather": "sunny", "temperature": 21}',
        }
        history = [question, choice.message.to_dict(), result]
        answer = client.chat(history, tools=[weather], max_tokens=64).choices[0]
        equal("stop", answer.finish_reason)
        assert "sunny" in answer.message.content or "21" in answer.message.content, answer


@knows
def knows_run_tools(client: Client) -> None:
    """The runner calls a function for the model and ends with an answer from its result, whole and streamed."""
    try:
        from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner
    except ImportError:
        return among("12", openai.__version__[0])
    asked = []

    def weather(arguments: dict[str, Any]) -> str:
        asked.append(arguments)
        return '{"weather": "sunny", "temperature": 21}'

    runner = ResponsesToolRunner(functions=[RegisteredFunction(flat(WEATHER), weather)])
    params: Any = {"model": client.model, "input": ASK, "max_output_tokens": 64, "temperature": 0}
    for stream in (False, True):
        answer = runner.run(client.sync, params, stream=stream, max_steps=3)
        assert "sunny" in answer.output_text or "21" in answer.output_text, answer.output_text
    equal([{"city": "Paris"}] * 2, asked)


@knows
def knows_schemas(client: Client) -> None:
    """Whatever is asked, the answer satisfies a nested schema of lists, texts and numbers, and ends."""

    class Address(BaseModel):
        city: str = Field(max_length=20)
        number: int = Field(ge=0, le=999)

    class Person(BaseModel):
        name: str = Field(max_length=20)
        age: int = Field(ge=0, le=120)
        address: Address
        pets: list[Literal["cat", "dog"]] = Field(max_length=2)

    for question in ("Tell me about a person.", "Anna is 30 and lives in Oslo.", "Hello!"):
        messages = [{"role": "user", "content": question}]
        choice = client.parsed(messages, response_format=Person, max_tokens=256)
        equal("stop", choice.finish_reason)
        equal(Person, type(choice.message.parsed))


def main(base: str, key: str, knowledge: bool) -> None:
    """Run all checks."""
    client = Client(base, key)
    print(json.dumps({"name": "version", "ok": True, "detail": openai.__version__}), flush=True)
    for name, function in CHECKS.items():
        if name in KNOWLEDGE and not knowledge:
            continue
        ok, detail = True, ""
        try:
            function(client)
        except Exception:  # noqa: BLE001 - whatever it is, it is this check's result
            ok, detail = False, traceback.format_exc(limit=-3)
        print(json.dumps({"name": name, "ok": ok, "detail": detail}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--knowledge" in sys.argv[3:])
