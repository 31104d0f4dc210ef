"""
GET /openapi.json, made from the routes and the Structs of their bodies, and GET /docs, a page to read it.

Source: https://spec.openapis.org/oas/v3.1.0
"""

import html
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import web

from unilect.errors import UnilectError
from unilect.gateway.keys import Keys
from unilect.requests import RAW_FIELDS
from unilect.web.pages import HEADERS, page, table
from unilect.web.route import Route, openai_error

_INTERNAL = (RAW_FIELDS,)  # fields of the Structs that no client sends


_DESCRIPTION = "Any local language model behind OpenAI's API."
_ABOUT = (
    "<p>This server answers the OpenAI API. The machine-readable description of every endpoint and parameter is "
    "<a href=openapi.json>openapi.json</a>; what each model honours is in <code>GET /v1/models/{model}</code>. "
    "<a href=.>The models and how to ask them</a>.</p>"
)


def routes(
    documented: Sequence[Route], keys: Keys, description: str = _DESCRIPTION, about: str = _ABOUT
) -> list[Route]:
    """
    The routes that document the others.

    Args:
        description: What the API is, for the document.
        about: The same for the page: HTML.
    """
    document = msgspec.json.encode(openapi(documented, description))
    shown = {
        has_keys: docs_page(documented, has_keys, about).encode() for has_keys in (False, True)
    }

    async def openapi_json(request: web.Request) -> web.StreamResponse:
        """Give the OpenAPI document."""
        return web.Response(body=document, headers={"Content-Type": "application/json"})

    async def docs(request: web.Request) -> web.StreamResponse:
        """Show the endpoints to a person."""
        return web.Response(body=shown[keys.required], headers=HEADERS)

    return [
        Route("GET", "/openapi.json", openapi_json, page=True, summary="The OpenAPI document"),
        Route("GET", "/docs", docs, page=True, summary="The endpoints, for people"),
    ]


def openapi(documented: Sequence[Route], description: str = _DESCRIPTION) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes."""
    bodies = [route.request for route in documented if route.request is not None]
    _, components = msgspec.json.schema_components(
        bodies, ref_template="#/components/schemas/{name}"
    )
    for schema in components.values():
        for name in _INTERNAL:
            schema.get("properties", {}).pop(name, None)
    components["Error"] = _error_schema()
    paths: dict[str, Any] = {}
    for route in documented:
        if route.needs_header:
            continue  # a path has one operation for a method
        path, parameters = _path(route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, parameters)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "unilect",
            "version": version("unilect"),
            "description": description,
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _operation(route: Route, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    error: dict[str, Any] = {"description": "The request was refused, or could not be answered."}
    if route.error is openai_error:
        error["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    name = route.handler.__name__
    operation: dict[str, Any] = {
        "operationId": name
        if route.admin or route.path.startswith(("/v1/", "/api/v1/"))
        else f"{name}_unversioned",
        "summary": route.summary,
        "responses": {"200": {"description": "The answer."}, "4XX": error, "5XX": error},
    }
    if parameters:
        operation["parameters"] = parameters
    if route.public:
        operation["security"] = []
    if route.request is not None:
        reference = f"#/components/schemas/{route.request.__name__}"
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": reference}}},
        }
    return operation


def _path(path: str) -> tuple[str, list[dict[str, Any]]]:
    """aiohttp's `{name:regex}` as OpenAPI's `{name}`, and the parameters."""
    parameters, out = [], path
    while "{" in path:
        _, _, path = path.partition("{")
        inside, _, path = path.partition("}")
        name = inside.partition(":")[0]
        out = out.replace("{" + inside + "}", "{" + name + "}")
        schema = {"type": "string", "minLength": 1}
        parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    return out, parameters


def _error_schema() -> dict[str, Any]:
    nullable = {"type": ["string", "null"]}
    inner = {
        "type": "object",
        "required": list(UnilectError("").detail()),
        "properties": {
            "message": {"type": "string"},
            "type": {"type": "string"},
            "param": nullable,
            "code": nullable,
        },
    }
    return {"type": "object", "required": ["error"], "properties": {"error": inner}}


def docs_page(documented: Sequence[Route], has_keys: bool = True, about: str = _ABOUT) -> str:
    """A small page that lists the endpoints; no script, no foreign code."""
    rows = [
        (
            route.method,
            f"<code>{html.escape(_path(route.path)[0])}</code>",
            html.escape(route.summary),
            *(["no" if route.public else "yes"] if has_keys else []),
        )
        for route in documented
    ]
    head = ("Method", "Path", "What it does", *(["Key"] if has_keys else []))
    return page(about + table(head, rows))
