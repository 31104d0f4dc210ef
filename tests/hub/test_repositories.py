"""Tests of unilect.hub.repositories, in a process of its own, against a small hub on loopback."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.servers.small_hub import TIMEOUT_S, Hub, environment, serve_hub
from unilect.core.errors import ConfigError
from unilect.hub import repositories
from unilect.hub.repositories import HubFile, choose

#: Splits sources, and prints what each is, or the error.
SPLIT = """
import json, sys
from unilect.models.sources import split
from unilect.core.errors import ConfigError
for source in sys.argv[1:]:
    try:
        print(json.dumps(split(source)))
    except ConfigError as error:
        print(json.dumps(str(error)))
"""
_QUANTS = {"q/m-Q8_0-00001-of-00002.gguf": 40, "q/m-Q8_0-00002-of-00002.gguf": 40, "m-UD-Q4_K_XL.gguf": 50, "m-IQ2_XS.gguf": 20, "m-f16.gguf": 90, "m-mtp-Q8_0.gguf": 9}  # fmt: skip


def split_all(hub: Hub, home: Path, *sources: str) -> dict[str, Any]:
    """What each of some sources is."""
    done = subprocess.run(
        [sys.executable, "-c", SPLIT, *sources],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(hub, home),
        cwd=home,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(sources, map(json.loads, done.stdout.splitlines()), strict=True))


def test_repositories_by_name(tmp_path: Path) -> None:
    """A repository is of the kind that its files are; one that is none, or cannot be had, is told with what to do."""
    files = {"o/quants/a-Q4_0.gguf": b"x", "o/quants/README.md": b"x", "o/text/README.md": b"x"}
    files |= {f"o/{repo}/{name}": b"x" for repo in ("whole", "both") for name in ("config.json", "model.safetensors")}  # fmt: skip
    files |= {"o/both/a.gguf": b"x", "o/head/config.json": b"{}", "o/vocab/ggml-vocab.gguf": b"x"}
    with serve_hub(**files) as hub:
        found = split_all(hub, tmp_path, "o/quants", "o/whole", "o/both", "hf.co/o/quants", "https://huggingface.co/o/whole/tree/main", "o/quants:Q4_0", "o/text", "o/head", "o/vocab", "o/none", "org/gated")  # fmt: skip

    assert found["o/quants"] == found["hf.co/o/quants"] == ["gguf", "o/quants"]
    assert found["o/whole"] == found["https://huggingface.co/o/whole/tree/main"] == ["hf", "o/whole"]  # fmt: skip
    assert found["o/both"] == ["gguf", "o/both"]
    assert found["o/quants:Q4_0"] == ["gguf", "o/quants:Q4_0"]
    for repo in ("o/text", "o/head", "o/vocab"):
        assert f"{repo}: the repository holds neither a GGUF file nor a model" in found[repo]
    assert "o/none: neither a local file nor one on the hub. Check its spelling" in found["o/none"]
    assert "org/gated: " in found["org/gated"]


@pytest.mark.parametrize(
    ("wanted", "room", "chosen"),
    [
        ("", 1000, "m-f16.gguf"),
        ("", 85, "q/m-Q8_0-00001-of-00002.gguf"),
        ("", 60, "m-UD-Q4_K_XL.gguf"),
        ("Q8_0", 60, "q/m-Q8_0-00001-of-00002.gguf"),
        ("ud-q4_k_xl", 1, "m-UD-Q4_K_XL.gguf"),
    ],
)
def test_the_largest_that_fits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, wanted: str, room: int, chosen: str
) -> None:  # fmt: skip
    """Without a quantization the largest that fits is taken, all of its parts together, and the log says why; a named one is taken as it is."""
    files = {name: HubFile(size) for name, size in _QUANTS.items()}
    monkeypatch.setattr(repositories, "list_files", lambda repo: files)
    caplog.set_level("INFO")

    file, listed = choose("o/r", wanted, lambda size: size <= room)

    assert (chosen, files) == (file, listed)
    assert bool(wanted) != ("largest of its quantizations" in caplog.text)
    assert ("would not fit" in caplog.text) == (room < 90 and not wanted)


def test_none_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no quantization fits, none is fetched; the smallest is named."""
    files = {name: HubFile(size) for name, size in _QUANTS.items()}
    monkeypatch.setattr(repositories, "list_files", lambda repo: files)

    with pytest.raises(ConfigError, match=r"^o/r: none of its 4 quantizations fits .* smallest is m-IQ2_XS\.gguf"):  # fmt: skip
        choose("o/r", "", lambda size: False)
