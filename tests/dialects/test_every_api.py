"""
The bundled model calls a tool, answers from its result and talks on, through each API on each engine.

Tools are given as the official packages write them: openai's pydantic_function_tool, openai-agents' function_tool, anthropic's
beta_tool, ollama's functions.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from support.backends.engine import ENGINES_IN_CI
from support.clients.asking import ask
from support.servers.serving import KEY, Server


@dataclass(frozen=True)
class Talk:
    """
    A conversation, and what is said in it.

    Attributes:
        system: The system prompt, or nothing.
        name, about, types: The tool's name, description, and the JSON type of each of its parameters.
        question, arguments: What the user asks, and the arguments that the tool is called with then.
        result, answer: What the tool gives, and what is answered from it.
        after, last: What the user says then, which needs no tool, and the answer.
    """

    system: str
    name: str
    about: str
    types: dict[str, str]
    question: str
    arguments: dict[str, Any]
    result: str
    answer: str
    after: str
    last: str


TALKS = [
    pytest.param(
        Talk(
            "", "get_weather", "Get the weather.", {"city": "string"},
            "What is the weather in Paris?", {"city": "Paris"},
            '{"temperature": 21, "condition": "sunny"}', "It is 21 degrees and sunny in Paris.",
            "What is 2 + 2?", "2 + 2 = 4.",
        ),
        id="weather",
    ),
    pytest.param(
        Talk(
            "You are a helpful assistant.", "add", "Add two numbers.", {"a": "integer", "b": "integer"},
            "What is 17 + 25?", {"a": 17, "b": 25}, "42", "17 + 25 = 42.",
            "What is the capital of France?", "The capital of France is Paris.",
        ),
        id="sum",
    ),
]  # fmt: skip


class Chat:
    """OpenAI's chat completions."""

    path = "/v1/chat/completions"

    def __init__(self, talk: Talk) -> None:
        self.fields = {"tools": [self.tool(talk)], "tool_choice": "auto", "temperature": 0}
        self.turns: list[Any] = []
        if talk.system:
            self.turns.append({"role": "system", "content": talk.system})

    def tool(self, talk: Talk) -> Any:
        """The tool, as pydantic_function_tool writes it."""
        each = {n: {"title": n.title(), "type": type_} for n, type_ in talk.types.items()}
        schema = {"description": talk.about, **_strict(each, talk.name)}
        function = {"name": talk.name, "strict": True, "parameters": schema, "description": talk.about}  # fmt: skip
        return {"type": "function", "function": function}

    def body(self) -> dict[str, Any]:
        """What is asked next."""
        return self.fields | {"messages": self.turns}

    def says(self, text: str) -> None:
        """The user says something."""
        self.turns.append({"role": "user", "content": text})

    def gives(self, call: Any, result: str) -> None:
        """The tool gives a result."""
        self.turns.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    def hears(self, told: Any) -> tuple[str, list[Any]]:
        """The text and the calls of an answer, which becomes a turn."""
        if isinstance(told, list):
            deltas = [frame["choices"][0]["delta"] for frame in told if frame["choices"]]
            calls = [piece for delta in deltas for piece in delta.get("tool_calls") or ()]
            message: Any = {"role": "assistant", "content": "".join(d.get("content") or "" for d in deltas) or None}  # fmt: skip
            if calls:
                pieces = [piece["function"].get("arguments", "") for piece in calls]
                function = calls[0]["function"] | {"arguments": "".join(pieces)}
                message["tool_calls"] = [calls[0] | {"function": function}]
        else:
            message = told["choices"][0]["message"]
        self.turns.append(message)
        return message["content"] or "", message.get("tool_calls") or []

    def named(self, call: Any) -> tuple[str, Any]:
        """A call's name and arguments."""
        return call["function"]["name"], json.loads(call["function"]["arguments"])


class Responses(Chat):
    """OpenAI's Responses: every item is sent again, as Codex does."""

    path = "/v1/responses"

    def tool(self, talk: Talk) -> Any:
        """The tool, as function_tool writes it."""
        each = {n: {"title": n.title(), "type": type_} for n, type_ in talk.types.items()}
        schema = _strict(each, f"{talk.name}_args")
        return {"name": talk.name, "parameters": schema, "strict": True, "type": "function", "description": talk.about}  # fmt: skip

    def body(self) -> dict[str, Any]:
        """What is asked next; the system prompt is in `instructions`."""
        first = self.turns[0].get("role")
        head = {"instructions": self.turns[0]["content"]} if first == "system" else {}
        return self.fields | head | {"input": self.turns[len(head) :], "store": False}

    def gives(self, call: Any, result: str) -> None:
        """The tool gives a result."""
        self.turns.append({"type": "function_call_output", "call_id": call["call_id"], "output": result})  # fmt: skip

    def hears(self, told: Any) -> tuple[str, list[Any]]:
        """The text and the calls of an answer, whose items become turns."""
        response = told[-1]["response"] if isinstance(told, list) else told
        items = response["output"]
        self.turns += items
        parts = [part for item in items if item["type"] == "message" for part in item["content"]]
        calls = [item for item in items if item["type"] == "function_call"]
        return "".join(part["text"] for part in parts), calls

    def named(self, call: Any) -> tuple[str, Any]:
        """A call's name and arguments."""
        return call["name"], json.loads(call["arguments"])


