"""
llama.cpp's slots: GET /slots lists them, and POST /slots/{id} saves one, fills it again or empties it.

A slot belongs to whoever was answered in it last, and a file to whoever saved it. Each request gets a slot that is free; the one that was
filled for a caller is the slot of that caller's next request.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from functools import partial
from typing import Any, get_args

from aiohttp import web

from unilect.api.backend import Backend, SlotAction
from unilect.core.errors import BackendUnavailable, InvalidRequest
from unilect.core.requests import Request
from unilect.dialects.llamacpp._names import list_ignored
from unilect.models.model import Model
from unilect.web.decode import BodyDecoder, decode_request, read_number
from unilect.web.route import Route, call, json_answer
from unilect.web.site import Site

_RETRY_S = 1.0
_ACTIONS: dict[str, SlotAction] = {action: action for action in get_args(SlotAction)}


class SlotRequest(Request, frozen=True, kw_only=True):
    """POST /slots/{slot_id}: the file of `save` and `restore`."""

    filename: str = ""


_file = BodyDecoder(SlotRequest)


def routes(site: Site) -> list[Route]:
    """Return the URLs of the slots; `?model=` names another model than the default one."""
    service = site.service

    async def native_slots(request: web.Request) -> web.StreamResponse:
        """List the slots of a model's engine."""
        name = request.query.get("model")
        model = service.model(name)
        if model.static_capabilities is not None:  # it is not loaded to be looked at
            found = idle(model)
        else:
            found = await service.call(name, _ask)
        if request.query.get("fail_on_no_slot") == "1" and all(
            one["is_processing"] for one in found
        ):
            raise BackendUnavailable("There is no free slot.", retry_after_s=_RETRY_S)
        return json_answer(request, found)

    async def native_slot_action(request: web.Request) -> web.StreamResponse:
        """Save a slot of the caller's, fill it again, or empty it."""
        given, slot = request.query.get("action", ""), request.match_info["slot_id"]
        if (action := _ACTIONS.get(given)) is None:
            raise InvalidRequest.at(
                "action", f"is {given[:50]!r}; llama.cpp's are `save`, `restore` and `erase`."
            )
        number = read_number("slot_id", slot, "the number of a slot")
        has_body = action != "erase" or await request.read()
        asked = await decode_request(request, _file.decode) if has_body else SlotRequest()
        name = request.query.get("model") or asked.model
        change = partial(_change, number, action, asked.filename)
        return json_answer(request, await service.call(name, change), list_ignored(asked))

    path, summary = "/slots/{slot_id}", "Save, restore or erase a slot (llama.cpp)"
    return [
        call("/slots", native_slots, "List slots (llama.cpp)", endpoint="slots"),
        call(path, native_slot_action, summary, SlotRequest, "slots"),
    ]


def idle(model: Model) -> list[dict[str, Any]]:
    """
    Return the slots of a model that does not run.

    Raises:
        UnsupportedOperation: It has none.
    """
    return [slot for one in model.pool.members for slot in one.backend.idle_slots()]


async def _ask(model: Model, backend: Backend) -> list[dict[str, Any]]:
    return await backend.slots()


async def _change(
    slot: int, action: SlotAction, name: str, model: Model, backend: Backend
) -> dict[str, Any]:
    return await backend.change_slot(slot, action, name)
