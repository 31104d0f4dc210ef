"""
A configuration out of a TOML file, `UNILECT_*` in the environment, and flags; later ones are stronger.

A mistake names the file and the line, the variable or the flag, the option, and the reason; all are told at once.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from unilect.config.file import Origin, fill_secrets, read_file
from unilect.config.hints import (
    KEY_VARIABLE,
    VARIABLES,
    is_of_kubernetes,
    unknown_option,
    unknown_variables,
)
from unilect.config.mistakes import ErrorCollector, join_path
from unilect.config.model import ModelConfig, wrong_name
from unilect.config.paths import resolve_paths
from unilect.config.server import Config, check, process_environment
from unilect.config.values import convert, convert_table, describe_value
from unilect.core.errors import ConfigError

_FIELDS = {field.name: field for field in msgspec.structs.fields(Config)}


def load(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """
    Load the configuration.

    Args:
        path: The TOML file; `UNILECT_CONFIG` names it where this is None.
        flags: What the command line sets; None values are not set.
        environment: Instead of the process's environment.

    Raises:
        ConfigError: Something is wrong; each mistake is told with its place, the option and the reason.
    """
    config, mistakes = read(path, flags, environment)
    mistakes.raise_all()
    return config


def read(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[Config, ErrorCollector]:
    """
    Read the configuration as `load`: without what is wrong, and what is wrong.

    Raises:
        ConfigError: There is no file, or no TOML in it.
    """
    env = process_environment() if environment is None else environment
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    origin = origin_of(path, given, env)
    found, of_flags = ErrorCollector(), ErrorCollector()
    good: dict[str, Any] = {}
    used: set[str] = set()  # variables that hold keys
    if origin.file is not None:
        values = fill_secrets(read_file(origin.file), Config, env, found, used)
        good = _of_tables(resolve_paths(values, Config, origin.file.parent), found)
    errors = Origin(origin.file).locate(found.errors)
    if found.full:
        errors.append(ConfigError(f"{origin.file}: there may be more mistakes; mend these first."))
    given = fill_secrets(given, Config, env, of_flags, used)
    unknown_variables({name: env[name] for name in env.keys() - used}, of_flags)
    good |= resolve_paths(_from_environment(env, of_flags), Config, None)
    good |= _of_tables(resolve_paths(given, Config, None), of_flags)
    errors += Origin(None, origin.given).locate(of_flags.errors)
    config = Config(**good)
    broken = {error.path[0] for error in (*found.errors, *of_flags.errors) if error.path}
    contradictions = ErrorCollector()
    with contradictions:
        check(config, broken)
    errors += origin.locate(contradictions.errors)
    return config, ErrorCollector(errors)


def origin_of(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Origin:
    """Return the places of the options that `load` reads."""
    env = process_environment() if environment is None else environment
    if path is None and env.get("UNILECT_CONFIG"):
        path = Path(env["UNILECT_CONFIG"]).expanduser()
    given = {option: name for name, option in VARIABLES.items() if name in env}
    given |= {
        name: Config.declared[name].flag_name
        for name, value in (flags or {}).items()
        if value is not None
    }
    return Origin(path, given)


def _of_tables(values: Mapping[str, Any], found: ErrorCollector) -> dict[str, Any]:
    """Convert the options of the server and of its models, without what is wrong with them."""
    tables = values.get("models", {})
    server = {name: value for name, value in values.items() if name != "models"}
    if isinstance(server.get("page"), bool):
        server["page"] = {"on": server["page"]}
    good = convert_table(Config, server, (), unknown_option, found)
    if not isinstance(tables, dict):
        found.add(_no_tables(tables), ("models",))
        tables = {}
    models = {}
    for name, table in tables.items():
        if found.full:
            break
        path = ("models", name)
        if (wrong := wrong_name(name)) is not None:
            found.at(path, wrong)
        elif not isinstance(table, dict):
            why = f"expected a table [models.{name}], found {describe_value(table)}."
            found.add(f"models.{name}: {why}", path)
        else:
            models[name] = ModelConfig(
                **convert_table(ModelConfig, table, path, unknown_option, found)
            )
    return good | ({"models": models} if "models" in values else {})


def _no_tables(models: Any) -> str:
    """Return what to say of `models` that is no table of tables, with how the first of them is written."""
    first = models[0] if isinstance(models, list) and models else {}
    first = first if isinstance(first, dict) else {}
    name = next((first[key] for key in ("name", "id", "model") if isinstance(first.get(key), str)), "")  # fmt: skip
    name = name if name and wrong_name(name) is None else "NAME"
    header = join_path(("models", name))
    rest = f" Write `[{header}]` instead of `[[models]]`, and no `name`." if first else ""
    return f"models: expected tables [models.NAME], found {describe_value(models)}.{rest}"


def _from_environment(env: Mapping[str, str], found: ErrorCollector) -> dict[str, Any]:
    """Read `UNILECT_PORT=9000` and so on, for every field but those that are tables; lists are separated by commas."""
    values: dict[str, Any] = {}
    for name, option in VARIABLES.items():
        text = env.get(name)
        if text is None:
            continue
        if is_of_kubernetes(text):
            found.add(
                f"{name}: is a URL that Kubernetes sets for a service named `unilect`. Give the service another name, or "
                "set `enableServiceLinks: false`."
            )
            continue
        raw: Any = text
        field = _FIELDS[option]
        if isinstance(field.default_factory, type) and issubclass(field.default_factory, list):
            raw = [part.strip() for part in text.split(",") if part.strip()]
        if name == KEY_VARIABLE and not raw:
            found.add(f"{name}: is set but empty. Set a key, or unset the variable.")
        mistakes = ErrorCollector()
        value = convert(field.type, raw, (option,), mistakes, strict=False)
        for error in mistakes.errors:
            found.add(f"{name}: {str(error).partition(': ')[2]}")
        if not mistakes.errors:  # keys may stand in both variables
            values[option] = [*values[option], *value] if option in values else value
    return values
