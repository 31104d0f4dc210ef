"""The facts of a GGUF file, for those who list files and load none."""

from pathlib import Path

from unilect.api.backend import Description
from unilect.engines.gguf._file import read_head


def describe(path: Path) -> Description:
    """
    Return the description of the model in a file.

    Raises:
        ValueError: It is no valid GGUF file.
    """
    return read_head(path).description
