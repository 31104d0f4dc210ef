"""Tests of unilect.hub.web_files, against a small hub on loopback, whose storage is a web server of files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers.small_hub import Hub, serve_hub
from unilect.core.errors import ConfigError
from unilect.hub import web_files
from unilect.hub.web_files import addresses, ask_version, fetch, is_current, place

URL = "https://host/d/m.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")
    return tmp_path


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A web server with a file."""
    with serve_hub(**{"o/r/m.gguf": b"GGUF old"}) as hub:
        yield hub


def test_each_address_has_its_place() -> None:
    """Addresses that differ in their query, or in characters that no name of ours has, are different files."""
    named = [f"{URL}?id=1", f"{URL}?id=2", URL, "https://host/d/a%20b.gguf", "https://host/d/a-b.gguf", "https://host/d/a%21b.gguf"]  # fmt: skip
    named += [f"https://host/d/{letter}{'x' * 300}.gguf" for letter in "ab"]

    assert len(named) == len({place(one) for one in named})
    assert all(len(place(one).name) < 200 for one in named)


def test_one_file_has_one_place() -> None:
    """The secrets of an address, and what else a new signature changes, make no other file of it; its fields do."""
    signed = "X-Amz-Signature={0}&X-Amz-Date={0}&Expires={0}&token={0}"
    first, second = (f"{URL}?id=1&{signed.format(n * 30)}" for n in "ab")

    assert place(first) == place(second) == place(f"{URL}?id=1")
    assert place(f"{URL}?{signed.format(1)}") == place(URL) == place("https://me:pw@host/d/m.gguf")


def test_parts_are_beside_each_other() -> None:
    """Parts of one model keep the names by which an engine finds them."""
    first, second = map(place, addresses("https://host/d/a%20b-00001-of-00002.gguf?id=1"))

    assert first.parent == second.parent
    assert first.name.replace("00001", "00002") == second.name


def test_killed_while_it_gets_its_name(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer version that has its name and no note yet, or a note and not its name, is taken for neither version."""
    url = f"{hub.url}/storage/o/r/m.gguf"
    old = ask_version(url)
    fetch(url, old, lambda part, size=0: None)
    hub.files["o/r/m.gguf"] = b"GGUF new"
    new = ask_version(url)
    assert is_current(url, old)
    for method in ("replace", "write_bytes"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, method, stop)
            fetch(url, new, lambda part, size=0: None)
        assert not is_current(url, old)
        assert not is_current(url, new)
    final = fetch(url, new, lambda part, size=0: None)

    assert b"GGUF new" == final.read_bytes()
    assert is_current(url, new)


def stop(path: Path, *given: object) -> None:
    """Stop as by a kill, unless it is the download that is moved."""
    if path.name.endswith((".new", ".origin")):
        raise KeyboardInterrupt
    path.rename(str(given[0]))


def test_no_address() -> None:
    """What looks like an address and is none is told."""
    with pytest.raises(ConfigError, match="is no web address"):
        web_files.local_copy("http://[::1/x.gguf")
