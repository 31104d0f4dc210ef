"""
The admin API's routes for keys: list, create, change, rotate, revoke and delete those of the store.

What they change holds on this server before they answer, and on the other servers of the store within a second.
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct, structs

from unilect.auth.key_cache import KeyCache
from unilect.auth.keys import digest
from unilect.auth.secret import id_of, new_secret
from unilect.config.limits import NAMES, LimitChanges, Limits
from unilect.config.model import NAME
from unilect.core.errors import ConfigError, InvalidRequest, NotStored, UnsupportedOperation
from unilect.store.keys import KeyStore, describe
from unilect.store.records import Key
from unilect.web.decode import no_json, wrong_field
from unilect.web.route import Route

_LONGEST_S = 36_500 * 86_400
_UNKNOWN = re.compile(r"Object contains unknown field `(.+?)`")
_BodyT = TypeVar("_BodyT", bound=Struct)
_Result = TypeVar("_Result")
#: The name of a key, and that of its owner; the store says which words these can be.
_Word = Annotated[str, Meta(min_length=1, max_length=100)]


class NewKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The body of POST /keys.

    Attributes:
        name: What people call it.
        owner: Whose it is.
        models: The names of the models that it may use; None for all.
        limits: Its limits, by name.
        expires_in_s: Seconds until it ends; None for never.
        require: Servers of the store that ask for no keys do so from now on.
    """

    name: _Word
    owner: _Word | None = None
    models: (
        Annotated[list[Annotated[str, Meta(pattern=NAME)]], Meta(min_length=1, max_length=1000)]
        | None
    ) = None
    limits: Limits | None = None
    expires_in_s: Annotated[float, Meta(gt=0, le=_LONGEST_S)] | None = None
    require: bool = False


class KeyChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The body of PATCH /keys/{key}.

    Attributes:
        limits: The limits that change, by name; null takes one away.
    """

    limits: LimitChanges


class Rotation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The body of POST /keys/{key}/rotate.

    Attributes:
        overlap_s: Seconds for which the old secret can still be used.
    """

    overlap_s: Annotated[float, Meta(ge=0, le=_LONGEST_S)] = 86_400.0


def routes(known: KeyCache | None, aliases: Callable[[], Mapping[str, str]]) -> list[Route]:
    """
    Return the routes.

    Args:
        known: The keys; None where those of the store let nobody in, which each route tells.
        aliases: By alias, the name of its model: a key names models, and an alias would match none.
    """

    async def list_keys(request: web.Request) -> web.StreamResponse:
        """List all keys, also those that have ended, without their secrets."""
        keys = _require_store(known)
        return json_of({"keys": [describe(key, keys.clock()) for key in await keys.all()]})

    async def create_key(request: web.Request) -> web.StreamResponse:
        """Make a key; its text is in this answer, and nowhere else."""
        body = body_of(NewKey, await request.read())
        for name in body.models or ():
            if (model := aliases().get(name)) is not None:
                raise InvalidRequest(
                    f"`models`: `{name}` is an alias of `{model}`; name the model.", param="models"
                )
        secret = new_secret()
        made = _require_store(known).create(
            body.name,
            id_of(secret) or "",
            digest(secret),
            owner=body.owner or "",
            models=body.models,
            limits=_limits(body.limits),
            lasts_s=body.expires_in_s,
            require=body.require,
        )
        return json_of(_describe(known, await _make_change(known, made)) | {"key": secret}, 201)

    return [
        Route("GET", "/keys", list_keys, summary="List the keys of the store"),
        Route(
            "POST",
            "/keys",
            create_key,
            request=NewKey,
            summary="Make a key; its secret is in the answer only",
        ),
        *_changing(known),
    ]


