"""
Folders for unix sockets: the path of a socket holds few bytes, and that of the folder for temporary files may be long.
"""

import os
import tempfile
from pathlib import Path

MAX_PATH_BYTES = 107  # `sun_path` of unix(7), without its NUL
SHORT = "/tmp"  # a folder for temporary files that has room for any socket of ours
_PREFIX = "unilect-"
_RANDOM = "x" * 8  # what tempfile appends


def fits(path: str | Path) -> bool:
    """Return True if a unix socket can have this path."""
    return len(os.fsencode(path)) <= MAX_PATH_BYTES


def make_folder(longest: str) -> Path:
    """
    Make a folder, of mode 0700, that has room for sockets: in the folder for temporary files, or in `SHORT` where that one's path is too long.

    Args:
        longest: The longest path of a socket in it.

    Raises:
        OSError: It cannot be made.
    """
    temporary = tempfile.gettempdir()
    has_room = fits(os.path.join(temporary, _PREFIX + _RANDOM, longest))
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=temporary if has_room else SHORT))
