"""
Texts and conversations as the tokens of one model. Knows transformers' tokenizer, which is handed in, and not torch.

What a template sees: every content a text, a call's arguments an object, a developer as a system, tools as OpenAI writes them.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from unilect.engines import _tool_calls as calls
from unilect.engines._gguf_request import template_flags, tools
from unilect.errors import InvalidRequest
from unilect.requests import ChatRequest, Message, Prompt, nested
from unilect.templates import ChatTemplate, flat_text

_MAX_ARGUMENTS_DEPTH = 256


class Reader:
    """
    What turns texts into tokens for one model.

    Args:
        tokenizer: Of transformers.
        template: The chat template; empty where there is none.
        context: The most tokens of prompt and answer.
        stop_ids: Tokens that end an answer.
    """

    def __init__(
        self, tokenizer: Any, template: str, context: int, stop_ids: frozenset[int], size: int
    ) -> None:
        self._tokenizer = tokenizer
        self.template = template
        self._chat = ChatTemplate(template) if template else None
        self.context = context
        self.stop_ids = stop_ids
        self.size = size
        self.family = calls.family(template)
        shown = {self.family.begin, self.family.end, *calls.THINK, "<|python_tag|>"}
        self._hidden = frozenset(
            id
            for id, text in zip(
                tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=False
            )
            if text not in shown
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return self.text([token for token in tokens if token not in self._hidden])

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, all of them."""
        found: str = self._tokenizer.decode(
            list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return found

    def tokens(self, text: str, special: bool) -> list[int]:
        """The token ids of a text; with `special`, those that the tokenizer puts around it too."""
        found: list[int] = self._tokenizer(text, add_special_tokens=special, verbose=False)[
            "input_ids"
        ]
        return found

    def prompt(self, prompt: Prompt, param: str) -> list[int]:
        """
        The tokens of a prompt, at least one.

        Raises:
            InvalidRequest: A token id that the model does not have.
        """
        tokens = self.tokens(prompt, special=True) if isinstance(prompt, str) else prompt
        rows = self.size or len(self._tokenizer)
        if any(token >= rows for token in tokens):
            raise InvalidRequest(
                f"`{param}` holds a token id that the model does not have.", param=param
            )
        first = self._tokenizer.bos_token_id
        empty = first if first is not None else min(self.stop_ids, default=0)
        return list(tokens) or [empty]

    def rendered(self, request: ChatRequest) -> str:
        """
        The text of a conversation.

        Raises:
            InvalidRequest: The template refuses it, or there is none.
        """
        if self._chat is None:
            raise InvalidRequest(
                "This model has no chat template. Use /v1/completions, or configure `chat_template`.",
                param="messages",
            )
        more = dict(template_flags(request).get("chat_template_kwargs", {}))
        if request.tools and request.tool_choice != "none":
            more["tools"] = tools(request.tools)
        turns = [_turn(message, number) for number, message in enumerate(request.messages)]
        names = {
            "bos_token": self._tokenizer.bos_token or "",
            "eos_token": self._tokenizer.eos_token or "",
        }
        return self._chat.render_turns(turns, **names, **more)

    def chat_tokens(self, request: ChatRequest) -> list[int]:
        """The tokens of a conversation; the template has written the special ones."""
        return self.tokens(self.rendered(request), special=False) or self.prompt("", "messages")


def _turn(message: Message, number: int) -> dict[str, Any]:
    """
    A message as templates know it.

    Raises:
        InvalidRequest: An earlier call's arguments are no JSON object.
    """
    fields: dict[str, Any] = msgspec.to_builtins(message)
    fields["role"] = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    fields["content"] = flat_text(message)
    given = message.tool_calls or []
    fields.pop("tool_calls", None)
    made = [(call.id, call.function) for call in given]
    if message.function_call is not None and not given:
        made = [(f"call_{number}", message.function_call)]
    if made:
        fields["tool_calls"] = [
            {
                "id": id,
                "type": "function",
                "function": {
                    "name": function.name,
                    "arguments": _arguments(function.arguments, f"messages[{number}].tool_calls"),
                },
            }
            for id, function in made
        ]
    fields.pop("function_call", None)
    return fields


def _arguments(text: str, where: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(
            f"`{where}`: the arguments are not the JSON text of an object ({str(error)[:100]}).",
            param=where,
        ) from error
    if nested(value, _MAX_ARGUMENTS_DEPTH):
        raise InvalidRequest(
            f"`{where}`: the arguments are nested more than {_MAX_ARGUMENTS_DEPTH} levels deep.",
            param=where,
        )
    return value
