"""`unilect.hub.download`, in processes of their own, against a small hub on loopback that breaks in the ways of the real one."""

import io
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.servers.small_hub import COMMIT, TIMEOUT_S, Hub, environment, serve_hub
from unilect.core.events import Event, Usage
from unilect.demo import MODEL
from unilect.hub.repository_files import ggufs
from unilect.wire import frames

FETCH = """
import json, sys
from unilect.hub import download as hub
from unilect.core.errors import ConfigError
from unilect.hub import transfer
transfer.PAUSE_S = 0.01
parts, sizes = [], set()
def told(part, size_bytes=0):
    parts.append(part)
    sizes.add(size_bytes)
try:
    path = getattr(hub, sys.argv[2])(sys.argv[1], told)
    print(json.dumps({"path": str(path), "parts": parts, "sizes": sorted(sizes)}))
except ConfigError as error:
    print(json.dumps({"error": str(error), "parts": parts, "sizes": sorted(sizes)}))
"""
#: A replica of the fleet as Ray makes one, with a model of the hub, and what it says.
REPLICA = """
import asyncio, sys
from importlib.metadata import version
import msgspec
from unilect.wire import frames
from unilect.config.model import ModelConfig, Replicas
from unilect.fleet import wire
from unilect.fleet.driver.replica import Replica
from unilect.testing import chat
async def main():
    source = "gguf:org/repo/model.gguf"
    config = ModelConfig(source=source, threads=1, parallel=1)
    made = wire.Deployment("m", version("unilect"), config, Replicas(), {})
    replica = object.__new__(Replica)
    await replica.__init__(msgspec.msgpack.encode(made))
    call = frames.Call("chat", wire.encode_arguments(chat("Hello!", max_tokens=5)))
    async for item in replica.answer(msgspec.msgpack.encode(call)):
        sys.stdout.buffer.write(item)
    await replica._backend.aclose()
asyncio.run(main())
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    """The hub; its repository `org/repo` has the file `m.gguf` of 3 MB."""
    with serve_hub(**{"org/repo/m.gguf": random.Random(1).randbytes(3_000_000)}) as hub:
        yield hub


@dataclass(frozen=True)
class Outcome:
    """What came of a fetch: a path or an error, and the progress that was told, with the bytes that it is a part of."""

    path: Path
    error: str
    parts: list[float]
    sizes: list[int]


def fetch(
    endpoint: str | Hub, home: Path, location: str = "org/repo/m.gguf", what: str = "local_file"
) -> Outcome:
    """Fetch in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", FETCH, location, what],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(endpoint, home),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout)
    return Outcome(Path(told.get("path", "")), told.get("error", ""), told["parts"], told["sizes"])


def partial_files(home: Path) -> list[Path]:
    """What is left of unfinished downloads."""
    return list(home.rglob("*.incomplete"))


def test_fetched_once(hub: Hub, tmp_path: Path) -> None:
    """A file is fetched into the hub's own cache, its progress rises to 1, and it is not fetched again."""
    first = fetch(hub, tmp_path)
    second = fetch(hub, tmp_path)

    assert first.path.read_bytes() == hub.files["org/repo/m.gguf"]
    assert first.path == tmp_path / f"hub/models--org--repo/snapshots/{COMMIT}/m.gguf"
    assert first.parts == sorted(first.parts)
    assert len(first.parts) > 3
    assert first.parts[-1] == 1
    assert first.sizes == [3_000_000]
    assert second == Outcome(first.path, "", [], [])
    assert hub.ranges == [None]
    assert partial_files(tmp_path) == []


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize("end", ["close", "reset", "end"])
def test_cut_is_resumed(hub: Hub, tmp_path: Path, end: str) -> None:
    """A download that is cut, or ends early as if it were whole, goes on where it was, with a Range request."""
    hub.ends = [(1_000_000, end), (0, end), (1_500_000, end)]

    done = fetch(hub, tmp_path)

    assert done.path.read_bytes() == hub.files["org/repo/m.gguf"]
    assert hub.ranges[0] is None
    assert all(range is not None and range.startswith("bytes=") for range in hub.ranges[2:])
    assert len(hub.ranges) == 4
    assert done.parts == sorted(done.parts)


