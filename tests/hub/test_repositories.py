"""Tests of unilect.hub.repositories, in a process of its own, against a small hub on loopback."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.servers.small_hub import TIMEOUT_S, Hub, environment, serve_hub
from unilect.core.errors import ConfigError
from unilect.hub import repositories
from unilect.hub.repositories import Fits, HubFile, choose
from unilect.hub.repository_files import parts

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


def fits_in(room: int) -> Fits:
    """Whether a model fits, all of its parts together."""
    return lambda file, listed: sum(listed[part].size for part in parts(file)) <= room


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

    file, listed = choose("o/r", wanted, fits_in(room))

    assert (chosen, files) == (file, listed)
    assert bool(wanted) != ("largest of its quantizations" in caplog.text)
    assert ("would not fit" in caplog.text) == (room < 90 and not wanted)


def test_none_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no quantization fits, none is fetched; the smallest is named."""
    files = {name: HubFile(size) for name, size in _QUANTS.items()}
    monkeypatch.setattr(repositories, "list_files", lambda repo: files)

    with pytest.raises(ConfigError, match=r"^o/r: none of its 4 quantizations fits .* smallest is m-IQ2_XS\.gguf"):  # fmt: skip
        choose("o/r", "", fits_in(0))


def test_a_plain_name_beside_quantizations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without a quantization in its name is one of its model's, and taken where it fits."""
    files = {"model.gguf": HubFile(2**50), "model-Q4_0.gguf": HubFile(40)}
    monkeypatch.setattr(repositories, "list_files", lambda repo: files)

    assert "model-Q4_0.gguf" == choose("o/r", "", fits_in(99))[0]
    assert "model.gguf" == choose("o/r", "", None)[0]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that this process asks."""
    with serve_hub() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setenv("NO_PROXY", "*")
        yield hub


def test_what_is_believed_of_a_list(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    """A size that no file has is none, a hash that is none neither, and a file whose name is no path is left out."""
    good, sizes = "a" * 64, (2**60, -5, "12", None, True, 1.5)
    siblings = [{"rfilename": f"{n}.gguf", "size": size} for n, size in enumerate(sizes)]
    siblings += [{"rfilename": "h.gguf", "size": 7, "lfs": {"sha256": "a" * 5000}}, {"rfilename": "../../x.gguf"}]  # fmt: skip
    siblings += [{"rfilename": "good.gguf", "size": 7, "lfs": {"sha256": good}, "blobId": "b" * 40}]
    hub.listing = json.dumps({"id": "o/r", "siblings": siblings}).encode()

    expected = {f"{n}.gguf": HubFile() for n in range(len(sizes))}
    assert {**expected, "h.gguf": HubFile(7), "good.gguf": HubFile(7, good)} == repositories.list_files("o/r")  # fmt: skip
    assert "1 of its files are left out" in caplog.text


@pytest.mark.parametrize(
    ("repo", "limit", "sent", "said"),
    [
        ("o/r", ("MAX_LIST_BYTES", 1000), b" " * 2000, "has more than 1000 bytes"),
        ("o/r", ("LIST_TIMEOUT_S", -1.0), b"{}", "takes more than -1 s"),
        ("o/r", None, b"hello", "does not answer as a hub does"),
        ("o/r", None, b"[" * 300_000, "does not answer as a hub does"),
        ("o/r--r", None, b"{}", "neither a local file nor one on the hub"),
    ],
)
def test_a_list_has_bounds(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, repo: str, limit: tuple[str, float] | None, sent: bytes, said: str
) -> None:  # fmt: skip
    """A list that is too long, does not end, or is none is told."""
    hub.listing = sent
    if limit is not None:
        monkeypatch.setattr(repositories, *limit)

    with pytest.raises(ConfigError, match=said):
        repositories.list_files(repo)
