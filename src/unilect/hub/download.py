"""
Model files from the Hugging Face hub: fetched once, resumed where they were cut off, checked, kept in the hub's own cache.

The hub's client (2.4) gives a partial file up when its process ends, so the bytes are fetched here: they are appended to one
partial file for each version of a file, and this becomes the cache's blob once its size and its hash are the hub's. The cache
itself, with its names and links, is the client's business; it finds the blob there and fetches nothing.

Sources: https://huggingface.co/docs/huggingface_hub/guides/download (the client and its cache);
https://huggingface.co/docs/hub/storage-backends (the ETag of a large file is its SHA-256, that of a small one git's blob id)
"""

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from unilect.config.paths import expand
from unilect.core.errors import ConfigError, join_names
from unilect.hub import web_files
from unilect.hub._errors import explain_unreachable, hub_errors, translate_errors
from unilect.hub.repositories import HASH, REPO, HubFile, choose, list_files, split_revision
from unilect.hub.repository_files import choose_projector, ggufs, is_path, of_folder, parts
from unilect.hub.transfer import CONNECT_TIMEOUT_S, NoParts, OnProgress, Transfer
from unilect.runtime.redact import redact

log = logging.getLogger("unilect")
#: Tells of the files of a model whether it can be loaded here.
Fits: TypeAlias = Callable[[Sequence["RemoteFile"]], bool]
_HUB_FILE = re.compile(r"^(\w[\w.-]*/\w[\w.-]*(?:@\w[\w.-]{0,99})?)/(.+\.gguf)$", re.ASCII | re.I)


class RemoteFile(NamedTuple):
    """
    A file that is to be on this machine.

    Attributes:
        name: `org/repo/file`, or the web address without credentials.
        size: Its bytes; 0 where they are not known.
        is_here: It is on this machine already.
        folder: Where it goes.
        fetch: Fetches it, or finds it here, and returns its path.
        url: Its web address.
        of_hub: That is the hub's, which gets the user's key.
    """

    name: str
    size: int
    is_here: bool
    folder: Path
    fetch: Callable[[OnProgress], Path]
    url: str
    of_hub: bool

    @property
    def path(self) -> str:
        """Its path in its repository; of a web address the name of its file here."""
        return self.name.split("/", 2)[2] if self.of_hub else web_files.place(self.url).name


def local_file(
    location: str, on_progress: OnProgress, fits: Fits | None = None, with_projector: bool = False
) -> Path:
    """
    Return the local path of a file: itself, or fetched where `org/repo/file.gguf`, `org/repo` or a web address is no local path.

    A model in several files is named by its first, `...-00001-of-00003.gguf`, and fetched as a whole. `org/repo:Q4_K_M` is the GGUF
    file of that quantization, and `org/repo` the largest that fits.

    Args:
        with_projector: The projector of a vision model is fetched with it.

    Raises:
        ConfigError: There is no such file, here or there, or more than one.
    """
    if (found := _find_address(location)) is not None:
        return found
    if is_here(location):
        return expand(location)
    return fetch_all(plan_file(location, fits, with_projector), on_progress)


def plan_file(
    location: str, fits: Fits | None = None, with_projector: bool = False
) -> list[RemoteFile]:
    """
    Return the files of a GGUF model of the hub or of a web address, the first of its parts first; see `local_file`.

    Raises:
        ConfigError: There is no such file, or the hub cannot be asked.
    """
    if web_files.is_address(location):
        return [_of_address(one) for one in web_files.addresses(location)]
    repo, _, quantization = location.partition(":")
    if (match := _HUB_FILE.match(location)) is not None:
        repo, file = match.groups()
        listed = list_files(repo) if len(parts(file)) > 1 else {}
        if with_projector and not listed:
            with suppress(ConfigError):  # the file may be had without a list
                listed = list_files(repo)
    else:

        def fits_there(file: str, listed: dict[str, HubFile]) -> bool:
            return fits is None or fits([_of_hub(repo, part, listed) for part in parts(file)])

        file, listed = choose(repo, quantization, fits_there)
    projector = choose_projector(file, listed) if with_projector else None
    files = [*parts(file), *([projector] if projector else [])]
    return [_of_hub(repo, one, listed) for one in files]