def test_killed_is_resumed(hub: Hub, tmp_path: Path) -> None:
    """What had come when the process was killed is not fetched again by the next one."""
    hub.ends = [(2_000_000, "stall")]
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH, "org/repo/m.gguf", "local_file"],
        env=environment(hub, tmp_path),
    )
    assert hub.stalled.wait(TIMEOUT_S)
    while not sum(file.stat().st_size for file in partial_files(tmp_path)):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    have = partial_files(tmp_path)[0].stat().st_size

    done = fetch(hub, tmp_path)

    assert done.path.read_bytes() == hub.files["org/repo/m.gguf"]
    assert hub.ranges == [None, f"bytes={have}-"]
    assert done.parts[0] > have / 3_000_000
    assert partial_files(tmp_path) == []


@pytest.mark.heavy
def test_storage_without_ranges(hub: Hub, tmp_path: Path) -> None:
    """Where the storage sends the whole file again, the file begins again."""
    hub.takes_ranges = False
    hub.ends = [(1_000_000, "close")]

    done = fetch(hub, tmp_path)

    assert done.path.read_bytes() == hub.files["org/repo/m.gguf"]


@pytest.mark.heavy
def test_hub_that_always_breaks(hub: Hub, tmp_path: Path) -> None:
    """A connection that breaks again and again ends in one sentence, and what came is kept."""
    hub.ends = [(1000, "close")] + [(0, "close")] * 10

    done = fetch(hub, tmp_path)

    assert done.error.startswith("org/repo/m.gguf: ")
    assert "What has come is kept" in done.error
    assert partial_files(tmp_path) != []


def test_wrong_hash_is_refused(hub: Hub, tmp_path: Path) -> None:
    """Bytes that are not the hub's are thrown away, and the next call fetches the file."""
    hub.sent["org/repo/m.gguf"] = bytes(3_000_000)

    refused = fetch(hub, tmp_path)
    hub.sent.clear()
    done = fetch(hub, tmp_path)

    assert "does not have the hash" in refused.error
    assert done.path.read_bytes() == hub.files["org/repo/m.gguf"]


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize(("size", "kept"), [(2_999_999, 1), (3_000_001, 0)])
def test_wrong_size_is_refused(hub: Hub, tmp_path: Path, size: int, kept: int) -> None:
    """A file that is shorter or longer than the hub says is refused; a beginning is kept, since the rest may come another day."""
    hub.sent["org/repo/m.gguf"] = bytes(size)

    done = fetch(hub, tmp_path)

    assert "and the file has 3000000" in done.error
    assert kept == len(partial_files(tmp_path))


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("org/repo/none.gguf", "neither a local file nor one on the hub"),
        ("org/none/m.gguf", "neither a local file nor one on the hub"),
        ("org/a--b/m.gguf", "neither a local file nor one on the hub"),
        ("org/gated/m.gguf", "set HF_TOKEN"),
        ("org/broken/m.gguf", "the hub answered with status 500"),
        ("org/nohub/m.gguf", "HF_ENDPOINT does not answer as a hub does"),
    ],
)
def test_what_is_not_there(hub: Hub, tmp_path: Path, location: str, said: str) -> None:
    """A repository or file that cannot be had is one sentence that names it."""
    done = fetch(hub, tmp_path, location)

    assert done.error.startswith(f"{location}: ")
    assert said in done.error
    assert "\n" not in done.error


@pytest.mark.heavy
def test_unreachable_hub(hub: Hub, tmp_path: Path) -> None:
    """Without a hub a file of the cache is served, and any other is one sentence."""
    missing = fetch("http://127.0.0.1:9", tmp_path)
    first = fetch(hub, tmp_path)
    cached = fetch("http://127.0.0.1:9", tmp_path)

    assert "there is no such local file, and the hub cannot be reached" in missing.error
    assert cached.path == first.path


def test_model_in_parts(hub: Hub, tmp_path: Path) -> None:
    """A model of several files is fetched whole, under one progress."""
    for number in (1, 2):
        hub.files[f"org/repo/q8/m-0000{number}-of-00002.gguf"] = bytes([number]) * 200_000

    done = fetch(hub, tmp_path, "org/repo/q8/m-00001-of-00002.gguf")

    assert done.path.name == "m-00001-of-00002.gguf"
    assert done.path.with_name("m-00002-of-00002.gguf").read_bytes() == b"\x02" * 200_000
    assert done.parts == sorted(done.parts)
    assert (done.parts[-1], done.sizes) == (1, [400_000])


