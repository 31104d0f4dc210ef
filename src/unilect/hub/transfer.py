"""
A file on its way to this machine: appended to one partial file, resumed where it was cut off, and checked before it gets its name.

Source: https://www.rfc-editor.org/rfc/rfc9110.html#section-14 (ranges), #section-13.1.5 (`If-Range`)
"""

import hashlib
import logging
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from unilect.core.errors import ConfigError
from unilect.hub._errors import hub_errors, may_pass, translate_errors
from unilect.runtime.redact import redact

log = logging.getLogger("unilect")
CONNECT_TIMEOUT_S = 10.0
SILENCE_TIMEOUT_S = 30.0
MAX_FRUITLESS_TRIES = 5
PAUSE_S = 1.0
#: Networks that deliver files give no larger one in one piece, but parts of it.
MAX_PIECE_BYTES = 20 * 10**9
_PART = re.compile(r"bytes (\d{1,19})-", re.ASCII | re.I)


class OnProgress(Protocol):
    """Told the part that is here, from 0 to 1, and of how many bytes where that is known."""

    def __call__(self, part: float, size_bytes: int = 0, /) -> None:
        """Show it."""


class NoParts(Exception):
    """A server gives no part of a file that is too large for one piece."""


class Transfer:
    """
    One version of a file on its way into a folder.

    Args:
        url: Where this version is.
        final: The path that it gets.
        partial: Where what has come is kept; another version has another.
        lock: Held while it is fetched, also from other processes.
        size: Its bytes.
        digest: Its hash, as the hub's ETag gives it; empty where nothing says it.
        headers: What is sent with each request.
        validator: The ETag or the date that a part must be of; None where the URL is of one version, and empty where nothing tells the
            version, so that each request begins anew.
    """

    def __init__(
        self,
        url: str,
        final: Path,
        partial: Path,
        lock: Path,
        size: int,
        digest: str,
        headers: Mapping[str, str],
        on_progress: OnProgress,
        validator: str | None = None,
    ) -> None:
        self._url, self._shown = url, redact(url.partition("?")[0])
        self._final, self._partial, self._lock = final, partial, lock
        self._size, self._digest = size, digest
        self._headers, self._validator = headers, validator
        self._on_progress = on_progress

    def run(self) -> None:
        """
        Put the file into its place unless it is there.

        Raises:
            ConfigError: What came is not the file, or there is no room for it.
            NoParts: It is large, and its server gives no parts.
        """
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]
        from rich.filesize import decimal

        self._final.parent.mkdir(parents=True, exist_ok=True)
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(self._lock):  # another server may be fetching the same file
            if self._final.exists():
                return
            rest, name = self._size - self._have(), self._shown.rpartition("/")[2]
            check_room(self._shown, rest, self._final.parent)
            log.info("fetching %s, %s", name, decimal(rest))
            self._fetch_all()
            self._check()
            self._partial.replace(self._final)

    def _fetch_all(self) -> None:
        """
        Fetch what is missing, again after each break, until nothing more comes.

        A server that ends in order before the end of the file is one more break.
        """
        fruitless, most = 0, self._have()
        while (have := self._have()) < self._size:
            ended: Exception | None = None
            try:
                self._fetch_rest(have)
            except hub_errors() as error:
                ended = error
            now = self._have()
            fruitless = 0 if now > most else fruitless + 1
            most = max(most, now)
            if ended is not None and (fruitless == MAX_FRUITLESS_TRIES or not may_pass(ended)):
                raise ended
            if fruitless == MAX_FRUITLESS_TRIES:
                return
            if now < self._size and (ended is not None or now == have):
                time.sleep(PAUSE_S)

    def _fetch_rest(self, have: int) -> None:
        """Append the bytes from `have` on, or a piece of them; from the start where the server does not give a part."""
        import httpx2
        from huggingface_hub import get_session, hf_raise_for_status

        headers = {**self._headers, "Accept-Encoding": "identity"}
        if self._validator == "":  # what has come may be of another version
            have = 0
        in_pieces = self._size > MAX_PIECE_BYTES and self._validator != ""
        if in_pieces:
            headers["Range"] = f"bytes={have}-{min(have + MAX_PIECE_BYTES, self._size) - 1}"
        elif have:
            headers["Range"] = f"bytes={have}-"
        if have and self._validator:
            headers["If-Range"] = self._validator
        timeout = httpx2.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        with get_session().stream("GET", self._url, headers=headers, timeout=timeout) as response:
            if in_pieces and response.status_code != 206 and response.status_code < 429:
                raise NoParts
            hf_raise_for_status(response)
            if response.status_code == 206:
                self._check_part(response.headers.get("Content-Range", ""), have)
            else:
                have = 0
            with self._partial.open("ab" if have else "wb") as file:
                for chunk in response.iter_raw():
                    file.write(chunk)
                    have += len(chunk)
                    if have > self._size:
                        return  # `_check` refuses it
                    self._on_progress(have / self._size, self._size)

    def _check_part(self, told: str, have: int) -> None:
        """
        Raises:
            ConfigError: A part of a file begins elsewhere than what was asked for.
        """
        part = _PART.match(told)
        if part is None or int(part[1]) != have:
            raise ConfigError(
                f"{self._shown}: its server gives another part of the file than it is asked for ({told[:100] or 'no Content-Range'}). "
                "Try again later, or download it and name its path."
            )

    def _check(self) -> None:
        """
        Compare size and hash with the server's.

        Raises:
            ConfigError: They differ; what is not the beginning of the file is thrown away.
        """
        have = self._have()
        if have < self._size:
            raise ConfigError(
                f"{self._shown}: {have} bytes came, and the file has {self._size}. What has come is kept; start again to go on "
                "from there."
            )
        if have > self._size:
            self._partial.unlink()
            raise ConfigError(
                f"{self._shown}: {have} bytes came, and the file has {self._size}. Try again."
            )
        if self._digest and digest_of(self._partial, self._digest) != self._digest:
            self._partial.unlink()
            raise ConfigError(
                f"{self._shown}: what came does not have the hash that the hub names. Try again."
            )

    def _have(self) -> int:
        return self._partial.stat().st_size if self._partial.exists() else 0


@contextmanager
def hold(lock: Path) -> Iterator[bool]:
    """Hold a lock as long as the block lasts, without waiting for it: yield False where somebody else has it."""
    from filelock import FileLock, Timeout

    held = FileLock(lock, timeout=0, mode=0o664)
    try:
        if lock.exists():
            held.acquire()
    except (Timeout, OSError, NotImplementedError):
        yield False
        return
    try:
        yield True
    finally:
        held.release()


def digest_of(path: Path, like: str = "") -> str:
    """Return the SHA-256 of a file; git's SHA-1 of `blob SIZE\\0` and the content where it is to be like one."""
    size = path.stat().st_size
    git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(
            file, lambda: git if len(like) == 40 else hashlib.sha256()
        ).hexdigest()


def check_room(name: str, size: int, folder: Path) -> None:
    """
    Check that a disk has room for some bytes.

    Args:
        folder: Where they go; it need not exist yet.

    Raises:
        ConfigError: It has not.
    """
    from rich.filesize import decimal

    there = next(one for one in (folder, *folder.parents) if one.exists())
    with translate_errors(name):
        free = shutil.disk_usage(there).free
    if size > free:
        raise ConfigError(
            f"{name}: has {decimal(size)} to fetch, and {there} has room for {decimal(free)}. Remove a model that is not needed "
            "(`unilect list`, `unilect rm NAME`), or set HF_HOME (of web addresses XDG_CACHE_HOME) to a folder on a larger disk."
        )
