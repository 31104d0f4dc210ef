"""
Ranks documents with the child of a GGUF reranker: llama.cpp's `/v1/rerank`, a few documents at a time.

llama.cpp gives a classifier's logit, but for Qwen 3, of whose two outputs it gives the first one's probability. It reads a pair in one
step, and refuses one that is longer than the context, so the end of such a document is left out here.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

import math
from collections.abc import Iterator
from functools import partial

import msgspec

from unilect.core.errors import InvalidRequest
from unilect.core.ranking import Ranking, RerankRequest, sigmoid
from unilect.engines import text_bounds as bounds
from unilect.engines.gguf._file import GgufHead
from unilect.engines.process.child_server import ChildServer
from unilect.http.client import HttpServer
from unilect.wire.llamacpp import detokenize, tokenize
from unilect.wire.rerank import decode_ranking

_AT_ONCE = 8  # documents of one call: a client that leaves, and others that wait, wait for no more
_MARKS = 5  # tokens that llama.cpp puts around a query and a document without a template
_TRIES = 4
_DOCUMENT = "{document}"
_TEMPLATE = "tokenizer.chat_template.rerank"
#: llama.cpp's names of networks whose outputs it makes probabilities of.
_GIVE_PROBABILITIES = frozenset({"qwen3", "qwen3vl"})


class Ranker:
    """
    The reranker of one file's model.

    Args:
        head: Of its file.
        context: The most tokens of a pair.
    """

    def __init__(self, head: GgufHead, context: int) -> None:
        self._context = context
        self._template = str(head.fields.get(_TEMPLATE) or "")
        self._gives_probabilities = head.architecture in _GIVE_PROBABILITIES

    async def rank(self, request: RerankRequest, child: ChildServer) -> Ranking:
        """
        Score the documents of a request.

        Raises:
            UnilectError: As the child says; or the query, or a document that is not to be cut, is too long.
        """
        bounds.check_request(request, self._context)
        if self._template and _DOCUMENT in request.query:
            raise InvalidRequest(
                f"`query` holds the text `{_DOCUMENT}`, in the place of which llama.cpp writes each document. Change it.",
                param="query",
            )
        taken = await child.call(request.query, partial(self._count_taken, request.query))
        scores, tokens, cut = list[float](), 0, list[int]()
        for group in _group(request.texts, self._context - len(request.query)):
            rank = partial(self._rank_group, request, group, self._context - taken)
            found = await child.call((request.query, group), rank)
            scores += [self._score(score, request.raw_scores) for score in found.scores]
            tokens, cut = tokens + found.prompt_tokens, cut + found.cut
        return Ranking(scores, tokens, cut)

    async def _count_taken(self, query: str, server: HttpServer) -> int:
        """
        Count the tokens of the context that no document can use.

        Raises:
            ContextLengthExceeded: No tokens are left for a document.
        """
        around = self._template.replace("{query}", query).replace(_DOCUMENT, "")
        taken = _MARKS + len(await tokenize(server, around if self._template else query))
        if taken >= self._context:
            raise bounds.beyond(self._context, taken, "query")
        return taken

    async def _rank_group(
        self, request: RerankRequest, group: list[tuple[int, str]], room: int, server: HttpServer
    ) -> Ranking:
        """
        Rank documents with llama.cpp in one call, each as long as it may be.

        Args:
            group: The documents and their places in the request.
            room: Tokens that the context leaves for each; that one is cut for it is told, or refused.
        """
        limit = room if request.max_tokens_per_doc is None else request.max_tokens_per_doc
        texts, cut = list[str](), list[int]()
        for place, text in group:
            short = await self._shorten(server, text, min(room, limit))
            if short is not None and room <= limit:
                if request.truncate is False:
                    size = len(await tokenize(server, text[: bounds.most_bytes(self._context)]))
                    taken = self._context - room
                    raise bounds.beyond(self._context, size + taken, f"documents[{place}]")
                cut.append(place)
            texts.append(text if short is None else short)
        body = msgspec.json.encode({"query": request.query, "documents": texts})
        found = decode_ranking(await server.post("/v1/rerank", body), len(texts))
        return msgspec.structs.replace(found, cut=cut)

    async def _shorten(self, server: HttpServer, text: str, room: int) -> str | None:
        """Return the beginning of a text that has more tokens than there is room for; None of any other. A token is at least a byte."""
        if bounds.size_of(text) < room:
            return None
        longest = bounds.most_bytes(self._context)
        ids = await tokenize(server, text[:longest])
        if len(ids) <= room and len(text) <= longest:
            return None
        keep = room
        for _ in range(_TRIES):  # the tokens of a beginning may be others
            short = (await detokenize(server, ids[:keep])).rstrip("\ufffd")
            over = len(await tokenize(server, short)) - room
            if over <= 0:
                return short
            keep = max(0, keep - over)
        return short[: room // 4]  # as many bytes at most, and no more tokens

    def _score(self, given: float, raw: bool | None) -> float:
        if self._gives_probabilities:
            return _logit(given) if raw else given
        return given if raw else sigmoid(given)


def _group(texts: list[str], most: int) -> Iterator[list[tuple[int, str]]]:
    """Texts and their places, a few together; long ones alone, for until they have been read nothing is heard of the child."""
    group, size = list[tuple[int, str]](), 0
    for place, text in enumerate(texts):
        size += len(text)
        if group and (len(group) == _AT_ONCE or size > most):
            yield group
            group, size = [], len(text)
        group.append((place, text))
    yield group


def _logit(probability: float) -> float:
    """Return the number of which a probability is the sigmoid; those that rounding has made 0 or 1 are as far out as it goes."""
    kept = min(max(probability, 1e-12), 1 - 1e-12)
    return math.log(kept / (1 - kept))
