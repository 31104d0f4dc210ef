"""
llama.cpp's own reckoning of what a model takes, from the head of its file: the table that it prints before it loads, in a throwaway child.

It knows every architecture that this llama.cpp can load, the weights that it copies on this processor, and what goes to which GPU.

Source: https://github.com/ggml-org/llama.cpp/blob/master/common/fit.cpp (common_memory_breakdown_print)
"""

import asyncio
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from unilect.engines.gguf._memory import Needs
from unilect.engines.process.child_process import python_command
from unilect.runtime.child_environment import child_environment
from unilect.runtime.memory import MIB

LIMIT_S = 20.0  # some tenths of a second are usual
_LINE_BYTES = 2**16
_MOST_LINES = 20_000
_TABLE = b"memory_breakdown_print: |"
#: Of one device: all, model, context and what is calculated with, in MiB.
_ROW = re.compile(rb"(\d{1,9}) = {1,9}(\d{1,9}) \+ {1,9}(\d{1,9}) \+ {1,9}(\d{1,9})")
_COPIES = b"REPACK"


async def dry_run(settings: dict[str, Any]) -> Needs | None:
    """
    Return what llama.cpp reckons for a model with the settings of its child.

    Args:
        settings: As of `child_settings`.

    Returns:
        None where it does not know the architecture, cannot read the file, or takes too long; and with a draft model, of which it says nothing.
    """
    if settings["speculative"]:
        return None
    needs = msgspec.convert(settings["needs"], Needs)
    rows = await _run(settings)
    if not rows:
        return None
    copied = sum(int(_number(row, 2)) for row in rows if _COPIES in row)
    model = sum(_number(row, 2) for row in rows) - copied
    context, compute = (sum(_number(row, part) for row in rows) for part in (3, 4))
    return msgspec.structs.replace(
        needs,
        weights=max(needs.weights, model * MIB),
        slot=context * MIB // needs.parallel,
        repacked=copied * MIB,
        work=compute * MIB + needs.words,
    )


def _number(row: bytes, part: int) -> int:
    match = _ROW.search(row)
    return 0 if match is None else int(match[part])


async def _run(settings: dict[str, Any]) -> list[bytes]:
    """Return the rows of the table; none where there is no table in time. The child is killed at its end."""
    with tempfile.TemporaryDirectory(prefix="unilect-") as folder:
        own = {"socket_path": str(Path(folder, "dry.sock")), "api_key": "", "parent": os.getpid()}
        process = await asyncio.create_subprocess_exec(
            *python_command("unilect.engines.gguf._dry_child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment() | {"GGML_NO_BACKTRACE": "1"},
            limit=_LINE_BYTES,
            start_new_session=True,  # Ctrl-C in the terminal is ours to handle
        )
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(LIMIT_S):
                process.stdin.write(
                    msgspec.json.encode(settings | own | {"verbose": False}) + b"\n"
                )
                process.stdin.close()
                return await _read_table(process.stderr)
        except (TimeoutError, ConnectionError):
            return []
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _read_table(stderr: asyncio.StreamReader) -> list[bytes]:
    """Return the rows of the table among the lines that llama.cpp prints, as soon as a line follows that is none of it."""
    rows, begun = list[bytes](), False
    for _ in range(_MOST_LINES):
        try:
            line = await stderr.readline()
        except ValueError:  # a line without an end
            continue
        if not line or (begun and _TABLE not in line):
            break
        begun = begun or _TABLE in line
        rows += [line] if _TABLE in line and _ROW.search(line) else []
    return rows
