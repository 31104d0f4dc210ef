"""
Repositories of the Hugging Face hub: what they hold, what kind of model they are, and which of their files is meant.

Source: https://huggingface.co/docs/hub/gguf (files of quantizations beside each other)
"""

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from unilect.core.errors import ConfigError, join_names
from unilect.hub._errors import explain_unreachable, hub_errors, translate_errors
from unilect.hub.repository_files import (
    ggufs,
    is_path,
    is_transformers,
    parts,
    quantization,
    without_quantization,
)

log = logging.getLogger("unilect")
#: The name of a repository, and behind `@` a branch, a tag or a commit of it.
REPO = re.compile(r"^\w[\w.-]*/\w[\w.-]*(?:@\w[\w.-]{0,99})?$", re.ASCII)
SILENCE_TIMEOUT_S = 10.0
LIST_TIMEOUT_S = 60.0
MAX_LIST_BYTES = 2**26
HASH = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")  # git's, or SHA-256
REMEMBERED_S = 60.0
#: Tells of a model, by its first file and all files of its repository, whether it can be loaded here.
Fits: TypeAlias = Callable[[str, dict[str, "HubFile"]], bool]
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


class _Lfs(msgspec.Struct):
    sha256: Any = ""


class _Sibling(msgspec.Struct):
    rfilename: str
    size: Any = 0
    blobId: Any = ""
    lfs: _Lfs | None = None

    def read(self) -> HubFile:
        """Return what is believed of it: a size that a file can have, and a hash that is one."""
        is_size = type(self.size) is int and 0 <= self.size < 2**53
        digest = self.lfs.sha256 if self.lfs is not None else self.blobId
        is_hash = isinstance(digest, str) and HASH.match(digest)
        return HubFile(self.size if is_size else 0, digest if is_hash else "")


class _Listing(msgspec.Struct):
    siblings: list[_Sibling] = []


def split_revision(repo: str) -> tuple[str, str | None]:
    """Split the name of a repository into itself and its revision; None for the main one."""
    name, _, revision = repo.partition("@")
    return name, revision or None


def list_files(repo: str) -> dict[str, HubFile]:
    """
    Return the files of a repository; those in the cache where the hub cannot be reached.

    Raises:
        ConfigError: There is no such repository, or the hub cannot be reached and nothing of it is here.
    """
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    with translate_errors(repo):
        try:
            listed = _ask(repo)
        except (GatedRepoError, RepositoryNotFoundError):
            raise
        except hub_errors() as error:
            if found := list_cached(repo):
                return found
            raise ConfigError(
                f"{repo}: there is no such local folder, and the hub cannot be reached {explain_unreachable(error)}."
            ) from error

    try:
        files = msgspec.json.decode(listed, type=_Listing).siblings
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{repo}: HF_ENDPOINT does not answer as a hub does.") from error
    strange = [one.rfilename for one in files if not is_path(one.rfilename)]
    if strange:
        log.warning("%s: %d of its files are left out, whose names are no paths, such as %r", repo, len(strange), strange[0][:100])  # fmt: skip
    return {one.rfilename: one.read() for one in files if is_path(one.rfilename)}


def _ask(repo: str) -> bytes:
    """Ask the hub for the list of a repository, within bounds of time and size."""
    import httpx2
    from huggingface_hub import constants, get_session, hf_raise_for_status
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        validate_repo_id,
    )

    name, revision = split_revision(repo)
    validate_repo_id(name)
    url = f"{constants.ENDPOINT}/api/models/{name}"
    url += f"/revision/{revision}" if revision is not None else ""
    until_s, listed = time.monotonic() + LIST_TIMEOUT_S, bytearray()
    with get_session().stream("GET", url, params={"blobs": True}, headers=build_hf_headers(), timeout=SILENCE_TIMEOUT_S) as response:  # fmt: skip
        if response.is_error:
            hf_raise_for_status(response)
        for chunk in response.iter_bytes():
            listed += chunk
            if len(listed) > MAX_LIST_BYTES:
                raise httpx2.ReadError(f"its list of files has more than {MAX_LIST_BYTES} bytes")
            if time.monotonic() > until_s:
                raise httpx2.ReadTimeout(
                    f"its list of files takes more than {LIST_TIMEOUT_S:.0f} s"
                )
    return bytes(listed)


def list_cached(repo: str) -> dict[str, HubFile]:
    """Return the files of a repository that are in the hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with translate_errors(repo):
        try:
            name, revision = split_revision(repo)
            folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        except LocalEntryNotFoundError:
            return {}
        found = [file for file in folder.rglob("*") if file.is_file()]
        return {str(file.relative_to(folder)): HubFile(file.stat().st_size) for file in found}


def scheme_of(repo: str) -> str:
    """
    Return `gguf` or `hf`: the scheme of the model that a repository is; of both the first, which runs everywhere.

    The cache answers where it says enough, else the hub. Its answer is remembered, an error for a minute.

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
        fits: Tells of a model, by its first file, whether it can be loaded; None takes the largest. The large ones are tried first.

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
    if not wanted:
        return files
    exact = [file for file in files if quantization(file) == wanted.upper()]
    token = re.compile(rf"(?:^|[-._/]){re.escape(wanted)}(?=[-._/]|$)", re.I)
    return exact or [file for file in files if token.search(file)]


def _largest(repo: str, files: list[str], listed: dict[str, HubFile], fits: Fits | None) -> str:
    """Return the largest file that fits, and tell why."""
    from rich.filesize import decimal

    whole = {file: sum(listed.get(part, HubFile()).size for part in parts(file)) for file in files}
    ordered = sorted(files, key=lambda file: (whole[file], file), reverse=True)
    chosen = next((file for file in ordered if fits is None or fits(file, listed)), None)
    if chosen is None:
        least = ordered[-1]
        raise ConfigError(
            f"{repo}: none of its {len(files)} quantizations fits into the memory of this machine; the smallest is {least} "
            f"({decimal(whole[least])}). Name it, as gguf:{repo}/{least}, to try it, or a smaller model; "
            f"`unilect fit {repo}` shows what each takes."
        )
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
