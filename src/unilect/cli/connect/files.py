"""The configuration files of clients: what is in them is kept, and a file is replaced whole or not at all."""

import errno
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from unilect.cli.connect import _dotenv, _json, _toml, _yaml
from unilect.config.plain_file import read_plain
from unilect.core.errors import ConfigError, join_names
from unilect.core.file_errors import unreadable
from unilect.web.connect.formats import DUMPS, Form
from unilect.web.connect.lines import File
from unilect.web.connect.settings import OtherShape, merge

SECRET_MODE = 0o600
#: Before a file is changed it must be of a sensible size.
MAX_BYTES = 1024 * 1024


#: By format, what parses its texts (ValueError), and edits a text for one setting.
_FORMATS: Mapping[Form, ModuleType] = {
    "json": _json,
    "toml": _toml,
    "yaml": _yaml,
    "dotenv": _dotenv,
}


class Change(NamedTuple):
    """
    A file that is to be written.

    Attributes:
        path: The file itself, behind all links.
        text: All that will be in it.
        names: What is set in it.
        mode: Its permissions; None for those that it has.
        owner: Its user and group; None for those of a new file.
    """

    path: Path
    text: str
    names: Sequence[str]
    mode: int | None
    owner: tuple[int, int] | None

    @property
    def needed(self) -> bool:
        """Return True if there is anything to write."""
        return bool(self.names) or self.mode is not None


def plan(file: File, replace: bool = False) -> Change:
    """
    Work out what to write so that a client's file has its settings.

    Args:
        replace: Replace shared settings that have other values.

    Raises:
        ConfigError: The file cannot be read or changed, or has other values.
    """
    shown, form = file.path, _FORMATS[file.form]
    try:
        path = Path(shown).expanduser().resolve()
    except (OSError, RuntimeError) as error:  # no home directory, or links in a circle
        raise ConfigError(f"{shown}: {error}. {_BY_HAND}") from error
    text, mode, owner = _read(path, shown)
    try:
        merged = merge(form.parse(text), file.settings, replace)
        if merged.kept:
            others = join_names(setting.name for setting in merged.kept)
            raise ConfigError(
                f"{shown}: already has other values for {others}. Add --replace to replace them, or add the lines above by hand."
            )
        new = text if text.strip() else DUMPS[file.form](merged.data)
        for setting in merged.changes if text.strip() else ():
            new = form.edit(new, setting)
        if merged.changes and not _holds(form, new, merged.data):
            raise ConfigError(
                f"{shown}: its form is unusual, and a change could damage it. {_BY_HAND}"
            )
    except ValueError as error:
        raise ConfigError(f"{shown}: cannot be read as {file.form.upper()} ({error}). {_BY_HAND}") from error  # fmt: skip
    except RecursionError as error:
        raise ConfigError(f"{shown}: its values are nested too deeply. {_BY_HAND}") from error
    except OtherShape as error:
        raise ConfigError(f"{shown}: {error}. {_BY_HAND}") from error
    secret = file.secret and mode != SECRET_MODE
    names = [setting.name for setting in merged.changes]
    # root may write what its owner has made read-only, and shall not
    is_writable = mode is None or (mode & 0o222 and os.access(path, os.W_OK))
    if (names or secret) and not is_writable:
        raise ConfigError(f"{shown}: is read-only. {_BY_HAND}")
    return Change(path, new, names, SECRET_MODE if secret else mode if names else None, owner)


_BY_HAND = "Nothing was written: add the lines above by hand."


def write_file(change: Change) -> None:
    """
    Replace a file at once: whoever reads it sees the old text or the new one.

    Raises:
        ConfigError: It cannot be written; then it is as it was.
    """
    folder, temporary = change.path.parent, None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{change.path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(change.text)
            file.flush()
            # such as where root does it for another user
            if change.owner not in (None, _owner(descriptor)):
                os.fchown(descriptor, *change.owner)
            os.fchmod(descriptor, change.mode or SECRET_MODE)
            os.fsync(descriptor)
        os.replace(temporary, change.path)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "a text is no Unicode"
        raise ConfigError(
            f"{change.path}: cannot be written ({why}). Check that the user of this process owns it, and may write in {folder}."
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _read(path: Path, shown: str) -> tuple[str, int | None, tuple[int, int] | None]:
    """Read the text of a file, its permissions, and its user and group; an empty text where there is none."""
    try:
        text, status = read_plain(path, MAX_BYTES).decode(), path.stat()
        return text, status.st_mode & 0o777, (status.st_uid, status.st_gid)
    except FileNotFoundError:
        return "", None, None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{shown}: is no UTF-8. {_BY_HAND}") from error
    except OSError as error:
        why = _UNUSABLE.get(error.errno or 0)
        raise ConfigError(f"{shown}: {why}. {_BY_HAND}" if why else unreadable(error)) from error


_UNUSABLE = {errno.EINVAL: "is no file", errno.EFBIG: f"has more than {MAX_BYTES} bytes"}


def _owner(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_uid, status.st_gid


def _holds(form: ModuleType, text: str, data: Any) -> bool:
    """Return True if a text has exactly this data."""
    try:
        return bool(form.parse(text) == data)
    except ValueError:
        return False
