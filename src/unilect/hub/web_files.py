"""
GGUF files at web addresses: `https://host/x.gguf`, fetched once into a folder of ours, by the same means as those of the hub.

A file that is here is served as it is; `unilect pull` asks its server whether there is a newer one.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from unilect.config.paths import cache_folder
from unilect.config.server import process_environment
from unilect.core.errors import ConfigError
from unilect.hub._errors import hub_errors, reason_of, translate_errors
from unilect.hub.repository_files import parts
from unilect.hub.transfer import CONNECT_TIMEOUT_S, NoParts, OnProgress, Transfer, digest_of
from unilect.runtime.redact import MASK, redact

_ADDRESS = re.compile(r"^https?://[^/\s]+/\S", re.I)
_SIZE = re.compile(r"^bytes \d+-\d+/(\d+)$")
_OF_PARTS = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)", re.I)
#: Fields of the signatures of stores of files; https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
_SIGNED = re.compile(r"(?:x-(?:amz|goog)-[\w-]*|expires|download|s[eptvr]|spr)(?:=|$)", re.I)
_NOTE = ".origin"
MAX_NOTE_BYTES = 65536


class Origin(msgspec.Struct, frozen=True):
    """
    The note beside a fetched file.

    Attributes:
        url: Where it came from, without credentials.
        size: Its bytes.
        validator: The ETag or the date of its version.
        sha256: Its hash.
    """

    url: str
    size: int
    validator: str
    sha256: str


class _Version(NamedTuple):
    size: int
    validator: str  # a strong ETag or a date; empty where the server gives none


def is_address(location: str) -> bool:
    """Return True for the web address of a file."""
    return _ADDRESS.match(location) is not None


def folder() -> Path:
    """
    Return the folder of files from web addresses.

    Raises:
        ConfigError: There is none for this user.
    """
    cache = cache_folder(process_environment())
    if cache is None:
        raise ConfigError(
            "There is no folder for downloads: neither HOME nor XDG_CACHE_HOME is set. Set one of them, or download the file and name its path."
        )
    return cache / "models"


def place(url: str) -> Path:
    """
    Return the path of a file here, whether it is here or not: files of one folder there are in one folder here.

    Raises:
        ConfigError: It is no address.
    """
    try:
        split = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{redact(url)}: is no web address ({error}). Check it.") from error
    host = split.netloc.rpartition("@")[2].lower()
    above, _, file = split.path.rpartition("/")
    digest = _hash(f"{host}{above}{_query(split.query)}")
    plain = re.sub(r"[^\w.@+-]", "-", unquote(file)).lstrip(".-") or "model"
    named = plain if plain.lower().endswith(".gguf") else f"{plain}.gguf"
    if named[-180:] != unquote(file):  # another file may have this name, too
        named = f"{_hash(_OF_PARTS.sub('', file))}-{named[-180:].lstrip('.-')}"
    return folder() / f"{re.sub(r'[^a-z0-9.-]', '-', host)}-{digest}" / named


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _query(query: str) -> str:
    """Return what of a query tells files apart: without secrets, and without what another signature of the same file has anew."""
    fields = redact(f"?{query}")[1:].split("&") if query else []
    kept = [one for one in fields if not one.endswith(f"={MASK}") and not _SIGNED.match(one)]
    return f"?{'&'.join(kept)}" if kept else ""


def addresses(url: str) -> list[str]:
    """Return the addresses of all files of a model: several where it names the first of several parts."""
    path, mark, query = url.partition("?")
    return [f"{one}{mark}{query}" for one in parts(path)]


def local_copy(url: str) -> Path | None:
    """Return the path of a model that is here with all its parts; None where it has to be fetched."""
    found = [place(one) for one in addresses(url)]
    return found[0] if all(one.exists() for one in found) else None


def read_origin(file: Path) -> Origin | None:
    """Return the note beside a file; None where there is none that can be read."""
    note = file.with_name(file.name + _NOTE)
    try:
        with note.open("rb") as opened:
            return msgspec.json.decode(opened.read(MAX_NOTE_BYTES), type=Origin)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def notes(file: Path) -> Iterator[Path]:
    """Yield what stands beside a fetched file and goes with it."""
    yield from (one for one in (file.with_name(file.name + _NOTE),) if one.exists())


def ask_version(url: str) -> _Version:
    """
    Ask the server for the size and the version of a file.

    Raises:
        ConfigError: It has no such file, does not say its size, or cannot be reached.
    """
    import httpx2
    from huggingface_hub import get_session

    shown = redact(url)
    headers = {"Accept-Encoding": "identity", "Range": "bytes=0-0"}
    timeout = httpx2.Timeout(CONNECT_TIMEOUT_S)
    broken: tuple[type[Exception], ...] = (*hub_errors(), httpx2.InvalidURL)
    with translate_errors(shown):
        try:
            with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
                status, got = response.status_code, response.headers
        except broken as error:
            raise ConfigError(
                f"{shown}: its server cannot be reached ({reason_of(error)}). Check the address and the network."
            ) from error
    if status not in (200, 206):
        what = "Check the address" if 400 <= status < 500 and status != 429 else "Try again later"
        raise ConfigError(
            f"{shown}: its server answers with status {status}. {what}; a file behind a login is downloaded with a browser, and "
            "named by its path."
        )
    of_range = _SIZE.match(got.get("Content-Range", ""))
    size = of_range[1] if of_range else got.get("Content-Length", "") if status == 200 else ""
    if not size.isascii() or not size.isdecimal() or not 0 < int(size) < 2**53:
        raise ConfigError(
            f"{shown}: its server does not tell the size of the file. Download it (`curl -L`), and name its path."
        )
    tag = got.get("ETag", "")
    strong = tag if tag.startswith('"') and len(tag) < 300 else ""
    return _Version(int(size), strong or got.get("Last-Modified", "")[:100])


def is_current(url: str, version: _Version) -> bool:
    """Return True where the version of a file is the one that is here."""
    origin = read_origin(place(url)) if place(url).exists() else None
    return origin is not None and _Version(origin.size, origin.validator) == version


def fetch(url: str, version: _Version, on_progress: OnProgress) -> Path:
    """
    Fetch a version of a file.

    Raises:
        ConfigError: What came is not the file, or it cannot be fetched.
    """
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    final, shown = place(url), redact(url)
    if is_current(url, version):
        return final
    mark = hashlib.sha256(f"{version}".encode()).hexdigest()[:12]
    partial = final.with_name(f"{final.name}.{mark}.incomplete")
    new = final.with_name(f"{final.name}.{mark}.new")
    lock, own = (final.with_name(f".{final.name}{end}.lock") for end in ("", f".{mark}"))
    final.parent.mkdir(parents=True, exist_ok=True)
    with translate_errors(shown), WeakFileLock(lock):
        if is_current(url, version):  # another process has fetched it meanwhile
            return final
        transfer = Transfer(
            url, new, partial, own, version.size, "", {}, on_progress, version.validator
        )
        try:
            transfer.run()
        except NoParts as error:
            raise ConfigError(
                f"{shown}: its server gives no parts of a file this large. Download it (`curl -L`), and name its path."
            ) from error
        except hub_errors() as error:
            raise ConfigError(
                f"{shown}: it broke off again and again ({reason_of(error)}). What has come is kept; start again to go on from there."
            ) from error
        with new.open("rb") as file:
            begin = file.read(4)
        if begin != b"GGUF":
            new.unlink()
            raise ConfigError(
                f"{shown}: what came is no GGUF file, for it does not begin with `GGUF`; mostly it is a web page. Check the address."
            )
        origin = Origin(shown, version.size, version.validator, digest_of(new))
        note = final.with_name(final.name + _NOTE)
        note.unlink(
            missing_ok=True
        )  # at a kill from here on nothing says of what version the file is
        new.replace(final)
        note.write_bytes(msgspec.json.encode(origin))
    return final
