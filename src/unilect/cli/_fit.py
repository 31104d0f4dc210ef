"""The work of `unilect fit`: what the files of a model would take of memory, before they are fetched."""

import asyncio
import json
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from msgspec import Struct

from unilect.api.backend import MemoryNeed
from unilect.cli._screen import tell, tell_table
from unilect.config.model import ModelConfig
from unilect.config.paths import expand
from unilect.config.sizes import parse_size, wrong_size
from unilect.core.errors import ConfigError
from unilect.engines.gguf import fit as gguf
from unilect.engines.gguf.fit import Room, room_of
from unilect.engines.gguf.head import is_head
from unilect.engines.transformers.model import memory as transformers
from unilect.hub import download as hub
from unilect.hub.download import RemoteFile
from unilect.hub.heads import fetch_heads
from unilect.hub.repositories import REPO
from unilect.hub.repository_files import ggufs, parts, quantization
from unilect.models import sources
from unilect.runtime.tasks import start_aside

_AT_ONCE = 4
_MOST_FILES = 100


class _Row(Struct, frozen=True):
    """One model: its name, the bytes of its files, what it needs for so many requests of a context, and the longest context that fits."""

    name: str
    quantization: str
    size: int
    context: int
    parallel: int
    need: MemoryNeed
    longest: int


