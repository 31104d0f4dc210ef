"""
Hugging Face's text-embeddings-inference (TEI): `/info` says what it is, `/embed` and `/rerank` do it.

It takes a bounded number of texts a call, so that longer requests are sent in parts. The tokens of a call are in a header of its answer. A text
that is too long is refused there unless `truncate` is set, since it does not say which texts it has cut.

Source: https://huggingface.github.io/text-embeddings-inference/ and its README
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from unilect.api.backend import Capabilities, Description, Support
from unilect.api.parameters.rules import refusal
from unilect.core.errors import BackendError, ContextLengthExceeded, InvalidRequest, UnilectError
from unilect.core.ranking import Ranking, RerankRequest
from unilect.core.requests import EmbeddingRequest, Embeddings
from unilect.http.client import HttpServer
from unilect.wire.embeddings import call_each
from unilect.wire.errors import invalid

_KINDS = frozenset({"embedding", "reranker", "classifier"})
#: Fields of `/embed`, by TEI's names.
_OF_EMBED = ("normalize", "prompt_name", "truncate", "truncation_direction")
_OF_RERANK = ("truncation_direction",)
_TOKENS = "x-compute-tokens"
_AT_ONCE = 4  # calls of one request
_TOO_LONG = re.compile(r"must have less than (\d{1,9}) tokens\. Given: (\d{1,9})")
_Item = TypeVar("_Item")


class Info(Struct, frozen=True):
    """The fields of /info that are used."""

    model_id: str
    model_type: dict[str, Any]
    model_dtype: str | None = None
    max_input_length: int | None = None
    max_client_batch_size: int = 32


class _Scored(Struct):
    index: int
    score: float


async def info_of(root: HttpServer) -> Info | None:
    """Ask a server for /info; None where it is not a TEI, or does not answer."""
    try:
        info = msgspec.json.decode(await root.get("/info"), type=Info)
    except (UnilectError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return info if _KINDS & info.model_type.keys() and info.max_client_batch_size > 0 else None


def capabilities(info: Info) -> Capabilities:
    """Derive the capabilities of a TEI from the type of its model."""
    embeds, ranks = ("embedding" in info.model_type), ("reranker" in info.model_type)
    does = "embeds texts" if embeds else "ranks documents" if ranks else "classifies texts"
    taken = _OF_EMBED if embeds else _OF_RERANK
    parameters: dict[str, Support] = dict.fromkeys(("dimensions", "encoding_format"), "emulated")
    lacking = {"chat completions", "completions"} | ({"embeddings"} if not embeds else set())
    return Capabilities(
        parameters=parameters | dict.fromkeys(taken, "native"),
        context=info.max_input_length,
        chat=False,
        completions=False,
        embeddings=embeds,
        rerank=ranks,
        why_not=dict.fromkeys(lacking, f"its server {does}, and does nothing else"),
    )


def description(info: Info) -> Description:
    """Describe the model by its data type and its longest input, in tokens."""
    return Description(quantization=info.model_dtype, context=info.max_input_length)


class TextEmbeddings:
    """
    The model of a TEI.

    Args:
        root: The server, without a path of OpenAI's.
        info: What it says of itself.
    """

    def __init__(self, root: HttpServer, info: Info) -> None:
        self._root = root
        self._most = info.max_client_batch_size

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed the inputs of a request; see `Backend`."""
        more = {name: raw for name, raw in request.raw_fields.items() if name in _OF_EMBED}

        async def part(texts: Sequence[Any]) -> tuple[list[list[float]], int]:
            return await self._ask(
                "/embed", {"inputs": texts} | more, list[list[float]], len(texts)
            )

        parts = await call_each(self._split(request.inputs), part, _AT_ONCE)
        vectors = [vector for found, _ in parts for vector in found]
        return Embeddings(vectors, sum(tokens for _, tokens in parts))

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Score the documents of a request; see `Backend`."""
        if request.max_tokens_per_doc is not None:
            raise refusal("max_tokens_per_doc", "text-embeddings-inference drops it")
        fields: dict[str, Any] = {
            name: raw for name, raw in request.raw_fields.items() if name in _OF_RERANK
        }
        fields |= {
            "query": request.query,
            "raw_scores": bool(request.raw_scores),
            "truncate": bool(request.truncate),
        }

        async def part(texts: Sequence[str]) -> tuple[list[float], int]:
            found, tokens = await self._ask("/rerank", fields | {"texts": texts}, list[_Scored], len(texts))  # fmt: skip
            scores = {one.index: one.score for one in found}
            if scores.keys() != set(range(len(texts))):
                raise BackendError(
                    "The model's server did not score each document once. Try again, or ask its operator."
                )
            return [scores[place] for place in range(len(texts))], tokens

        parts = await call_each(self._split(request.texts), part, _AT_ONCE)
        scores = [score for found, _ in parts for score in found]
        return Ranking(scores, sum(tokens for _, tokens in parts))

    def _split(self, items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
        """Split items into parts, each as large as the server takes."""
        return (items[at : at + self._most] for at in range(0, len(items), self._most))

    async def _ask(
        self, path: str, body: dict[str, Any], kind: type[list[_Item]], count: int
    ) -> tuple[list[_Item], int]:
        """
        Return the answer to a call, which is a list, and the tokens that were read for it; 0 where that is not told.

        Raises:
            UnilectError: As the server says; or its answer is another one.
        """
        try:
            answer = await self._root.stream(path, msgspec.json.encode(body), kind="")
            data = await answer.whole(self._root.max_body_bytes)
            found = msgspec.json.decode(data, type=kind)
        except InvalidRequest as error:
            raise _as_length(error) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise invalid(f"no answer of {path}") from error
        if len(found) != count:
            raise BackendError(f"The model's server answered {count} texts with {len(found)} results. Try again, or ask its operator.")  # fmt: skip
        tokens = answer.headers.get(_TOKENS, "")
        return found, int(tokens) if tokens.isdecimal() and len(tokens) < 12 else 0


def _as_length(error: InvalidRequest) -> InvalidRequest:
    """Return a refusal, as that of a text that is too long where it says so."""
    if (found := _TOO_LONG.search(error.message)) is None:
        return error
    context, tokens = int(found[1]), int(found[2])
    return ContextLengthExceeded(
        f"The model reads at most {context} tokens at a time, and a text has {tokens}. Shorten it, or send `truncate: true`."
    ).with_counts(tokens, context)
