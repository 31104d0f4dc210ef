"""
llama-swap's configuration, a YAML file: models by command, macros, peers.

Source: https://github.com/mostlygeek/llama-swap (config.example.yaml)
"""

import re
import shlex
from typing import Any

from unilect.cli.imports._draft import Draft
from unilect.cli.imports._llama_cpp import find_flags, flag_of, with_model
from unilect.cli.imports._swap_command import read_command
from unilect.config.kinds import UPSTREAMS
from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.models import sources

_MACRO = re.compile(r"\$\{([A-Za-z0-9_.-]{1,128})\}")
_MAX_COMMAND, _MAX_MACROS = 16_384, 4_194_304  # characters
_KEPT = frozenset(("PORT", "MODEL_ID", "PID"))  # what llama-swap puts in when it starts a command
_NEEDLESS = ("checkEndpoint", "proxy", "useModelName", "cmdStop", "unloadTimeout")
_EXPANDED = ("cmdStop", "env", "useModelName", "checkEndpoint")  # beside `cmd` and `proxy`
_LEVELS = ("debug", "info", "warning", "error")


def read(data: dict[str, Any], draft: Draft) -> None:
    """Take in all of a file."""
    macros = _macros(draft.mapping(data.pop("macros", None), "macros"), {}, draft, "macros")
    own = draft.mapping(data.pop("models", None), "models")
    ttl = draft.number(data.pop("globalTTL", None), "globalTTL")
    timeout = draft.number(data.pop("healthCheckTimeout", None), "healthCheckTimeout")
    names: dict[str, str] = {}  # here, by what they are called there
    for name, value in own.items():
        model = draft.mapping(value, f"models.{name}")
        if (made := _add(name, model, macros, draft)) is None:
            continue
        names[name] = made
        table = draft.models[made]
        seconds = draft.number(model.get("ttl", -1), f"models.{name}.ttl")
        seconds = ttl if seconds == -1 else seconds
        if not _is_upstream(table):
            table["load"] = "demand"
            table |= {"idle_stop_s": seconds} if seconds and seconds > 0 else {}
            waits = "start_silence_s" if "command" in table else "start_timeout_s"
            table |= {waits: timeout} if timeout else {}
        elif seconds and seconds > 0:
            draft.remark(f"models.{name}.ttl: its server is not unilect's to stop.", made)
    _read_peers(draft.mapping(data.pop("peers", None), "peers"), draft)
    for name, made in names.items():  # no variant takes the name of a model
        model = draft.mapping(own[name], f"models.{name}")
        _add_variants(name, made, draft.mapping(model.get("filters"), "filters"), draft)
    _read_groups(draft.mapping(data.pop("groups", None), "groups"), names, draft)
    _read_hooks(draft.mapping(data.pop("hooks", None), "hooks"), names, draft)
    if keys := draft.items(data.pop("apiKeys", None), "apiKeys"):
        draft.server["api_keys"] = [draft.key(key, f"apiKeys[{at}]") for at, key in enumerate(keys)]
    level = draft.text(data.pop("logLevel", None), "logLevel").replace("warn", "warning")
    if level in _LEVELS:
        draft.server["log_level"] = level
    if data.pop("startPort", None) is not None:
        draft.remark("startPort: is not needed: engines have no ports.")
    if data.pop("matrix", None) is not None:
        draft.remark("matrix: has no counterpart here: models are loaded beside each other as they fit into `memory`.")  # fmt: skip
    draft.absent(data, "")


def _macros(
    given: dict[str, Any], known: dict[str, str], draft: Draft, where: str
) -> dict[str, str]:
    """
    Return macros with those before them put in, beside those that are known.

    Raises:
        ConfigError: They are too long.
    """
    macros, size = dict(known), 0
    for name, value in given.items():
        text = str(value).lower() if isinstance(value, bool) else str(value).strip()
        if isinstance(value, dict | list):
            draft.remark(f"{where}.{name}: expected a text or a number; left out.")
            continue
        macros[name] = _expand(text, macros, f"{where}.{name}", draft)
        size += len(macros[name])
        if size > _MAX_MACROS:
            raise ConfigError(f"{where}: they make more than {_MAX_MACROS} characters.")
    return macros


