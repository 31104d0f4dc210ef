"""
The projector that stands beside a model and belongs to it: a vision model sees without being told where its other file is.

Source: https://github.com/ggml-org/llama.cpp/blob/master/docs/multimodal.md (`mmproj` files)
"""

import logging
import os
from functools import lru_cache
from pathlib import Path

from msgspec import structs

from unilect.api.backend import BackendSpec
from unilect.engines.gguf._file import read_head
from unilect.hub.repository_files import choose_projector, projectors, quantization

log = logging.getLogger("unilect")


def add_projector(spec: BackendSpec, path: Path) -> BackendSpec:
    """
    Return a spec with the projector beside its model's file as `mmproj`, if there is one and the table says nothing else.

    A projector takes away what llama.cpp does without one alone: adapters by request, and saved slots.
    """
    config = spec.config
    if config.mmproj is not None or config.lora or config.slot_save_path or config.keep_conversations:  # fmt: skip
        return spec
    found = find_beside(path)
    if found is None:
        return spec
    if why := _misfit(path, found):
        log.info("%s: %s stands beside its file and is not used: %s", spec.name, found.name, why)
        return spec
    log.info('%s: sees through %s, which stands beside its file; `mmproj = ""` leaves it out', spec.name, found.name)  # fmt: skip
    return structs.replace(spec, config=structs.replace(config, mmproj=str(found)))


def find_beside(path: Path) -> Path | None:
    """Return the projector of a model; also beside the folder of a quantization."""
    folder = path.parent
    folders = [folder, folder.parent] if quantization(folder.name) else [folder]
    for one in folders:
        try:
            names = _list(one, one.stat().st_mtime_ns)
        except OSError:
            continue
        own = path.relative_to(one).as_posix()
        if names and (name := choose_projector(own, dict.fromkeys([*names, own]))):
            return one / name
    return None


@lru_cache(maxsize=64)
def _list(folder: Path, changed_ns: int) -> list[str]:
    """
    List the GGUF files of a folder that changed then last; none where no projector is among them, as beside most models.

    Raises:
        OSError: It cannot be read.
    """
    names = [name for name in os.listdir(folder) if name.lower().endswith(".gguf")]
    return names if projectors(names) else []


def _misfit(path: Path, projector: Path) -> str:
    """Return why a projector is not one for a model; empty where nothing speaks against it."""
    try:
        model, head = read_head(path), read_head(projector)
    except ValueError as error:
        return str(error)
    width = model.fields.get(f"{model.architecture}.embedding_length")
    made_for = head.fields.get("clip.vision.projection_dim")
    if head.kind != "mmproj":
        return "it is no projector."
    if width != made_for:
        return f"it says that it is for models of width {made_for}, and this one has {width}. Name it as `mmproj` if it is the right one."
    return ""
