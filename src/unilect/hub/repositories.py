"""
Repositories of the Hugging Face hub: what they hold, what kind of model they are, and which of their files is meant.

Source: https://huggingface.co/docs/hub/gguf (files of quantizations beside each other)
"""

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from unilect.core.errors import ConfigError, join_names
from unilect.hub._errors import explain_unreachable, hub_errors, translate_errors
from unilect.hub.repository_files import (
    ggufs,
    is_transformers,
    parts,
    quantization,
    without_quantization,
)

log = logging.getLogger("unilect")
REPO = re.compile(r"^\w[\w.-]*/\w[\w.-]*$", re.ASCII)  # the name of a repository
LIST_TIMEOUT_S = 10.0
REMEMBERED_S = 60.0
#: Tells of a number of bytes whether a file of that size can be loaded here.
Fits: TypeAlias = Callable[[int], bool]
_kinds: dict[str, tuple[float, str | ConfigError]] = {}


class HubFile(NamedTuple):
    """
    A file of a repository, as the hub lists it.

    Attributes:
        size: Its bytes; 0 where that is not told.
        digest: Its SHA-256, or git's hash of a small file; empty where that is not told.
    """

    size: int = 0
    digest: str = ""


def list_files(repo: str) -> dict[str, HubFile]:
    """
    Return the files of a repository; those in the cache where the hub cannot be reached.

    Raises:
        ConfigError: There is no such repository, or the hub cannot be reached and nothing of it is here.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    with translate_errors(repo):
        try:
            info = HfApi().model_info(repo, timeout=LIST_TIMEOUT_S, files_metadata=True)
            return {
                one.rfilename: HubFile(
                    one.size or 0, (one.lfs.sha256 if one.lfs else one.blob_id) or ""
                )
                for one in info.siblings or ()
            }
        except (GatedRepoError, RepositoryNotFoundError):
            raise
        except hub_errors() as error:
            if found := list_cached(repo):
                return found
            raise ConfigError(
                f"{repo}: there is no such local folder, and the hub cannot be reached {explain_unreachable(error)}."
            ) from error


def list_cached(repo: str) -> dict[str, HubFile]:
    """Return the files of a repository that are in the hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with translate_errors(repo):
        try:
            folder = Path(snapshot_download(repo, local_files_only=True))
        except LocalEntryNotFoundError:
            return {}
        found = [file for file in folder.rglob("*") if file.is_file()]
        return {str(file.relative_to(folder)): HubFile(file.stat().st_size) for file in found}


def scheme_of(repo: str) -> str:
    """
    Return `gguf` or `hf`: the scheme of the model that a repository is; of both the first, which runs everywhere.

    What is in the cache answers where it says enough, else the hub. Its answer is remembered, an error for a minute.

    Raises:
        ConfigError: It is neither, or the hub cannot be asked.
    """
    known = _kinds.get(repo)
    if known is None or (isinstance(known[1], ConfigError) and known[0] < time.monotonic()):
        try:
            kind: str | ConfigError = _kind(list_cached(repo)) or _kind_there(repo)
        except ConfigError as error:
            kind = error
        known = _kinds[repo] = time.monotonic() + REMEMBERED_S, kind
    if isinstance(known[1], ConfigError):
        raise known[1]
    return known[1]


def _kind(files: dict[str, HubFile]) -> str:
    return "gguf" if ggufs(files) else "hf" if is_transformers(files) else ""


def _kind_there(repo: str) -> str:
    files = list_files(repo)
    if kind := _kind(files):
        return kind
    held = join_names(sorted(files), 5) if files else "no file"
    raise ConfigError(
        f"{repo}: the repository holds neither a GGUF file nor a model of transformers (config.json and *.safetensors): {held}. "
        "Name another repository."
    )


def choose(repo: str, wanted: str, fits: Fits | None = None) -> tuple[str, dict[str, HubFile]]:
    """
    Return the file of a repository that is meant where only a quantization, or nothing, is named: the largest that fits.

    Args:
        wanted: The quantization; empty for any.
        fits: Tells of bytes whether so large a file can be loaded; None takes the largest.

    Returns:
        The file, and all files of the repository.

    Raises:
        ConfigError: There is none, there are several models, or none of them fits.
    """
    form = f"gguf:{repo}/file.gguf"
    try:
        listed = list_files(repo)
    except ConfigError as error:
        raise ConfigError(f"{error} A file of a repository is named as {form}.") from error
    files = ggufs(listed)
    if not files:
        raise ConfigError(
            f"{repo}: the repository holds no GGUF file. Serve it as a model of transformers, hf:{repo}, or name one of "
            "its conversions, which mostly have `GGUF` in their names."
        )
    found = _find_files(files, wanted)
    if len(found) == 1:
        return found[0], listed
    if not found or len({*map(without_quantization, found)}) > 1:
        which = "several models" if found else f"no GGUF file named {wanted[:50]}"
        raise ConfigError(
            f"{repo}: the repository holds {which}: {join_names(found or files)}. Name one, as {form}."
        )
    return _largest(repo, found, listed, fits), listed


def _find_files(files: list[str], wanted: str) -> list[str]:
    """Return the files of a quantization: those that have exactly this one, else those in whose names it stands as a word."""
    exact = [file for file in files if quantization(file) == wanted.upper()]
    token = re.compile(rf"(?:^|[-._/]){re.escape(wanted)}(?=[-._/]|$)", re.I)
    return [file for file in exact or files if not wanted or exact or token.search(file)]


def _largest(repo: str, files: list[str], listed: dict[str, HubFile], fits: Fits | None) -> str:
    """Return the largest file that fits, and tell why."""
    from rich.filesize import decimal

    whole = {file: sum(listed.get(part, HubFile()).size for part in parts(file)) for file in files}
    ordered = sorted(files, key=lambda file: (whole[file], file), reverse=True)
    able = [file for file in ordered if fits is None or fits(whole[file])]
    if not able:
        least = ordered[-1]
        raise ConfigError(
            f"{repo}: none of its {len(files)} quantizations fits into the memory of this machine; the smallest is {least} "
            f"({decimal(whole[least])}). Name it, as gguf:{repo}/{least}, to try it, or a smaller model."
        )
    chosen = able[0]
    above = ordered[: ordered.index(chosen)]
    why = "the largest of its quantizations"
    why += (
        f"; {join_names(above, 3)} would not fit into memory"
        if above
        else ", and it fits into memory"
    )
    tag = quantization(ordered[-1])
    log.info(
        "%s: %s (%s) is taken, %s. Name another as %s:%s.",
        repo,
        chosen,
        decimal(whole[chosen]),
        why,
        repo,
        tag or "QUANTIZATION",
    )
    return chosen