GGUFS = ["q8/m-00001-of-00002.gguf", "q8/m-00002-of-00002.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf"]


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize(
    ("location", "file"),
    [
        ("org/one", "only.gguf"),
        ("org/many:Q4_K_M", "m-Q4_K_M.gguf"),
        ("org/many:q4_k_s", "m-Q4_K_S.gguf"),
        ("org/many:q8", "m-00001-of-00002.gguf"),
        ("org/many:Q4", "m-Q4_K_S.gguf"),
    ],
)
def test_a_file_of_a_repository(hub: Hub, tmp_path: Path, location: str, file: str) -> None:
    """A repository's only GGUF file, or the one of a quantization, need not be named."""
    hub.files = {f"org/many/{name}": name.encode() * 99 for name in [*GGUFS, "mmproj-q8.gguf"]}
    hub.files |= {f"org/one/{name}": b"x" * 99 for name in ("only.gguf", "mmproj-F16.gguf", "a.md")}

    first = fetch(hub, tmp_path, location)
    away = fetch("http://127.0.0.1:9", tmp_path, location)

    assert (file, file) == (first.path.name, away.path.name)


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize(
    ("location", "where", "what", "to_do"),
    [
        ("org/two", "org/two: ", "several models: a-Q8_0.gguf, b-Q8_0.gguf", "Name one, as gguf:org/two/file.gguf."),
        ("org/many:Q5", "org/many: ", "no GGUF file named Q5: m-Q4_K_M.gguf", "Name one, as gguf:org/many/file.gguf."),
        ("org/none", "org/none: ", "neither a local file nor one on the hub", "Check its spelling"),
        ("org/folder:Q4", "org/folder: ", "the repository holds no GGUF file", "hf:org/folder"),
        ("org/many/m-Q5.gguf", "org/many/m-Q5.gguf: ", "neither a local file nor one on the hub", "org/many holds m-Q4_K_M.gguf, m-Q4_K_S.gguf, q8/m-00001-of-00002.gguf: name one of them."),
        ("org/big/x.gguf", "org/big/x.gguf: ", "m00.gguf, m01.gguf", "and 10 more: name one of them."),
    ],
)  # fmt: skip
def test_a_file_that_is_not_one(
    hub: Hub, tmp_path: Path, location: str, where: str, what: str, to_do: str
) -> None:
    """Where a repository has no such file, or several, the error lists those that it has, at most twenty."""
    hub.files = {f"org/many/{name}": name.encode() * 99 for name in [*GGUFS, "mmproj-q8.gguf"]}
    hub.files |= {"org/folder/config.json": b"{}"}
    hub.files |= {f"org/two/{name}": b"x" for name in ("a-Q8_0.gguf", "b-Q8_0.gguf")}
    hub.files |= {f"org/big/m{number:02}.gguf": b"x" for number in range(30)}

    error = fetch(hub, tmp_path, location).error

    assert error.startswith(where)
    assert what in error
    assert to_do in error


@pytest.mark.heavy
def test_a_hub_that_is_out_of_reach(tmp_path: Path) -> None:
    """Without the hub a repository is told with the reason, what to check, and how a file is named."""
    error = fetch("http://127.0.0.1:9", tmp_path, "org/repo:Q4_K_M").error

    assert error.startswith("org/repo: ")
    assert "the hub cannot be reached (" in error
    assert "Check the network, or set HF_ENDPOINT" in error
    assert "gguf:org/repo/file.gguf" in error


def test_token_stays_with_the_hub(hub: Hub, tmp_path: Path) -> None:
    """HF_TOKEN is sent to the hub, and not to the storage that it points to."""
    fetch(hub, tmp_path)

    assert hub.keys == ({"Bearer hf_secret"}, {None})


@pytest.mark.parametrize("location", ["./models/m.gguf", "../models/m.gguf", "/models/m.gguf"])
def test_paths_are_not_asked_for(hub: Hub, tmp_path: Path, location: str) -> None:
    """What can only be a path is not looked for on the hub."""
    done = fetch(hub, tmp_path, location)

    assert done.path == Path(location)
    assert hub.keys[0] == set()


