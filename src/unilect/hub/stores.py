"""
Models in the stores of other programs, read in place and never written: those of Ollama, LM Studio and llama.cpp.

Their content may be anybody's: manifests are read up to a size, digests are hashes and nothing else, folders are looked through to a
depth and a number, and no link to a folder is followed.

Sources: https://github.com/ollama/ollama/blob/main/docs/faq.mdx (where models are; `OLLAMA_MODELS`),
https://github.com/ollama/ollama/blob/main/types/model/name.go (names), https://lmstudio.ai/docs/app/basics/import-model (the folders),
https://github.com/ggml-org/llama.cpp/blob/master/common/common.cpp (`LLAMA_CACHE`)
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby, islice
from pathlib import Path

import msgspec

from unilect.config.server import process_environment
from unilect.core.errors import ConfigError, join_names
from unilect.hub.repository_files import ggufs, parts
from unilect.hub.stored import Entry

MAX_MANIFEST_BYTES = 1_000_000
MAX_FILES = 20_000  # of one store
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MODEL, _ADAPTER = (f"application/vnd.ollama.image.{kind}" for kind in ("model", "adapter"))
_REGISTRY, _LIBRARY = "registry.ollama.ai", "library"
#: The programs by the schemes of their models.
_LABELS = {"ollama": "Ollama", "lmstudio": "LM Studio", "llama.cpp": "llama.cpp"}
_SCHEME = re.compile(r"(ollama|lmstudio|llama\.cpp):(?://)?(.+)", re.DOTALL)


class _Layer(msgspec.Struct):
    mediaType: str
    digest: str


class _Manifest(msgspec.Struct):
    layers: list[_Layer] = []


def is_store_name(source: str) -> bool:
    """Return True for the name of a model in another program's store, such as `ollama:qwen3:4b`."""
    return _SCHEME.fullmatch(source) is not None


def plain_name(source: str) -> str:
    """Return what a model of a store is called there."""
    found = _SCHEME.fullmatch(source)
    return source if found is None else found[2].rpartition("/")[2]


def find_file(source: str) -> Path:
    """
    Return the file of a model in another program's store.

    Raises:
        ConfigError: It has no such model.
    """
    found = _SCHEME.fullmatch(source)
    assert found is not None
    scheme, name = found.groups()
    if scheme == "ollama":
        file = find_in_ollama(name)
    else:
        file = next((path for one, path in _models(scheme) if one == name), None)
    if file is not None:
        return file
    known = [one for one, _ in _models(scheme)]
    there = (
        f"There are: {join_names(known)}."
        if known
        else "It is empty, or not readable, or not there."
    )
    raise ConfigError(
        f"{source}: there is no such model in the store of {_LABELS[scheme]}. {there}{_advice(scheme, name)}"
    )


def find_in_ollama(name: str) -> Path | None:
    """Return the file of a model that Ollama calls so; None where its store has none."""
    wanted = _full_name(name)
    return next((path for one, path in _models("ollama") if _full_name(one) == wanted), None)


def list_foreign() -> list[Entry]:
    """Return the models in the stores of other programs."""
    found = list[Entry]()
    for scheme, label in _LABELS.items():
        for name, path in _models(scheme):
            files = tuple(Path(part) for part in parts(str(path)))
            digest = path.name.removeprefix("sha256-") if scheme == "ollama" else ""
            found.append(
                Entry(
                    name=f"{scheme}:{name}",
                    kind="gguf",
                    store=label,
                    path=path,
                    files=files,
                    digest=digest,
                )
            )
    return found


def _advice(scheme: str, name: str) -> str:
    if scheme != "ollama":
        return " Name a file by its path, or one of `unilect list`."
    return (
        " Set OLLAMA_MODELS where it is elsewhere. A model of a running Ollama is served from a configuration file: "
        f'source = "http://127.0.0.1:11434/v1", model = "{name[:100]}".'
    )


def _models(scheme: str) -> Iterator[tuple[str, Path]]:
    """Yield the names and files of a store's models, each name once."""
    known = set[str]()
    for folder in _folders(scheme):
        for name, path in _of_ollama(folder) if scheme == "ollama" else _of_folder(folder):
            if name not in known and _is_file(path):
                known.add(name)
                yield name, path


def _is_file(entry: Path | os.DirEntry[str]) -> bool:
    """Return True for a file; what cannot be read is not there for us."""
    try:
        return entry.is_file()
    except OSError:
        return False


def _folders(scheme: str) -> list[Path]:
    environment = process_environment()
    home = Path(environment.get("HOME") or "/nonexistent")
    if scheme == "ollama":
        set_ = environment.get("OLLAMA_MODELS")
        return (
            [Path(set_)]
            if set_
            else [home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
        )
    if scheme == "lmstudio":
        return [home / ".lmstudio/models", home / ".cache/lm-studio/models"]
    if set_ := environment.get("LLAMA_CACHE"):
        return [Path(set_)]
    cache = environment.get("XDG_CACHE_HOME")
    return [(Path(cache) if cache else home / ".cache") / "llama.cpp"]


def _of_ollama(folder: Path) -> Iterator[tuple[str, Path]]:
    for manifest in islice(_walk(folder / "manifests", 4), MAX_FILES):
        place = manifest.relative_to(folder / "manifests").parts
        if len(place) != 4 or (model := _read_model(manifest)) is None:
            continue
        host, namespace, name, tag = place
        above = "" if (host, namespace) == (_REGISTRY, _LIBRARY) else f"{namespace}/"
        above = above if host == _REGISTRY else f"{host}/{namespace}/"
        yield f"{above}{name}:{tag}", folder / "blobs" / f"sha256-{model}"


def _read_model(manifest: Path) -> str | None:
    """Return the hash of the model of a manifest; None where it has none, or an adapter beside it."""
    try:
        with manifest.open("rb") as file:
            read = msgspec.json.decode(file.read(MAX_MANIFEST_BYTES), type=_Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    kinds = [layer.mediaType for layer in read.layers]
    digests = [
        _DIGEST.fullmatch(layer.digest) for layer in read.layers if layer.mediaType == _MODEL
    ]
    if _ADAPTER in kinds or len(digests) != 1 or digests[0] is None:
        return None
    return digests[0][1]


def _full_name(name: str) -> tuple[str, ...]:
    """Return host, namespace, name and tag of a model of Ollama, with its defaults, as it compares them."""
    above, _, rest = name.lower().rpartition("/")
    host, _, namespace = above.rpartition("/")
    model, _, tag = rest.partition(":")
    return host or _REGISTRY, namespace or _LIBRARY, model, tag or "latest"


def _of_folder(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the GGUF models below a folder, by their paths in it."""
    files = [file.relative_to(folder).as_posix() for file in islice(_walk(folder, 3), MAX_FILES)]
    for _, beside in groupby(sorted(files), key=lambda file: file.rpartition("/")[0]):
        for name in ggufs(beside):
            yield name, folder / name


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the files below a folder, in order, without following links to folders."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(islice(entries, MAX_FILES), key=lambda one: one.name):
            if entry.is_dir(follow_symlinks=False):
                if depth > 1:
                    yield from _walk(Path(entry.path), depth - 1)
            elif _is_file(entry):
                yield Path(entry.path)
