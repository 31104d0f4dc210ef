"""`unilect fit` as a process of its own, against a small hub on loopback."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.common.environments import smollm2
from support.models import shaped_gguf
from support.servers.small_hub import TIMEOUT_S, Hub, environment, serve_hub
from unilect.config.model import ModelConfig
from unilect.demo import FOLDER, MODEL
from unilect.engines.gguf.engine import GgufEngine
from unilect.runtime.memory import MIB


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with a model as two quantizations, one of them in two parts, a folder of transformers, and a repository without a model."""
    path = shaped_gguf.make(tmp_path_factory.mktemp("files") / "m.gguf", "llama", 8)
    files = {"org/repo/m-Q8_0.gguf": path.read_bytes(), "org/repo/m-Q2_K.gguf": MODEL.read_bytes()}
    files |= {f"org/whole/{one.name}": one.read_bytes() for one in (FOLDER / "hf").iterdir() if one.is_file()}  # fmt: skip
    with serve_hub(**files, **{"org/bad/x.gguf": b"GGUF" + bytes(3_000_000)}) as hub:
        yield hub


def fit(hub: Hub, home: Path, *args: str, code: int = 0) -> tuple[str, str]:
    """What the command prints on stdout and on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "unilect", "fit", *args],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        env=environment(hub, home),
    )
    assert code == done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def told(hub: Hub, home: Path, *args: str) -> list[dict[str, Any]]:
    """What it tells as JSON."""
    return list(json.loads(fit(hub, home, *args, "--json")[0]))


@pytest.mark.heavy
def test_a_repository(hub: Hub, tmp_path: Path) -> None:
    """Each model of a repository is told with what it needs, as its engine tells it; a few bytes of each are fetched, and nothing stays."""
    hub.ranges.clear()
    small, large = told(hub, tmp_path / "home", "org/repo", "--parallel", "2", "--memory", "1GiB")
    (tmp_path / "m.gguf").write_bytes(hub.files["org/repo/m-Q8_0.gguf"])
    need = GgufEngine("m", tmp_path / "m.gguf", ModelConfig(parallel=2)).memory_need()

    assert ["m-Q2_K.gguf", "m-Q8_0.gguf"] == [one["model"] for one in (small, large)]
    assert ("Q8_0", 8192, True, True, 32_768) == (large["quantization"], large["context"], large["fits"], large["fits_now"], large["longest_context"])  # fmt: skip
    assert (tmp_path / "m.gguf").stat().st_size == large["download_bytes"]
    assert abs(large["ready_bytes"] - need.ready) < 4 * MIB
    assert ["bytes=0-1048575"] * 2 == hub.ranges
    assert not any(one.is_file() for one in (tmp_path / "home").rglob("*"))


@pytest.mark.heavy
def test_a_file_and_a_folder(hub: Hub, tmp_path: Path) -> None:
    """Files and folders on this machine, and folders of transformers here and on the hub, are told in a table."""
    out, err = fit(hub, tmp_path, str(MODEL), "--context", "512")
    assert ["MODEL", "QUANT", "DOWNLOAD", "CONTEXT", "PARALLEL", "NEEDS", "AT", "MOST", "LONGEST", "FITS"] == out.split()[:10]  # fmt: skip
    assert ["model.gguf", "Q8_0", "4.4", "MB", "512", "4"] == out.split()[10:16]
    assert "each of PARALLEL requests has the whole CONTEXT" in err
    (here,) = told(hub, tmp_path, str(FOLDER / "hf"))
    (there,) = told(hub, tmp_path, "hf:org/whole")

    assert (here["ready_bytes"], here["context"]) == (there["ready_bytes"], there["context"])
    assert 380 * MIB < here["ready_bytes"] < 450 * MIB


@pytest.mark.heavy
def test_a_bound_between_need_and_most(hub: Hub, tmp_path: Path) -> None:
    """A model that would outgrow the memory that is named does not fit into it, as a server with so much `memory` refuses it; no context is told."""
    (free,) = told(hub, tmp_path, str(MODEL), "--context", "512")
    size = free["ready_bytes"] // 1000 + 1
    (bound,) = told(hub, tmp_path, str(MODEL), "--context", "512", "--memory", f"{size}KB")

    assert bound["ready_bytes"] <= size * 1000 < bound["most_bytes"]
    assert (True, False, 0) == (free["fits"], bound["fits"], bound["longest_context"])


@pytest.mark.heavy
def test_a_file_of_a_store(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a store names by its digest is told by its name there."""
    store, digest = tmp_path / "store", "a" * 64
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest"
    for folder in (manifest.parent, store / "blobs"):
        folder.mkdir(parents=True)
    (store / "blobs" / f"sha256-{digest}").symlink_to(MODEL)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": MODEL.stat().st_size}  # fmt: skip
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))

    assert "ollama:tiny" == told(hub, tmp_path, "ollama:tiny")[0]["model"]


