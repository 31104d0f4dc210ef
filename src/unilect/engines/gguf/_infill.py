"""
Prompts for a gap between two texts: a model's fill-in-the-middle tokens, and the order in which they stand.

llama.cpp's own /infill cuts the texts to a batch, which is short here so that a prompt can be given up; so its prompt is made here.
The texts before and after the gap are never cut. Other files take what room there is left; those that come first lose theirs first.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (POST /infill)
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from unilect.api.parameters.rules import refusal
from unilect.api.parameters.support import names
from unilect.core.requests import CompletionRequest, Snippet
from unilect.engines.text_bounds import most_bytes
from unilect.http.client import HttpServer
from unilect.http.error_bodies import too_long
from unilect.wire.llamacpp import tokenize

#: The fields of a file's head with a token's id, and the texts by which llama.cpp knows it without them.
_MARKS = {
    "before": (
        names("fim_pre prefix"),
        names(
            "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|> <|plamo:fim_prefix|>"
        ),
    ),
    "after": (
        names("fim_suf suffix"),
        names(
            "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|> <|plamo:fim_suffix|>"
        ),
    ),
    "gap": (
        names("fim_mid middle"),
        names(
            "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|> <|plamo:fim_middle|>"
        ),
    ),
    "project": (names("fim_rep"), names("<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>")),
    "file": (names("fim_sep"), names("<|file_sep|> <|plamo:file_separator|>")),
}
#: The texts of such tokens, as a vocabulary has them.
MARK_TEXTS = frozenset(text.encode() for _, texts in _MARKS.values() for text in texts)
# what llama.cpp writes, too, which tells a model neither the project nor the file
_PROJECT, _FILE, _NO_NAME = "myproject\n", "filename\n", "tmp"
_BETWEEN = "\n\n--- snippet ---\n\n"
_LEAST_ROOM = 256  # tokens, for an answer without a limit


class FillIn(Struct, frozen=True):
    """The ids of a model's tokens for a gap; the last two are not in every vocabulary."""

    before: int
    after: int
    gap: int
    project: int | None = None
    file: int | None = None


def fill_in_of(fields: Mapping[str, Any], ids: Mapping[bytes, int]) -> FillIn | None:
    """
    Return the tokens of a file; None where the model has none.

    Args:
        fields: The metadata of its head.
        ids: Those of `MARK_TEXTS` that its vocabulary has, and their ids.
    """
    found: dict[str, int] = {}
    for mark, (keys, texts) in _MARKS.items():
        told = [fields.get(f"tokenizer.ggml.{key}_token_id") for key in keys]
        known = [id for id in told if isinstance(id, int) and 0 <= id < 2**31]
        known += [ids[text.encode()] for text in texts if text.encode() in ids]
        if known:
            found[mark] = known[0]
    return FillIn(**found) if found.keys() >= {"before", "after", "gap"} else None


async def gap_ids(
    server: HttpServer, marks: FillIn | None, request: CompletionRequest, context: int
) -> list[int]:
    """
    Return the ids of a prompt for the gap between the prompt and the suffix of a request.

    Args:
        context: How many tokens prompt and answer may have.

    Raises:
        UnsupportedParameter: The model has no tokens for it, or log probabilities of such a prompt are wanted.
        ContextLengthExceeded: The two texts are too long.
    """
    if marks is None:
        raise refusal("suffix", "the model has no fill-in-the-middle tokens")
    if request.echo:
        raise refusal("echo", "log probabilities of a prompt are not told with `suffix`")
    prompt = request.prompts[0]
    begin = await tokenize(server, "", special=True, plain=True)
    before = prompt if isinstance(prompt, list) else await tokenize(server, prompt, plain=True)
    after = await tokenize(server, request.suffix or "", plain=True)
    ids = [*begin[:1], marks.before, *before, marks.after, *after, marks.gap]
    if len(ids) >= context:
        raise too_long(len(ids), context)
    limit = _LEAST_ROOM if request.token_limit is None else request.token_limit
    room = max(0, context - len(ids) - min(2 * limit, context // 2))
    others = await _others(server, marks, request.input_extra or [], room)
    return others[max(0, len(others) - room) :] + ids


async def _others(
    server: HttpServer, marks: FillIn, snippets: list[Snippet], room: int
) -> list[int]:
    """Return the ids of what stands before the gap's file: the project, and snippets of other files, of which the last fill the room."""
    ids = [] if marks.file is None else [marks.file, *await tokenize(server, _FILE, plain=True)]
    for snippet in reversed(snippets):
        if len(ids) >= room:
            return ids
        before = await tokenize(server, _BETWEEN, plain=True)
        if marks.file is not None:
            name = snippet.filename or _NO_NAME
            before = [marks.file, *await tokenize(server, f"{name}\n", plain=True)]
        # what is longer is not read at all, so that a long text costs no more than a full context
        ids = [
            *before,
            *await tokenize(server, snippet.text[-most_bytes(room) :], plain=True),
            *ids,
        ]
    if marks.project is not None:
        ids = [marks.project, *await tokenize(server, _PROJECT, plain=True), *ids]
    return ids