def plan_models(repo: str) -> dict[str, list[RemoteFile]]:
    """
    Return all GGUF models of a repository by their names, each with its files, the first of its parts first.

    Raises:
        ConfigError: There is no such repository, or the hub cannot be asked.
    """
    listed = list_files(repo)
    return {file: [_of_hub(repo, part, listed) for part in parts(file)] for file in ggufs(listed)}


def plan_folder(location: str) -> list[RemoteFile]:
    """
    Return the files that a model of transformers needs of a repository of the hub, its `config.json` first.

    Raises:
        ConfigError: There is no such repository, or it holds no such model.
    """
    if not REPO.match(location):
        raise ConfigError(
            f"{location}: there is no such folder. Name a folder with a model of transformers, or one of the hub as org/name."
        )
    listed = list_files(location)
    files = of_folder(listed)
    if "config.json" not in files:
        others = ggufs(listed)
        which = "; it holds GGUF files: " + join_names(others) if others else " (no config.json)"
        way = f"Name one as gguf:{location}/{others[0]}" if others else "Name another repository"
        raise ConfigError(
            f"{location}: is on the hub, and holds no model of transformers{which}. {way}."
        )
    files.sort(key=lambda file: file != "config.json")
    return [_of_hub(location, file, listed) for file in files]


def _of_hub(repo: str, file: str, listed: dict[str, HubFile]) -> RemoteFile:
    from huggingface_hub import hf_hub_url

    known = listed.get(file, HubFile())
    if not is_path(file):
        raise ConfigError(f"{repo}/{file}: is no file of a repository. Check its spelling.")
    with translate_errors(f"{repo}/{file}"):
        blobs = _blobs(repo)
        cached = blobs / known.digest if known.digest else find_cached(repo, file)
        here = cached is not None and cached.exists()
    get, (name, revision) = partial(fetch, repo, file), split_revision(repo)
    url = hf_hub_url(name, file, revision=revision)
    return RemoteFile(f"{repo}/{file}", known.size, here, blobs, get, url, True)


def _of_address(url: str) -> RemoteFile:
    version, place = web_files.ask_version(url), web_files.place(url)
    return RemoteFile(
        redact(url),
        version.size,
        web_files.is_current(url, version),
        place.parent,
        partial(web_files.fetch, url, version),
        url,
        False,
    )


def is_here(location: str) -> bool:
    """Return True if a location needs no call to the hub: it is there, or can be nothing of the hub's nor a web address."""
    elsewhere = (
        _HUB_FILE.match(location)
        or _is_repo(location.partition(":")[0])
        or web_files.is_address(location)
    )
    found = _find_address(location) is not None or expand(location).exists()
    return found or not elsewhere


def local_copy(location: str, folder: bool = False) -> Path | None:
    """
    Return the local path of a file or a folder without fetching anything: itself, or what the hub's cache has of it.

    Args:
        folder: It is a folder; else a file.

    Returns:
        None where it has to be fetched from the hub first, and a path that does not exist where it is none of the hub's either.

    Raises:
        ConfigError: It has to be fetched, and the hub must not be asked (`HF_HUB_OFFLINE`).
    """
    if is_here(location):
        return _find_address(location) or expand(location)
    from huggingface_hub.constants import HF_HUB_OFFLINE

    found, match = None, _HUB_FILE.match(location)
    if (
        folder or match is not None
    ):  # of others which file of a repository is meant, only the hub knows
        with translate_errors(location):
            found = find_cached(*match.groups()) if match else find_cached(location, "config.json")
    if folder and found is not None:
        found = found.parent if any(found.parent.glob("*.safetensors")) else None
    if found is None and HF_HUB_OFFLINE:
        raise ConfigError(
            f"{location}: is not on this machine, and HF_HUB_OFFLINE is set. Unset it, or name a local path."
        )
    return found


def _find_address(location: str) -> Path | None:
    """Return the local path of a web address; None where it is none, or has to be fetched."""
    return web_files.local_copy(location) if web_files.is_address(location) else None


def _is_repo(location: str) -> bool:
    """Return True if a location may be a repository of the hub; `folder/x.gguf` is a path."""
    return REPO.match(location) is not None and not location.lower().endswith(".gguf")