class Messages(Chat):
    """Anthropic's Messages."""

    path = "/v1/messages"

    def tool(self, talk: Talk) -> Any:
        """The tool, as beta_tool writes it."""
        each = {n: {"description": f"The {n}.", "title": n.title(), "type": type_} for n, type_ in talk.types.items()}  # fmt: skip
        schema = {"additionalProperties": False, "properties": each, "required": list(each), "type": "object"}  # fmt: skip
        return {"name": talk.name, "description": talk.about, "input_schema": schema}

    def body(self) -> dict[str, Any]:
        """What is asked next; the system prompt is a field."""
        first = self.turns[0]["role"]
        head = {"system": [{"type": "text", "text": self.turns[0]["content"]}]} if first == "system" else {}  # fmt: skip
        more = {"tool_choice": {"type": "auto"}, "max_tokens": 32000}
        return self.fields | head | more | {"messages": self.turns[len(head) :]}

    def says(self, text: str) -> None:
        """The user says something, as a part."""
        self.turns.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def gives(self, call: Any, result: str) -> None:
        """The tool gives a result, whose content is parts."""
        parts = [{"type": "text", "text": result}]
        block = {"type": "tool_result", "tool_use_id": call["id"], "content": parts}
        self.turns.append({"role": "user", "content": [block]})

    def hears(self, told: Any) -> tuple[str, list[Any]]:
        """The text and the calls of an answer, which becomes a turn."""
        blocks = self.joined(told) if isinstance(told, list) else told["content"]
        self.turns.append({"role": "assistant", "content": blocks})
        calls = [block for block in blocks if block["type"] == "tool_use"]
        return "".join(block["text"] for block in blocks if block["type"] == "text"), calls

    def joined(self, told: list[Any]) -> list[Any]:
        """The blocks of a stream."""
        blocks = [
            event["content_block"] for event in told if event["type"] == "content_block_start"
        ]
        for number, block in enumerate(blocks):
            deltas = [e["delta"] for e in told if e["type"] == "content_block_delta" and e["index"] == number]  # fmt: skip
            if block["type"] == "text":
                block["text"] = "".join(delta["text"] for delta in deltas)
            else:
                block["input"] = json.loads("".join(delta["partial_json"] for delta in deltas))
        return blocks

    def named(self, call: Any) -> tuple[str, Any]:
        """A call's name and arguments."""
        return call["name"], call["input"]


class Ollama(Chat):
    """Ollama's chat."""

    path = "/api/chat"

    def tool(self, talk: Talk) -> Any:
        """The tool, as the package makes it of a function."""
        each = {n: {"type": type_, "description": f"The {n}."} for n, type_ in talk.types.items()}
        schema = {"type": "object", "required": list(each), "properties": each}
        function = {"name": talk.name, "description": talk.about, "parameters": schema}
        return {"type": "function", "function": function}

    def body(self) -> dict[str, Any]:
        """What is asked next; sampling is in `options`."""
        return {"tools": self.fields["tools"], "messages": self.turns, "options": {"temperature": 0}}  # fmt: skip

    def gives(self, call: Any, result: str) -> None:
        """The tool gives a result: calls have no ids."""
        self.turns.append({"role": "tool", "tool_name": call["function"]["name"], "content": result})  # fmt: skip

    def hears(self, told: Any) -> tuple[str, list[Any]]:
        """The text and the calls of an answer, which becomes a turn."""
        messages = [row["message"] for row in told] if isinstance(told, list) else [told["message"]]
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        text = "".join(message["content"] for message in messages)
        self.turns.append({"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {}))  # fmt: skip
        return text, calls

    def named(self, call: Any) -> tuple[str, Any]:
        """A call's name and arguments, which are an object."""
        return call["function"]["name"], call["function"]["arguments"]


def _strict(each: dict[str, Any], title: str) -> dict[str, Any]:
    """The schema of parameters, in the order of pydantic's fields."""
    known = {"properties": each, "required": list(each), "title": title, "type": "object"}
    return known | {"additionalProperties": False}


def _told(text: str, stream: bool) -> Any:
    """The body of an answer, or the events or rows of a stream."""
    if not stream:
        return json.loads(text)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line[:6] in ("data: ", '{"mode')]  # fmt: skip
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("engine", ENGINES_IN_CI)
@pytest.mark.parametrize("api", [Chat, Responses, Messages, Ollama])
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_call_and_an_answer_from_its_result(
    server_on: Callable[[str], Server], engine: str, api: type[Chat], talk: Talk, stream: bool
) -> None:
    """The model calls the tool that it may, answers from the result, and answers a further question by itself."""
    server, speaker = server_on(engine), api(talk)

    def heard() -> tuple[str, list[Any]]:
        body = {"model": "demo", "stream": stream} | speaker.body()
        said = ask(server.root + speaker.path, body, {"Authorization": f"Bearer {KEY}"})
        assert 200 == said.status, said.text
        return speaker.hears(_told(said.text, stream))

    speaker.says(talk.question)
    text, [call] = heard()
    assert ("", talk.name, talk.arguments) == (text, *speaker.named(call))

    speaker.gives(call, talk.result)
    assert (talk.answer, []) == heard()

    speaker.says(talk.after)
    assert (talk.last, []) == heard()
