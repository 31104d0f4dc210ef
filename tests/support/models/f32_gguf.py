"""The bundled model as a GGUF file of plain float32: the numbers of its Hugging Face folder, with nothing rounded on the way."""

import mmap
import struct
import sys
from array import array
from math import prod
from pathlib import Path

from unilect.demo import MODEL
from unilect.engines.gguf._file import _Reader

_F32, _Q8_0 = 0, 8
_BLOCK = struct.Struct("<e32b")  # a scale and 32 values
_ALIGNMENT = 32


class _Tensors(_Reader):
    """Reads the tensors' places beside the head."""

    def _check_tensors(self, tensors: int, alignment: int) -> None:
        self.head_end, self.found = self._at, list[tuple[str, list[int], int, int]]()
        for _ in range(tensors):
            name, dimensions = self._string(), self._number("I")
            shape = [self._number("Q") for _ in range(dimensions)]
            self.found.append((name, shape, self._number("I"), self._number("Q")))
        self.start = -(-self._at // alignment) * alignment


def make(path: Path) -> Path:
    """Write the model, and return its path."""
    with MODEL.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Tensors(data, len(data))
        reader.head()
        head, body = [data[: reader.head_end]], []
        at = 0
        for name, shape, kind, offset in reader.found:
            numbers = _floats(data, reader.start + offset, kind, prod(shape))
            encoded = name.encode()
            head.append(struct.pack("<Q", len(encoded)) + encoded)
            head.append(struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _F32, at))
            body.append(numbers + b"\0" * (-len(numbers) % _ALIGNMENT))
            at += len(body[-1])
    begin = b"".join(head)
    path.write_bytes(begin + b"\0" * (-len(begin) % _ALIGNMENT) + b"".join(body))
    return path


def _floats(data: mmap.mmap, at: int, kind: int, count: int) -> bytes:
    if kind == _F32:
        return data[at : at + 4 * count]
    assert kind == _Q8_0
    blocks = _BLOCK.iter_unpack(data[at : at + count // 32 * _BLOCK.size])
    # a product of 11 and 8 bits: exact also in the 24 bits of a float32
    floats = array("f", (scale * value for scale, *values in blocks for value in values))
    if sys.byteorder == "big":
        floats.byteswap()
    return floats.tobytes()