def _expand(text: str, macros: dict[str, str], where: str, draft: Draft) -> str:
    """Return a text with its macros put in; references to the environment and to what a start puts in stay."""
    unknown: list[str] = []
    size = len(text)

    def put_in(found: re.Match[str]) -> str:
        nonlocal size
        name = found[1]
        if name not in macros:
            if name not in _KEPT and not name.startswith("env."):
                unknown.append(name)
            return found[0]
        size += len(macros[name])
        return macros[name] if size <= _MAX_COMMAND else ""

    done = _MACRO.sub(put_in, text)
    for name in unknown[:20]:
        draft.remark(f"{where}: there is no macro {name}.")
    if size > _MAX_COMMAND:
        draft.remark(f"{where}: its macros make more than {_MAX_COMMAND} characters; cut.")
    return done[:_MAX_COMMAND]


def _add(name: str, model: dict[str, Any], macros: dict[str, str], draft: Draft) -> str | None:
    """Take a model in; returns its name here, or None where it cannot be served."""
    where = f"models.{name}"
    macros = _macros(draft.mapping(model.get("macros"), f"{where}.macros"), macros, draft, where)
    macros |= {"MODEL_ID": name}
    lines = draft.text(model.get("cmd"), f"{where}.cmd").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    text = _expand(text, macros, f"{where}.cmd", draft)
    proxy = _expand(draft.text(model.get("proxy"), f"{where}.proxy"), macros, where, draft)
    for key in model.keys() & _EXPANDED:
        value = model[key] if isinstance(model[key], list) else [model[key]]
        done = [_expand(str(one), macros, f"{where}.{key}", draft) for one in value]
        model[key] = done if isinstance(model[key], list) else done[0]
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        draft.leave_out(name, f"{where}.cmd cannot be read as a shell would ({error}).")
        return None
    variables = [str(one) for one in draft.items(model.get("env"), f"{where}.env")]
    if (flags := find_flags([*variables, *words])) is not None:
        made = with_model([word.replace("${PORT}", "0") for word in flags], draft, name)
    elif table := read_command(where, words, proxy, model, draft):
        made = draft.add(name, table)
    elif proxy and "${PORT}" not in proxy:
        made = draft.add(name, {"source": f"{proxy.rstrip('/')}/v1", "model": model.get("useModelName") or name})  # fmt: skip
        draft.remark(f"{where}.cmd: starts {words[0][:64] if words else 'nothing'}, which is to run already: start it by itself.", made)  # fmt: skip
    else:
        program = f"`{words[0][:64]}`" if words else "nothing"
        draft.leave_out(name, f"its command starts {program}, and nothing says on which port.")
        return None
    if made is not None:
        _set_more(name, model, draft.models[made], made, draft)
    return made


def _is_upstream(table: dict[str, Any]) -> bool:
    """Return True for a model of a server that unilect does not start."""
    try:
        kinds = sources.kinds(
            ModelConfig(source=table.get("source", ""), command=table.get("command"))
        )
    except ConfigError:  # told once the whole table is looked at
        return False
    return any(kind in UPSTREAMS for kind in kinds.values())


def _set_more(
    name: str, model: dict[str, Any], table: dict[str, Any], made: str, draft: Draft
) -> None:
    """Set what stands beside the command of a model."""
    where = f"models.{name}."
    aliases = table.get("aliases", [])
    for alias in draft.items(model.get("aliases"), f"{where}aliases"):
        aliases.append(alias.get("id") if isinstance(alias, dict) else alias)
    table |= {"aliases": aliases} if aliases else {}
    if model.get("unlisted") is True:
        table["unlisted"] = True
    if (limit := draft.number(model.get("concurrencyLimit"), f"{where}concurrencyLimit")) and limit > 0:  # fmt: skip
        table["limits"] = {"parallel": int(limit)}
    for told in ("name", "description"):
        if text := draft.text(model.get(told), f"{where}{told}"):
            draft.remark(f"{told}: {text}", made)
    for variable in draft.items(model.get("env"), f"{where}env"):
        if flag_of(str(variable).partition("=")[0]):
            continue
        draft.remark(f"{where}env {str(variable).partition('=')[0][:128]}: set it for unilect, whose engines inherit it.", made)  # fmt: skip
    filters = draft.mapping(model.get("filters"), f"{where}filters")
    if given := draft.mapping(filters.get("setParams"), f"{where}filters.setParams"):
        table["defaults"] = table.get("defaults", {}) | given
        draft.remark(f"{where}filters.setParams: are defaults here: a client's own value stands.", made)  # fmt: skip
    if strips := filters.get("stripParams") or filters.get("strip_params"):
        told = strips if isinstance(strips, str) else "its parameters"
        draft.remark(f"{where}filters.stripParams ({told}): no parameter of a client is taken away here.", made)  # fmt: skip
    known = {"cmd", "ttl", "aliases", "unlisted", "concurrencyLimit", "name", "description", "env"}
    known |= {"filters", "macros", *_NEEDLESS}
    for needless in () if _is_upstream(table) else _NEEDLESS:
        if needless in model:
            draft.remark(f"{where}{needless}: is not needed: unilect starts the engine.", made)
    draft.absent([key for key in model if key not in known], where, made)
    others = {"setParams", "stripParams", "strip_params", "setParamsByID"}
    draft.absent([key for key in filters if key not in others], f"{where}filters.", made)


