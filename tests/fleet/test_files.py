"""Tests of unilect.fleet.files: what is sent to a node, and what it keeps; over a function in place of Ray."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.fleet import files
from unilect.fleet.files import (
    Cache,
    File,
    Item,
    digest_of,
    key_of,
    list_items,
    with_absolute_paths,
    with_places,
)

BIG = bytes(range(256)) * 64
GIB = 2**30
#: A node that is sent a file at a few bytes a call, and says where it begins.
SLOWLY = """
import json, sys
from pathlib import Path
import msgspec
from unilect.fleet import files
files.PIECE_BYTES = 64
item = msgspec.json.decode(sys.argv[2], type=files.Item)
content = Path(sys.argv[3]).read_bytes()
def pieces(digest, offset, size):
    print(offset, flush=True)
    sys.stdin.readline()
    return content[offset:offset + size]
print(files.Cache(Path(sys.argv[1]), 2**30, 0).places([item], pieces), flush=True)
"""


class Gateway:
    """
    A machine that has files, and gives them by their digests.

    Attributes:
        asked: Digest and offset of each piece that was asked for.
        fails: So many of the next pieces are not answered.
        instead: What it gives in place of the right content.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[tuple[str, int]] = []
        self.fails = 0
        self.instead: bytes | None = None
        self._contents: dict[str, Path] = {}

    def item(self, **options: object) -> Item:
        """What it sends for the only path of a model's settings."""
        (item,) = self.items(**options)
        return item

    def items(self, **options: object) -> list[Item]:
        """What it sends for a model's settings."""
        found = list_items(ModelConfig(**options), None)  # type: ignore[arg-type]
        for item in found:
            for file in item.files:
                self._contents[file.digest] = item.base(Path(item.path)) / file.name
        return found

    def pieces(self, digest: str, offset: int, size: int) -> bytes:
        """See `Pieces`."""
        self.asked.append((digest, offset))
        if self.fails:
            self.fails -= 1
            raise ConnectionError("it is away")
        content = self.instead
        if content is None:
            content = self._contents[digest].read_bytes()
        return content[offset : offset + size]


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    """A gateway with a model's file, one in parts, and a folder with what an engine does not read."""
    folder = tmp_path / "gateway"
    (folder / "hf" / "1_Pooling").mkdir(parents=True)
    (folder / "x.gguf").write_bytes(BIG)
    for part in (1, 2):
        (folder / f"y-0000{part}-of-00002.gguf").write_bytes(BIG[part:])
    for name in ("config.json", "model.safetensors", "1_Pooling/config.json", "README.md", ".git"):
        (folder / "hf" / name).write_text(name)
    (folder / "chat.jinja").write_text("{{ messages }}")
    return Gateway(folder)


def moved_away(item: Item) -> Item:
    """An item whose path nothing is at on this machine, as on one that is not the gateway."""
    return Item(f"/elsewhere{item.path}", item.folder, item.files)


def cache(tmp_path: Path, limit: int = GIB, patience_s: float = 0.0) -> Cache:
    """A node's cache."""
    return Cache(tmp_path / "node", limit, patience_s)


def test_what_is_named(gateway: Gateway) -> None:
    """All paths that an engine reads are named: a model's parts, a folder's own files, adapters, projectors, templates; not the hub's."""
    folder = gateway.folder
    found = gateway.items(
        source=f"gguf:{folder}/y-00001-of-00002.gguf",
        lora=[f"{folder}/x.gguf=0.5", f"{folder}/hf"],
        mmproj="org/repo/mmproj.gguf",
        chat_template=f"{folder}/chat.jinja",
        completion_template="chatml",
        slot_save_path=str(folder),
    )

    names = {Path(item.path).name: [file.name for file in item.files] for item in found}
    assert {
        "y-00001-of-00002.gguf": ["y-00001-of-00002.gguf", "y-00002-of-00002.gguf"],
        "x.gguf": ["x.gguf"],
        "hf": ["1_Pooling/config.json", "config.json", "model.safetensors"],
        "chat.jinja": ["chat.jinja"],
    } == names
    assert [] == gateway.items(source="gguf:org/repo/x.gguf")
    assert [] == gateway.items(source="demo:")


def test_a_part_that_is_missing(gateway: Gateway) -> None:
    """A model in parts that is not whole is told with the part that is missing."""
    (gateway.folder / "y-00002-of-00002.gguf").unlink()
    with pytest.raises(ConfigError, match=r"y-00002-of-00002\.gguf: cannot be read"):
        gateway.items(source=f"{gateway.folder}/y-00001-of-00002.gguf")


