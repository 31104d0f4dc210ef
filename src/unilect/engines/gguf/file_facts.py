"""The facts of a GGUF file, for those who list files and load none."""

from pathlib import Path

from msgspec import Struct

from unilect.api.backend import Description
from unilect.engines.gguf._file import read_head
from unilect.engines.gguf._projector import find_beside


class FileFacts(Struct, frozen=True):
    """
    Facts that the head of a file says.

    Attributes:
        kind: `model`, `adapter` or `mmproj`.
        has_template: It has a chat template.
        projector: The projector beside it that may be its own.
    """

    description: Description
    kind: str
    has_template: bool
    projector: Path | None


def describe(path: Path) -> Description:
    """
    Return the description of the model in a file.

    Raises:
        ValueError: It is no valid GGUF file.
    """
    return read_facts(path).description


def read_facts(path: Path) -> FileFacts:
    """
    Return what a file says of its model.

    Raises:
        ValueError: It is no valid GGUF file.
    """
    head = read_head(path)
    return FileFacts(head.description, head.kind, bool(head.template), find_beside(path))
