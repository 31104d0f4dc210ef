"""
Incremental detokenization: only whole characters.

It imports nothing that imports, since the child that generates does.
"""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
#: Characters that an older tokenizer rewrites to full width once it sees the character after it.
PUNCTUATION = (",", "!", ":", ";", "?")
_MAX_HELD = 64  # tokens, each of which may end within a character
_MAX_BYTES = 4  # of a character: so many tokens that complete none are told as U+FFFD
_MAX_UNSETTLED = 16  # tokens of which the next may still change the text


class Decoder:
    """
    The text of tokens as they come.

    A token may be a part of a character, and may change the end of the text before it; what may still change is held back.

    Args:
        decode: The text of some token ids.
        unsettled: Endings of a text that the next token may change.
        before: The last tokens before the answer: some tokenizers drop the blank of a first word.
    """

    def __init__(
        self,
        decode: Callable[[list[int]], str],
        unsettled: Sequence[str] = (REPLACEMENT,),
        before: Sequence[int] = (),
    ) -> None:
        self._decode = decode
        self._unsettled = tuple(unsettled)
        # then the tokens of the last piece: a tokenizer treats the first token of a text in its own way
        self._before = list(before)
        self._new: list[int] = []
        self._told = 0  # characters of their text that are told already
        self._stuck = 0  # of them, the last ones that have completed no character

    def feed(self, token: int) -> str:
        """Return the text that is settled now; empty where the token must wait for the next."""
        self._new.append(token)
        return self._take(last=False)

    def end(self) -> str:
        """Return the text that was held back."""
        return self._take(last=True) if self._new else ""

    def _take(self, last: bool) -> str:
        before = self._text(self._before) or ""
        text = self._text(self._before + self._new)
        open = text is None or len(text) <= len(before) or text.endswith(self._unsettled)
        if open and not last and len(self._new) < _MAX_HELD:
            whole = (text or "").rstrip(
                REPLACEMENT
            )  # a token may end a character and begin another
            at = len(before) + self._told
            if len(whole) > at and whole.startswith(before) and not whole.endswith(self._unsettled):
                self._told, self._stuck = len(whole) - len(before), 0
                return whole[at:]
            is_torn = text is None or text.endswith(REPLACEMENT)
            self._stuck = self._stuck + 1 if is_torn else 0
            if self._stuck < _MAX_BYTES if is_torn else len(self._new) < _MAX_UNSETTLED:
                return ""
        told, self._told, self._stuck = self._told, 0, 0
        self._before, self._new = self._new, []
        if text is None:
            return REPLACEMENT
        if not text.startswith(before):  # the token has completed a character
            before = before.rstrip(REPLACEMENT)
        return text[len(before) + told :]

    def _text(self, tokens: list[int]) -> str | None:
        """Return the text of tokens; None for bytes that are none."""
        try:
            return self._decode(tokens)
        except UnicodeDecodeError:
            return None