def test_settings_on_a_node(gateway: Gateway, tmp_path: Path) -> None:
    """A node's settings name its own files, with the schemes and scales as they were."""
    folder = gateway.folder
    options = {"source": f"gguf:{folder}/x.gguf", "lora": [f"{folder}/hf=0.5"], "mmproj": "org/r/m.gguf"}  # fmt: skip
    items = [moved_away(item) for item in gateway.items(**options)]
    config = ModelConfig(
        source=f"gguf:{items[0].path}", lora=[f"{items[1].path}=0.5"], mmproj="org/r/m.gguf"
    )

    config = with_places(config, cache(tmp_path).places(items, gateway.pieces))

    assert isinstance(config.source, str)
    scheme, _, path = config.source.partition(":")
    adapter, _, scale = config.lora[0].partition("=")
    assert ("gguf", "0.5", "org/r/m.gguf") == (scheme, scale, config.mmproj)
    assert BIG == Path(path).read_bytes()
    assert "config.json" == (Path(adapter) / "config.json").read_text()
    assert "1_Pooling/config.json" == (Path(adapter) / "1_Pooling" / "config.json").read_text()


def test_relative_paths(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path that is here becomes an absolute one, whatever its scheme."""
    monkeypatch.chdir(gateway.folder)
    config = with_absolute_paths(
        ModelConfig(source="gguf:x.gguf", lora=["hf=0.5"], mmproj="none.gguf")
    )

    assert f"gguf:{gateway.folder}/x.gguf" == config.source
    assert ([f"{gateway.folder}/hf=0.5"], "none.gguf") == (config.lora, config.mmproj)


def test_what_is_here_is_not_sent(gateway: Gateway, tmp_path: Path) -> None:
    """A node with the same file at the same path, as on a shared disk, is sent nothing; with another file there it is."""
    item = gateway.item(source=f"{gateway.folder}/x.gguf")
    assert {item.path: item.path} == cache(tmp_path).places([item], gateway.pieces)
    assert [] == gateway.asked

    shutil.copy(item.path, gateway.folder / "right")
    Path(item.path).write_bytes(bytes(len(BIG)))
    gateway._contents[item.files[0].digest] = gateway.folder / "right"
    place = cache(tmp_path).places([item], gateway.pieces)[item.path]
    assert place != item.path
    assert BIG == Path(place).read_bytes()


def test_once(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is sent once, in pieces, to whatever path and however many ask for it at the same time."""
    monkeypatch.setattr(files, "PIECE_BYTES", 1000)
    item = gateway.item(source=f"{gateway.folder}/x.gguf")
    other = Item("/another/name.gguf", False, item.files)
    places: list[str] = []

    def place(which: Item) -> None:
        # several that look at the same moment wait for each other
        found = cache(tmp_path, patience_s=30.0).places([which], gateway.pieces)
        places.extend(found.values())

    threads = [threading.Thread(target=place, args=[one]) for one in [moved_away(item), other] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 6 == len(places)
    assert 1 == len(set(places))
    digest = item.files[0].digest
    assert [(digest, offset) for offset in range(0, len(BIG), 1000)] == gateway.asked


def test_an_interruption(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that is away for a moment is waited for, and asked for the same piece again; one that stays away is told."""
    monkeypatch.setattr(files, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(files, "PAUSE_S", 0.001)
    item = moved_away(gateway.item(source=f"{gateway.folder}/x.gguf"))
    gateway.fails = 3
    with pytest.raises(ConfigError, match=r"no gateway that has it answers \(it is away\)"):
        cache(tmp_path).places([item], gateway.pieces)

    (place,) = cache(tmp_path, patience_s=60).places([item], gateway.pieces).values()

    assert BIG == Path(place).read_bytes()
    assert [0, 0, 0, 0, 10_000] == [offset for _, offset in gateway.asked]


def test_a_kill(gateway: Gateway, tmp_path: Path) -> None:
    """After a kill -9 in the middle of a file the next replica goes on where it was, and has it whole."""
    item = moved_away(gateway.item(source=f"{gateway.folder}/x.gguf"))
    told = msgspec.json.encode(item).decode()
    command = [sys.executable, "-c", SLOWLY, tmp_path / "node", told, gateway.folder / "x.gguf"]
    begun = list[int]()
    for pieces in (3, 5):
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as replica:
            assert replica.stdin is not None
            assert replica.stdout is not None
            begun.append(int(replica.stdout.readline()))
            for _ in range(pieces):
                replica.stdin.write("\n")
                replica.stdin.flush()
                replica.stdout.readline()
            os.kill(replica.pid, signal.SIGKILL)

    (place,) = cache(tmp_path).places([item], gateway.pieces).values()

    assert BIG == Path(place).read_bytes()
    assert 0 == begun[0]
    (partial,) = {offset for _, offset in gateway.asked}
    assert 0 <= begun[1] <= partial <= 8 * 64


@pytest.mark.parametrize("instead", [bytes(len(BIG)), BIG[:-1], b""])
def test_wrong_content(gateway: Gateway, tmp_path: Path, instead: bytes) -> None:
    """What does not have the digest, and what is too short, is an error, and is never used; the right file is fetched after it."""
    item = moved_away(gateway.item(source=f"{gateway.folder}/x.gguf"))
    gateway.instead = instead
    with pytest.raises(ConfigError, match="Restart the gateway if it was changed"):
        cache(tmp_path).places([item], gateway.pieces)
    gateway.instead = None

    (place,) = cache(tmp_path).places([item], gateway.pieces).values()

    assert BIG == Path(place).read_bytes()


@pytest.mark.parametrize("changed", [bytes(len(BIG)), BIG[:-1]])
def test_a_file_that_was_changed(gateway: Gateway, tmp_path: Path, changed: bytes) -> None:
    """What was changed on the node is never given out, and fetched again; while a replica uses it, that is told after a while."""
    item = moved_away(gateway.item(source=f"{gateway.folder}/x.gguf"))
    in_use = cache(tmp_path)
    (place,) = in_use.places([item], gateway.pieces).values()
    Path(place).write_bytes(changed)
    with pytest.raises(ConfigError, match="in use by a replica"):
        cache(tmp_path).places([item], gateway.pieces)
    in_use.close()

    (again,) = cache(tmp_path).places([item], gateway.pieces).values()

    assert (place, BIG) == (again, Path(again).read_bytes())


def test_too_much_content(gateway: Gateway, tmp_path: Path) -> None:
    """A piece that is longer than what was asked for is refused."""
    item = moved_away(gateway.item(source=f"{gateway.folder}/x.gguf"))
    with pytest.raises(ConfigError, match="ended after 0 of"):
        cache(tmp_path).places([item], lambda digest, offset, size: bytes(size + 1))


def test_the_least_recently_used_goes_first(gateway: Gateway, tmp_path: Path) -> None:
    """Beyond the limit what was used least recently is deleted, and nothing that a replica uses."""
    node = tmp_path / "node"
    items = list[Item]()
    for at in range(4):
        path = gateway.folder / f"{at}.gguf"
        path.write_bytes(bytes([at]) * 1000)
        items.append(moved_away(gateway.item(source=str(path))))
    in_use = cache(tmp_path, 2000)
    in_use.places([items[0]], gateway.pieces)
    for at in (1, 2):
        cache(tmp_path, 2000).places([items[at]], gateway.pieces)
    for at, item in enumerate(items[:3]):
        os.utime(node / "locks" / key_of(item), (at, at))
    assert [True, False, True] == kept(node, items[:3])

    last = cache(tmp_path, 2000)
    last.places([items[3]], gateway.pieces)
    assert [True, False, False, True] == kept(node, items)

    in_use.close()
    last.places([items[1]], gateway.pieces)
    assert [False, True, False, True] == kept(node, items)


def kept(node: Path, items: list[Item]) -> list[bool]:
    """Which items a node has."""
    return [(node / "items" / key_of(item)).is_dir() for item in items]


def test_a_full_disk(gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room for a file is told with both numbers, before anything is fetched."""
    monkeypatch.setattr(Cache, "_free", lambda cache: 100)
    item = moved_away(gateway.item(source=f"{gateway.folder}/x.gguf"))
    with pytest.raises(ConfigError, match=f"{len(BIG)} bytes are to come, .* has 100 left"):
        cache(tmp_path).places([item], gateway.pieces)
    assert [] == gateway.asked


def test_a_folder_that_cannot_be_written(gateway: Gateway, tmp_path: Path) -> None:
    """A cache that cannot be kept is told as such."""
    (tmp_path / "node").write_text("a file")
    item = moved_away(gateway.item(source=f"{gateway.folder}/x.gguf"))
    with pytest.raises(ConfigError, match="the node cannot keep the model's files"):
        cache(tmp_path).places([item], gateway.pieces)


@given(st.sampled_from(["..", "a", "", "/", "../x", "a/../../x", "/x", "a/b"]), st.booleans())
def test_names_that_lead_out(
    tmp_path_factory: pytest.TempPathFactory, name: str, folder: bool
) -> None:
    """A file is never written outside of its item's folder."""
    node = tmp_path_factory.mktemp("node")
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # of `x`
    item = Item("/elsewhere/x", folder, [File(name, 1, digest)])
    try:
        Cache(node / "cache", GIB, 0).places([item], lambda digest, offset, size: b"x")
    except ConfigError as error:
        assert "no name of a file" in str(error)
    written = [path for path in node.rglob("*") if path.is_file() and path.stat().st_size == 1]
    inside = node / "cache" / "items" / key_of(item)
    assert all(path.is_relative_to(inside) for path in written)
    assert ("a" in name and ".." not in name) == bool(written)


def test_digests_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of a file is noted for all processes, and another version of the file has another."""
    file, notes = tmp_path / "x", tmp_path / "notes"
    file.write_bytes(b"x" * 10)
    first = digest_of(file, notes)
    assert not notes.exists()  # a file that has just been written may be written to again
    monkeypatch.setattr(files, "_SETTLED_NS", -1)
    assert first == digest_of(file, notes)
    (note,) = (notes / "digests").iterdir()
    version = note.read_text().partition("\n")[0]
    note.write_text(f"{version}\n{'0' * 64}")
    assert "0" * 64 == digest_of(file, notes)
    file.write_bytes(b"y" * 10)
    assert first != digest_of(file, notes) != "0" * 64
