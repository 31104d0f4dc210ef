"""The admin API's routes for what was used, and for what is left of limits."""

from collections.abc import Mapping, Sequence

from aiohttp import web

from unilect.accounting import usage
from unilect.accounting.ledger import LedgerRecorder
from unilect.core.errors import NotStored, UnsupportedOperation
from unilect.limits.limiter import Limiter
from unilect.limits.remaining import remaining
from unilect.models.registry import Registry
from unilect.runtime.context import Context
from unilect.server._admin_keys import json_of
from unilect.server._usage import NONE, check_query, read_query
from unilect.store.keys import KeyStore
from unilect.store.records import Key
from unilect.web.route import Route


def routes(
    ledger: LedgerRecorder | None,
    limits: Limiter | None,
    stored: KeyStore | None,
    registry: Registry,
) -> list[Route]:
    """
    Return the routes.

    Args:
        ledger: Has what was used; None where nothing is recorded.
        limits: Knows the limits; None where there are none.
        stored: The keys; None where those of the store let nobody in.
        registry: The models, also those that `model = "*"` finds.
    """

    async def get_usage(request: web.Request) -> web.StreamResponse:
        """
        Tell what was used: a sum for each key, model and day.

        Query: `by` and `since` as of GET /v1/usage, and `key`, the name or the id of one key.
        """
        check_query(request.query, ("by", "since", "key"))
        if ledger is None or not ledger.kept:
            raise UnsupportedOperation(NONE)
        asked, name = read_query(request.query, ledger.clock()), request.query.get("key")
        key = None if name is None else await _id_of(stored, name)
        sums = await ledger.ledger.sums(asked.by, asked.since, key)
        return json_of({"object": "list", "data": usage.lines(sums)})

    async def get_limits(request: web.Request) -> web.StreamResponse:
        """
        Tell what is left of limits.

        Query: `key`, `owner` or `model`, or several of them; of all owners and models that have limits where none of them is given.
        """
        check_query(request.query, ("key", "owner", "model"))
        if limits is None:
            return json_of({"limits": []})
        query, owners = dict(request.query), limits.owners
        models = tuple(name for name in registry.models if limits.of_model(name))
        if query:
            if "model" in query:  # or an alias
                query["model"] = registry.get(query["model"]).name
            owners, models = _one_of(query, "owner", owners), _one_of(query, "model", models)
        asked = [Context(owner=name) for name in owners] + [Context(model=name) for name in models]
        if (name := query.get("key")) is not None:
            asked.insert(0, await _of_key(stored, name))
        found = [one for context in asked for one in await remaining(limits, context)]
        return json_of({"limits": found})

    return [
        Route("GET", "/usage", get_usage, summary="What was used, by key, model, day"),
        Route("GET", "/limits", get_limits, summary="What is left of limits"),
    ]


def _one_of(query: Mapping[str, str], name: str, known: Sequence[str]) -> tuple[str, ...]:
    """
    Return the owner or the model that a query names, if it names one.

    Raises:
        NotStored: It has no limits.
    """
    asked = query.get(name)
    if asked is None:
        return ()
    if asked not in known:
        raise NotStored(f"The {name} `{asked[:100]}` has no limits in the configuration.")
    return (asked,)


async def _find_key(stored: KeyStore | None, name: str) -> Key | None:
    """Return a key of the store; None where it has none of this name or id."""
    is_text = "\0" not in name and name.isprintable()  # else no database takes it
    return await stored.get_by_name(name) if stored is not None and is_text else None


async def _id_of(stored: KeyStore | None, name: str) -> str:
    """Return the id of a key; one that the store does not have is one of the configuration, or nobody's."""
    key = await _find_key(stored, name)
    return name if key is None else key.id


async def _of_key(stored: KeyStore | None, name: str) -> Context:
    """
    Return a request of a key.

    Raises:
        NotStored: There is no such key.
    """
    key = await _find_key(stored, name)
    if key is not None:
        return Context(caller=key.id, limits=key.limits)
    if name.startswith("key-") or name == "anonymous":  # the configuration's, and who needs none
        return Context(caller=name)
    raise NotStored(f"There is no key `{name[:100]}`.")
