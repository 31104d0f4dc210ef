"""
The tools of a response: what the model is told of them, and the names that its calls have for the client.

A model knows functions only. A custom tool is a function with one text; the tools of a namespace are functions whose names begin
with it. What a hosted tool does nobody here can do: it is left out, and told, or refused where there is no other.

Source: https://platform.openai.com/docs/api-reference/responses/create (`tools`)
"""

import hashlib
from typing import Any, Literal, NoReturn

import msgspec
from msgspec import Struct

from unilect.api.parameters.rules import refusal
from unilect.core.bounds import check_free_form
from unilect.core.errors import InvalidRequest, UnsupportedParameter
from unilect.core.requests import MAX_TOOLS, FunctionDefinition, NamedFunction, Tool, ToolChoice
from unilect.web.decode import convert

INPUT = "input"  # the one parameter of a custom tool
_MAX_NAME = 64
_MAX_ALLOWED = 1024
_TEXT = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT], "additionalProperties": False}  # fmt: skip
#: Types of tools that only their maker's servers can run, by the beginnings of their names.
_HOSTED = (
    "web_search", "file_search", "code_interpreter", "image_generation", "computer", "mcp", "local_shell", "shell", "apply_patch",
    "tool_search", "programmatic_tool_calling",
)  # fmt: skip


class CalledAs(Struct, frozen=True):
    """
    The client's name of a function.

    Attributes:
        kind: A function or a custom tool.
        name: Its name.
        namespace: The namespace that it stands in; None where in none.
    """

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class Tools:
    """
    The tools of one request.

    Attributes:
        functions: What the model is told.
        names: By a function's name, what the client calls it.
        places: By a function's name, where it stands in the body.
        left_out: The tools that are left out, as `X-Unilect-Ignored` names them.
    """

    def __init__(self) -> None:
        self.functions: list[Tool] = []
        self.names: dict[str, CalledAs] = {}
        self.places: dict[str, str] = {}
        self.left_out: list[str] = []
        self._values = 0

    def add(self, tools: Any, where: str = "tools", namespace: str | None = None) -> None:
        """
        Add tools.

        Args:
            where: The field that they stand in.
            namespace: The name of the namespace that they stand in.

        Raises:
            InvalidRequest: They are no list, one is no tool, or there are too many.
        """
        if not isinstance(tools, list):
            wrong(where, "a list of tools")
        for number, tool in enumerate(tools):
            place = f"{where}[{number}]"
            kind: Any = tool.get("type") if isinstance(tool, dict) else None
            if not isinstance(kind, str):
                wrong(place, "an object with a `type`, such as `function`")
            if kind == "namespace" and namespace is None:
                self.add(tool.get("tools"), f"{place}.tools", _name(tool, place))
            elif kind in ("function", "custom"):
                self._add(tool, namespace, place)
            elif kind.startswith(_HOSTED):
                self.left_out.append(f"{place}:{kind}")
            else:
                kinds = (
                    "`function`, `custom` or `namespace`"
                    if namespace is None
                    else "`function` or `custom`"
                )
                wrong(f"{place}.type", f"{kinds}; found {kind[:100]!r}")

    def check_some_run_here(self) -> None:
        """
        Raises:
            UnsupportedParameter: All tools are hosted ones: clients take the answer for their results, whatever it says.
        """
        if self.left_out and not self.functions:
            place, _, kind = self.left_out[0].partition(":")
            raise UnsupportedParameter.at(
                place,
                f"is `{kind[:50]}`, which OpenAI's servers run, and no other tool is offered: a model would make its results "
                "up. Give the model a function that does it.",
            )

    def choice(self, asked: Any) -> tuple[Any, list[Tool]]:
        """
        Return the choice as a chat has it, and the tools that it leaves.

        Raises:
            InvalidRequest: It is none, or names a tool that is not there.
        """
        if asked is None or isinstance(asked, str):
            if asked not in (None, "none", "auto", "required"):
                wrong("tool_choice", "`none`, `auto`, `required` or an object that names a tool")
            if asked == "required" and not self.functions:
                wrong("tool_choice", "`tools` beside `required`")
            return asked if self.functions else None, self.functions
        kind = asked.get("type") if isinstance(asked, dict) else None
        if kind in ("function", "custom"):
            return self._find_tool(asked, "tool_choice"), self.functions
        if kind == "allowed_tools":
            return self._read_allowed(asked)
        if isinstance(kind, str) and kind.startswith(_HOSTED):
            raise refusal("tool_choice", f"tools of the type `{kind[:50]}` are not run here")
        wrong("tool_choice.type", "`function`, `custom` or `allowed_tools`")

    def _read_allowed(self, asked: dict[str, Any]) -> tuple[Any, list[Tool]]:
        mode, allowed = asked.get("mode", "auto"), asked.get("tools")
        if mode not in ("auto", "required"):
            wrong("tool_choice.mode", "`auto` or `required`")
        if not isinstance(allowed, list) or len(allowed) > _MAX_ALLOWED:
            wrong("tool_choice.tools", f"a list of at most {_MAX_ALLOWED} tools")
        names = set[str]()
        for number, tool in enumerate(allowed):
            place = f"tool_choice.tools[{number}]"
            kind = tool.get("type") if isinstance(tool, dict) else None
            if not isinstance(kind, str):
                wrong(place, "an object with `type` and `name`")
            if kind in ("function", "custom"):
                names.add(self._find_tool(tool, place).function.name)
            else:
                self.left_out.append(f"{place}:{kind[:50]}")
        kept = [tool for tool in self.functions if tool.function.name in names]
        if not kept:
            wrong("tool_choice.tools", "at least one tool of `tools`")
        return mode, kept

    def _find_tool(self, asked: dict[str, Any], place: str) -> ToolChoice:
        name, namespace = asked.get("name"), asked.get("namespace")
        if not isinstance(name, str):
            wrong(f"{place}.name", "the name of a tool")
        found = [
            known
            for known, called in self.names.items()
            if called.name == name and namespace in (None, called.namespace)
        ]
        if not found:
            raise InvalidRequest.at(place, f"names `{name[:100]}`, which is not in `tools`.")
        return ToolChoice(NamedFunction(found[0]))

    def _add(self, tool: dict[str, Any], namespace: str | None, place: str) -> None:
        kind: Literal["function", "custom"] = "custom" if tool["type"] == "custom" else "function"
        name, description = _name(tool, place), tool.get("description")
        if not isinstance(description, str | None):
            wrong(f"{place}.description", "a text")
        known = qualify_name(namespace, name)
        fields: dict[str, Any] = {"name": known, "description": description}
        if kind == "custom":
            where = f"{place}.format"
            self._values = check_free_form(where, tool.get("format"), before=self._values)
            fields |= _as_function(tool, description, place)
        else:
            fields |= {"parameters": tool.get("parameters"), "strict": tool.get("strict")}
            where, given = f"{place}.parameters", fields["parameters"]
            self._values = check_free_form(where, given, before=self._values)
        function = convert(fields, FunctionDefinition, place)
        if known in self.names:
            raise InvalidRequest.at(place, f": there are two tools of the name `{known[:100]}`.")
        if len(self.functions) >= MAX_TOOLS:
            raise InvalidRequest.at("tools", f"holds more than {MAX_TOOLS} functions. Send fewer.")
        self.names[known], self.places[known] = CalledAs(kind, name, namespace), place
        self.functions.append(Tool(function))


