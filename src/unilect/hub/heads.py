"""The beginnings of remote files: as much as tells what a model is, a few megabytes of many gigabytes."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from unilect.core.errors import ConfigError
from unilect.hub._errors import translate_errors
from unilect.hub.download import RemoteFile
from unilect.hub.transfer import CONNECT_TIMEOUT_S, SILENCE_TIMEOUT_S

FIRST_BYTES = 2**20
HEAD_TIMEOUT_S = 600.0
MOST_BYTES = 2**27  # of a head; vocabularies take some ten megabytes


def fetch_heads(
    files: Sequence[RemoteFile], folder: Path, is_head: Callable[[Path, int], bool]
) -> Path:
    """
    Fetch the heads of a model's files into a folder; what is on this machine already is linked.

    Args:
        is_head: As of `fetch_head`, given the bytes of the whole file, too.

    Returns:
        The path of the first; of a model of transformers its folder.

    Raises:
        ConfigError: As of `fetch_head`.
    """
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.is_here:
            path.symlink_to(file.fetch(lambda part, size=0, /: None))
        elif path.suffix in (".gguf", ".safetensors", ".json"):
            fetch_head(file, path, lambda path, size=file.size: is_head(path, size))  # type: ignore[misc]
    first = folder / files[0].path
    return folder if first.name == "config.json" else first


def fetch_head(file: RemoteFile, path: Path, is_whole: Callable[[Path], bool]) -> None:
    """
    Fetch the head of a file, and write it to a path: as long as the file is, with a hole in place of the rest.

    Args:
        is_whole: Given what has come, returns True where that is the head.

    Raises:
        ConfigError: It cannot be fetched, or has no end.
    """
    want, until_s = FIRST_BYTES, time.monotonic() + HEAD_TIMEOUT_S
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o600))
    while True:
        want = min(want, file.size)
        _fetch_up_to(file, path, want, until_s)
        if is_whole(path) or want == file.size:
            break
        if want >= MOST_BYTES:
            raise ConfigError(f"{file.name}: its first {MOST_BYTES} bytes are not its head. It is damaged, or no model.")  # fmt: skip
        want *= 2
    with translate_errors(file.name):
        os.truncate(path, file.size)


def _fetch_up_to(file: RemoteFile, path: Path, want: int, until_s: float) -> None:
    """Append the bytes that are missing up to a place; a server that gives no parts sends those before again."""
    import httpx2
    from huggingface_hub import get_session, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    have = path.stat().st_size
    headers = build_hf_headers() if file.of_hub else {}
    headers |= {"Accept-Encoding": "identity", "Range": f"bytes={have}-{want - 1}"}
    timeout = httpx2.Timeout(SILENCE_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    with (
        translate_errors(file.name),
        get_session().stream("GET", file.url, headers=headers, timeout=timeout) as response,
        path.open("ab") as opened,
    ):
        hf_raise_for_status(response)
        at = have if response.status_code == 206 else 0
        for chunk in response.iter_raw():
            opened.write(chunk[max(0, have - at) : want - at])
            at += len(chunk)
            if at >= want:
                return
            if time.monotonic() > until_s:
                raise ConfigError(f"{file.name}: its head has not come in {HEAD_TIMEOUT_S:.0f} s. Try again later.")  # fmt: skip
    if path.stat().st_size < want:
        raise ConfigError(f"{file.name}: it ended before its {want} bytes had come. Try again.")
