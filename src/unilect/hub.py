"""
Model files from the Hugging Face hub: fetched once, resumed where they were cut off, checked, kept in the hub's own cache.

Source: https://huggingface.co/docs/huggingface_hub/guides/download
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unilect.errors import ConfigError

_HUB_FILE = re.compile(r"^([\w.-]+/[\w.-]+)/(.+\.gguf)$")


def local_file(location: str, on_progress: Callable[[float], None]) -> Path:
    """
    The local path of a file: itself, or fetched from the hub where `org/repo/file.gguf` is no local path.

    Raises:
        ConfigError: There is no such file, here or there.
    """
    path = Path(location).expanduser()
    match = _HUB_FILE.match(location)
    if path.exists() or match is None:
        return path
    return fetch(match.group(1), match.group(2), on_progress)


def fetch(repo: str, file: str, on_progress: Callable[[float], None]) -> Path:
    """
    Fetch a file of a repository of the hub, or find it in the cache.

    Raises:
        ConfigError: There is no such file, or the hub cannot be reached.
    """
    # huggingface_hub takes 0.3 s to import, which a server of local files shall not pay
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        """Tells us, and draws nothing."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"disable": False, "file": _Nowhere()})

        def update(self, n: float | None = 1) -> bool | None:
            """Take note of `n` more bytes."""
            drawn = super().update(n)
            if self.total:
                on_progress(self.n / self.total)
            return drawn

    try:
        return Path(hf_hub_download(repo, file, tqdm_class=Bar))
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"{repo}/{file}: the hub cannot be reached, and the file is not in its cache."
        ) from error
    except (RepositoryNotFoundError, EntryNotFoundError) as error:
        raise ConfigError(f"{repo}/{file}: neither a local file nor one on the hub.") from error
    except OSError as error:
        raise ConfigError(f"{repo}/{file}: could not be fetched ({error}).") from error


class _Nowhere:
    """A file that forgets."""

    def write(self, text: str) -> int:
        """Forget the text."""
        return len(text)

    def flush(self) -> None:
        """Do nothing."""
