"""
The command that installs an extra of unilect, for error messages. It is written here alone.

Source: https://packaging.python.org/en/latest/specifications/direct-url/ (what an installer keeps of where a package came from)
"""

import json
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

PACKAGE = "unilect"


def install(extra: str) -> str:
    """
    Return the command that installs an extra: from the clone that unilect was installed from, else from the folder of a clone.

    unilect is on no package index, so that its bare name would install what somebody else put there.
    """
    wanted = f"{_clone() or '.'}[{extra}]"
    return f"pip install {shlex.quote(wanted)}"


def _clone() -> str:
    """Return the folder that this package was installed from; empty where that is not known, or is gone."""
    from importlib.metadata import PackageNotFoundError, distribution  # takes 25 ms to import

    try:
        told = json.loads(distribution(PACKAGE).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return ""
    url = urlsplit(str(told.get("url", "")))
    folder = unquote(url.path) if url.scheme == "file" else ""
    return folder if (Path(folder) / "pyproject.toml").is_file() else ""