def fit(source: str, context: int | None, parallel: int | None, memory: str | None, as_json: bool) -> None:  # fmt: skip
    """
    Print what each file of a source would take, and whether it fits.

    Args:
        source: A file, a folder, a repository of the hub or one of its files, or a web address.
        context, parallel: As of a model.
        memory: As text, instead of that of this machine.

    Raises:
        ConfigError: There is no such model, or a flag is wrong.
    """
    for noisy in ("huggingface_hub", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    if memory is not None and (wrong := wrong_size(memory)):
        raise ConfigError(f"--memory: {wrong}")
    config = ModelConfig(source=source, context=context, parallel=parallel)
    here = room_of(config)
    size = here.total if memory is None else parse_size(memory)
    room = Room(size, size)
    with _heads(source) as (files, sizes):
        rows = asyncio.run(_estimate(files, sizes, config, room))
    told = [_record(row, room, here, bounded=memory is not None) for row in rows]
    if as_json:
        tell(json.dumps(told))
        return
    _print(told, room, here)


async def _estimate(
    files: Mapping[str, Path], sizes: Mapping[str, int], config: ModelConfig, room: Room
) -> list[_Row]:
    rows = []
    for name, path in files.items():
        if path.is_dir():
            told = transformers.estimate(path, config, room.total)
            rows.append(
                _Row(
                    name,
                    told.quantization,
                    sizes[name],
                    told.context,
                    config.most_parallel,
                    *told[2:],
                )
            )
            continue
        try:
            found = await gguf.estimate(path, config, room)
        except ConfigError as error:  # of its head, which has a path for now
            raise ConfigError(str(error).replace(str(path), name)) from error
        bits = quantization(name) or found.quantization or "-"
        rows.append(
            _Row(name, bits, sizes[name], found.context, found.parallel, found.need, found.longest)
        )
    return rows


@contextmanager
def _heads(source: str) -> Iterator[tuple[dict[str, Path], dict[str, int]]]:
    """
    Yield the models of a source: their files, or the heads of those that are elsewhere, as long as the block lasts; and their sizes in bytes.

    Raises:
        ConfigError: There are none.
    """
    scheme, location = sources.split(source)
    path = expand(location) if sources.kind_of(scheme) in ("gguf", "hf") else None
    if path is not None and location and path.exists():
        yield _local(path, source)
        return
    models = _remote(source, scheme, location)
    if len(models) > _MOST_FILES:
        raise ConfigError(f"{source}: holds {len(models)} models. Name one of them.")
    with tempfile.TemporaryDirectory(prefix="unilect-", ignore_cleanup_errors=True) as folder:
        files = dict(zip(models, _fetch_all(Path(folder), list(models.values())), strict=True))
        yield files, {name: sum(one.size for one in parts) for name, parts in models.items()}


def _local(path: Path, source: str) -> tuple[dict[str, Path], dict[str, int]]:
    """Return the models of a file or a folder on this machine; one of a store that names its files by their digests goes by its source."""
    if not (path.is_file() or path.is_dir()):
        raise ConfigError(f"{path}: is neither a file nor a folder. Name a GGUF file, or a folder of them.")  # fmt: skip
    if path.is_file() or (path / "config.json").exists():
        found = {path.name if path.suffix or path.is_dir() else source: path}
    else:
        found = {name: path / name for name in ggufs(one.name for one in path.iterdir())}
    if not found:
        raise ConfigError(f"{path}: holds no model. Name a GGUF file, or a folder of them.")
    return found, {name: _size(one) for name, one in found.items()}


def _size(path: Path) -> int:
    files = path.glob("*.safetensors") if path.is_dir() else map(path.with_name, parts(path.name))
    return sum(one.stat().st_size for one in files if one.exists())


def _remote(source: str, scheme: str, location: str) -> dict[str, list[RemoteFile]]:
    """Return the models of a source that is elsewhere, each with its files."""
    kind = sources.kind_of(scheme)
    if kind == "program":
        raise ConfigError(f"{source}: what a program takes of memory is known once it was loaded, or by `memory` of its model. `unilect try` measures it.")  # fmt: skip
    if kind not in ("gguf", "hf") or scheme == sources.DEMO or location.startswith((".", "/", "~")):  # fmt: skip
        raise ConfigError(f"{source}: there is no such file or folder. Name one, or a model of the Hugging Face hub as org/repo.")  # fmt: skip
    if kind == "hf":
        return {location: hub.plan_folder(location)}
    if REPO.match(location) and not location.lower().endswith(".gguf"):
        models = hub.plan_models(location)
        return {name: files for name, files in models.items() if all(one.size for one in files)}
    files = hub.plan_file(location)
    if not all(one.size for one in files):  # one that was named is not listed yet
        repo = "/".join(location.split("/")[:2])
        listed = [one for plan in hub.plan_models(repo).values() for one in plan]
        known = {one.name: one for one in listed}
        files = [known.get(one.name, one) for one in files]
    return {files[0].name.rpartition("/")[2]: files}


def _fetch_all(folder: Path, models: list[list[RemoteFile]]) -> list[Path]:
    """Fetch the heads of some models, a few at once, in threads that end with the process; see `fetch_heads`."""
    places = BoundedSemaphore(_AT_ONCE)

    def run(number: int) -> Path:
        with places:
            return fetch_heads(models[number], folder / str(number), is_head)

    waits = [start_aside(partial(run, number)) for number in range(len(models))]
    return [came.result() for came in waits]


def _record(row: _Row, room: Room, here: Room, bounded: bool) -> dict[str, Any]:
    """
    Return what is told of a model.

    Args:
        room: The memory to fit into.
        here: That of this machine.
        bounded: The memory is a bound as `memory` of a server, which refuses what could take more of it at any time.
    """
    most = row.need.ready + row.need.grows
    fits = None if room.total is None else (most if bounded else row.need.ready) <= room.total
    return {
        "model": row.name,
        "quantization": row.quantization,
        "download_bytes": row.size,
        "context": row.context,
        "parallel": row.parallel,
        "ready_bytes": row.need.ready,
        "most_bytes": most,
        "measured": row.need.measured,
        "longest_context": 0 if fits is False and row.longest >= row.context else row.longest,
        "fits": fits,
        "fits_now": None if here.free is None else row.need.ready <= here.free,
    }


def _print(told: list[dict[str, Any]], room: Room, here: Room) -> None:
    from rich.filesize import decimal

    lines = []
    for row in told:
        now = {True: "yes", False: "not beside what runs now", None: "?"}[row["fits_now"]]
        lines.append(
            [
                row["model"],
                row["quantization"],
                decimal(row["download_bytes"]),
                str(row["context"]),
                str(row["parallel"]),
                decimal(row["ready_bytes"]) + (" (measured)" if row["measured"] else ""),
                decimal(row["most_bytes"]),
                str(row["longest_context"] or "-"),
                "no" if row["fits"] is False else now,
            ]
        )
    head = (
        "MODEL",
        "QUANT",
        "DOWNLOAD",
        "CONTEXT",
        "PARALLEL",
        "NEEDS",
        "AT MOST",
        "LONGEST",
        "FITS",
    )
    tell_table(head, lines, right=range(2, 8))
    if room.total is not None:
        free = "" if here.free is None else f"; {decimal(here.free)} are free now"
        tell(f"In {decimal(room.total)} of memory{free}; each of PARALLEL requests has the whole CONTEXT.", on_stderr=True)  # fmt: skip