@pytest.mark.heavy
def test_a_file_by_its_address(hub: Hub, tmp_path: Path) -> None:
    """A `file:` URL is the file that it names."""
    assert told(hub, tmp_path, str(MODEL)) == told(hub, tmp_path, f"file://{MODEL}")


@pytest.mark.heavy
def test_files_of_one_name(hub: Hub, tmp_path: Path) -> None:
    """The configuration of a model is not that of its pooling, whether it is here already or not; what is here stays as it is."""
    files = {name: hub.files[f"org/whole/{name}"] for name in ("config.json", "model.safetensors")}
    files |= {"tokenizer.json": hub.files["org/whole/tokenizer.json"], "1_Pooling/config.json": b"{}"}  # fmt: skip
    hub.files |= {f"org/pooled/{name}": content for name, content in files.items()}
    (apart,) = told(hub, tmp_path, "hf:org/pooled")
    fetch = "from unilect.hub.download import fetch; print(fetch('org/pooled', 'config.json', lambda *told: None))"
    got = subprocess.run([sys.executable, "-c", fetch], capture_output=True, text=True, check=True, env=environment(hub, tmp_path))  # fmt: skip
    (beside,) = told(hub, tmp_path, "hf:org/pooled")

    assert apart == beside
    assert files["config.json"] == Path(got.stdout.strip()).read_bytes()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["/nowhere/x.gguf"], "there is no such file or folder"),
        (["vllm:org/name"], "what a program takes of memory is known once it was loaded"),
        (["http://127.0.0.1:9/v1"], "Name one, or a model of the Hugging Face hub as org/repo"),
        (["~nosuchuser/x.gguf"], "there is no user of that name"),
        (["ollama:none"], "no such model in the store of Ollama"),
        (["org/bad"], "unilect: x.gguf is not a valid GGUF file"),
        ([str(MODEL), "--memory", "much"], "--memory: 'much' is no size"),
        ([str(MODEL), "--context", "99999"], "exceeds the model's maximum context length"),
        ([str(Path(__file__).parent)], "holds no model"),
    ],
)
@pytest.mark.heavy
def test_mistakes(args: list[str], says: str, hub: Hub, tmp_path: Path) -> None:
    """What cannot be told is a sentence that says why."""
    assert says in fit(hub, tmp_path, *args, code=1)[1]


@pytest.mark.heavy
async def test_a_real_model(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory told of SmolLM2 is what it takes; once it was loaded, that is what is told."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = smollm2()
    (first,) = told(hub, tmp_path, str(path), "--parallel", "1")
    engine = GgufEngine("m", path, ModelConfig(parallel=1))
    try:
        await engine.start()
        taken = engine.children[0].resident_memory_bytes
    finally:
        await engine.aclose()
    (second,) = told(hub, tmp_path, str(path), "--parallel", "1")

    assert (False, True) == (first["measured"], second["measured"])
    assert abs(first["ready_bytes"] - taken) < max(20 * MIB, 0.03 * taken)
    assert abs(second["ready_bytes"] - taken) < 0.02 * taken
