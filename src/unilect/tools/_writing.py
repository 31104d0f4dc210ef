"""How the forms write tools and calls: one function for each way, and what several of them share."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from unilect.requests import FunctionDefinition
from unilect.tools.chatglm import python_text

Arguments: TypeAlias = Mapping[str, Any]
dumped = json.JSONEncoder(ensure_ascii=False).encode  # `dumps` makes one for each value


def _described(function: FunctionDefinition) -> dict[str, Any]:
    """A function without what was not told of it."""
    described: dict[str, Any] = {"name": function.name}
    if function.description:
        described["description"] = function.description
    if function.parameters:
        described["parameters"] = function.parameters
    return described


def json_tool(function: FunctionDefinition) -> str:
    """A function as JSON."""
    return dumped(_described(function))


def typed_tool(function: FunctionDefinition) -> str:
    """A function as a request lists it."""
    return dumped({"type": "function", "function": _described(function)})


def sorted_tool(function: FunctionDefinition) -> str:
    """A function as Kimi K3 reads it: names in their order, and no blanks between."""
    told = {"type": "function", "function": _described(function)}
    return json.dumps(told, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def indented_tool(function: FunctionDefinition) -> str:
    """A function as JSON over several lines."""
    return msgspec.json.format(json_tool(function), indent=4)  # json's own takes ten times as long


def glm_tool(function: FunctionDefinition) -> str:
    """A function as GLM 4 reads it: JSON below its name."""
    return f"## {function.name}\n\n{indented_tool(function)}"


def headed_tool(function: FunctionDefinition) -> str:
    """A function as DeepSeek reads it: a line for each thing that is said of it."""
    schema = dumped(function.parameters or {"type": "object", "properties": {}})
    return f"### {function.name}\nDescription: {function.description or ''}\n\nParameters: {schema}"


def chatglm_tool(function: FunctionDefinition) -> str:
    """A function as ChatGLM3 reads it: an entry of a list of JSON over several lines."""
    told = {
        "description": function.description,
        "name": function.name,
        "parameters": function.parameters or {},
    }
    text = msgspec.json.format(dumped([{"type": "function", "function": told}]), indent=4)
    return text[2:-2]  # without the list


def coder_tool(function: FunctionDefinition) -> str:
    """A function as Qwen Coder reads it: elements for its name, what it does and its arguments."""
    lines = ["<function>", f"<name>{function.name}</name>"]
    if function.description:
        lines.append(f"<description>{function.description}</description>")
    lines.append("<parameters>")
    properties = (function.parameters or {}).get("properties")
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        lines += ["<parameter>", f"<name>{name}</name>", dumped(schema), "</parameter>"]
    return "\n".join([*lines, "</parameters>", "</function>"])


def typescript_tool(function: FunctionDefinition) -> str:
    """A function as harmony declares it; what TypeScript has no word for stands as JSON Schema in a comment."""
    lines = [f"// {line}" for line in (function.description or "").splitlines()]
    schema = function.parameters or {}
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return "\n".join([*lines, f"type {function.name} = () => any;"])
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    lines.append(f"type {function.name} = (_: {{")
    for name, one in properties.items():
        told = one if isinstance(one, dict) else {}
        if isinstance(about := told.get("description"), str):
            lines += [f"// {line}" for line in about.splitlines()]
        mark = "" if name in needed else "?"
        lines.append(f"{name}{mark}: {_typescript(told)},")
    return "\n".join([*lines, "}) => any;"])


def _typescript(schema: Mapping[str, Any]) -> str:
    kind, values = schema.get("type"), schema.get("enum")
    if isinstance(values, list) and values:
        return " | ".join(map(dumped, values))
    if kind == "array" and isinstance(items := schema.get("items"), dict):
        inner = items.get("type")
        return f"{_TYPES.get(inner, 'any') if isinstance(inner, str) else 'any'}[]"
    found = _TYPES.get(kind) if isinstance(kind, str) else None
    return found or f"any /* {dumped(schema)} */"


_TYPES = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def gemma_value(value: Any) -> str:
    """A value as Gemma 4 writes it: JSON with marks of its own around texts, and bare keys."""
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case Mapping():
            inside = (f"{key}:{gemma_value(one)}" for key, one in value.items())
            return "{" + ",".join(inside) + "}"
        case list():
            return "[" + ",".join(map(gemma_value, value)) + "]"
    return dumped(value)


def gemma_tool(function: FunctionDefinition) -> str:
    """A function as Gemma 4 declares it."""
    told = {"description": function.description or "", "parameters": function.parameters or {}}
    return f"<|tool>declaration:{function.name}{gemma_value(told)}<tool|>"


def as_json(before: str, key: str, behind: str) -> Callable[[str, Arguments, int], str]:
    """A call as JSON between two texts; `key` is the name of its arguments."""

    def write(name: str, given: Arguments, number: int) -> str:
        return f'{before}{{"name": {dumped(name)}, "{key}": {dumped(given)}}}{behind}'

    return write


def coder_call(name: str, given: Arguments, number: int) -> str:
    """A call as Qwen Coder writes it: an element for each argument, texts as they are."""
    inside = "".join(
        f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in given.items()
    )
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def glm45_call(name: str, given: Arguments, number: int) -> str:
    """A call as GLM 4.5 writes it: two elements for each argument, texts as they are."""
    inside = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{bare(value)}</arg_value>\n"
        for key, value in given.items()
    )
    return f"<tool_call>{name}\n{inside}</tool_call>"


def kimi3_call(name: str, given: Arguments, number: int) -> str:
    """A call as Kimi K3 writes it: a tag with its type for each argument, texts as they are."""
    inside = "".join(
        f'<|open|>argument key="{escaped(key)}" type="{_kind(value)}"<|sep|>{bare(value)}<|close|>argument<|sep|>'
        for key, value in given.items()
    )
    head = f'<|open|>call tool="{escaped(name)}" index="{number}"<|sep|>'
    return f"{head}{inside}<|close|>call<|sep|>"


def _kind(value: Any) -> str:
    """What Kimi K3 calls a value of JSON."""
    match value:
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case Mapping():
            return "object"
    return "null" if value is None else "array"


def escaped(text: str) -> str:
    """A text within the quotes of one of Kimi K3's tags."""
    return text.replace("&", "&amp;").replace('"', "&quot;")


def dsml_call(name: str, given: Arguments, number: int) -> str:
    """A call as DeepSeek V3.2 writes it: an element for each argument, texts as they are."""
    inside = "".join(
        f'<｜DSML｜parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
        f"{bare(value)}</｜DSML｜parameter>\n"
        for key, value in given.items()
    )
    return f'<｜DSML｜invoke name="{name}">\n{inside}</｜DSML｜invoke>'


def bare(value: Any) -> str:
    """A text as it is, and every other value as JSON."""
    return value if isinstance(value, str) else dumped(value)


def python_call(name: str, given: Arguments, number: int) -> str:
    """A call as Python writes it; as JSON where Python cannot."""
    return python_text(name, given) or as_json("", "parameters", "")(name, given, number)


def around(before: str, behind: str) -> Callable[[str, int, str], str]:
    """A result between two texts."""
    return lambda name, number, text: f"{before}{text}{behind}"
