"""
What to say of a name that is no option, in a file or in the environment: what was most likely meant, and where it stands.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from unilect.config.model import ModelConfig
from unilect.config.server import TABLES, Config
from unilect.config.values import OptionPath, nearest, shown
from unilect.mistakes import Mistakes
from unilect.requests import ChatRequest, CompletionRequest

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
#: Options as other servers call them.
_NAMES_ELSEWHERE = {
    "context": "n_ctx num_ctx ctx_size max_model_len max_seq_len",
    "gpu_layers": "ngl",
    "parallel": "n_parallel max_num_seqs slots",
    "batch": "n_batch",
    "source": "path file url base_url model_path",
    "chat_template": "template",
    "max_age_days": "max_age ttl retention",
    "max_size_mib": "max_size max_bytes",
    "tls_cert": "ssl_certfile",
    "tls_key": "ssl_keyfile",
    "host": "bind address",
}
_ELSEWHERE = {name: ours for ours, names in _NAMES_ELSEWHERE.items() for name in names.split()}
_SERVER_TABLES = frozenset({"server", "unilect", "gateway", "config", "settings", "http", "main"})
_TOP = "at the top of the file, before the first table"


_SERVER = Config.__struct_fields__
_MODEL = ModelConfig.__struct_fields__
#: By variable of the environment, the option that it sets.
VARIABLES = {
    KEY_VARIABLE: "api_keys",  # the name that clients read it by; the other came first
    **{f"{PREFIX}{name.upper()}": name for name in _SERVER if name not in TABLES},
}


def unknown_option(path: OptionPath, here: Collection[str], name: str, value: Any) -> str:
    """What to say of a name in a table of a file that is no option there."""
    if not path:
        return _unknown_at_the_top(name, value)
    if path[0] in ("listeners", "store", "limits", "owners", "admin", "otel", "fleet"):
        return unknown_in(here, name, _SERVER, f"put it {_TOP}")
    if len(path) > 2:
        return unknown_in(here, name)
    if name in _parameters():
        return f"is a parameter of requests; put it under `defaults`: {_as_default(name, value)}."
    return unknown_in(here, name, _SERVER, f"put it {_TOP}")


def unknown_variables(env: Mapping[str, str], found: Mistakes) -> None:
    """Variables that begin as ours do and set nothing; what they hold is never told, it may be a key."""
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
        elif _ELSEWHERE.get(option) in VARIABLES.values():
            hint = f"did you mean {PREFIX}{_ELSEWHERE[option].upper()}?"
        elif option in ("key", "keys", "token", "apikey"):
            hint = f"did you mean {KEY_VARIABLE}?"
        elif near := nearest(option, [one.removeprefix(PREFIX).lower() for one in known]):
            hint = f"did you mean {PREFIX}{near.upper()}?"
        else:
            hint = "docs/configuration.md lists all. Unset it."
        found.add(f"{name}: this environment variable sets nothing; {hint}")


def is_of_kubernetes(text: str) -> bool:
    """Whether a variable holds what Kubernetes sets for the port of a service."""
    return _KUBERNETES_URL.match(text) is not None


def _parameters() -> set[str]:
    """What a request may hold."""
    kinds = (ChatRequest, CompletionRequest)
    return {field.name for kind in kinds for field in msgspec.structs.fields(kind)}


def _as_default(name: str, value: Any) -> str:
    simple = isinstance(value, bool | int | float)
    return f"`defaults = {{ {name} = {shown(value) if simple else '...'} }}`"


def _unknown_at_the_top(name: str, value: Any) -> str:
    if not isinstance(value, dict) and name in _parameters() - {*_MODEL}:
        return f"is a parameter of requests; put it under a model's `defaults`: {_as_default(name, value)}."
    if not isinstance(value, dict):
        return unknown_in(_SERVER, name, _MODEL, "put it into the model's table [models.NAME]")
    if name.lower() in _SERVER_TABLES:
        return f"unknown table [{name}]; put the options of the server {_TOP}."
    inner = next((key for key, one in value.items() if isinstance(one, dict)), None)
    if nearest(name, ["models"]):
        return f"unknown table [{name}]; did you mean [models.{inner or 'NAME'}]?"
    if nearest(name, ["listeners"]):
        return f"unknown table [{name}]; did you mean [[listeners]]?"
    if nearest(name, ["store"]) or name in ("database", "storage", "db"):
        return f"unknown table [{name}]; did you mean [store]?"
    if nearest(name, ["admin"]):
        return f"unknown table [{name}]; did you mean [admin]?"
    return f"unknown table [{name}]; did you mean [models.{name}]?"


def unknown_in(
    here: Collection[str], name: str, elsewhere: Collection[str] = (), do: str = ""
) -> str:
    """What to say of a name that is no option in `here`; where it is one in `elsewhere`, what to do."""
    if name in elsewhere:
        whose = "the server" if "tls_cert" in elsewhere else "a model"
        return f"is an option of {whose}; {do}."
    meant = _ELSEWHERE.get(name, "")
    meant = meant if meant in here else nearest(name, here)
    if meant:
        return f"unknown option; did you mean `{meant}`?"
    if (near := nearest(name, elsewhere)) and do:
        return f"unknown option here; if you meant `{near}`, {do}."
    return (
        f"unknown option; known: {', '.join(here)}."
        if len(here) < 12
        else ("unknown option; docs/configuration.md lists all.")
    )
