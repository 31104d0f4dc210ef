"""The sources of GGUF models: files, here or to be fetched, and folders of them, whose models have names."""

import asyncio
import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import structs

from unilect.api.backend import Backend, BackendSpec
from unilect.config.model import name_from
from unilect.config.paths import expand
from unilect.core.errors import ConfigError, join_names
from unilect.engines.fetched import later, when_here
from unilect.engines.gguf._file import read_head
from unilect.engines.gguf._projector import add_projector
from unilect.engines.gguf.fit import may_fit
from unilect.hub import download as hub
from unilect.hub.repository_files import ggufs
from unilect.hub.transfer import OnProgress

ALL = "*"
MAX_FILES = 10_000
_END = re.compile(r"(-00001-of-\d{5})?\.gguf$", re.I)


def make_backend(spec: BackendSpec, make: Callable[[BackendSpec, Path], Backend]) -> Backend:
    """
    Make the engine of a source: a file, or a model of a folder; for all models of a folder one that is never started.

    Args:
        make: The engine for a file.

    Raises:
        ConfigError: There is no such file or model, or it is no valid GGUF file.
    """

    if is_for_all(spec):
        return later(spec, hub.local_file, make)

    def fetch(location: str, on_progress: OnProgress) -> Path:
        fits = partial(may_fit, spec.config, memory=spec.memory_bytes)
        return hub.local_file(location, on_progress, fits, spec.config.mmproj is None)

    def make_here(spec: BackendSpec, path: Path) -> Backend:
        return make(add_projector(spec, path), path)

    return when_here(locate(spec), fetch, make_here)


def is_for_all(spec: BackendSpec) -> bool:
    """Return True for the source of a table that stands for all models of a folder."""
    return spec.config.model == ALL and expand(spec.location).is_dir()


def locate(spec: BackendSpec) -> BackendSpec:
    """
    Return a spec whose location is that of one model.

    Raises:
        ConfigError: A folder holds no such model, or the table names a model of what is no folder.
    """
    folder, name = expand(spec.location), spec.config.model
    if folder.is_dir():
        found = spec.recall((find_models, folder), partial(find_models, folder))
        path = found.get(name or "") or choose_model(folder, name)
        return structs.replace(spec, location=str(path))
    if name is not None and len(spec.config.sources) == 1:  # else it is for an upstream
        raise ConfigError(
            "model: is for a folder of GGUF files; leave it out, or name a folder as `source`."
        )
    return spec


async def list_models(spec: BackendSpec) -> list[str]:
    """Return the names of the models in a table's folder."""
    return await asyncio.to_thread(lambda: [*find_models(expand(spec.location))])


def find_models(folder: Path) -> dict[str, Path]:
    """
    Return the models in a folder and in those in it, by their names: the files' without their ending.

    Of two files of one name the second has its folder's name before its own. Adapters, projectors and the like are none.
    """
    found = dict[str, Path]()
    for file in ggufs(_list_files(folder)):
        path = folder / file
        if _kind(path) != "model":
            continue
        name = name_from(_END.sub("", path.name))
        name = name if name not in found else name_from(_END.sub("", file))
        if name not in found:
            found[name] = path
    return found


def choose_model(folder: Path, name: str | None) -> Path:
    """
    Return the file of a model in a folder.

    Args:
        name: Its name; None for the only one.

    Raises:
        ConfigError: There is none, or more than one.
    """
    found = find_models(folder)
    if name is None and len(found) == 1:
        (only,) = found.values()
        return only
    if name in found:
        return found[name]
    if not found:
        raise ConfigError(
            f"{folder} is a folder, not a GGUF file. It holds no GGUF file that is a model."
        )
    held = join_names([f"{folder}/{file.relative_to(folder)}" for file in found.values()], 5)
    if name is None:
        raise ConfigError(
            f'{folder} is a folder, not a GGUF file. Name one of its files: {held}; or serve all, with `model = "*"`.'
        )
    raise ConfigError(f"{folder}: holds no model {name[:100]}. It holds {held}.")


def _list_files(folder: Path) -> list[str]:
    """List the files of a folder and of those in it, by their paths in it."""
    try:
        entries = _entries(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be read ({error.strerror}). Check who may read it."
        ) from error
    found = list[str]()
    for entry in entries:
        with suppress(OSError):  # one that cannot be read, or is a link to itself, hides no other
            if entry.is_dir():
                inner = _entries(Path(entry.path))
                found += [f"{entry.name}/{one.name}" for one in inner if _is_file(one)]
            elif entry.is_file():
                found.append(entry.name)
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(islice(entries, MAX_FILES))


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _kind(path: Path) -> str:
    """Return the kind of a file; one that cannot be read is a model, whose engine tells what is wrong with it."""
    try:
        return read_head(path).kind
    except ValueError:
        return "model"
