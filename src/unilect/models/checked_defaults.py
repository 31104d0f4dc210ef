"""The check of a model's defaults: each is held to the type that requests have for it, and to what its backend can do."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from unilect.api.backend import Capabilities
from unilect.api.parameters.rules import refuses
from unilect.config.mistakes import ErrorCollector
from unilect.config.model import ModelConfig
from unilect.config.values import convert, nearest
from unilect.core.requests import Request


@cache
def _parameters(request_class: type[Request]) -> Mapping[str, Any]:
    """The types of a request's parameters, by their names; to find them takes a millisecond."""
    return {
        field.name: field.type
        for field in msgspec.structs.fields(request_class)
        if field.name not in request_class.gateway_fields and field.name != "raw_fields"
    }


def check_defaults(
    model: str,
    defaults: Mapping[str, Any],
    *request_classes: type[Request],
    option: str = "defaults",
) -> None:
    """
    Validate a model's defaults as if they stood in a request.

    Args:
        option: The name of these defaults.

    Raises:
        ConfigError: No kind of request has such a parameter, or it does not take the value; all are told.
    """
    types: dict[str, Any] = {}
    for request_class in request_classes:
        types |= _parameters(request_class)
    own = {name for request_class in request_classes for name in request_class.gateway_fields}
    found = ErrorCollector()
    for name, value in defaults.items():
        where = ("models", model, option, name)
        if name in types:
            convert(types[name], value, where, found)
        elif name in own:
            found.at(where, "each request says this itself; leave it out.")
        else:
            near = nearest(name, types)
            hint = f"; did you mean `{near}`?" if near else ". docs/api.md lists all."
            found.at(where, f"there is no such parameter{hint}")
    found.raise_all()


def check_supported(model: str, config: ModelConfig, can: Capabilities) -> None:
    """
    Check that a backend honours a model's defaults, where it knows before its start what it can do.

    Raises:
        ConfigError: It refuses one; all are told.
    """
    found = ErrorCollector()
    for option in ("defaults", "completion_defaults") if can.is_final else ():
        for name in getattr(config, option):
            if refuses(can, name):
                where = ("models", model, option, name)
                found.at(where, "this model does not support it; leave it out.")
    found.raise_all()