def fetch_all(files: Sequence[RemoteFile], on_progress: OnProgress) -> Path:
    """
    Fetch several files, with one progress: of their bytes where all sizes are known, else of their number.

    Returns:
        The path of the first.
    """
    weights = [file.size for file in files]
    total = sum(weights) if all(weights) else 0
    weights = weights if total else [1] * len(files)

    def share(number: int) -> OnProgress:
        before, own = sum(weights[:number]), weights[number]

        def report(part: float, size_bytes: int = 0, /) -> None:
            whole = total or (size_bytes if len(files) == 1 else 0)
            on_progress((before + part * own) / sum(weights), whole)

        return report

    first, *_ = [file.fetch(share(number)) for number, file in enumerate(files)]
    return first


def local_folder(location: str, on_progress: OnProgress) -> Path:
    """
    Return the local path of a folder: itself, or fetched from the hub where `org/name` is no local path.

    Of a repository only what a model of transformers needs is fetched.

    Raises:
        ConfigError: There is no such folder, here or there.
    """
    path = expand(location)
    if path.is_dir():
        return path
    if path.exists():
        raise ConfigError(
            f"{location}: there is no such folder. Name a folder with a model of transformers, or one of the hub as org/name."
        )
    return fetch_all(plan_folder(location), on_progress).parent


def fetch(repo: str, file: str, on_progress: OnProgress) -> Path:
    """
    Fetch a file of a repository of the hub, or find it in the cache.

    Args:
        on_progress: Told what is here of the file; never where it was here already.

    Raises:
        ConfigError: There is no such file, the hub cannot be reached, or what it sent is not the file.
    """
    # huggingface_hub takes 0.3 s to import, which a server of local files shall not pay
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RevisionNotFoundError

    name, revision = split_revision(repo)
    with translate_errors(f"{repo}/{file}"):
        try:
            address = hf_hub_url(name, file, revision=revision)
            metadata = get_hf_file_metadata(address, timeout=CONNECT_TIMEOUT_S)
        except RevisionNotFoundError:
            raise
        except EntryNotFoundError as error:
            raise ConfigError(
                f"{repo}/{file}: neither a local file nor one on the hub. {_contents(repo, file)}"
            ) from error
        except hub_errors() as error:
            cached = find_cached(repo, file)
            if cached is not None:
                return cached
            if isinstance(error, HfHubHTTPError):
                raise
            raise ConfigError(
                f"{repo}/{file}: there is no such local file, and the hub cannot be reached {explain_unreachable(error)}."
            ) from error
        size, digest, commit = metadata.size, metadata.etag or "", metadata.commit_hash
        if commit and size and HASH.match(digest):
            url = hf_hub_url(name, file, revision=commit)
            _fetch_blob(repo, url, size, digest, on_progress)
        return Path(hf_hub_download(name, file, revision=revision))


def _fetch_blob(repo: str, url: str, size: int, digest: str, on_progress: OnProgress) -> None:
    """Put one version of a file into the cache; leave it to the hub's client where the hub gives no parts of so large a file."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    blobs = _blobs(repo)
    lock = Path(HF_HUB_CACHE) / ".locks" / blobs.parent.name / f"{digest}.lock"
    unfinished = blobs / f"{digest}.unilect.incomplete"
    headers = build_hf_headers()
    transfer = Transfer(url, blobs / digest, unfinished, lock, size, digest, headers, on_progress)
    try:
        transfer.run()
    except NoParts:
        log.warning(
            "%s: the hub gives no parts of a file this large; its own client fetches it, and from the start again if it is cut off",
            url,
        )


def _blobs(repo: str) -> Path:
    """Return the folder of a repository's files in the hub's cache."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    return (
        Path(HF_HUB_CACHE)
        / repo_folder_name(repo_id=split_revision(repo)[0], repo_type="model")
        / "blobs"
    )


def _contents(repo: str, missing: str) -> str:
    """List the files of a repository that are of the kind of a missing file, as a sentence."""
    try:
        files = list(list_files(repo))
    except ConfigError as error:
        return str(error)
    found = ggufs(files) if missing.lower().endswith(".gguf") else files
    if not found:
        return (
            f"{repo} holds no GGUF file; serve it as hf:{repo} if it holds a model of transformers."
        )
    return f"{repo} holds {join_names(found)}: name one of them."


def find_cached(repo: str, file: str) -> Path | None:
    """Find a file in the cache, without the client's download, which asks the hub for other things even where it may read the cache only."""
    from huggingface_hub import try_to_load_from_cache

    name, revision = split_revision(repo)
    found = try_to_load_from_cache(name, file, revision=revision)
    return Path(found) if isinstance(found, str) else None
