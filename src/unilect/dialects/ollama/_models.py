"""
Ollama's models: their list, what each is, which are loaded; and what a client cannot do with them here.

What a backend does not know of its model is told as a neutral value of the right type: 0 bytes, an empty text, the architecture
`unknown`. A digest is one of what is told here, since that of the files would take minutes to compute.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import asyncio
import hashlib
import time
from typing import Any

from aiohttp import web
from msgspec import structs

from unilect.answers.service import Service
from unilect.api.backend import Description
from unilect.core.errors import ModelNotFound, UnsupportedOperation
from unilect.core.requests import Request
from unilect.dialects.ollama._answer import ROWS, format_second
from unilect.dialects.ollama._errors import ollama_error
from unilect.dialects.ollama._names import find_model, with_tag
from unilect.dialects.openai.chunks import encode_json
from unilect.models.model import Model
from unilect.runtime.tasks import list_in_slices
from unilect.web.decode import BodyDecoder, decode_request
from unilect.web.route import Handler, Route, json_answer
from unilect.web.site import Site
from unilect.web.streaming import headers_of

#: Of the Ollama whose API this is; Copilot asks for 0.6.4 at least.
VERSION = "0.33.0"
_NEVER = "9999-12-31T23:59:59Z"
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_HONOURED = ("native", "emulated")


class OllamaModelRequest(Request, frozen=True, kw_only=True):
    """A request about one model; `name` is an older name of `model`."""

    name: str | None = None
    source: str | None = None
    stream: bool | None = None
    verbose: bool | None = None


_model = BodyDecoder(OllamaModelRequest)


def routes(site: Site) -> list[Route]:
    """Return the URLs of this part."""
    service = site.service

    async def ollama_version(request: web.Request) -> web.StreamResponse:
        """Tell the version of Ollama's API."""
        return json_answer(request, {"version": VERSION})

    async def ollama_urls(request: web.Request) -> web.StreamResponse:
        """Tell where the API begins; unknown URLs below have errors of the form of this one."""
        return json_answer(request, {"version": VERSION, "models": "/api/tags"})

    async def ollama_tags(request: web.Request) -> web.StreamResponse:
        """List the models, in Ollama's words."""
        models = await list_in_slices(map(tags_object, service.models))
        return json_answer(request, {"models": models})

    async def ollama_ps(request: web.Request) -> web.StreamResponse:
        """List the models that are loaded here."""
        models = [ps_object(one) for one in service.models if one.runs_here]
        return json_answer(request, {"models": models})

    async def ollama_show(request: web.Request) -> web.StreamResponse:
        """Describe a model, in Ollama's words."""
        asked = await decode_request(request, _model.decode)
        model = await service.inspect_model(find_model(service, asked.model or asked.name).name)
        return json_answer(request, show_object(model))

    async def ollama_pull(request: web.Request) -> web.StreamResponse:
        """Say whether a model is there; nothing is fetched."""
        asked = await decode_request(request, _model.decode)
        row, status = {"status": "success"}, 200
        try:
            find_model(service, asked.model or asked.name)
        except ModelNotFound:
            row = {
                "error": "pull model manifest: file does not exist: this server fetches no model for a client. Add it to the "
                "server's configuration, or start the server with it."
            }
            status = 200 if asked.stream is not False else 404
        if asked.stream is False:
            return web.json_response(row, status=status)
        return web.Response(body=encode_json(row) + b"\n", headers=headers_of(request, ROWS))

    read = [
        _get("/api", ollama_urls, "Where Ollama's API begins"),
        _get("/api/version", ollama_version, "The version of Ollama's API"),
        _get("/api/tags", ollama_tags, "List the models (Ollama)"),
        _get("/api/ps", ollama_ps, "List the loaded models (Ollama)"),
        _post("/api/show", ollama_show, "Describe a model (Ollama)"),
        _post("/api/pull", ollama_pull, "Say whether a model is there (Ollama)"),
    ]
    return read + _refusal_routes(service)


