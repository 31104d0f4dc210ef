"""
Interprets the text of a source: web addresses of the hub, URLs of endpoints, and hints for sources that cannot be served.

It examines names and the first bytes of local files, without network access.

Sources: https://huggingface.co/docs/hub/models-downloading (the paths of a repository's web page);
https://github.com/ollama/ollama/blob/main/docs/openai.md (where Ollama answers OpenAI's API)
"""

import logging
import os
import re
import stat
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from urllib.parse import unquote

from unilect.config.kinds import KIND_OF, UPSTREAMS
from unilect.config.paths import without_file_scheme
from unilect.core.errors import ConfigError
from unilect.hub.repositories import REPO, scheme_of
from unilect.hub.repository_files import ggufs
from unilect.hub.stores import find_file, find_in_ollama, is_store_name
from unilect.runtime.redact import redact

log = logging.getLogger("unilect")
_HUB_ADDRESS = re.compile(r"^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(.*)$", re.I)
_QUANTIZATION = re.compile(r"^[A-Za-z][\w.-]{0,49}$", re.ASCII)
_NO_MODELS = ("datasets", "spaces", "collections", "papers", "docs", "blog", "models")
_ENDPOINT = re.compile(
    r"/(?:chat/completions|completions?|embeddings|rerank(?:ing)?|responses|(?<=/v1/)models)/*$"
)
_HOST = re.compile(
    r"^(localhost|[\w-]+(\.[\w-]+)*\.[A-Za-z][\w-]*|\d+(\.\d+){3}|[\w-]+(?=:\d\d))(:\d+)?(/\S*)?$"
)
_PULLED = re.compile(r"^([\w.-]+(?:/[\w.-]+)*(?::[\w.-]+)?)$")
_MOST_LOOKED_AT = 1000
_CONFIGURATIONS = (".yaml", ".yml", ".json", ".ini", ".conf", ".cfg")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
#: The schemes that are told with an example of each.
_MAIN = ("gguf", "hf", "http", "https")
#: Endings of files, which are no ending of a host's name.
_FILES = (*_CONFIGURATIONS, *_PICKLES, ".toml", ".safetensors", ".onnx", ".txt", ".zip", ".gz")


def read_as(source: str) -> str:
    """
    Return the source that a text means: itself, the path of a `file:` URL, or a model on the Hugging Face hub, by its name or its web
    address. Of a repository alone the hub says what it is.

    >>> read_as("https://huggingface.co/org/repo/blob/main/a.gguf?download=true")
    'gguf:org/repo/a.gguf'
    >>> read_as("hf.co/org/repo:Q4_K_M")
    'gguf:org/repo:Q4_K_M'

    Raises:
        ConfigError: An address of the hub that names no model, or a repository that is none or cannot be asked for.
    """
    source = without_file_scheme(source)
    address = _HUB_ADDRESS.match(source)
    if source.startswith("hf://"):
        named = source.removeprefix("hf://")
        return f"gguf:{named}" if named.lower().endswith(".gguf") else _of_repository(named)
    if is_store_name(source):
        return f"gguf:{find_file(source)}"
    if address is None:
        return _of_repository(source) if _is_repository(source) else source
    path = unquote(re.split(r"[?#]", address.group(1), maxsplit=1)[0])
    parts = [part for part in path.split("/") if part]
    repo, _, quantization = "/".join(parts[:2]).partition(":")
    if len(parts) < 2 or parts[0] in _NO_MODELS or not REPO.match(repo):
        raise ConfigError(
            f"{source}: is an address of the Hugging Face hub that names no model. Write hf:org/name for a model of "
            "transformers, or gguf:org/repo/file.gguf for a GGUF file."
        )
    repo += f"@{parts[3]}" if len(parts) > 3 and parts[3] != "main" and "@" not in repo else ""
    if not REPO.match(repo):
        raise ConfigError(
            f"{source}: the revision {parts[3][:50]!r} cannot be named. Name the commit's hash, as {'/'.join(parts[:2])}@HASH."
        )
    file = "/".join(parts[4:]) if parts[2:3] and parts[2] in ("resolve", "blob", "raw") else ""
    if file.lower().endswith(".gguf"):
        return f"gguf:{repo}/{file}"
    return _of_repository(f"{repo}:{quantization}" if quantization else repo)


