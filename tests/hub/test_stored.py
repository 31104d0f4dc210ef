"""Tests of unilect.hub.stored, with made-up caches."""

import os
from pathlib import Path

import pytest
from filelock import FileLock

from unilect.hub import stored
from unilect.hub.stored import count_freed, find_named, is_coming, list_own, remove

A, B = (digit * 64 for digit in "ab")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's cache, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def add(hub: Path, repo: str, commit: str, file: str, blob: str) -> Path:
    """Put a file of a revision, which is then the main one, into the hub's cache; its blob."""
    folder = hub / f"models--{repo.replace('/', '--')}"
    for name in ("blobs", "refs", f"snapshots/{commit}"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "blobs" / blob).write_bytes(b"GGUF" + blob.encode())
    (folder / "snapshots" / commit / file).symlink_to(f"../../blobs/{blob}")
    (folder / "refs/main").write_text(commit)
    return folder / "blobs" / blob


def names() -> list[str]:
    """The names of all that is here."""
    return [one.name for one in list_own()]


def test_a_revision_that_goes_takes_its_names_along(hub: Path) -> None:
    """What stays of a repository is seen, also by the hub's own client."""
    from huggingface_hub import scan_cache_dir

    add(hub, "org/repo", "c1", "a.gguf", A)
    add(hub, "org/repo", "c2", "b.gguf", B)
    remove(find_named("org/repo/b.gguf", list_own()))

    assert ["org/repo/a.gguf"] == names()
    assert [] == list(hub.glob("models--*/refs/*"))
    assert 1 == len(scan_cache_dir(hub).repos)


def test_what_a_removal_has_left(hub: Path) -> None:
    """Files that no revision has, as a removal leaves them that is killed, are unfinished, and can be removed."""
    blob = add(hub, "org/repo", "c1", "a.gguf", A)
    (hub / "models--org--repo/snapshots/c1/a.gguf").unlink()
    assert [f"org/repo/{A[:12]}.incomplete"] == names()
    remove(find_named("org/repo", list_own()))

    assert not blob.exists()


def test_a_link_that_leads_nowhere(hub: Path) -> None:
    """It hides nothing else of its repository; neither is what lies outside of the cache taken for a part of it."""
    add(hub, "org/repo", "c1", "a.gguf", A)
    for name, target in (("b.gguf", "../../blobs/gone"), ("loop.gguf", "loop.gguf"), ("c.gguf", __file__)):  # fmt: skip
        (hub / "models--org--repo/snapshots/c1" / name).symlink_to(target)

    assert ["org/repo/a.gguf"] == names()


@pytest.mark.parametrize("name", ["", "TheBloke", "http://host", "TheBloke/", "/"])
def test_names_that_are_too_short(hub: Path, name: str) -> None:
    """The beginning of a name is a repository, or none."""
    add(hub, "TheBloke/r1", "c1", "a.gguf", A)
    mine = hub.parent / "cache/unilect/models/h-1"
    mine.mkdir(parents=True)
    (mine / "z.gguf.abc.incomplete").touch()

    assert 2 == len(names())
    assert [] == find_named(name, list_own())
    assert 1 == len(find_named("TheBloke/r1", list_own()))


def test_what_is_freed(hub: Path) -> None:
    """A file with a name elsewhere frees nothing."""
    blob = add(hub, "org/repo", "c1", "a.gguf", A)
    size = blob.stat().st_size
    assert size == count_freed(list_own())
    os.link(blob, hub.parent / "elsewhere")

    assert 0 == count_freed(list_own()) == remove(list_own())


def test_what_is_being_fetched(hub: Path) -> None:
    """A download that somebody is at is known by its lock, which a removal of its neighbour leaves alone."""
    mine = hub.parent / "cache/unilect/models/h-1"
    mine.mkdir(parents=True)
    (mine / "b.gguf").touch()
    (mine / ".a.gguf.abc.lock").touch()
    with FileLock(mine / ".a.gguf.abc.lock"):
        remove(list_own())  # before the first byte has come
        assert (mine / ".a.gguf.abc.lock").exists()
        (mine / "a.gguf.abc.incomplete").touch()
        assert [True] == [is_coming(one) for one in list_own()]
    assert [False] == [is_coming(one) for one in list_own()]
    remove(list_own())

    assert not mine.exists()


def test_a_repository_of_which_something_comes(hub: Path) -> None:
    """The locks of a repository go with its last file, unless somebody holds one."""
    blob = add(hub, "org/repo", "c1", "a.gguf", A)
    locks = hub / ".locks/models--org--repo"
    locks.mkdir(parents=True)
    (locks / f"{B}.lock").touch()
    with FileLock(locks / f"{B}.lock"):
        (blob.parent / f"{B}.unilect.incomplete").touch()
        assert {"gguf": False, "unfinished": True} == {one.kind: is_coming(one) for one in list_own()}  # fmt: skip
        remove(list_own())
        assert (locks / f"{B}.lock").exists()


def test_two_unfinished_of_one_file(hub: Path) -> None:
    """What two programs have begun to fetch are two things."""
    blob = add(hub, "org/repo", "c1", "a.gguf", A)
    for end in ("unilect.incomplete", "1234abcd.incomplete"):
        (blob.parent / f"{B}.{end}").write_bytes(b"x")
    found = [one for one in stored.list_own() if one.kind == "unfinished"]

    assert 2 == len({one.path for one in found})
