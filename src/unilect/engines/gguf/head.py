"""The head of a GGUF file of which more is elsewhere."""

from pathlib import Path

from unilect.engines.gguf._file import read_head

_MAGIC = b"GGUF"


def is_head(path: Path, whole_bytes: int) -> bool:
    """
    Return True if the beginning of a file has its head, or it is no GGUF file, which only its head says.

    Args:
        whole_bytes: The size of the whole file.
    """
    with path.open("rb") as file:
        begin = file.read(8)
    if path.suffix == ".safetensors":
        return path.stat().st_size >= 8 + int.from_bytes(begin, "little")
    if path.suffix != ".gguf" or begin[:4] != _MAGIC:
        return path.suffix == ".gguf" or path.stat().st_size == whole_bytes
    try:
        read_head(path, whole_bytes)
    except ValueError:
        return False
    return True
