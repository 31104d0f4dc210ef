"""
Constrained decoding with llguidance: grammars and JSON Schemas, token by token. The only file that imports the library.

Source: https://github.com/guidance-ai/llguidance
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark
from torch import Tensor

from unilect.constraints import is_llguidance
from unilect.engines.text import Decoder

_GAVE_UP = (
    "The grammar or schema of this request exceeded the parser's limits during the answer. Make it smaller, "
    "with fewer repetitions and fewer alternatives that begin alike."
)


class Grammars:
    """
    Makes constraints for one tokenizer.

    Args:
        tokenizer: A fast tokenizer of transformers, as its JSON text.
        size: Rows of the model's output: the vocabulary with its padding.
        stop_ids: Tokens that end an answer.
    """

    def __init__(self, tokenizer: str, size: int, stop_ids: Sequence[int]) -> None:
        self._tokenizer = LLTokenizer(tokenizer, n_vocab=size, eos_token=list(stop_ids))
        self._size = size

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one token, also where it is a part of a character."""
        return bytes(self._tokenizer.decode_bytes([token]))

    def compile(self, grammar: str) -> "Grammar":
        """
        A constraint for one answer.

        Args:
            grammar: Lark in llguidance's form, or GBNF.

        Raises:
            ValueError: It is neither, or too hard to follow.
        """
        if not is_llguidance(grammar):
            try:
                grammar = gbnf_to_lark(grammar)
            except Exception as error:
                raise ValueError(" ".join(str(error).split())[:300]) from error
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(" ".join(str(matcher.get_error()).split())[:300])
        return Grammar(matcher, self._size)


class Grammar:
    """The tokens that a grammar allows next; see `Constraint`."""

    def __init__(self, matcher: LLMatcher, size: int) -> None:
        self._matcher = matcher
        self._bits = np.zeros((size + 31) // 32, dtype=np.int32)

    def mask(self, logits: Tensor) -> None:
        """
        Forbid what the grammar forbids; see `Constraint`.

        Raises:
            ValueError: The grammar leads nowhere.
        """
        # its own function for tensors lives in a module that needs seconds to be imported
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            raise ValueError(_GAVE_UP)
        if not self._bits.any():
            raise ValueError("No valid next token under the grammar or schema of this request.")
        forbidden = np.unpackbits(~self._bits.view(np.uint8), bitorder="little")[: len(logits)]
        logits.masked_fill_(torch.from_numpy(forbidden.view(bool)).to(logits.device), -np.inf)

    def accept(self, token: int, ends: bool = False) -> bool:
        """
        Take a token in; see `Constraint`.

        Raises:
            ValueError: The matcher has given up, or the answer ends before the grammar is satisfied.
        """
        if ends:
            if not self._matcher.is_accepting():
                raise ValueError("The answer ended before its grammar or schema was satisfied.")
            return True
        if not self._matcher.consume_token(token) or self._matcher.is_error():
            raise ValueError(_GAVE_UP)
        # a matcher that has given up is stopped, too, and one that is stopped elsewhere is not at an end
        if self._matcher.is_stopped() and not self._matcher.is_accepting():
            raise ValueError(_GAVE_UP)
        return bool(self._matcher.is_stopped())


class AfterThought:
    """A constraint that begins where the model's thoughts end; see `Constraint`."""

    def __init__(
        self,
        inner: Grammar,
        mark: str,
        decode: Callable[[list[int]], str],
        stop_ids: Sequence[int],
    ) -> None:
        self._inner = inner
        self._stop_ids = list(stop_ids)
        self._mark = mark
        self._decoder = Decoder(decode)
        self._tail = ""
        self._active = False

    def mask(self, logits: Tensor) -> None:
        """Before the thoughts have ended nothing is forbidden but the answer's end; see `Constraint`."""
        if self._active:
            self._inner.mask(logits)
        else:
            logits[self._stop_ids] = float("-inf")

    def accept(self, token: int, ends: bool = False) -> bool:
        """Take a token in; see `Constraint`."""
        if self._active or ends:
            return self._inner.accept(token, ends)
        self._tail = (self._tail + self._decoder.feed(token))[-4 * len(self._mark) :]
        self._active = self._mark in self._tail
        return False
