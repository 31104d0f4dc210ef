"""The configuration that a command line gives: models, a file, and flags."""

from collections.abc import Container, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from unilect.config import load as config_load
from unilect.config.file import Origin
from unilect.config.kinds import ENGINES, name_kinds
from unilect.config.mistakes import ErrorCollector
from unilect.config.model import ModelConfig, wrong_name
from unilect.config.names import check_names
from unilect.config.paths import resolve_paths
from unilect.config.server import Config
from unilect.config.values import convert
from unilect.core.errors import ConfigError
from unilect.models import sources
from unilect.models.source_names import name_source, rename_note

_OF_ALL = "all"  # what a table of the command line is called that stands for all models of a server or a folder


class Given(NamedTuple):
    """
    The arguments of a command that make a configuration.

    Attributes:
        models: `[NAME=]SOURCE` arguments; they come before the models of the file.
        config: The file.
        server: Flags about the server; None where not given.
        engine: Flags about engines that are given: about those of `models`, and without any about those of the file.
    """

    models: Sequence[str]
    config: Path | None
    server: Mapping[str, Any]
    engine: Mapping[str, Any]

    @property
    def origin(self) -> Origin:
        """The places that options come from, for errors; flags about engines name themselves where they are wrong."""
        of_server = config_load.origin_of(self.config, self.server)
        own = [f"models.{name}" for name, _ in self._name_models()]
        return Origin(of_server.file, of_server.given | dict.fromkeys([*self.engine, *own], ""))

    @property
    def notes(self) -> list[str]:
        """Sentences about the names of models that are other than one would expect."""
        found = [rename_note(name, argument) for name, argument in self._name_models()]
        return [note for note in found if note]

    def _name_models(self) -> list[tuple[str, str]]:
        """Return the models with their names, those with no mistake."""
        found: dict[str, str] = {}
        for argument in self.models:
            with ErrorCollector():  # which are told where the models are made
                name, _ = name_source(argument, found)
                found.setdefault(_name_table(name, found), argument)
        return list(found.items())


def read(given: Given) -> tuple[Config, ErrorCollector]:
    """Return the configuration of the file, the environment and the command line together, without what is wrong, and what is wrong."""
    loaded, found = config_load.read(given.config, given.server)
    of_file, tables = dict(loaded.models), dict[str, ModelConfig]()
    for argument in given.models:
        with found:
            _add(argument, tables)
    for name in tables.keys() & of_file.keys():
        found.add(
            f"{' and '.join(tables[name].sources)}: the name `{name}` is also that of a model in {given.origin.file}. "
            f"Give it another, such as {name}-2={tables[name].sources[0]}, or leave one of them out."
        )
    if given.engine and (tables or not given.models):
        with found:
            if given.models:
                tables = _with_flags(tables, given.engine)
            else:
                of_file = _with_flags(of_file or {sources.DEMO: ModelConfig()}, given.engine)
    settings = structs.replace(loaded, models={**tables, **of_file})
    if given.models:
        with found:
            check_names(settings.models)
    return settings, found


def load_checked(given: Given) -> Config:
    """
    Return the configuration, unless something is wrong with it: then what else would be found later is told too.

    Raises:
        ConfigError: Something is wrong.
    """
    settings, found = read(given)
    if found.errors:
        from unilect.cli import _preflight as preflight

        later = ErrorCollector()
        list(preflight.look(settings, later))
        found.errors += given.origin.locate(later.errors)
    found.raise_all()
    return settings


def _add(argument: str, tables: dict[str, ModelConfig]) -> None:
    """
    Take a model of the command line in; a name that is given twice is a model with several backends.

    Raises:
        ConfigError: It is none that can be served, or has no name that a model can have.
    """
    name, source = name_source(argument, tables)
    if not source.strip():
        raise ConfigError(
            f"`{argument}`: has no source. Write SOURCE or NAME=SOURCE; a variable of the shell may be empty."
        )
    if name != sources.ALL and (wrong := wrong_name(name)) is not None:
        raise ConfigError(f"{argument}: {wrong}")
    source = resolve_paths({"source": source}, ModelConfig, None)["source"]
    if name == sources.ALL:
        tables[_name_table(name, tables)] = ModelConfig(source=source, model=sources.ALL)
        return
    others = tables[name].sources if name in tables else []
    for other in others:
        if other != source and _runs_here(other) and _runs_here(source):
            raise ConfigError(
                f"{argument}: the name `{name}` is given to {other}, too, and these are two models. Give each a name of its own: "
                f"{name}={other} {name}-2={source}. Two sources of one model are a list in a configuration file."
            )
    tables[name] = ModelConfig(source=[*others, source] if others else source)


def _name_table(name: str, taken: Container[str]) -> str:
    """Return the name of a model's table: its own, and for all models of a server or a folder one that is free."""
    numbered = (f"{_OF_ALL}-{number}" for number in count(2))
    own = chain([_OF_ALL], numbered) if name == sources.ALL else [name]
    return next(one for one in own if one not in taken or name != sources.ALL)


def _runs_here(source: str) -> bool:
    """Return True for a source that an engine of this server reads, and none that a server answers for."""
    with ErrorCollector():  # told where its backend is made
        return sources.kind_of(sources.split(source)[0]) in ENGINES
    return False


def _with_flags(
    tables: Mapping[str, ModelConfig], flags: Mapping[str, Any]
) -> dict[str, ModelConfig]:
    """
    Return the models with the flags that they have.

    Raises:
        ConfigError: A value is wrong, or no model has such a flag.
    """
    found, fields = ErrorCollector(), {field.name: field for field in structs.fields(ModelConfig)}
    try:
        kinds = {name: sources.kinds(table) for name, table in tables.items()}
    except ConfigError:  # told with its model, where that is made
        return dict(tables)
    for option, value in flags.items():
        of_flag, declared = ErrorCollector(), ModelConfig.declared[option]
        convert(fields[option].type, value, (option,), of_flag)
        for error in of_flag.errors:
            found.add(str(error).replace(option, declared.flag_name, 1))
        if not any(declared.applies_to(of_model.values()) for of_model in kinds.values()):
            found.add(f"{declared.flag_name}: applies to {name_kinds(declared.kinds)}; no model here is one. Leave it out.")  # fmt: skip
    found.raise_all()
    placed = resolve_paths(flags, ModelConfig, None)
    return {
        name: structs.replace(
            table,
            **{
                option: value
                for option, value in placed.items()
                if ModelConfig.declared[option].applies_to(kinds[name].values())
            },
        )
        for name, table in tables.items()
    }