def _of_repository(named: str) -> str:
    """Return the source of a repository, which may have a quantization behind it; only GGUF files have one."""
    return f"{'gguf' if ':' in named else scheme_of(named)}:{named}"


def _is_repository(source: str) -> bool:
    """Return True where a text that names nothing here may be `org/repo` or `org/repo:QUANTIZATION`, and neither a path nor a host."""
    repo, colon, quantization = source.partition(":")
    plain = REPO.match(repo) and not repo.lower().endswith((*_FILES, ".gguf"))
    if not plain or _HOST.match(source) or (colon and not _QUANTIZATION.match(quantization)):
        return False
    return not os.path.exists(source)


def tell(name: str, source: str) -> None:
    """Say where a source was taken for something else than it says; of a URL only its end, since it may hold a secret."""
    meant = read_as(source)
    if meant != source:
        log.info("models.%s: %s is read as %s", name, redact(source), redact(meant))
    scheme, _, location = source.partition(":")
    if KIND_OF.get(scheme) in UPSTREAMS and (end := endpoint(location)):
        log.warning(
            "models.%s: the source ends in %s; it is left out, since each request adds its endpoint to the base URL",
            name,
            end,
        )


def base_url(location: str) -> str:
    """
    Return an upstream's base URL, without the path of an endpoint at its end.

    >>> base_url("//gpu:8000/v1/chat/completions")
    '//gpu:8000/v1'
    """
    path, mark, query = location.partition("?")
    return path.removesuffix(endpoint(location)) + mark + query


def endpoint(location: str) -> str:
    """Return the path of an endpoint at the end of an upstream's URL; empty if there is none."""
    found = _ENDPOINT.search(location.partition("?")[0])
    return found.group() if found is not None else ""


def is_web_file(url: str) -> bool:
    """
    Return True for the web address of a GGUF file, and False for that of a server.

    Raises:
        ConfigError: It is the address of a file of another kind.
    """
    path = re.split(r"[?#]", url, maxsplit=1)[0]
    if not re.match(r"https?://[^/]+/", path, re.I):
        return False
    if path.lower().endswith(_FILES):
        raise ConfigError(
            f"{url}: is the address of a file that is no GGUF file. Of web addresses GGUF files are fetched (https://host/x.gguf), and models "
            "of transformers from the Hugging Face hub (hf:org/name)."
        )
    return path.lower().endswith(".gguf")


def holds_ggufs(folder: str) -> bool:
    """Return True for a folder of GGUF files, in it or in its folders, that is no model of transformers itself."""
    if os.path.exists(os.path.join(folder, "config.json")):
        return False
    found = chain.from_iterable(
        Path(folder).glob(one) for one in ("*.[gG][gG][uU][fF]", "*/*.[gG][gG][uU][fF]")
    )
    return any(ggufs([file.name]) for file in islice(found, _MOST_LOOKED_AT))


def may_be_gguf(source: str) -> bool:
    """Return True for the path of a GGUF file: by its ending, or by the magic bytes, as Ollama's blobs have no ending."""
    if source.lower().endswith(".gguf"):
        return not _URL.match(source) and not _special(source)
    return _begins_with(source, b"GGUF")


