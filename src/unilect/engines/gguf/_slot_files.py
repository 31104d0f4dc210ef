"""
Files of slots, which llama.cpp writes and reads: in a child's own folder, where links lead to the files, which may so lie anywhere.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (POST /slots/{id_slot}?action=save)
"""

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from unilect.api.backend import SlotAction
from unilect.http.client import HttpServer

PART = ".part"
_LEFT_S = 60.0  # no file is written for so long


async def save(server: HttpServer, slot: int, part: Path) -> dict[str, Any]:
    """
    Save a slot into a new file, readable for its user only, which its caller renames once this has returned, or removes.

    Returns:
        llama.cpp's answer.

    Raises:
        OSError: It cannot be written.
        UnilectError: As llama.cpp says.
    """
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    told = await _change(server, slot, "save", part)
    if not told.get("n_written") == _size(part) > 0:
        raise OSError(None, "llama.cpp could not write it", str(part))
    return told


async def restore(server: HttpServer, slot: int, file: Path) -> dict[str, Any]:
    """Fill a slot with what a file holds; returns llama.cpp's answer. Errors as it says."""
    return await _change(server, slot, "restore", file)


async def erase(server: HttpServer, slot: int) -> dict[str, Any]:
    """Empty a slot; returns llama.cpp's answer. Errors as it says."""
    return await _request(server, slot, "erase", {})


def remove_parts(folder: Path, beginning: str = "") -> None:
    """Remove what a server that was killed has left of files whose names begin so."""
    for left in folder.glob(f"{beginning}*{PART}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _LEFT_S:
                left.unlink()


def _size(file: Path) -> int:
    return file.stat().st_size


async def _change(server: HttpServer, slot: int, action: SlotAction, file: Path) -> dict[str, Any]:
    """Have llama.cpp work on a file, by a link beside its socket."""
    assert server.socket_path is not None  # of a child
    link = Path(server.socket_path).with_name(f"{secrets.token_hex(8)}.slot")
    os.symlink(file, link)
    try:
        return await _request(server, slot, action, {"filename": link.name})
    finally:
        with suppress(OSError):
            link.unlink()


async def _request(
    server: HttpServer, slot: int, action: SlotAction, fields: dict[str, Any]
) -> dict[str, Any]:
    answer = await server.post(f"/slots/{slot}?action={action}", msgspec.json.encode(fields))
    told: dict[str, Any] = msgspec.json.decode(answer)
    return told
