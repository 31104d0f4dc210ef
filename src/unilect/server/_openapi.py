"""
GET /openapi.json, made from the routes and the Structs of their bodies; and the routes of it and of its page.

Source: https://spec.openapis.org/oas/v3.1.0
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec
from aiohttp import web

from unilect.auth.keys import Keys
from unilect.core.errors import UnilectError
from unilect.core.requests import RAW_FIELDS
from unilect.server._docs_page import docs_page, list_dialects, title_of
from unilect.server._examples import example_of
from unilect.web.pages import HEADERS
from unilect.web.route import Route, openai_error

_INTERNAL = (RAW_FIELDS,)  # fields of the Structs that no client sends
_NAME = re.compile(r"\{(\w+)\}")

_DESCRIPTION = "Any local language model behind OpenAI's API."


def about_api(has_page: bool) -> str:
    """Return the beginning of the page of endpoints, as HTML; where there is a page for all, its view of them is linked."""
    place, words = (
        ("'.#api'", "The same, to be tried")
        if has_page
        else (".", "The models and how to ask them")
    )
    return (
        "<p>This server answers the OpenAI API. The machine-readable description of every endpoint and parameter is "
        "<a href=openapi.json>openapi.json</a>; what each model honours is in <code>GET /v1/models/{model}</code>. "
        f"<a href={place}>{words}</a>.</p>"
    )


def routes(
    documented: Sequence[Route], keys: Keys, about: str, description: str = _DESCRIPTION
) -> list[Route]:
    """
    Return the routes that document the others.

    Args:
        about: What the API is, for the page of endpoints: HTML.
        description: The same for the document.
    """
    documented = tuple(documented)  # callers add to theirs

    @cache  # tens of milliseconds, which a start need not wait for
    def describe() -> dict[str, Any]:
        return openapi(documented, description)

    @cache
    def document() -> bytes:
        return msgspec.json.encode(describe())

    @cache
    def render_page(has_keys: bool) -> bytes:
        return docs_page(documented, describe(), has_keys, about).encode()

    async def openapi_json(request: web.Request) -> web.StreamResponse:
        """Give the OpenAPI document."""
        return web.Response(body=document(), headers={"Content-Type": "application/json"})

    async def docs(request: web.Request) -> web.StreamResponse:
        """Show the endpoints to a person."""
        return web.Response(body=render_page(keys.required), headers=HEADERS)

    return [
        Route("GET", "/openapi.json", openapi_json, page=True, summary="The OpenAPI document"),
        Route("GET", "/docs", docs, page=True, summary="The endpoints, for people"),
    ]


def openapi(documented: Sequence[Route], description: str = _DESCRIPTION) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these routes."""
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
        operation = _operation(route)
        if route.request is not None:
            media = operation["requestBody"]["content"]["application/json"]
            media["example"] = example_of(components[route.request.__name__])
        paths.setdefault(route.template, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "unilect",
            "version": version("unilect"),
            "description": description,
        },
        "tags": [{"name": title_of(one)} for one in list_dialects(documented)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    error: dict[str, Any] = {"description": "The request was refused, or could not be answered."}
    if route.error is openai_error:
        error["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    name = route.handler.__name__
    if not route.admin and not route.path.startswith(("/v1/", "/api/v1/")):
        name += "_unversioned"
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": route.summary,
        "tags": [title_of(route.dialect)],
        "responses": {"200": {"description": "The answer."}, "4XX": error, "5XX": error},
    }
    if names := _NAME.findall(route.template):
        schema = {"type": "string", "minLength": 1}
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": schema} for name in names
        ]
    if route.public:
        operation["security"] = []
    if route.request is not None:
        reference = f"#/components/schemas/{route.request.__name__}"
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": reference}}},
        }
    if route.translation is not None:  # what a model honours of a chat holds here, by other names
        operation["x-chat-parameters"] = {
            "names": route.translation.names,
            "optional": route.translation.optional,
        }
    return operation


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