def unknown(source: str, schemes: Iterable[str]) -> str:
    """Return why a source cannot be served, and what was most likely meant, as sentences."""
    if kind := _special(source):
        return f"{source}: is {kind}, and no model. Name a .gguf file, or the folder of a model of transformers."
    if os.path.isfile(source):
        return f"{source}: {_no_model(source)}"
    if url := _URL.match(source):
        return _unknown_scheme(source, url.group(1), schemes)
    repo, colon, rest = source.partition(":")
    if colon and not rest:
        return f"{source}: names nothing behind its colon. Write the model there, or leave the colon out."
    if colon and REPO.match(repo):
        return f"{source}: `{rest[:50]}` is no quantization. Write one as files have it, such as {repo}:Q4_K_M, or leave it out."
    if source.lower().endswith(_FILES):
        guess = f"; a server needs its scheme: http://{source}" if _HOST.match(source) else ""
        config = source.lower().endswith(".toml")
        guess = "; a configuration is named with --config" if config else guess
        return f"{source}: there is no such file{guess}."
    if _HOST.match(source):
        return f"{source}: a server needs its scheme; write http://{source}."
    if source.startswith((".", "/", "~")) or source.endswith("/"):
        return f"{source}: there is no such file or folder. Check the path."
    pulled = _PULLED.match(source)
    if pulled is not None:
        name = pulled.group(1)
        if find_in_ollama(name) is not None:
            return f"{source}: there is no such file or folder. The store of Ollama has a model of that name: ollama:{name}."
        return (
            f"{source}: there is no such file or folder, and no library has models by such names. Name a GGUF file, a folder, "
            "a model of the Hugging Face hub (org/repo, org/repo:Q4_K_M), or one of `unilect list`. "
            "A model of a running Ollama is served from a configuration file: "
            f'source = "http://127.0.0.1:11434/v1", model = "{name}".'
        )
    return _unknown_scheme(source, source.partition(":")[0] if ":" in source else "", schemes)


def _unknown_scheme(source: str, scheme: str, schemes: Iterable[str]) -> str:
    """Return what to say of a source that begins with no scheme of ours."""
    known = list(schemes)
    if scheme.lower() in known:
        return (
            f"{source}: schemes are written in lower case: {scheme.lower()}{source[len(scheme) :]}"
        )
    what = f"`{scheme}:` is no scheme of a source" if scheme else "there is no such file or folder"
    others = ", ".join(f"{one}:" for one in known if one not in _MAIN and "+" not in one)
    return (
        f"{source}: {what}. Name a .gguf file or a folder on this machine (download it first), a model of the Hugging Face hub "
        f"(gguf:org/repo/file.gguf, hf:org/name), or a server (http://host:8000/v1); further schemes: {others}."
    )


def _special(path: str) -> str:
    """Return what a path is that is neither a file nor a folder; empty for those, and where nothing is there."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return ""
    kinds = (
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((words for is_one, words in kinds if is_one(mode)), "")


def _no_model(file: str) -> str:
    """Return a hint for a file that exists and is not a GGUF file."""
    suffix, folder = Path(file).suffix.lower(), str(Path(file).parent)
    if suffix == ".toml":
        return f"this is a configuration file. Serve it with `unilect serve --config {file}`."
    if suffix in _CONFIGURATIONS:
        return (
            "this is no model. A model of transformers is named by its folder; a configuration of unilect is a TOML file "
            "(unilect.example.toml has every option): `unilect serve --config FILE.toml`."
        )
    if _begins_with(file, b"ggml"):
        return f"this is a model of chatglm.cpp, or an older GGML file. Write chatglm:{file}."
    if suffix == ".safetensors" or suffix in _PICKLES:
        whole = (Path(folder) / "config.json").exists()
        rest = "" if whole else ", with the config.json and the tokenizer that are missing there"
        named = "./" if folder == "." else folder
        return f"this file holds weights only. Name its folder{rest}: {named}"
    return (
        "this is no GGUF file, for it does not begin with `GGUF`. Name a .gguf file, the folder of a model of "
        "transformers, or a server's URL."
    )


def _begins_with(path: str, magic: bytes) -> bool:
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(len(magic)) == magic
    except (OSError, ValueError):  # told by whoever reads it, with the reason
        return False
