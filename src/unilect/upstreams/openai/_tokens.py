"""
Tokens as servers beside OpenAI's API tell them: of a text, of a conversation.

Sources: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md (another unilect has the same);
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html (tokenizer API)
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from unilect.core.errors import UnsupportedOperation
from unilect.http.client import HttpServer
from unilect.http.error_bodies import NoSuchPath, decode_body
from unilect.upstreams.openai._servers import ServerKind

_T = TypeVar("_T")
_IN_PROMPT = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")  # fmt: skip
_ODD = "The model's server sent an answer that tells no tokens."


class _Ids(Struct):
    tokens: list[int]


class _Counted(Struct):
    input_tokens: int | None = None
    count: int | None = None


class _Text(Struct):
    content: str | None = None
    prompt: str | None = None


class Tokens:
    """
    The calls of a server that count and convert tokens.

    Args:
        server: The server, by its base URL.
        root: The same without the base's last `/v1`.
        kind: Its kind.
        model: The model's name there.

    Raises:
        UnsupportedOperation: Servers of this kind have no such calls.
    """

    def __init__(
        self, server: HttpServer, root: HttpServer | None, kind: ServerKind, model: str
    ) -> None:
        if kind.tells_tokens is None or root is None:
            raise UnsupportedOperation(
                f"The model's server ({kind.name}) does not tell tokens. Ask another model."
            )
        self._server = server
        self._root = root
        self._is_vllm = kind.tells_tokens == "vLLM"
        self._model = {"model": model}

    async def ids(self, text: str, special: bool) -> list[int]:
        """Return the token ids of a text."""
        body = {"prompt": text, "add_special_tokens": special}
        if not self._is_vllm:
            body = {"content": text, "add_special": special}
        return (await self._ask(self._root, "/tokenize", body, _Ids)).tokens

    async def text(self, tokens: list[int]) -> str:
        """Return the text of token ids."""
        told = await self._ask(self._root, "/detokenize", {"tokens": tokens}, _Text)
        return told.content or told.prompt or ""

    async def of_chat(self, fields: Mapping[str, Any]) -> int:
        """
        Count the tokens of a chat's prompt.

        Args:
            fields: The chat's body.
        """
        server, path = self._server, "/chat/completions/input_tokens"
        if self._is_vllm:
            server, path = self._root, "/tokenize"
            fields = {name: fields[name] for name in _IN_PROMPT if name in fields}
        told = await self._ask(server, path, fields, _Counted)
        return told.input_tokens or told.count or 0

    async def _ask(
        self, server: HttpServer, path: str, fields: Mapping[str, Any], kind: type[_T]
    ) -> _T:
        try:
            answer = await server.post(path, msgspec.json.encode({**fields, **self._model}))
        except NoSuchPath as error:
            raise UnsupportedOperation(
                f"The model's server has no {path}; its operator may have an older version. Choose another model."
            ) from error
        return decode_body(answer, kind, _ODD)
