"""
Model files from the Hugging Face hub: fetched once, resumed where they were cut off, checked, kept in the hub's own cache.

The hub's client (2.4) gives a partial file up when its process ends, so the bytes are fetched here: they are appended to one
partial file for each version of a file, and this becomes the cache's blob once its size and its hash are the hub's. The cache
itself, with its names and links, is the client's business; it finds the blob there and fetches nothing.

Sources: https://huggingface.co/docs/huggingface_hub/guides/download (the client and its cache);
https://huggingface.co/docs/hub/storage-backends (the ETag of a large file is its SHA-256, that of a small one git's blob id)
"""

import hashlib
import logging
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from unilect.core.errors import ConfigError, join_names
from unilect.hub.repository_files import ggufs

log = logging.getLogger("unilect")
CONNECT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 30.0
MAX_FRUITLESS_TRIES = 5
PAUSE_S = 1.0
# the hub serves larger files through its own storage protocol only, which its client speaks
MAX_HTTP_BYTES = 50 * 10**9
REPO = re.compile(r"^\w[\w.-]*/\w[\w.-]*$", re.ASCII)  # the name of a repository
_HUB_FILE = re.compile(r"^(\w[\w.-]*/\w[\w.-]*)/(.+\.gguf)$", re.ASCII | re.I)
# weights, tokenizer, configuration and code of its own, at the top or in the pooling's folder; not the other formats of the weights
_FOLDER_FILE = re.compile(
    r"^(1_Pooling/config\.json|[^/]+\.(json|jinja|safetensors|model|txt|py|tiktoken)|pytorch_model[^/]*\.bin)$"
)
_WEIGHTS = re.compile(r"^model(-\d+-of-\d+)?\.safetensors$")
_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")
_ABSENT = (
    "neither a local file nor one on the hub. Check its spelling; a private one needs HF_TOKEN."
)
_HASH = re.compile(r"^(?:[0-9a-f]{40}|[0-9a-f]{64})$")


class OnProgress(Protocol):
    """Told the part that is here, from 0 to 1, and of how many bytes where that is known."""

    def __call__(self, part: float, size_bytes: int = 0, /) -> None:
        """Show it."""


def local_file(location: str, on_progress: OnProgress) -> Path:
    """
    Return the local path of a file: itself, or fetched from the hub where `org/repo/file.gguf` is no local path.

    A model in several files is named by its first, `...-00001-of-00003.gguf`, and fetched as a whole. `org/repo` is the only GGUF
    file of a repository, and `org/repo:Q4_K_M` the one of that quantization.

    Raises:
        ConfigError: There is no such file, here or there, or more than one.
    """
    path = Path(location).expanduser()
    repo, _, quantization = location.partition(":")
    if path.exists():
        return path
    if (match := _HUB_FILE.match(location)) is not None:
        repo, file = match.groups()
    elif _is_repo(repo):
        file = _choose(repo, quantization)
    else:
        return path
    files = parts(file)
    return _fetch_all(repo, files, on_progress, _sizes(repo) if len(files) > 1 else {})[0]


def parts(file: str) -> list[str]:
    """Return the names of all files of a model that is named by one: several where it is the first of several, `...-00001-of-00003.gguf`."""
    part = _PART.search(file)
    count = int(part.group(1)) if part is not None else 1
    return [file.replace("-00001-of-", f"-{number:05}-of-") for number in range(1, count + 1)]


def is_here(location: str) -> bool:
    """Return True if a location needs no call to the hub: it is there, or can be nothing of the hub's."""
    hub = _HUB_FILE.match(location) or _is_repo(location.partition(":")[0])
    return Path(location).expanduser().exists() or not hub


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
    path = Path(location).expanduser()
    if is_here(location):
        return path
    from huggingface_hub.constants import HF_HUB_OFFLINE

    found, match = None, _HUB_FILE.match(location)
    if folder or match is not None:  # which file of a repository is meant, only the hub knows
        with _translate_errors(location):
            found = (
                _find_cached(*match.groups()) if match else _find_cached(location, "config.json")
            )
    if folder and found is not None:
        found = found.parent if any(found.parent.glob("*.safetensors")) else None
    if found is None and HF_HUB_OFFLINE:
        raise ConfigError(
            f"{location}: is not on this machine, and HF_HUB_OFFLINE is set. Unset it, or name a local path."
        )
    return found