def _name(tool: dict[str, Any], place: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        wrong(f"{place}.name", "a text")
    return name


def _as_function(tool: dict[str, Any], description: str | None, place: str) -> dict[str, Any]:
    """Return a custom tool as a function with one text; a grammar is text in words, since no engine forces a part of a JSON text."""
    form = tool.get("format") or {"type": "text"}
    if not isinstance(form, dict) or form.get("type") not in ("text", "grammar"):
        wrong(f"{place}.format", 'an object with the `type` "text" or "grammar"')
    text = description or ""
    if form["type"] == "grammar":
        syntax, definition = form.get("syntax"), form.get("definition")
        if not isinstance(syntax, str) or not isinstance(definition, str):
            wrong(f"{place}.format", "`syntax` and `definition`, which are texts")
        text += f"\nThe text `{INPUT}` must fit this {syntax} grammar:\n{definition}"
    return {"description": text.strip() or None, "parameters": _TEXT}


def text_of(arguments: str) -> str:
    """
    Return the text that a custom tool is called with: its one parameter, or whatever a model wrote instead.

    >>> text_of('{"input": "ls"}'), text_of('"ls"'), text_of("ls")
    ('ls', 'ls', 'ls')
    """
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments
    if isinstance(value, str):
        return value
    texts = [text for text in value.values() if isinstance(text, str)] if isinstance(value, dict) else []  # fmt: skip
    return texts[0] if len(texts) == 1 else arguments


def qualify_name(namespace: str | None, name: str) -> str:
    """Return the name of a function in a namespace; one that would be too long is cut, and told apart by its digest."""
    if namespace is None:
        return name
    whole = f"{namespace}__{name}"
    if len(whole) <= _MAX_NAME:
        return whole
    return f"{whole[: _MAX_NAME - 9]}_{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def wrong(where: str, expected: str) -> NoReturn:
    """
    Say what a field has to be.

    Raises:
        InvalidRequest: Always.
    """
    raise InvalidRequest.at(where, f": expected {expected}.")
