"""
Hints for a name that is no option, in a file or in the environment: what was most likely meant, and where it stands.
"""

import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import msgspec

from unilect.config.foreign_names import option_meant, parameter_meant, why_absent
from unilect.config.limits import Limits
from unilect.config.mistakes import ErrorCollector, OptionPath
from unilect.config.model import ModelConfig
from unilect.config.option import tables_in
from unilect.config.server import Config
from unilect.config.values import describe_value, nearest
from unilect.core.requests import ChatRequest, CompletionRequest

PREFIX = "UNILECT_"
KEY_VARIABLE = "UNILECT_API_KEY"
CONFIG_VARIABLE = "UNILECT_CONFIG"
FLEET_TOKEN_VARIABLE = "UNILECT_FLEET_TOKEN"
#: Of this repository's own scripts and tests (CONTRIBUTING.md), whose servers inherit them.
_OF_SCRIPTS = re.compile(r"UNILECT_(PEERS|FUZZ|HOSTILE|KILLS|EXTRAS|(TEST|BENCH)_\w+)")
#: What Kubernetes sets in every container for services named `unilect` or `unilect-...`.
_OF_KUBERNETES = re.compile(
    r"UNILECT_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_KUBERNETES_URL = re.compile(r"(tcp|udp|sctp)://")
_SERVER_TABLES = frozenset({"server", "unilect", "gateway", "config", "settings", "http", "main"})
_TOP = "at the top of the file, before the first table"


_SERVER = Config.__struct_fields__
_MODEL = ModelConfig.__struct_fields__
_TABLES = tables_in(Config)
#: By variable of the environment, the option that it sets.
VARIABLES = {
    KEY_VARIABLE: "api_keys",  # the name that clients read it by; the other came first
    **{f"{PREFIX}{name.upper()}": name for name in _SERVER if name not in _TABLES},
}


def unknown_option(path: OptionPath, here: Collection[str], name: str, value: Any) -> str:
    """Return what to say of a name in a table of a file that is no option there."""
    if not path:
        return _unknown_at_the_top(name, value)
    if path[0] != "models":
        return unknown_in(here, name, _SERVER, f"put it {_TOP}")
    if len(path) > 2:
        return unknown_in(here, name)
    if meant := _parameter(name):
        return f"is a parameter of requests; put it under `defaults`: {_as_default(meant, value)}."
    if limit := _limit(name):
        return f"is a limit; put it under `limits`: `limits = {{ {limit} = {describe_value(value)} }}`."
    return unknown_in(here, name, _SERVER, f"put it {_TOP}")


def unknown_variables(env: Mapping[str, str], found: ErrorCollector) -> None:
    """Note variables that begin as ours do and set nothing; what they hold is never told, it may be a key."""
    known = {*VARIABLES, CONFIG_VARIABLE, FLEET_TOKEN_VARIABLE}
    in_kubernetes = "KUBERNETES_SERVICE_HOST" in env
    for name in sorted(env):
        if not name.startswith(PREFIX) or name in known or _OF_SCRIPTS.fullmatch(name):
            continue
        url = name.endswith("_PORT") and is_of_kubernetes(env[name])
        if in_kubernetes and (_OF_KUBERNETES.fullmatch(name) or url):
            continue
        option = name.removeprefix(PREFIX).lower()
        if option in _MODEL:
            hint = f"`{option}` is an option of a model: set it in a file, or with a flag of `unilect serve`."
        elif option in _SERVER:
            hint = f"`{option}` can be set in a file only."
        elif meant := option_meant(option, VARIABLES.values()):
            hint = f"did you mean {PREFIX}{meant.upper()}?"
        elif option in ("key", "keys", "token", "apikey"):
            hint = f"did you mean {KEY_VARIABLE}?"
        elif near := nearest(option, [one.removeprefix(PREFIX).lower() for one in known]):
            hint = f"did you mean {PREFIX}{near.upper()}?"
        else:
            hint = "docs/configuration.md lists all. Unset it."
        found.add(f"{name}: this environment variable sets nothing; {hint}")


def is_of_kubernetes(text: str) -> bool:
    """Return True if a variable holds what Kubernetes sets for the port of a service."""
    return _KUBERNETES_URL.match(text) is not None


@cache
def parameters() -> frozenset[str]:
    """Return the names of all that a request may hold."""
    kinds = (ChatRequest, CompletionRequest)
    return frozenset(field.name for kind in kinds for field in msgspec.structs.fields(kind))


def _parameter(name: str) -> str:
    """Return the parameter of requests that a name means; empty for none."""
    return name if name in parameters() else parameter_meant(name)


def _limit(name: str) -> str:
    """Return the limit that a name means; empty for none."""
    limits = Limits.__struct_fields__
    return name if name in limits else option_meant(name, limits)


def _as_default(name: str, value: Any) -> str:
    simple = isinstance(value, bool | int | float)
    return f"`defaults = {{ {name} = {describe_value(value) if simple else '...'} }}`"


def _unknown_at_the_top(name: str, value: Any) -> str:
    if not isinstance(value, dict) and (limit := _limit(name)) and limit not in _MODEL:
        return f"is a limit; put it into the table [limits]: `{limit} = {describe_value(value)}`."
    if not isinstance(value, dict) and (meant := _parameter(name)) and meant not in _MODEL:
        return f"is a parameter of requests; put it under a model's `defaults`: {_as_default(meant, value)}."
    if not isinstance(value, dict):
        return unknown_in(_SERVER, name, _MODEL, "put it into the model's table [models.NAME]")
    if name.lower() in _SERVER_TABLES:
        return f"unknown table [{name}]; put the options of the server {_TOP}."
    inner = next((key for key, one in value.items() if isinstance(one, dict)), None)
    meant = "store" if name in ("database", "storage", "db") else nearest(name, _TABLES)
    several = {
        "models": f"models.{inner or 'NAME'}",
        "": f"models.{name}",
        "listeners": "[listeners]",
    }
    return f"unknown table [{name}]; did you mean [{several.get(meant, meant)}]?"


def unknown_in(
    here: Collection[str], name: str, elsewhere: Collection[str] = (), do: str = ""
) -> str:
    """Return what to say of a name that is no option in `here`; where it is one in `elsewhere`, what to do."""
    if meant := option_meant(name, here):
        return f"unknown option; did you mean `{meant}`{_unit(meant)}?"
    if meant := name if name in elsewhere else option_meant(name, elsewhere):
        whose = "the server" if "tls_cert" in elsewhere else "a model"
        which = "" if meant == name else f"; did you mean `{meant}`{_unit(meant)}? It"
        return f"{f'unknown option{which} ' if which else ''}is an option of {whose}; {do}."
    if why := why_absent(name):
        return f"no such option; {why}."
    if meant := nearest(name, here):
        return f"unknown option; did you mean `{meant}`?"
    if (near := nearest(name, elsewhere)) and do:
        return f"unknown option here; if you meant `{near}`, {do}."
    return (
        f"unknown option; known: {', '.join(here)}."
        if len(here) < 12
        else ("unknown option; docs/configuration.md lists all.")
    )


def _unit(option: str) -> str:
    return ", in seconds" if option.endswith("_s") else ""
