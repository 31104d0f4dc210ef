"""Tests of unilect.runtime.extras."""

import json
import shlex
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest

from unilect.runtime import extras


@pytest.mark.parametrize(
    ("told", "folder"),
    [
        ({"url": "file://{clone}", "dir_info": {}}, "{clone}"),
        ({"url": "file://{clone}/gone", "dir_info": {}}, "."),
        ({"url": "https://example.org/unilect.whl"}, "."),
        (None, "."),
        ("{", "."),
    ],
)
def test_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Any, folder: str) -> None:
    """An extra is installed from the clone that unilect came from, where it is known, and never by its bare name."""
    clone = tmp_path / "a clone"
    info = clone / "unilect-0.dist-info"
    info.mkdir(parents=True)
    (clone / "pyproject.toml").touch()
    if told is not None:
        text = told if isinstance(told, str) else json.dumps(told)
        (info / "direct_url.json").write_text(
            text.replace("{clone}", str(clone).replace(" ", "%20"))
        )
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: PathDistribution(info))

    words = shlex.split(extras.install("transformers"))

    assert ["pip", "install", f"{folder}[transformers]".replace("{clone}", str(clone))] == words
