"""`unilect pull`, `list` and `rm` as processes of their own, against a small hub on loopback."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from support.models import shaped_gguf
from support.servers.commands import run
from support.servers.serving import Server, serve
from support.servers.small_hub import COMMIT, TIMEOUT_S, Hub, environment, serve_hub
from unilect.demo import FOLDER, MODEL

_MAIN = "import sys; from unilect.hub import transfer; transfer.PAUSE_S = 0.01; transfer.MAX_PIECE_BYTES = int(sys.argv.pop(1)); from unilect.__main__ import main; main()"  # fmt: skip


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with the bundled model as two quantizations, and one folder of transformers."""
    weights = MODEL.read_bytes()
    files = {"org/repo/m-Q8_0.gguf": weights, "org/repo/m-Q2_K.gguf": b"GGUF" * 100}  # fmt: skip
    files |= {f"org/whole/{name}": name.encode() * 99 for name in ("config.json", "model.safetensors", "pytorch_model.bin")}  # fmt: skip
    with serve_hub(**files) as hub:
        yield hub


def unilect(hub: Hub, home: Path, *args: str, code: int = 0, piece: int = 10**12) -> tuple[str, str]:  # fmt: skip
    """What a command prints on stdout and on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, str(piece), *args],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        env=environment(hub, home) | {"XDG_CACHE_HOME": str(home / "cache"), "HOME": str(home)},
    )
    assert code == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def listed(hub: Hub, home: Path) -> dict[str, Any]:
    """What `unilect list` has, by name."""
    return {one["name"]: one for one in json.loads(unilect(hub, home, "list", "--json")[0])}


def complete(server: Server, model: str) -> str:
    """A few tokens of a model."""
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 4}).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{server.url}/completions", body, headers), timeout=TIMEOUT_S) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def test_pulled_listed_and_removed(hub: Hub, tmp_path: Path) -> None:
    """A repository and a web address are pulled at once, listed as one file, and removed by name: what is told to be free is free."""
    address = f"{hub.url}/storage/org/repo/m-Q8_0.gguf"
    hub.files["org/repo/mmproj-m.gguf"] = b"GGUF"
    said, told = unilect(hub, tmp_path, "pull", "org/repo", f"{address}?x=1", "org/repo:Q2_K")
    found = listed(hub, tmp_path)
    done, _ = unilect(hub, tmp_path, "rm", "org/repo", "--yes")

    assert 3 == len(said.splitlines())
    assert "m-Q8_0.gguf (" in told
    assert "largest of its quantizations" in told
    assert {"org/repo/m-Q8_0.gguf": "gguf", "org/repo/m-Q2_K.gguf": "gguf", "org/repo/mmproj-m.gguf": "projector"} == {name: one["kind"] for name, one in found.items()}  # fmt: skip
    assert [f"{address}?x=1"] == found["org/repo/m-Q8_0.gguf"]["copies"]
    assert f"({len(MODEL.read_bytes()) + 404} bytes)" in done
    assert [] == [*(tmp_path / "hub").glob("models--*")]
    assert 1 == len([*(tmp_path / "cache/unilect/models").glob("*/*.gguf")])


@pytest.mark.heavy
def test_what_fits_is_what_is_pulled(hub: Hub, tmp_path: Path) -> None:
    """The largest quantization is pulled that leaves an eighth of the memory, though `unilect fit` says of a larger one that it fits: heads are fetched from the largest on, no more than are needed."""
    for name, weights in (("F16", 1), ("Q8_0", 8), ("Q4_0", 2)):
        path = shaped_gguf.make(tmp_path / "m.gguf", "llama", weights)
        hub.files[f"org/shaped/m-{name}.gguf"] = path.read_bytes()
    limited = "import sys; from unilect.engines.gguf import fit; size = int(sys.argv.pop(1)); fit.total_bytes = lambda: size; from unilect.__main__ import main; main()"

    def told(*args: str) -> str:
        line = [sys.executable, "-c", limited, "200000000", *args]
        done = subprocess.run(line, capture_output=True, text=True, env=environment(hub, tmp_path))
        assert not done.returncode, done.stderr
        return done.stdout

    fits = {one["quantization"]: one["fits"] for one in json.loads(told("fit", "org/shaped", "--json"))}  # fmt: skip
    hub.ranges.clear()
    assert "m-Q8_0.gguf" in told("pull", "org/shaped", "--dry-run")
    assert {"F16": True, "Q8_0": True, "Q4_0": True} == fits
    assert 2 == len(hub.ranges)


@pytest.mark.heavy
def test_served_without_the_hub_and_removed(hub: Hub, tmp_path: Path) -> None:
    """What was pulled is served by the names that are listed while the hub is away; it is told that a server has it when it is removed."""
    name, address = "org/repo/m-Q8_0.gguf", f"{hub.url}/storage/org/repo/m-Q8_0.gguf"
    unilect(hub, tmp_path, "pull", "org/repo", address)
    again, _ = unilect(hub, tmp_path, "pull", "org/repo", address, "--dry-run")
    env = environment("http://127.0.0.1:9", tmp_path) | {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    with serve(name, f"{address}?token=2", "whole=org/repo", env=env) as server:
        why = unilect(hub, tmp_path, "rm", name, code=1)[1]
        _, warned = unilect(hub, tmp_path, "rm", name, "--yes")
        answers = [complete(server, model) for model in ("m-Q8_0", "m-Q8_0-2", "whole")]
    unilect(hub, tmp_path, "rm", address, "--yes")

    assert 2 == again.count(" yes")
    assert "0 bytes would be fetched." in again
    assert "--yes: is needed" in why
    assert "has it loaded" in warned
    assert all(answers)
    assert {} == listed(hub, tmp_path)
    assert [] == [*(tmp_path / "cache/unilect/models").glob("*")]


@pytest.mark.heavy
def test_a_folder_of_transformers(hub: Hub, tmp_path: Path) -> None:
    """Of a repository of transformers the files that are needed are pulled, and all of it is removed by its name; another repository stays."""
    unilect(hub, tmp_path, "pull", "org/whole", "org/repo:Q2_K")
    found = listed(hub, tmp_path)
    unilect(hub, tmp_path, "rm", "org/whole", "--yes")

    assert "transformers" == found["org/whole"]["kind"]
    assert len("config.json" + "model.safetensors") * 99 == found["org/whole"]["size_bytes"]
    assert ["org/repo/m-Q2_K.gguf"] == [*listed(hub, tmp_path)]


@pytest.mark.heavy
def test_the_files_of_a_program(hub: Hub, tmp_path: Path) -> None:
    """A source of a program is pulled as what its program reads, and is here for the program and for the engines."""
    unilect(hub, tmp_path, "pull", "vllm:org/whole", "llama-server:org/repo:Q8_0")
    out, _ = unilect(hub, tmp_path, "pull", "--dry-run", "hf:org/whole", "org/repo:Q8_0")
    unilect(hub, tmp_path, "rm", "vllm:org/whole", "--yes")

    assert "0 bytes would be fetched." in out
    assert ["org/repo/m-Q8_0.gguf"] == [*listed(hub, tmp_path)]


@pytest.mark.heavy
def test_a_revision(hub: Hub, tmp_path: Path) -> None:
    """A branch, a tag or a commit is named behind `@`: its files are chosen, fetched and found again, beside those of the main one."""
    hub.files["org/repo@v1/m-Q2_K.gguf"] = b"GGUF" * 50
    said, _ = unilect(hub, tmp_path, "pull", "org/repo@v1", "org/repo:Q2_K")
    again, _ = unilect(hub, tmp_path, "pull", "org/repo@v1:Q2_K", "org/repo@v1/m-Q2_K.gguf", "--dry-run")  # fmt: skip
    _, unknown = unilect(hub, tmp_path, "pull", "org/repo@v2", code=1)

    paths = [Path(line.partition(": ")[2]) for line in said.splitlines()]
    assert {200, 400} == {path.stat().st_size for path in paths}
    assert 2 == again.count(" yes")
    assert "org/repo@v2: neither a local file nor one on the hub" in unknown


@pytest.mark.heavy
def test_another_revision_keeps_what_it_shares(hub: Hub, tmp_path: Path) -> None:
    """A file that another name of the repository shares stays when one of them is removed."""
    unilect(hub, tmp_path, "pull", "org/repo:Q2_K")
    snapshot = tmp_path / f"hub/models--org--repo/snapshots/{COMMIT}"
    (snapshot / "copy-Q2_K.gguf").symlink_to(os.readlink(snapshot / "m-Q2_K.gguf"))

    done, _ = unilect(hub, tmp_path, "rm", "org/repo/m-Q2_K.gguf", "--yes")

    assert "(0 bytes)" in done
    assert b"GGUF" * 100 == (snapshot / "copy-Q2_K.gguf").read_bytes()


@pytest.mark.heavy
def test_cut_off(hub: Hub, tmp_path: Path) -> None:
    """A download that is killed or interrupted is listed as unfinished, and goes on where it was, from the hub and from a web address; a file that was changed meanwhile begins anew."""
    address = f"{hub.url}/storage/org/repo/m-Q8_0.gguf"
    ways = ((address, signal.SIGKILL, -signal.SIGKILL), ("org/repo:Q8_0", signal.SIGINT, 130))
    for source, how, code in ways:
        hub.ends = [(100_000, "stall")]
        hub.stalled.clear()
        process = subprocess.Popen(
            [sys.executable, "-m", "unilect", "pull", source],
            env=environment(hub, tmp_path) | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert hub.stalled.wait(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while not any(file.stat().st_size for file in tmp_path.rglob("*.incomplete")):
            assert time.monotonic() < deadline
        process.send_signal(how)
        assert code == process.wait(TIMEOUT_S)
        assert ["unfinished"] == [one["kind"] for one in listed(hub, tmp_path).values() if one["kind"] != "gguf"]  # fmt: skip
        hub.ranges.clear()
        unilect(hub, tmp_path, "pull", source)
        assert any(range not in (None, "bytes=0-0") for range in hub.ranges)
    hub.files["org/repo/m-Q8_0.gguf"] += b"more"
    unilect(hub, tmp_path, "pull", address)
    kept = [*(tmp_path / "cache").rglob("*.gguf")]
    assert hub.files["org/repo/m-Q8_0.gguf"] == kept[0].read_bytes()


@pytest.mark.heavy
@pytest.mark.parametrize("takes_ranges", [True, False])
def test_a_file_too_large_for_one_piece(hub: Hub, tmp_path: Path, takes_ranges: bool) -> None:
    """A very large file is fetched in pieces; where the hub gives none, its own client fetches it, and that is said."""
    hub.takes_ranges = takes_ranges
    _, told = unilect(hub, tmp_path, "pull", "org/repo:Q8_0", piece=200_000)

    (file,) = (tmp_path / "hub").rglob("m-Q8_0.gguf")
    assert MODEL.read_bytes() == file.read_bytes()
    assert takes_ranges == ("bytes=200000-399999" in hub.ranges)
    assert takes_ranges != ("its own client fetches it" in told)


def test_what_cannot_be_pulled(hub: Hub, tmp_path: Path) -> None:
    """All mistakes are told at once, each with what to do and without secrets; nothing is left behind."""
    mistakes = {
        "org/none": "org/none: neither a local file nor one on the hub",
        "qwen3": "qwen3: there is no such file or folder",
        "http://127.0.0.1:9/v1": "is a server, which has its models itself",
        "demo:": "comes with unilect",
        "./gone.gguf": "./gone.gguf: there is no such file or folder. Check the path.",
        "http://127.0.0.1:9/x.gguf?token=secret": "its server cannot be reached",
        f"{hub.url}/storage/none.gguf": "its server answers with status 404. Check the address",
        f"{hub.url}/storage/org/whole/config.json": "a file that is no GGUF file",
        f"gguf:{hub.url}/storage/org/whole/config.json": "does not begin with `GGUF`; mostly it is a web page",
        "~nosuchuser/x.gguf": "there is no user of that name",
        "http://[::1/x.gguf": "cannot be reached (Invalid port",
        "gguf:org/re--po/x.gguf": "neither a local file nor one on the hub",
        "gguf:org/repo/../../x.gguf": "is no file of a repository",
        "org/repo:Q5_K": "no GGUF file named Q5_K: m-Q2_K.gguf, m-Q8_0.gguf",
        "hf:org/repo": "holds no model of transformers; it holds GGUF files",
    }

    _, told = unilect(hub, tmp_path, "pull", *mistakes, code=1)

    for words in (f"{len(mistakes)} mistakes:", *mistakes.values()):
        assert words in told
    assert "secret" not in told
    assert [] == [*tmp_path.rglob("*.gguf"), *tmp_path.rglob("*.incomplete")]


@pytest.mark.heavy
def test_no_room(hub: Hub, tmp_path: Path) -> None:
    """What the disk has no room for is refused before a byte of it is fetched."""
    script = (
        "import shutil, types; shutil.disk_usage = lambda path: types.SimpleNamespace(free=1000); "
    )
    done = subprocess.run(
        [sys.executable, "-c", script + _MAIN, "1000000000", "pull", "org/repo:Q8_0"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(hub, tmp_path),
    )

    assert 1 == done.returncode
    assert "has room for 1.0 kB" in done.stderr
    assert [] == hub.ranges


@pytest.mark.heavy
def test_two_at_once(hub: Hub, tmp_path: Path) -> None:
    """Two commands that want the same file fetch it once."""
    address = f"{hub.url}/storage/org/repo/m-Q8_0.gguf"
    env = environment(hub, tmp_path) | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "unilect", "pull", address, "org/repo:Q8_0"], env=env
        )
        for _ in range(2)
    ]

    assert [0, 0] == [one.wait(TIMEOUT_S) for one in both]
    assert 2 == len([range for range in hub.ranges if range != "bytes=0-0"])


def test_facts_of_files(tmp_path: Path) -> None:
    """`unilect show` reads a model's facts from its files: a GGUF file, an adapter, a folder; what is none is one sentence."""
    model = json.loads(run("show", MODEL, "--json").stdout)
    adapter = run("show", FOLDER / "lora-pirate.gguf").stdout
    folder = json.loads(run("show", FOLDER / "hf", "--json").stdout)
    (tmp_path / "x.gguf").write_bytes(b"no model, but as long as a head")

    assert ("GGUF", "llama", "Q8_0", "yes") == tuple(model[key] for key in ("kind", "family", "quantization", "chat_template"))  # fmt: skip
    assert model["size_bytes"] == MODEL.stat().st_size
    assert abs(model["parameters"] - folder["parameters"]) < 100_000
    assert "GGUF, adapter" in adapter
    assert ("transformers", model["context"]) == (folder["kind"], folder["context"])
    assert "does not begin with `GGUF`" in run("show", tmp_path / "x.gguf", code=1).stderr
    assert "there is no such file" in run("show", tmp_path / "gone.gguf", code=1).stderr
