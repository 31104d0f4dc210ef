"""Conversations of every kind, as chat templates get them, for tests of what becomes of them."""

from typing import Any

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather of a city, "now" <b>',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Größe & Ort"},
                "days": {"type": "integer", "description": "How many."},
            },
            "required": ["city"],
        },
    },
}
PING = {
    "type": "function",
    "function": {
        "name": "ping",
        "description": "Pings.",
        "parameters": {"type": "object", "properties": {}},
    },
}
ODD = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "你好 <&>'\"",
        "parameters": {
            "type": "object",
            "properties": {
                "é": {
                    "type": "number",
                    "description": "x",
                    "minimum": 0.5,
                    "maximum": 1e30,
                    "default": None,
                    "enum": [1, 2.0, True],
                }
            },
        },
    },
}


def user(content: Any) -> dict[str, Any]:
    """A turn of the user."""
    return {"role": "user", "content": content}


def assistant(content: str, **more: Any) -> dict[str, Any]:
    """A turn of the assistant."""
    return {"role": "assistant", "content": content, **more}


def call(id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A call, as templates get it."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(id: str, name: str, content: str) -> dict[str, Any]:
    """The result of a call."""
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}


SYSTEM = {"role": "system", "content": "Be brief."}
COLOGNE = call("abcdefgh1", "get_weather", {"city": "Köln", "days": 2})
TALKS: dict[str, dict[str, Any]] = {
    "system": {"messages": [SYSTEM, user("Hi"), assistant("Hello."), user("2+2?")]},
    "no system": {"messages": [user("Hi"), assistant("Hello."), user("2+2?")]},
    "tools": {"messages": [SYSTEM, user("Weather?")], "tools": [WEATHER, PING]},
    "one call": {
        "messages": [
            user("Weather?"),
            assistant("", tool_calls=[COLOGNE]),
            result("abcdefgh1", "get_weather", '{"t": 3}'),
            assistant("3 degrees."),
            user("Thanks"),
        ],
        "tools": [WEATHER],
    },
    "two calls": {
        "messages": [
            user("Weather?"),
            assistant("Both.", tool_calls=[COLOGNE, call("abcdefgh2", "ping", {})]),
            result("abcdefgh1", "get_weather", "rain"),
            result("abcdefgh2", "ping", "pong"),
        ],
        "tools": [WEATHER, PING],
    },
    "thoughts": {
        "messages": [
            user("Hi"),
            assistant("Hello.", reasoning_content="I greet."),
            user("And?"),
            assistant("<think>\nhm\n</think>\n\nYes."),
            user("2+2?"),
        ],
        "enable_thinking": True,
        "preserve_thinking": True,
    },
    "assistant first": {"messages": [assistant("Welcome."), user("Hi")]},
    "empty contents": {
        "messages": [{"role": "system", "content": ""}, user(""), assistant(""), user("x")]
    },
    "parts": {"messages": [user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])]},
    "non-ASCII": {"messages": [user("Größe 你好 😀 <b>&\"'\\ \u2028 \t")], "tools": [ODD]},
    "prefill": {"messages": [user("Hi"), assistant("He")], "add_generation_prompt": False},
    "date": {"messages": [user("Hi")], "date_string": "1 Jan 2025", "enable_thinking": False},
}  # fmt: skip