def _is_repo(location: str) -> bool:
    """Return True if a location may be a repository of the hub; `folder/x.gguf` is a path."""
    return REPO.match(location) is not None and not location.lower().endswith(".gguf")


def _choose(repo: str, quantization: str) -> str:
    """
    Return the file of a repository that is meant where only a quantization, or nothing, is named.

    Raises:
        ConfigError: It is not one file.
    """
    form = f"gguf:{repo}/file.gguf"
    try:
        files = ggufs(_sizes(repo))
    except ConfigError as error:
        raise ConfigError(f"{error} A file of a repository is named as {form}.") from error
    if not files:
        raise ConfigError(
            f"{repo}: the repository holds no GGUF file. Serve it as a model of transformers, hf:{repo}, or name one of "
            "its conversions, which mostly have `GGUF` in their names."
        )
    token = re.compile(rf"(?:^|[-._/]){re.escape(quantization)}(?=[-._/]|$)", re.I)
    found = [file for file in files if token.search(file)] if quantization else files
    if len(found) == 1:
        return found[0]
    which = "more than one GGUF file" if found else f"no GGUF file named {quantization[:50]}"
    raise ConfigError(
        f"{repo}: the repository holds {which}: {join_names(found or files)}. Name one, as {form}."
    )


def _fetch_all(
    repo: str, files: Sequence[str], on_progress: OnProgress, sizes: dict[str, int]
) -> list[Path]:
    """Fetch several files, with one progress: of their bytes where all sizes are known, else of their number."""
    weights = [sizes.get(file, 0) for file in files]
    total = sum(weights) if all(weights) else 0
    weights = weights if total else [1] * len(files)

    def share(number: int) -> OnProgress:
        before, own = sum(weights[:number]), weights[number]

        def report(part: float, size_bytes: int = 0, /) -> None:
            whole = total or (size_bytes if len(files) == 1 else 0)
            on_progress((before + part * own) / sum(weights), whole)

        return report

    return [fetch(repo, file, share(number)) for number, file in enumerate(files)]


def local_folder(location: str, on_progress: OnProgress) -> Path:
    """
    Return the local path of a folder: itself, or fetched from the hub where `org/name` is no local path.

    Of a repository only what a model of transformers needs is fetched.

    Raises:
        ConfigError: There is no such folder, here or there.
    """
    path = Path(location).expanduser()
    if path.is_dir():
        return path
    if path.exists() or not REPO.match(location):
        raise ConfigError(
            f"{location}: there is no such folder. Name a folder with a model of transformers, or one of the hub as org/name."
        )
    sizes = _sizes(location)
    files = of_folder(sizes)
    if "config.json" not in files:
        others = ggufs(sizes)
        which = "; it holds GGUF files: " + join_names(others) if others else " (no config.json)"
        way = f"Name one as gguf:{location}/{others[0]}" if others else "Name another repository"
        raise ConfigError(
            f"{location}: is on the hub, and holds no model of transformers{which}. {way}."
        )
    found = _fetch_all(location, files, on_progress, sizes)
    return found[files.index("config.json")].parent


def of_folder(names: Iterable[str]) -> list[str]:
    """Which files of a folder a model of transformers, an adapter or a tokenizer needs, by their paths in it."""
    return _once([name for name in names if _FOLDER_FILE.search(name)])


def _once(files: list[str]) -> list[str]:
    """Files of a repository without what holds its weights once more: pickles, and another program's (`consolidated.safetensors`)."""
    if not any(name.endswith(".safetensors") for name in files):
        return files
    named = any(map(_WEIGHTS.search, files))
    others = (".bin", ".safetensors") if named else (".bin",)
    return [name for name in files if _WEIGHTS.search(name) or not name.endswith(others)]