def _changing(known: KeyCache | None) -> list[Route]:
    async def rotate_key(request: web.Request) -> web.StreamResponse:
        """Give a key another secret, which is in this answer, and nowhere else."""
        body, secret = body_of(Rotation, await request.read()), new_secret()
        name = request.match_info["key"]
        made = _require_store(known).rotate(
            name, id_of(secret) or "", digest(secret), body.overlap_s
        )
        return json_of(_describe(known, await _make_change(known, made)) | {"key": secret})

    async def change_key(request: web.Request) -> web.StreamResponse:
        """Change the limits of a key; those that are left out stay."""
        changes = structs.asdict(body_of(KeyChange, await request.read()).limits)
        limits = {name: most for name, most in changes.items() if most is not UNSET}
        made = _require_store(known).limit(request.match_info["key"], limits)
        return json_of(_describe(known, await _make_change(known, made)))

    async def revoke_key(request: web.Request) -> web.StreamResponse:
        """End a key: no request is begun with it any more, and those that run end."""
        check_no_body(await request.read())
        made = _require_store(known).revoke(request.match_info["key"])
        return json_of(_describe(known, await _make_change(known, made)))

    async def delete_key(request: web.Request) -> web.StreamResponse:
        """Delete a key, also one that has ended; what it has used and stored stays under its id."""
        check_no_body(await request.read())
        made = _require_store(known).delete(request.match_info["key"])
        key, left = await _make_change(known, made)
        return json_of(_describe(known, key) | {"state": "deleted", "keys_left": left})

    return [
        Route(
            "PATCH",
            "/keys/{key}",
            change_key,
            request=KeyChange,
            summary="Change the limits of a key",
        ),
        Route(
            "POST",
            "/keys/{key}/rotate",
            rotate_key,
            request=Rotation,
            summary="Give a key another secret; the old one works for a while",
        ),
        Route("POST", "/keys/{key}/revoke", revoke_key, summary="End a key"),
        Route("DELETE", "/keys/{key}", delete_key, summary="Delete a key"),
    ]


def body_of(kind: type[_BodyT], body: bytes) -> _BodyT:
    """
    Return a body as a Struct; none is an empty one.

    Raises:
        InvalidRequest: It is not JSON, or a field is missing, wrong, unknown or there twice; the message names it.
    """
    try:
        decoded = msgspec.json.decode(body or b"{}", type=kind)
        # which the other takes the last of
        json.loads(body or b"{}", object_pairs_hook=_check_once)
        return decoded
    except msgspec.ValidationError as error:
        if (found := _UNKNOWN.match(str(error))) is not None:
            name, of_limits = found[1][:100], str(error).endswith("at `$.limits`")
            known = ", ".join(NAMES if of_limits else kind.__struct_fields__)
            name = f"limits.{name}" if of_limits else name
            raise InvalidRequest(f"`{name}`: unknown field; known: {known}.", param=name) from error
        raise wrong_field(str(error), body, kind) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise no_json(error) from error


def _check_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """
    Raises:
        InvalidRequest: A field is there twice.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"`{twice}`: is given twice. Send it once.", param=twice)
    return fields


def check_no_body(body: bytes) -> None:
    """
    Raises:
        InvalidRequest: There is a body, and nothing in it would have an effect.
    """
    if body.strip() not in (b"", b"{}"):
        raise InvalidRequest("This request takes no body. Leave it out, or send `{}`.")


def json_of(value: Any, status: int = 200) -> web.Response:
    """Return an answer in JSON, which nobody keeps."""
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    return web.Response(status=status, body=msgspec.json.encode(value), headers=headers)


def _limits(given: Limits | None) -> dict[str, float]:
    every = {} if given is None else structs.asdict(given)
    return {name: most for name, most in every.items() if most is not None}


def _require_store(known: KeyCache | None) -> KeyStore:
    """
    Raises:
        UnsupportedOperation: The store lets nobody in.
    """
    if known is None:
        raise UnsupportedOperation(
            "The keys of the store are turned off (`keys = false` in [store]). Take that out, and restart the server."
        )
    return known.stored


def _describe(known: KeyCache | None, key: Key) -> dict[str, Any]:
    """Tell what is known of a key now."""
    return describe(key, _require_store(known).clock())


async def _make_change(known: KeyCache | None, change: Awaitable[_Result]) -> _Result:
    """
    Make a change of the keys, which holds on this server when this returns.

    Raises:
        InvalidRequest: A field of the body is wrong, as the store says.
        NotStored: The key of the URL is not there, or cannot be changed.
    """
    try:
        result = await change
    except ConfigError as error:
        if not error.path:
            raise NotStored(str(error)) from error
        param = str(error.path[0])
        raise InvalidRequest(f"`{param}`: {error}", param=param) from error
    if known is not None:
        await known.refresh()
    return result
