"""
Pairs of a query and a document, as a reranker reads them. Uses transformers' tokenizer, which is an argument, and not torch.

A cross-encoder reads what its tokenizer makes of two texts. Qwen3-Reranker reads a question to be answered by `yes` or `no`, in the
words of its model card. Of a pair that is too long the end of the document is left out, never the query.

Source: https://huggingface.co/Qwen/Qwen3-Reranker-0.6B (its model card)
"""

from typing import Any, Literal

from msgspec import Struct

from unilect.core.ranking import RerankRequest
from unilect.engines.text_bounds import beyond, most_bytes

_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_TASK = "Given a web search query, retrieve relevant passages that answer the query"
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class Pair(Struct):
    """
    The tokens of a query and a document.

    Attributes:
        ids: Tokens of both, and of what stands around them.
        types: The one of the two that a token belongs to; empty where the model has no types.
        is_cut: True where the end of the document is left out, since the context is full.
    """

    ids: list[int]
    types: list[int]
    is_cut: bool


class Pairs:
    """
    The pairs of one request.

    Args:
        tokenizer: Of transformers.
        form: How a query and a document are put together.
        context: The most tokens of a pair.

    Raises:
        ContextLengthExceeded: The query leaves no room for a document.
    """

    def __init__(
        self, tokenizer: Any, form: Literal["pair", "qwen3"], context: int, request: RerankRequest
    ) -> None:
        self._tokenizer = tokenizer
        self._context = context
        self._request = request
        self._around: tuple[list[int], list[int]] | None = None
        if form == "qwen3":
            self._around = self._ids(_BEFORE), self._ids(_AFTER)
            own = sum(map(len, self._around))
            self._least = own + len(self._ids(_question(request.query, "")))
        else:
            own = int(tokenizer.num_special_tokens_to_add(pair=True))
            self._least = own + len(self._ids(request.query))
        if self._least >= context:
            raise beyond(context, self._least, "query")

    def pair(self, place: int, text: str) -> Pair:
        """
        The query and a document.

        Args:
            place: Of the document, for errors.

        Raises:
            ContextLengthExceeded: It is too long, and the client does not want it cut.
        """
        limit = self._request.max_tokens_per_doc
        most = self._context if limit is None else min(self._context, self._least + limit)
        longest = most_bytes(self._context)
        ids, types = self._read(text[:longest], None)
        too_long = len(ids) > most or len(text) > longest
        is_cut = too_long and most == self._context
        if is_cut and self._request.truncate is False:
            raise beyond(self._context, len(ids), f"documents[{place}]")
        if len(ids) > most:
            ids, types = self._read(text[:longest], most)
        return Pair(ids, types, is_cut)

    def _read(self, text: str, most: int | None) -> tuple[list[int], list[int]]:
        """The tokens of a pair and their types, no more than `most`."""
        if self._around is not None:
            before, after = self._around
            inside = self._ids(_question(self._request.query, text))
            room = None if most is None else most - len(before) - len(after)
            return [*before, *inside[:room], *after], []
        cut = {} if most is None else {"truncation": "only_second", "max_length": most}
        found = self._tokenizer(self._request.query, text, verbose=False, **cut)
        return found["input_ids"], found.get("token_type_ids") or []

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)[
            "input_ids"
        ]
        return found


def _question(query: str, document: str) -> str:
    return f"<Instruct>: {_TASK}\n<Query>: {query}\n<Document>: {document}"