def _sizes(repo: str) -> dict[str, int]:
    """Return the files of a repository and their bytes, 0 where that is not told; those in the cache where the hub cannot be reached."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    with _translate_errors(repo):
        try:
            info = HfApi().model_info(repo, timeout=CONNECT_TIMEOUT_S, files_metadata=True)
            return {file.rfilename: file.size or 0 for file in info.siblings or ()}
        except (GatedRepoError, RepositoryNotFoundError):
            raise
        except _hub_errors() as error:
            try:
                folder = Path(snapshot_download(repo, local_files_only=True))
            except LocalEntryNotFoundError:
                raise ConfigError(
                    f"{repo}: there is no such local folder, and the hub cannot be reached {_why(error)}."
                ) from error
            found = [file for file in folder.rglob("*") if file.is_file()]
            return {str(file.relative_to(folder)): file.stat().st_size for file in found}


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

    with _translate_errors(f"{repo}/{file}"):
        try:
            metadata = get_hf_file_metadata(hf_hub_url(repo, file), timeout=CONNECT_TIMEOUT_S)
        except RevisionNotFoundError:
            raise
        except EntryNotFoundError as error:
            raise ConfigError(
                f"{repo}/{file}: neither a local file nor one on the hub. {_contents(repo, file)}"
            ) from error
        except _hub_errors() as error:
            cached = _find_cached(repo, file)
            if cached is not None:
                return cached
            if isinstance(error, HfHubHTTPError):
                raise
            raise ConfigError(
                f"{repo}/{file}: there is no such local file, and the hub cannot be reached {_why(error)}."
            ) from error
        size, digest, commit = metadata.size, metadata.etag or "", metadata.commit_hash
        if commit and size and size <= MAX_HTTP_BYTES and _HASH.match(digest):
            url = hf_hub_url(repo, file, revision=commit)
            _Download(repo, url, size, digest, on_progress).run()
        return Path(hf_hub_download(repo, file))


def _contents(repo: str, missing: str) -> str:
    """List the files of a repository that are of the kind of a missing file, as a sentence."""
    try:
        files = list(_sizes(repo))
    except ConfigError as error:
        return str(error)
    found = ggufs(files) if missing.lower().endswith(".gguf") else files
    if not found:
        return (
            f"{repo} holds no GGUF file; serve it as hf:{repo} if it holds a model of transformers."
        )
    return f"{repo} holds {join_names(found)}: name one of them."


def _why(error: Exception) -> str:
    """Return the reason why the hub cannot be reached, and what can be done about it."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "because HF_HUB_OFFLINE is set. Unset it, or name a file or a folder that is on this machine"
    reason = " ".join(str(error).split())[:100] or type(error).__name__
    return (
        f"({reason}). Check the network, or set HF_ENDPOINT where a mirror is used; or name a file or a folder that is on "
        "this machine"
    )