def _refusal_routes(service: Service) -> list[Route]:
    """Make the routes that would change models. They refuse all requests: models are changed by the operator."""

    async def ollama_blob(request: web.Request) -> web.StreamResponse:
        """Say that files are not taken from clients."""
        raise UnsupportedOperation(
            "Files of models cannot be sent over the API. Copy them to the server, and name them in its configuration."
        )

    def refuse(name: str, past: str) -> Route:
        async def handler(request: web.Request) -> web.StreamResponse:
            asked = await decode_request(request, _model.decode)
            if name != "create":
                find_model(service, asked.source or asked.model or asked.name)
            raise UnsupportedOperation(
                f"Models cannot be {past} over the API. Change the server's configuration, and start it again."
            )

        handler.__name__ = f"ollama_{name}"
        handler.__doc__ = f"Say that models are not {past} by clients."
        return _post(f"/api/{name}", handler, f"Refused: {name} a model (Ollama)")

    changes = {"copy": "copied", "create": "created", "push": "pushed"}
    blob = _post("/api/blobs/{digest:.+}", ollama_blob, "Refused: send a file of a model (Ollama)")
    return [
        structs.replace(refuse("delete", "deleted"), method="DELETE"),
        *(refuse(name, past) for name, past in changes.items()),
        structs.replace(blob, request=None, streamed_bytes=1),
    ]


def _get(path: str, handler: Handler, summary: str) -> Route:
    return Route("GET", path, handler, summary=summary, error=ollama_error)


def _post(path: str, handler: Handler, summary: str) -> Route:
    return Route(
        "POST", path, handler, request=OllamaModelRequest, summary=summary, error=ollama_error
    )


def _describe(model: Model) -> Description:
    """Return the description that the first backend of a model has; an empty one without backends."""
    members = model.pool.members
    return members[0].backend.describe() if members else Description()


def _details(description: Description) -> dict[str, Any]:
    family = description.family or "unknown"
    return {
        "parent_model": "",
        "format": description.format or "",
        "family": family,
        "families": [family],
        "parameter_size": _format_count(description.parameters),
        "quantization_level": description.quantization or "",
    }


def _format_count(parameters: int | None) -> str:
    """Return a number of parameters as people say it: `1.2B`."""
    for size, unit in _UNITS:
        if parameters is not None and parameters >= size:
            return f"{parameters / size:.1f}{unit}"
    return "" if parameters is None else str(parameters)


def _abilities(model: Model) -> list[str]:
    """Return the abilities of a model in Ollama's words; `embedding` only where it generates no text."""
    can = model.capabilities
    unlisted = "native" if can.passes_unknown else None
    writes = can.chat or can.completions
    abilities = {
        "completion": writes,
        "tools": can.chat and can.parameters.get("tools", unlisted) in _HONOURED,
        "insert": can.parameters.get("suffix") in _HONOURED,
        "vision": can.vision,
        "thinking": bool(can.thinking),
        "embedding": can.embeddings and not writes,
    }
    return [name for name, is_so in abilities.items() if is_so]


def _card(model: Model) -> dict[str, Any]:
    """Make the fields that describe a model in every answer."""
    description, name = _describe(model), with_tag(model.name)
    details = _details(description)
    digest = hashlib.sha256(encode_json([name, details, description.size_bytes])).hexdigest()
    return {
        "name": name,
        "model": name,
        "size": description.size_bytes or 0,
        "digest": digest,
        "details": details,
    }


def tags_object(model: Model) -> dict[str, Any]:
    """Return a model as /api/tags has it."""
    more = {"modified_at": _format_time(model.created), "capabilities": _abilities(model)}
    return _card(model) | more


def ps_object(model: Model) -> dict[str, Any]:
    """Return a loaded model as /api/ps has it; the memory that it takes on graphics cards is not known, and 0."""
    at = model.idle_stop_at
    expires = _NEVER
    if at is not None:
        left_s = max(0.0, at - asyncio.get_running_loop().time())
        expires = _format_time(time.time() + left_s)
    more = {"expires_at": expires, "size_vram": 0}
    return _card(model) | more | {"context_length": model.capabilities.context or 0}


def show_object(model: Model) -> dict[str, Any]:
    """Return a model as /api/show has it."""
    description, name = _describe(model), with_tag(model.name)
    family = description.family or "unknown"
    info: dict[str, Any] = {
        "general.architecture": family,
        "general.basename": model.name,
        "general.parameter_count": description.parameters or 0,
        f"{family}.context_length": model.capabilities.context,
        f"{family}.embedding_length": description.width,
    }
    parameters = "\n".join(
        f"{key} {_text(value)}" for key, value in model.settings.defaults.items()
    )
    lines = [f"FROM {name}", *(f"PARAMETER {line}" for line in parameters.splitlines())]
    return {
        "license": "",
        "modelfile": "\n".join(lines),
        "parameters": parameters,
        "template": "",
        "details": _details(description),
        "model_info": {key: value for key, value in info.items() if value is not None},
        "capabilities": _abilities(model),
        "modified_at": _format_time(model.created),
    }


def _text(value: Any) -> str:
    return encode_json(value).decode()


def _format_time(unix: float) -> str:
    return f"{format_second(int(unix))}Z"
