"""
Frames that are alike but for their text, as nearly all frames of an answer are: their texts in a fixed number of calls.

Decoding each costs most of what a gathered answer costs: the same id, model and time, over and over. So the bytes before and
after one frame's text are remembered, and the frames that follow are cut at them.
"""

import re
from operator import itemgetter

import msgspec

_CONTENT = re.compile(rb'"content": ?"([^"\\]*(?:\\.[^"\\]*)*)"')
_text = msgspec.json.Decoder(str).decode
_texts = msgspec.json.Decoder(list[str]).decode


class RepeatedFrames:
    """
    The texts of one stream's frames, once `learn` has seen one of them.

    Attributes:
        serves: The pattern has been of use, or there is none yet: another one is worth its price.
    """

    __slots__ = ("_after", "_before", "serves")

    def __init__(self) -> None:
        self._before = self._after = b""
        self.serves = True

    def learn(self, frame: bytes) -> None:
        """Take a frame that was decoded, and whose only known content is the `content` of choice 0, as the pattern."""
        self.serves = False
        found = list(_CONTENT.finditer(frame))
        if len(found) == 1:
            start, end = found[0].span(1)
            self._before, self._after = frame[:start], frame[end:]

    def text(self, frame: bytes) -> str | None:
        """The text of one frame that is like the pattern; None for any other."""
        before, after = self._before, self._after
        if not before or frame[: len(before)] != before or frame[-len(after) :] != after:
            return None
        try:
            text = _text(frame[len(before) - 1 : 1 - len(after)])  # with its quotes
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        self.serves = True
        return text

    def texts(self, frames: list[bytes]) -> list[str]:
        """
        The texts of those frames at the beginning that are like the pattern; none where anything is doubtful.

        A text is the inside of a JSON string. All are decoded as one list with a line end between them, which no JSON string
        has in it: so neither a quote in a text nor a backslash at its end goes unnoticed.
        """
        before, after = self._before, self._after
        if not before or not frames[0].startswith(before):
            return []
        count = len(frames)
        while count and not (
            frames[count - 1].startswith(before) and frames[count - 1].endswith(after)
        ):
            count -= 1
        alike = frames[:count]
        inside = [*map(itemgetter(slice(len(before), -len(after))), alike)]
        if before + (after + before).join(inside) + after != b"".join(alike):
            return []
        try:
            texts = _texts(b'["' + b'"\n,"'.join(inside) + b'"]')
        except (msgspec.DecodeError, UnicodeDecodeError):
            return []
        if len(texts) != count:
            return []
        self.serves = True
        return texts
