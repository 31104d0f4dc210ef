"""
Prompts as llama.cpp's clients write them: texts, token ids, both in turn, lists of these, and objects that hold one.

What has no form in OpenAI's words becomes token ids: a text at the beginning of a prompt then has what every prompt begins with.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (`prompt`)
"""

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from unilect.answers.service import Service
from unilect.api.backend import Backend
from unilect.api.parameters.rules import refusal
from unilect.core.errors import InvalidRequest
from unilect.core.requests import Text, TokenId
from unilect.models.model import Model

MAX_CHOICES = 128  # prompts x n of one request
MAX_PIECES = 64  # texts that stand beside token ids; each is a call to the backend
Mixed: TypeAlias = Annotated[list[Text | TokenId], Meta(max_length=65536)]


class TextPrompt(Struct, frozen=True):
    """A prompt as an object; what it may hold beside a text is for models that see and hear."""

    prompt_string: Text | Mixed
    multimodal_data: list[Any] | None = None


Written: TypeAlias = (
    Text | Annotated[list[Text | TokenId | Mixed | TextPrompt], Meta(max_length=65536)] | TextPrompt
)
_One: TypeAlias = str | list[str | int]


def one_by_one(written: Written, param: str = "prompt") -> list[_One]:
    """
    Return the prompts that are written, each a text, or texts and token ids.

    Raises:
        InvalidRequest: It is none of the forms, or holds pictures.
    """
    if isinstance(written, str):
        return [written]
    if isinstance(written, TextPrompt):
        return [_string(written, param)]
    flat = [item for item in written if isinstance(item, str | int)]
    if len(flat) == len(written):
        texts = [item for item in flat if isinstance(item, str)]
        return [*texts] if texts and len(texts) == len(flat) else [flat]
    if len(written) > MAX_CHOICES:
        raise InvalidRequest.at(param, f"has {len(written)} prompts; the maximum is {MAX_CHOICES}.")
    found: list[_One] = []
    for number, item in enumerate(written):
        where = f"{param}[{number}]"
        if isinstance(item, int):
            raise InvalidRequest.at(
                where, "is a token id between prompts; put it into a list of its own."
            )
        if isinstance(item, list) and item and all(isinstance(one, str) for one in item):
            raise InvalidRequest.at(
                where,
                "is a list of texts within a list of prompts; expected a text, token ids, or both in turn.",
            )
        found.append(_string(item, where) if isinstance(item, TextPrompt) else item)
    return found


async def as_openai_prompt(
    service: Service, model: str | None, written: Written
) -> str | list[str] | list[int] | list[list[int]]:
    """
    Return a prompt in OpenAI's words, which have no mixed ones.

    Raises:
        UnilectError: There are too many texts in it, or the backend tells no tokens.
    """
    prompts = one_by_one(written)
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) == len(prompts):
        return texts[0] if not isinstance(written, list) else texts
    ids = [
        [item for item in prompt if isinstance(item, int)]
        for prompt in prompts
        if not isinstance(prompt, str)
    ]
    if list(map(len, ids)) != list(map(len, prompts)):
        check_pieces(prompts)

        async def ask(model: Model, backend: Backend) -> list[list[int]]:
            return [await ids_of(prompt, True, backend) for prompt in prompts]

        ids = await service.call(model, ask, counts=False)
    return ids if len(ids) != 1 else ids[0]


def check_pieces(prompts: Sequence[_One], param: str = "prompt") -> None:
    """
    Raises:
        InvalidRequest: There are more texts than are sent to a backend one by one.
    """
    count = sum(
        1 if isinstance(prompt, str) else sum(isinstance(item, str) for item in prompt)
        for prompt in prompts
    )
    if count > MAX_PIECES:
        raise InvalidRequest.at(
            param, f"has {count} texts between token ids; the maximum is {MAX_PIECES}. Join them."
        )


async def ids_of(prompt: _One, special: bool, backend: Backend, plain: bool = False) -> list[int]:
    """
    Return the ids of a prompt.

    Args:
        special: A text at the beginning has what the model reads before a prompt.
        plain: The names of special tokens are text like any other.
    """
    found: list[int] = []
    for number, piece in enumerate([prompt] if isinstance(prompt, str) else prompt):
        if isinstance(piece, int):
            found.append(piece)
        elif piece or (special and number == 0):
            found += await _tokens(piece, special and number == 0, backend, plain)
    return found


async def _tokens(text: str, special: bool, backend: Backend, plain: bool) -> list[int]:
    if plain:
        return await backend.tokenize_plain(text, special)
    return await backend.tokenize(text, special)


def _string(written: TextPrompt, param: str) -> _One:
    if written.multimodal_data:
        raise refusal(f"{param}.multimodal_data", "pictures belong into the messages of a chat")
    return written.prompt_string