@pytest.mark.heavy
def test_worker_fetches_its_model(hub: Hub, tmp_path: Path) -> None:
    """A server of a hub's model fetches and serves it."""
    hub.files["org/repo/demo.gguf"] = MODEL.read_bytes()
    process = subprocess.Popen(
        [sys.executable, "-m", "unilect", "worker", "gguf:org/repo/demo.gguf", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(hub, tmp_path),
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)

    assert json.loads(line)["ready"]["model"] == "demo"
    assert process.returncode == 0


@pytest.mark.heavy
def test_a_folder_is_fetched_without_what_nobody_needs(hub: Hub, tmp_path: Path) -> None:
    """Of a repository come weights, configuration and tokenizer, no pickle beside safetensors, and no other formats."""
    wanted = ["config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"]
    others = ["pytorch_model.bin", "onnx/model.onnx", "README.md", "tf_model.h5"]
    others += ["consolidated.safetensors"]
    hub.files = {f"org/folder/{name}": name.encode() * 99 for name in [*wanted, *others]}

    first = fetch(hub, tmp_path, "org/folder", "local_folder")
    away = fetch("http://127.0.0.1:1", tmp_path, "org/folder", "local_folder")

    found = [str(file.relative_to(first.path)) for file in first.path.rglob("*") if file.is_file()]
    assert sorted(wanted) == sorted(found)
    assert first.path == away.path
    assert first.parts[-1] == 1


@pytest.mark.heavy
def test_a_folder_in_parts(hub: Hub, tmp_path: Path) -> None:
    """All parts of the weights come, and weights of another name where there are none of this."""
    wanted = ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    other = ["config.json", "mine.safetensors"]
    hub.files = {f"org/parts/{name}": name.encode() * 99 for name in [*wanted, "mine.safetensors"]}
    hub.files |= {f"org/other/{name}": name.encode() * 99 for name in other}

    parts = fetch(hub, tmp_path, "org/parts", "local_folder")
    mine = fetch(hub, tmp_path, "org/other", "local_folder")

    assert sorted(wanted) == sorted(file.name for file in parts.path.iterdir())
    assert sorted(other) == sorted(file.name for file in mine.path.iterdir())


@pytest.mark.heavy(but=1)
@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("org/nothing", "neither a local file nor one on the hub"),
        ("org/repo", "holds no model of transformers; it holds GGUF files: m.gguf. Name one as gguf:org/repo/m.gguf."),
        ("./nothing", "there is no such folder"),
    ],
)  # fmt: skip
def test_folders_that_are_none(hub: Hub, tmp_path: Path, location: str, said: str) -> None:
    """A repository that does not exist, one without a model, and a path are told as such."""
    assert said in fetch(hub, tmp_path, location, "local_folder").error


@pytest.mark.heavy
def test_a_replica_of_the_fleet(hub: Hub, tmp_path: Path) -> None:
    """A replica fetches a model of the hub itself, into the cache of its node, and answers."""
    hub.files["org/repo/model.gguf"] = MODEL.read_bytes()

    done = subprocess.run(
        [sys.executable, "-c", REPLICA],
        capture_output=True,
        timeout=TIMEOUT_S,
        env=environment(hub, tmp_path),
    )

    assert 0 == done.returncode, done.stderr.decode()
    reader = io.BytesIO(done.stdout)
    events = list[Event]()
    while head := reader.read(4):
        body = reader.read(int.from_bytes(head, "big"))
        events += frames.events_of(frames.reply_of(body))
    (usage,) = [event for event in events if isinstance(event, Usage)]
    assert 0 < usage.completion_tokens <= 5
    assert [*tmp_path.rglob("snapshots/*/model.gguf")]


def test_what_is_no_model_of_a_repository() -> None:
    """Projectors, importance matrices and drafts are no models of a repository, unless it holds drafts alone."""
    beside = ["mmproj-F16.gguf", "imatrix.gguf", "m-imatrix-all.gguf", "MTP/m-Q8_0.gguf", "m-draft-Q8_0.gguf", "mtp-m.gguf", "a.md"]  # fmt: skip

    assert ["m-Q8_0.gguf"] == ggufs(["m-Q8_0.gguf", *beside])
    assert ["m-MTP-Q4_0.gguf", "m-MTP-Q8_0.gguf"] == ggufs(["m-MTP-Q8_0.gguf", "m-MTP-Q4_0.gguf", "imatrix.gguf"])  # fmt: skip
