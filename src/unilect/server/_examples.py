"""A short body that each endpoint takes, for the OpenAPI document and for who tries it."""

from collections.abc import Mapping
from typing import Any

#: What stands for the name of a model.
MODEL = "MODEL"
_TEXT = "Hello!"
#: The values of fields, by their names; where no field of a body has to be there, the first of these that it may have.
_VALUES: dict[str, Any] = {
    "messages": [{"role": "user", "content": _TEXT}],
    "input": _TEXT,
    "prompt": _TEXT,
    "content": _TEXT,
    "tokens": [1, 2],
    "prompts": [{"model": MODEL, "prompt": _TEXT, "max_tokens": 16}],
    "query": "Which is a fruit?",
    "documents": ["An apple", "A car"],
    "items": [{"type": "message", "role": "user", "content": _TEXT}],
}


def example_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body of a JSON Schema: its model, and what it has to have besides."""
    fields = schema["properties"]
    wanted = [name for name in schema.get("required", ()) if name in _VALUES]
    wanted = wanted or [name for name in _VALUES if name in fields][:1]
    named = {"model": MODEL} if "model" in fields else {}
    return named | {name: _VALUES[name] for name in wanted}
