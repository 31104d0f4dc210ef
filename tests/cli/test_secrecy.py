"""Tests of unilect.cli._secrecy and `unilect keys digest`, on real commands."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from support.servers.serving import serve
from unilect.cli._secrecy import open_keys, with_digests
from unilect.config.admin import AdminConfig
from unilect.config.server import Config, ModelConfig

TIMEOUT_S = 60.0


def digest(text: str, code: int = 0) -> str:
    """What `unilect keys digest` prints of a key on stdin."""
    done = subprocess.run(
        [sys.executable, "-m", "unilect", "keys", "digest"],
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert code == done.returncode, done
    return (done.stderr if code else done.stdout).strip()


def status(url: str, key: str) -> int:
    """What the list of models is answered with."""
    asked = urllib.request.Request(f"{url}/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_server_that_is_given_no_key() -> None:
    """Of a server that was given a digest, the key is let in, and the digest itself and other keys are not."""
    written = digest("sk-kept-secret\n")
    config = f'api_keys = ["{written}"]\n[models.m]\nsource = "echo:"\n'

    with serve(config=config) as server:
        assert [401, 401, 200] == [
            status(server.url, key) for key in (written, "sk-other", "sk-kept-secret")
        ]


@pytest.mark.parametrize("wrong", ["", " ", "a b", "schlüssel", "ul_3GqS0bZx_typo"])
def test_what_is_no_key(wrong: str) -> None:
    """No digest is printed of what cannot be a key."""
    assert "the key " in digest(f"{wrong}\n", code=1)


def test_what_a_server_keeps() -> None:
    """A configuration as a server keeps it holds no key, and is the same where it held digests before."""
    config = Config(api_keys=["sk-a"], admin=AdminConfig(listen="a.sock", api_keys=["sk-b"]), models={"m": ModelConfig()})  # fmt: skip

    kept = with_digests(config)

    assert "sk-" not in repr(kept)
    assert kept == with_digests(kept)


def test_a_file_for_everybody(tmp_path: Path) -> None:
    """A file with a key that every user can read is told of with what to do; one for its owner or a group is not, nor one without keys."""
    file = tmp_path / "c.toml"
    file.write_text('api_keys = ["sk-a"]\n')
    told = []
    for mode in (0o644, 0o640, 0o600):
        os.chmod(file, mode)
        told.append(list(open_keys(file)))
    file.write_text('api_keys = ["$KEY"]\n')
    os.chmod(file, 0o644)

    assert [1, 0, 0] == [len(one) for one in told]
    assert "the keys in api_keys (mode 0644)" in told[0][0]
    assert [] == [*open_keys(file), *open_keys(None), *open_keys(tmp_path / "none.toml")]
