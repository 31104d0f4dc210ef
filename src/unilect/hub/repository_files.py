"""The models among the files of a repository, such as one of a hub, or a folder."""

import re
from collections.abc import Iterable

_BESIDE = re.compile(r"mmproj[^/]*$|(?:^|[-._/])vocab\.gguf$", re.I)
_IMATRIX = re.compile("imatrix", re.I)
_DRAFT = re.compile(r"(?:^|[-._/ ])(?:mtp|draft|eagle\d?|dflash)(?:[-._/ ]|$)", re.I)
_PROJECTOR = re.compile(r"mmproj[^/]*\.gguf$", re.I)
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.I)
_PART = re.compile(r"-00001-of-(\d{5})\.gguf$", re.I)
MAX_PARTS = 1000
#: Names of quantizations as files have them, such as `UD-Q4_K_XL`.
_QUANTIZATION = re.compile(
    r"(?<![A-Za-z0-9])(?:UD-)?(?:I?Q\d(?:_0_[48]_[48]|(?:_[0-9A-Z]{1,3}){1,2})|TQ\d_0|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)(?![A-Za-z0-9])",
    re.I,
)
# weights, tokenizer, configuration and code of its own, at the top or in the pooling's folder; not the other formats of the weights
_FOLDER_FILE = re.compile(
    r"^(1_Pooling/config\.json|[^/]+\.(json|jinja|safetensors|model|txt|py|tiktoken)|pytorch_model[^/]*\.bin)$"
)
_WEIGHTS = re.compile(r"^model(-\d+-of-\d+)?\.safetensors$")


def is_path(file: str) -> bool:
    """Return True for the path of a file in a folder, which does not lead out of it and can be printed."""
    parts = file.split("/")
    return file.isprintable() and "\\" not in file and not {"", ".", ".."} & {*parts}


def ggufs(files: Iterable[str]) -> list[str]:
    """
    Return the models among the files of a repository.

    They are its GGUF files but for projectors, importance matrices, vocabularies, the later parts of a model in parts, and the drafts of
    another model; a repository that holds nothing but drafts is one of them.
    """
    found = sorted(
        file
        for file in files
        if file.lower().endswith(".gguf")
        and not _BESIDE.search(file)
        and not _is_matrix(file.rpartition("/")[2])
        and not _LATER_PART.search(file)
    )
    return [file for file in found if not _DRAFT.search(file)] or found


def _is_matrix(name: str) -> bool:
    """Return True for an importance matrix; a model that was made with one, and says so, has a quantization, too."""
    return _IMATRIX.search(name) is not None and not quantization(name)


def parts(file: str) -> list[str]:
    """Return the names of all files of a model that is named by one: several where it is the first of several, `...-00001-of-00003.gguf`."""
    part = _PART.search(file)
    count = min(int(part.group(1)), MAX_PARTS) if part is not None else 1
    if part is None or count < 2:
        return [file]
    stem, end = file[: part.start()], part.group(1)
    return [f"{stem}-{number:05}-of-{end}{file[-5:]}" for number in range(1, count + 1)]


def quantization(file: str) -> str:
    """Return the quantization that a file's name ends in or its folder has, in capitals; empty where it names none."""
    found = _QUANTIZATION.findall(file)
    return found[-1].upper() if found else ""


def without_quantization(file: str) -> str:
    """Return the name of a model, the same for all of its quantizations: without folders, parts and the quantization."""
    name = _PART.sub(".gguf", file).rpartition("/")[2]
    return re.sub(r"[-._]+", "-", _QUANTIZATION.sub("", name)).lower()


def projectors(files: Iterable[str]) -> list[str]:
    """Return the projectors among the files of a repository: those of 16 bits first, since any machine runs them, and small ones do not win much."""
    found = sorted(file for file in files if _PROJECTOR.search(file))
    return sorted(found, key=lambda file: quantization(file) not in ("F16", "FP16"))


def choose_projector(model: str, files: Iterable[str]) -> str | None:
    """Return the projector of a model among the files of a repository: that of its name, or any where all models are this one."""
    files = list(files)
    names = {without_quantization(one) for one in ggufs(files)}
    own = without_quantization(model)
    found = [one for one in projectors(files) if len(names) == 1 or _of_projector(one) == own]
    return found[0] if found else None


def _of_projector(file: str) -> str:
    """Return the name of the model that a projector is named after."""
    return re.sub(r"^-+|-*mmproj(?=-)|(?<=-)mmproj-*", "", without_quantization(file)).lstrip("-")


def of_folder(names: Iterable[str]) -> list[str]:
    """Which files of a folder a model of transformers, an adapter or a tokenizer needs, by their paths in it."""
    return _once([name for name in names if _FOLDER_FILE.search(name)])


def is_transformers(files: Iterable[str]) -> bool:
    """Return True where the files of a repository are a model of transformers: its configuration and weights."""
    needed = of_folder(files)
    return "config.json" in needed and any(
        name.endswith((".safetensors", ".bin")) for name in needed
    )


def _once(files: list[str]) -> list[str]:
    """Files of a repository without what holds its weights once more: pickles, and another program's (`consolidated.safetensors`)."""
    if not any(name.endswith(".safetensors") for name in files):
        return files
    named = any(map(_WEIGHTS.search, files))
    others = (".bin", ".safetensors") if named else (".bin",)
    return [name for name in files if _WEIGHTS.search(name) or not name.endswith(others)]
