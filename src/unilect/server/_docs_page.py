"""
GET /docs: the endpoints for people, by API, with their parameters, out of the OpenAPI document. No script, nothing from elsewhere.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from unilect.web.pages import page, table
from unilect.web.route import Route

#: The APIs in their order, by the name of their dialect: those of other packages come before the older servers'.
_APIS = {
    "openai": "OpenAI's API",
    "responses": "OpenAI's Responses and conversations",
    "messages": "Anthropic's Messages",
    "ollama": "Ollama's API",
    "rerank": "Reranking",
    "": "This server",
    "llamacpp": "llama.cpp's server",
    "fastchat": "FastChat",
    "chatglm": "ChatGLM",
}

#: A number that is only the edge of what a type holds says nothing.
_LARGE = 2**31 - 1


def docs_page(
    documented: Sequence[Route], document: Mapping[str, Any], has_keys: bool, about: str
) -> str:
    """
    Return the page.

    Args:
        document: The OpenAPI document of the routes.
        has_keys: The server has keys, so that it is told which route needs one.
        about: What the server is: HTML.
    """
    head = ("Method", "Path", "What it does", *(["Key"] if has_keys else []))
    beside = {(one.method, one.path): one for one in documented if one.needs_header}
    shown = [route for route in documented if not route.needs_header]
    names = list_dialects(shown)
    parts = []
    for name in names:
        title = f"<h2>{escape(title_of(name))}</h2>" if len(names) > 1 else ""
        of_name = [route for route in shown if route.dialect == name]
        rows = _rows(of_name, beside, document["components"]["schemas"], has_keys)
        parts.append(title + table(head, rows))
    return page(about + "".join(parts))


def title_of(dialect: str) -> str:
    """Return what the API of a dialect is called."""
    return _APIS.get(dialect, dialect)


def list_dialects(routes: Iterable[Route]) -> list[str]:
    """Return the dialects of routes, those that most clients speak first."""
    return sorted({route.dialect for route in routes}, key=_place)


def _place(name: str) -> tuple[int, str]:
    places = {one: number for number, one in enumerate(_APIS)}
    return places.get(name, places[""]), name  # of another package: beside this server's own


def _rows(
    routes: Sequence[Route],
    beside: Mapping[tuple[str, str], Route],
    schemas: Mapping[str, Any],
    has_keys: bool,
) -> Iterator[Sequence[str]]:
    """Yield a row for each handler, which tells of the one `beside` it, for requests to the same URL with a header."""
    for first, *others in _by_handler(routes):
        also = ", ".join(_code(route.template) for route in others)
        what = escape(first.summary)
        if (other := beside.get((first.method, first.path))) is not None:
            what += f"; with the header {_code(other.needs_header)}: {escape(other.summary)}"
        yield (
            first.method,
            _code(first.template) + (f"<br>also {also}" if also else ""),
            what + _parameters(first, schemas),
            *(["no" if first.public else "yes"] if has_keys else []),
        )


def _by_handler(routes: Iterable[Route]) -> Iterable[list[Route]]:
    """Return the routes that are one but for their path, such as those under /v1 and their older aliases."""
    found = dict[Any, list[Route]]()
    for route in routes:
        found.setdefault((route.method, route.handler), []).append(route)
    return found.values()


def _parameters(route: Route, schemas: Mapping[str, Any]) -> str:
    """Return the fields of a body, to be unfolded."""
    if route.request is None:
        return ""
    schema = schemas[route.request.__name__]
    fields, required = schema["properties"], schema.get("required", ())
    rows = [
        (_code(name), escape(_kind(fields[name], schemas)), "required" if name in required else "")
        for name in sorted(fields, key=lambda name: name not in required)
    ]
    return f"<details><summary>{len(rows)} parameters</summary>{table(('Name', 'Type', ''), rows)}</details>"


def _kind(field: Any, schemas: Mapping[str, Any]) -> str:
    """Return a JSON Schema in words: `integer, 1 to 16`."""
    if not isinstance(field, dict):  # of a tuple
        return "any value"
    if "$ref" in field:
        field = schemas[field["$ref"].rpartition("/")[2]]
    if (kinds := field.get("anyOf")) is not None:
        words = (_kind(one, schemas) for one in kinds if one.get("type") != "null")
        return " or ".join(dict.fromkeys(words))
    if (values := field.get("enum")) is not None:
        return " or ".join(f'"{one}"' if isinstance(one, str) else str(one) for one in values)
    kind = field.get("type", "any value")
    if kind == "array":
        return f"list of {_kind(field.get('items', {}), schemas)}"
    return f"{kind}{_range(field)}" if kind in ("integer", "number") else str(kind)


def _range(field: Mapping[str, Any]) -> str:
    low = field.get("minimum", field.get("exclusiveMinimum"))
    high = field.get("maximum", field.get("exclusiveMaximum"))
    low, high = (None if end is None or abs(end) >= _LARGE else end for end in (low, high))
    if low is None or high is None:
        return "" if low is high else f", at least {low}" if high is None else f", at most {high}"
    return f", {low} to {high}"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"
