"""
The token of a cluster: a node, a gateway or a command that does not know it is refused by the cluster's processes.

It is in a file that its user alone can read, and Ray is told where; it is never in a command line, a log or an error.

Source: https://docs.ray.io/en/latest/ray-security/token-auth.html
"""

import os
import re
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from unilect.config.hints import FLEET_TOKEN_VARIABLE
from unilect.config.plain_file import read_plain
from unilect.config.store import data_folder
from unilect.core.errors import ConfigError

_FILE = "fleet-token"
_MOST_BYTES = 64 * 1024
_TOKEN = re.compile(r"[!-~]{16,512}")
_HOW = "Write the text that the file on the machine of `unilect fleet start` holds."


def default_file(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the token of this user's cluster, which may not exist; None where there is no folder for a user's data."""
    folder = data_folder(environment)
    return None if folder is None else folder / _FILE


def ensure(file: Path) -> Path:
    """
    Return the file of a token, which is made where there is none.

    Raises:
        ConfigError: It cannot be written or read, or holds none.
    """
    _write(file, secrets.token_hex(32))
    return check(file)


def check(file: Path) -> Path:
    """
    Return the file, where it holds a token and nobody else can read it.

    Raises:
        ConfigError: It is not so.
    """
    text, mode = _read(file)
    if not _TOKEN.fullmatch(text):
        raise ConfigError(f"{file}: holds no token of a cluster. {_HOW}")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{file}: others can read the token of the cluster (mode {mode & 0o777:04o}). Forbid it: chmod 600 {file}"
        )
    return file


def _read(file: Path) -> tuple[str, int]:
    try:
        return read_plain(file, _MOST_BYTES).decode().strip(), file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text"
        raise ConfigError(
            f"{file}: the token of the cluster cannot be read ({why}). {_HOW}"
        ) from error


def from_environment(
    environment: Mapping[str, str], file: Path | None, in_use: bool
) -> Path | None:
    """
    Put the token of the environment into a file; None where the environment has none.

    Args:
        file: Where to.
        in_use: A node of this user goes by the token in that file, which must not change then.

    Raises:
        ConfigError: It is none, or cannot be written.
    """
    token = environment.get(FLEET_TOKEN_VARIABLE, "").strip()
    if not token:
        return None
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{FLEET_TOKEN_VARIABLE}: holds no token of a cluster. {_HOW}")
    if file is None:
        raise ConfigError(
            f"{FLEET_TOKEN_VARIABLE}: there is no folder for this user's data to keep it in. Set HOME, or use --token-file."
        )
    if file.exists() and _read(file)[0] != token:
        if in_use:
            raise ConfigError(
                f"{FLEET_TOKEN_VARIABLE}: a node of another cluster runs here with the token in {file}. "
                "Put this one into a file, and name it with --token-file."
            )
        file.unlink(missing_ok=True)  # another command may do the same
    _write(file, token)
    return check(file)


def _write(file: Path, token: str) -> None:
    """Make the file with all that it holds at once, unless there is one."""
    if file.exists():
        return
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(token)
        try:
            with suppress(FileExistsError):  # another command has made it just now
                os.link(draft, file)
        finally:
            draft.unlink()
    except OSError as error:
        raise ConfigError(
            f"{file}: the token of the cluster cannot be kept there ({error.strerror}). Let this user write there."
        ) from error
