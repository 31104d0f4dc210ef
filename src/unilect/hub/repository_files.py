"""The models among the files of a repository, such as one of a hub, or a folder."""

import re
from collections.abc import Iterable

_BESIDE = re.compile(r"mmproj|imatrix", re.I)
_DRAFT = re.compile(r"(?:^|[-._/ ])(?:mtp|draft|eagle\d?|dflash)(?:[-._/ ]|$)", re.I)
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.I)


def ggufs(files: Iterable[str]) -> list[str]:
    """
    Return the models among the files of a repository.

    They are its GGUF files but for projectors, importance matrices, the later parts of a model in parts, and the drafts of another model;
    a repository that holds nothing but drafts is one of them.
    """
    found = sorted(
        file
        for file in files
        if file.lower().endswith(".gguf")
        and not _BESIDE.search(file)
        and not _LATER_PART.search(file)
    )
    return [file for file in found if not _DRAFT.search(file)] or found
