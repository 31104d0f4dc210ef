"""Sources, sizes and settings of models that are wrong: each message says what is wrong, where, and what to do. Nothing is started or asked for."""

from pathlib import Path

import pytest

from unilect.config import load
from unilect.core.errors import ConfigError
from unilect.demo import MODEL
from unilect.models.sources import registry

#: A source, and what its message says beside `models.m`: what is wrong, and what to do.
SOURCES = {
    "localhost:8000": ("a server needs its scheme", "write http://localhost:8000"),
    "gpu.example.org/v1": ("a server needs its scheme", "write http://gpu.example.org/v1"),
    "10.0.0.1:80": ("a server needs its scheme", "write http://10.0.0.1:80"),
    "http://": ("http://: expected a URL", "such as http://host:8000/v1"),
    "https://:99999/v1": ("its port is no number", "Write a URL such as"),
    "ftp://h/x": ("`ftp:` is no scheme", "download it first"),
    "htp://h/v1": ("`htp:` is no scheme", "or a server (http://host:8000/v1)"),
    "s3://b/x.gguf": ("`s3:` is no scheme", "Name a .gguf file or a folder"),
    "magnet:?xt=1": ("`magnet:` is no scheme", "Name a .gguf file or a folder"),
    "HTTP://h/v1": ("schemes are written in lower case", "http://h/v1"),
    "nothing": ("there is no such file or folder", "Name a GGUF file, a folder, a model of the"),
    "llama3:8b": ("no library has models by such names", 'model = "llama3:8b"'),
    "$NAME": ("there is no such file or folder", "Name a .gguf file"),
    "model.bin": ("there is no such file", "its scheme: http://model.bin"),
    "models.toml": ("there is no such file", "a configuration is named with --config"),
    "file:///x.gguf": ("There is no file /x.gguf", "Check the path"),
    "/nowhere/x.gguf": ("There is no file /nowhere/x.gguf", "Check the path"),
    "missing.gguf": ("There is no file ", "Check the path"),
    "gguf:org/repo/x.bin": ("org/repo/x.bin. ", "Check the path"),
    "~nosuchuser/x.gguf": ("there is no user of that name", "Check the path"),
    "../nowhere/": ("there is no such file or folder", "Check the path"),
    "/dev/null": ("is a device, and no model", "Name a .gguf file, or the folder"),
    "README.md": ("does not begin with `GGUF`", "Name a .gguf file, the folder"),
    "cut.gguf": ("cut.gguf is not a valid GGUF file", "Fetch it again"),
    "text.gguf": ("text.gguf is not a valid GGUF file", "it does not begin with `GGUF`"),
    "adapter.safetensors": ("holds weights only", "Name its folder"),
    "gguf:several": ("is a folder, not a GGUF file", 'or serve all, with `model = "*"`'),
    "gguf:empty": ("holds no GGUF file that is a model", "is a folder, not a GGUF file"),
    "gguf:": ("gguf:: names no model", "such as gguf:org/repo"),
    "hf:": ("hf:: names no model", "such as hf:org/repo"),
    "ollama:": ("names nothing behind its colon", "Write the model there"),
    "org/repo:": ("names nothing behind its colon", "or leave the colon out"),
    "org/repo:Q4/K": ("`Q4/K` is no quantization", "such as org/repo:Q4_K_M"),
    "ollama:none": ("no such model in the store of Ollama", "Set OLLAMA_MODELS"),
    "lmstudio:none": ("no such model in the store of LM Studio", "Name a file by its path"),
    "https://huggingface.co/o": ("address of the Hugging Face hub that names no model", "Write hf:org/name"),
    "https://huggingface.co/datasets/x/y": ("that names no model", "gguf:org/repo/file.gguf"),
    "https://huggingface.co/o/r/tree/a b": ("the revision 'a b' cannot be named", "as o/r@HASH"),
}  # fmt: skip
#: A line of the table of a model, `[models.m]`, and what its message says: where, what is wrong, and what to do.
SETTINGS = {
    'memory = "big"': ("models.m.memory", "'big' is no size", "such as 2GiB"),
    'memory = "-1GB"': ("models.m.memory", "'-1GB' is no size", "Write a number with KiB"),
    'memory = "24"': ("models.m.memory", "'24' is 24 bytes", "Write the unit, such as 24GiB"),
    'memory = "1e99GiB"': ("models.m.memory", "is no size", "such as 2GiB"),
    "memory = 0": ("models.m.memory", "expected text, found 0", "Put it in quotes"),
    'keep_conversations = "x"': ("models.m.keep_conversations", "'x' is no size", "such as 2GiB"),
    "context = 0": ("c.toml:3: models.m.context", "found 0", "expected an integer from 16 to"),
    'context = "8k"': ("c.toml:3: models.m.context", 'found "8k"', "expected an integer"),
    "context = 100000": ("models.m: context", "exceeds the model's maximum", "Set at most 2048"),
    "parallel = 0": ("models.m.parallel", "found 0", "expected an integer from 1 to 256"),
    "threads = 0": ("models.m.threads", "found 0", "from 1 to"),
    "max_in_flight = 0": ("models.m.max_in_flight", "found 0", "from 1 to"),
    "idle_stop_s = -1": ("models.m.idle_stop_s", "found -1", "expected a number above 0"),
    "gpu_layers = -5": ("models.m.gpu_layers", "found -5", "from -1 to"),
    "main_gpu = -1": ("models.m.main_gpu", "found -1", "from 0 to 15"),
    "tensor_split = [-1]": ("models.m.tensor_split", "found -1", "from 0 to"),
    "tensor_split = [0, 0]": ("models.m.tensor_split", "no GPU a part", "such as [3, 1]"),
    'cache_type_k = "q3"': ("models.m.cache_type_k", 'found "q3"', "expected one of `bf16`"),
    'quantize = "int3"': ("models.m.quantize", 'found "int3"', "expected one of `4bit`"),
    'load = "never"': ("models.m.load", 'found "never"', "expected one of `demand`, `start`"),
    'pin = "yes"': ("models.m.pin", 'found "yes"', "expected true or false"),
    'while_loading = "x"': ("models.m.while_loading", "unknown model `x`", "Name another model"),
    'while_loading = "m"': ("models.m.while_loading", "the model itself", "Name another model"),
    'fallback = "m"': ("models.m.fallback", "m -> m is a cycle", "Remove one fallback"),
    'mmproj = "missing.gguf"': ("models.m: mmproj", "There is no file", "Check the path"),
    'lora = ["missing.gguf"]': ("models.m: lora", "There is no file", "Check the path"),
    'model = "x"': ("models.m: model", "is for an upstream or a folder", "leave it out"),
    "contxt = 5": ("c.toml:3: models.m.contxt", "unknown option", "did you mean `context`"),
    "swap_wait_s = 5": ("models.m.swap_wait_s", "option of the server", "at the top of the file"),
    'aliases = ["m"]': ("models.m", "already used by models.m", "Rename one"),
    'base = "x"': ("models.m.base", "unknown model `x`", "Name another model of the file"),
    'command = "nosuchprogram {port}"': ("models.m: command", "there is no program", "Install it, or write its path"),
    'command = "sh {nothing}"': ("models.m: command", "is no placeholder", "These are: {port}"),
    "command = \"sh 'x\"": ("models.m: command", "a quote of its line 1 is not closed", "Close it"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, with files that are no models, and a hub that is never asked."""
    (tmp_path / "README.md").write_text("# Models")
    (tmp_path / "cut.gguf").write_bytes(MODEL.read_bytes()[:5000])
    (tmp_path / "text.gguf").write_text("version https://git-lfs.github.com/spec/v1")
    (tmp_path / "adapter.safetensors").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "several").mkdir()
    for name in "ab":
        (tmp_path / f"several/{name}.gguf").symlink_to(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def told(folder: Path, line: str) -> str:
    """The message for a model with a line in its table."""
    (folder / "c.toml").write_text(f"[models.m]\n{line}\n")
    with pytest.raises(ConfigError) as raised:
        registry(load.load(folder / "c.toml", environment={"HOME": str(folder)}))
    return str(raised.value)


@pytest.mark.parametrize("source", SOURCES)
def test_sources(source: str, folder: Path) -> None:
    """A source that is none says of which model, what is wrong, and what to write."""
    said = told(folder, f'source = "{source}"')

    assert said.startswith("models.m: ")
    assert [] == [words for words in SOURCES[source] if words not in said]


@pytest.mark.parametrize("line", SETTINGS)
def test_settings(line: str, folder: Path) -> None:
    """A size or a setting that is wrong says of which option, what is wrong, and what to do."""
    own = line.startswith(("base", "command"))
    said = told(folder, line if own else f'source = "demo:"\n{line}')

    assert [] == [words for words in SETTINGS[line] if words not in said]


def test_there_are_as_many_as_a_person_makes() -> None:
    """Sixty mistakes and more are looked at."""
    assert len(SOURCES) + len(SETTINGS) >= 60