def _find_cached(repo: str, file: str) -> Path | None:
    """Find a file in the cache, without the client's download, which asks the hub for other things even where it may read the cache only."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, file)
    return Path(found) if isinstance(found, str) else None


class _Download:
    """
    One version of a file on its way into the cache.

    Args:
        repo: The repository.
        url: Where this version is.
        size: Its bytes.
        digest: Its hash, as the hub's ETag gives it.
    """

    def __init__(
        self, repo: str, url: str, size: int, digest: str, on_progress: OnProgress
    ) -> None:
        from huggingface_hub.constants import HF_HUB_CACHE
        from huggingface_hub.file_download import repo_folder_name

        folder = repo_folder_name(repo_id=repo, repo_type="model")
        blobs = Path(HF_HUB_CACHE) / folder / "blobs"
        self._blob = blobs / digest
        self._partial = blobs / f"{digest}.unilect.incomplete"
        self._lock = Path(HF_HUB_CACHE) / ".locks" / folder / f"{digest}.lock"
        self._url = url
        self._size = size
        self._digest = digest
        self._on_progress = on_progress

    def run(self) -> None:
        """
        Put the file into the cache unless it is there.

        Raises:
            ConfigError: What came is not the file.
        """
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]
        from rich.filesize import decimal

        self._blob.parent.mkdir(parents=True, exist_ok=True)
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(self._lock):  # another server may be fetching the same file
            if self._blob.exists():
                return
            rest, name = self._size - self._have(), self._url.rpartition("/")[2]
            log.info("fetching %s from the hub, %s", name, decimal(rest))
            self._fetch_all()
            self._check()
            self._partial.replace(self._blob)

    def _fetch_all(self) -> None:
        """
        Fetch what is missing, again after each break, until nothing more comes.

        A server that ends in order before the end of the file is one more break.
        """
        fruitless = 0
        while (have := self._have()) < self._size:
            ended: Exception | None = None
            try:
                self._fetch_rest(have)
            except _hub_errors() as error:
                ended = error
            now = self._have()
            fruitless = 0 if now > have else fruitless + 1
            if ended is not None and (fruitless == MAX_FRUITLESS_TRIES or not _may_pass(ended)):
                raise ended
            if fruitless == MAX_FRUITLESS_TRIES:
                return
            if now < self._size:
                time.sleep(PAUSE_S)

    def _fetch_rest(self, have: int) -> None:
        """Append the bytes from `have` on; from the start where the server does not give a part."""
        import httpx2
        from huggingface_hub import get_session, hf_raise_for_status
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        timeout = httpx2.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        with get_session().stream("GET", self._url, headers=headers, timeout=timeout) as response:
            hf_raise_for_status(response)
            have = have if response.status_code == 206 else 0
            with self._partial.open("ab" if have else "wb") as file:
                for chunk in response.iter_raw():
                    file.write(chunk)
                    have += len(chunk)
                    if have > self._size:
                        return  # `_check` refuses it
                    self._on_progress(have / self._size, self._size)

    def _check(self) -> None:
        """
        Compare size and hash with the hub's.

        Raises:
            ConfigError: They differ; what is not the beginning of the file is thrown away.
        """
        have = self._have()
        if have < self._size:
            raise ConfigError(
                f"{self._url}: {have} bytes came, and the file has {self._size}. What has come is kept; start again to go on "
                "from there."
            )
        if have > self._size:
            self._partial.unlink()
            raise ConfigError(
                f"{self._url}: {have} bytes came, and the file has {self._size}. Try again."
            )
        if _digest(self._partial, self._size, self._digest) != self._digest:
            self._partial.unlink()
            raise ConfigError(
                f"{self._url}: what came does not have the hash that the hub names. Try again."
            )

    def _have(self) -> int:
        return self._partial.stat().st_size if self._partial.exists() else 0


def _digest(path: Path, size: int, like: str) -> str:
    """Return the hash of a file, of the kind that the hub gave: SHA-256, or git's SHA-1 of `blob SIZE\\0` and the content."""
    git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(
            file, lambda: git if len(like) == 40 else hashlib.sha256()
        ).hexdigest()


def _hub_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of the hub, of the connection to it, and of the client that is offline."""
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    return (httpx2.HTTPError, OfflineModeIsEnabled)


def _may_pass(error: Exception) -> bool:
    """Return True for what may be gone in a moment: a broken connection, a busy or failing server."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    return not isinstance(error, OSError)


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Translate the errors of the hub's client, of its HTTP client and of the operating system into one sentence."""
    import httpx2
    from huggingface_hub import errors

    absent = errors.EntryNotFoundError, errors.HFValidationError
    try:
        yield
    except (OSError, httpx2.HTTPError, *absent) as error:
        match error:
            case errors.GatedRepoError():
                told = "its owner asks for your consent to terms. Give it on the hub, and set HF_TOKEN."
            case errors.LocalEntryNotFoundError():
                told = "HF_ENDPOINT does not answer as a hub does."
            case errors.RepositoryNotFoundError() | errors.RevisionNotFoundError():
                told = _ABSENT
            case errors.EntryNotFoundError() | errors.HFValidationError():
                told = _ABSENT
            case errors.HfHubHTTPError():
                told = f"the hub answered with status {error.response.status_code}. Try again."
            case httpx2.HTTPError() | errors.OfflineModeIsEnabled():
                told = "the connection to the hub broke again and again. What has come is kept; start again to go on from there."
            case _:
                told = f"could not be fetched ({getattr(error, 'strerror', None) or error})."
        raise ConfigError(f"{name}: {told}") from error
