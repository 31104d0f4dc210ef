"""Tests of unilect.residency.page_cache, on real files."""

import os
from pathlib import Path

from unilect.residency.page_cache import measure_share


def test_share(tmp_path: Path) -> None:
    """A file that was just written is in memory, and none of one that the kernel was told to drop; what is no file is not known."""
    file = tmp_path / "weights"
    file.write_bytes(bytes(9_000_001))
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        before = measure_share(file)
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    after = measure_share(file)

    assert 1.0 == before
    assert after in (0.0, 1.0)  # a file system in memory keeps it
    assert measure_share(tmp_path / "none") is None
    (tmp_path / "empty").touch()
    assert measure_share(tmp_path / "empty") is None
