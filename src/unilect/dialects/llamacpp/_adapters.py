"""
llama.cpp's list of LoRA adapters: GET and POST /lora-adapters.

What a POST sets is its caller's own: it is the default of `lora` in all requests with the same key, at every endpoint, until the
server ends. To llama-server's own clients, who have one key or none, that is what they know.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from unilect.api.parameters.rules import lora_scales
from unilect.core.errors import InvalidRequest, UnsupportedOperation
from unilect.core.requests import MAX_ADAPTERS, LoraScale
from unilect.models.model import Model
from unilect.runtime.context import current_request
from unilect.web.decode import decode_value
from unilect.web.route import Route, call, json_answer
from unilect.web.site import Site

_Scales = Annotated[list[LoraScale], Meta(max_length=MAX_ADAPTERS)]


def routes(site: Site) -> list[Route]:
    """Return the URLs of the adapters; `?model=` names another model than the default one."""
    service = site.service

    async def native_lora_adapters(request: web.Request) -> web.StreamResponse:
        """List the LoRA adapters whose scales a request can choose."""
        model = await service.inspect_model(request.query.get("model"))
        return json_answer(request, list_adapters(model))

    async def native_set_lora_adapters(request: web.Request) -> web.StreamResponse:
        """Set the scales of the caller's requests that do not say any."""
        scales = decode_scales(await request.read())
        model = await service.inspect_model(request.query.get("model"))
        resolve_scales(model, scales)
        model.own_defaults.setdefault(current_request().caller, {})["lora"] = scales
        return json_answer(request, {"success": True})

    path = "/lora-adapters"
    return [
        call(path, native_lora_adapters, "List LoRA adapters (llama.cpp)", endpoint=path[1:]),
        Route(
            "POST", path, native_set_lora_adapters, path[1:], summary="Set LoRA scales (llama.cpp)"
        ),
    ]


def decode_scales(body: bytes) -> list[LoraScale]:
    """
    Return a body as scales.

    Raises:
        InvalidRequest: It is no list of them.
    """
    try:
        return decode_value(body, _Scales)
    except InvalidRequest as error:
        is_json = isinstance(error.__cause__, msgspec.ValidationError)
        if is_json and not body.lstrip().startswith(b"["):
            raise InvalidRequest(
                'The request\'s body is no list. Send one such as [{"id": 0, "scale": 0.5}].'
            ) from error
        raise


def list_adapters(model: Model) -> list[dict[str, Any]]:
    """Return the adapters of a model, with the scales that the caller's requests get."""
    own = model.own_defaults.get(current_request().caller, {}).get("lora")
    found = model.capabilities.adapters
    scales = [one.scale for one in found] if own is None else resolve_scales(model, own)
    return [
        {"id": id, "path": one.name, "scale": scale, "task_name": "", "prompt_prefix": ""}
        for id, (one, scale) in enumerate(zip(found, scales, strict=True))
    ]


def resolve_scales(model: Model, given: list[LoraScale]) -> list[float]:
    """
    Return the scales of all adapters, of which those that are left out are 0.

    Raises:
        UnsupportedOperation: The model has no adapters whose scales can be set.
        InvalidRequest: There is no such adapter.
    """
    count = len(model.capabilities.adapters)
    if model.capabilities.parameters.get("lora") == "refused" or not count:
        raise UnsupportedOperation(
            f"The model `{model.name}` has no LoRA adapters whose scales can be set: they are GGUF files, which its option `lora` names."
        )
    return lora_scales(given, count, "")
