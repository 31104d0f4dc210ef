"""token.py: the token of a cluster, in a file that its user alone can read."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unilect.core.errors import ConfigError
from unilect.fleet import token

GOOD = "a" * 32


def test_it_is_made_once(tmp_path: Path) -> None:
    """Commands that start at the same time make one token, which stays."""
    file = tmp_path / "folder" / "fleet-token"
    with ThreadPoolExecutor(8) as many:
        found = {path.read_text() for path in many.map(lambda _: token.ensure(file), range(32))}

    assert 1 == len(found)
    assert found == {token.ensure(file).read_text()}
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [file] == list(file.parent.iterdir())


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        (GOOD, 0o644, "others can read the token of the cluster (mode 0644)"),
        (GOOD, 0o620, "others can read the token of the cluster"),
        ("", 0o600, "holds no token of a cluster"),
        ("brief", 0o600, "holds no token of a cluster"),
        (f"{GOOD} {GOOD}", 0o600, "holds no token of a cluster"),
        ("ä" * 32, 0o600, "holds no token of a cluster"),
    ],
)
def test_what_is_no_token(tmp_path: Path, text: str, mode: int, told: str) -> None:
    """A file that others can read, or that holds something else, is refused; what it holds is not told."""
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ConfigError) as raised:
        token.check(file)

    assert told in str(raised.value)
    assert not text or text not in str(raised.value).replace(str(tmp_path), "")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file is told by its name."""
    with pytest.raises(ConfigError, match="nothing: the token of the cluster cannot be read"):
        token.check(tmp_path / "nothing")


def test_of_the_environment(tmp_path: Path) -> None:
    """The token of the environment is put into the file, in place of one that no node goes by."""
    file = tmp_path / "fleet-token"

    assert token.from_environment({}, file, False) is None
    for text in (GOOD, "b" * 32, "b" * 32):
        assert file == token.from_environment({"UNILECT_FLEET_TOKEN": f"{text}\n"}, file, False)
        assert text == file.read_text()
        assert 0o600 == file.stat().st_mode & 0o777


def test_one_that_is_in_use(tmp_path: Path) -> None:
    """A token that a node here goes by is not replaced; the same one again is no mistake."""
    file = token.ensure(tmp_path / "fleet-token")
    before = file.read_text()

    assert file == token.from_environment({"UNILECT_FLEET_TOKEN": before}, file, True)
    with pytest.raises(ConfigError, match="--token-file"):
        token.from_environment({"UNILECT_FLEET_TOKEN": GOOD}, file, True)
    assert before == file.read_text()


def test_what_the_environment_cannot_hold(tmp_path: Path) -> None:
    """A variable that holds no token is refused without a word of what it holds."""
    with pytest.raises(ConfigError, match="UNILECT_FLEET_TOKEN: holds no token") as raised:
        token.from_environment({"UNILECT_FLEET_TOKEN": "to short"}, tmp_path / "token", False)

    assert "to short" not in str(raised.value)
    with pytest.raises(ConfigError, match="Set HOME, or use --token-file"):
        token.from_environment({"UNILECT_FLEET_TOKEN": GOOD}, None, False)


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    """A file with what is no text, or a folder in its place, is told, and stays."""
    file = tmp_path / "token"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match="the token of the cluster cannot be read"):
        token.from_environment({"UNILECT_FLEET_TOKEN": GOOD}, file, False)
    assert file.exists()


def test_two_at_once(tmp_path: Path) -> None:
    """Commands that put tokens of the environment into the same file at once all end well or say why, and one of the tokens is there."""
    file, tokens = tmp_path / "token", [f"{number:032}" for number in range(8)]

    def put(text: str) -> object:
        try:
            return token.from_environment({"UNILECT_FLEET_TOKEN": text}, file, False)
        except ConfigError as error:
            return error

    with ThreadPoolExecutor(len(tokens)) as pool:
        for _ in range(20):
            told = list(pool.map(put, tokens))
            assert all(one == file or isinstance(one, ConfigError) for one in told)
            assert file in told
            assert file.read_text() in tokens