def _add_variants(name: str, made: str, filters: dict[str, Any], draft: Draft) -> None:
    """Take in the names of a model that have parameters of their own, as presets."""
    where = f"models.{name}.filters.setParamsByID"
    for key, value in draft.mapping(filters.get("setParamsByID"), where).items():
        preset = key.replace("${MODEL_ID}", name)
        given = draft.mapping(value, f"{where}.{preset}")
        if preset == name:
            table = draft.models[made]
            table["defaults"] = table.get("defaults", {}) | given
            continue
        aliases = draft.models[made].get("aliases", [])
        if preset in aliases:
            draft.models[made]["aliases"] = [one for one in aliases if one != preset]
        draft.add(preset, {"base": made, "defaults": given})


def _read_hooks(hooks: dict[str, Any], names: dict[str, str], draft: Draft) -> None:
    """Have the models that are loaded at the start be loaded then."""
    start = draft.mapping(hooks.pop("on_startup", None), "hooks.on_startup")
    for name in draft.items(start.pop("preload", None), "hooks.on_startup.preload"):
        if isinstance(name, str) and name in names:
            draft.models[names[name]].pop("load", None)
        else:
            draft.remark(f"hooks.on_startup.preload: there is no model {str(name)[:128]} here.")
    draft.absent(start, "hooks.on_startup.")
    draft.absent(hooks, "hooks.")


def _read_groups(groups: dict[str, Any], names: dict[str, str], draft: Draft) -> None:
    """Pin the models of groups that stay loaded together; what else is exchanged for what follows from the memory that there is."""
    for name, value in groups.items():
        group = draft.mapping(value, f"groups.{name}")
        members = draft.items(group.get("members"), f"groups.{name}.members")
        # without `swap = false` one of several is loaded at a time, and they need not fit together
        stays = group.get("persistent") is True and (group.get("swap") is False or len(members) < 2)
        for member in members:
            table = draft.models.get(names.get(str(member), ""), {})
            if stays and "load" in table:
                table["pin"] = True
        if not stays:
            draft.remark(f"groups.{name}: has no counterpart here: models are loaded beside each other as they fit into `memory`, and leave for others. `pin = true` keeps one.")  # fmt: skip


def _read_peers(peers: dict[str, Any], draft: Draft) -> None:
    """Take in the models of other servers."""
    for name, value in peers.items():
        peer = draft.mapping(value, f"peers.{name}")
        proxy = draft.text(peer.pop("proxy", None), f"peers.{name}.proxy")
        if not proxy:
            draft.leave_out(name, "the peer has no `proxy`.")
            continue
        table: dict[str, Any] = {"source": f"{proxy.rstrip('/').removesuffix('/v1')}/v1"}
        if key := draft.key(peer.pop("apiKey", None), f"peers.{name}.apiKey"):
            table["api_key"] = key
        models = draft.items(peer.pop("models", None), f"peers.{name}.models")
        for model in models:
            draft.add(str(model), table | {"model": str(model)})
        if not models:
            draft.add(name, table | {"model": "*"})
        draft.absent(peer, f"peers.{name}.")
