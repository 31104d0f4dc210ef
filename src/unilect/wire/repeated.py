"""
Fast path for frames that differ only in their text, like nearly all frames of an answer: decodes the texts in a fixed number of calls.

Decoding every frame is most of the cost of a buffered answer: the same id, model and time are repeated. So the bytes before and
after one frame's text are stored, and the frames that follow are split at them.
"""

import re
from operator import itemgetter

import msgspec

_CONTENT = re.compile(rb'"content": ?"([^"\\]*(?:\\.[^"\\]*)*)"')
_text = msgspec.json.Decoder(str).decode
_texts = msgspec.json.Decoder(list[str]).decode


class RepeatedFrames:
    """
    The texts of one stream's frames, after `learn` got one of them.

    Attributes:
        serves: The pattern has matched, or there is none yet: learning another one is worth its cost.
    """

    __slots__ = ("_after", "_before", "serves")

    def __init__(self) -> None:
        self._before = self._after = b""
        self.serves = True

    def learn(self, frame: bytes) -> None:
        """Use a decoded frame whose only content is the `content` of choice 0 as the pattern."""
        self.serves = False
        found = list(_CONTENT.finditer(frame))
        if len(found) == 1:
            start, end = found[0].span(1)
            self._before, self._after = frame[:start], frame[end:]

    def text(self, frame: bytes) -> str | None:
        """Return the text of one frame that matches the pattern; None for any other."""
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
        Return the texts of the leading frames that match the pattern; none if a check fails.

        A text is the inside of a JSON string. All are decoded as one list, separated by line ends, which a JSON string
        cannot contain. So a quote in a text or a backslash at its end is detected.
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
