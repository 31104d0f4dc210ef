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
from unilect.requests import ChatRequest, Message, Prompt, RefusalPart, TextPart, nested
from unilect.templates import ChatTemplate

_MAX_ARGUMENTS_DEPTH = 256


class Reader:
    """
    What turns texts into tokens for one model.

    Args:
        tokenizer: Of transformers.
        template: The chat template; empty where there is none.
        context: The most tokens of prompt and answer.
        stop_ids: Tokens that end an answer.
        size: Rows of the model's table of tokens.
        stop: Words that end an answer in a chat of this template.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str,
        context: int,
        stop_ids: frozenset[int],
        size: int,
        stop: Sequence[str] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self.template = template
        self._chat = ChatTemplate(template) if template else None
        self.context = context
        self.stop_ids = stop_ids
        self.size = size
        self.stop = stop
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
        InvalidRequest: It holds what is no text, or an earlier call's arguments are no JSON.
    """
    fields: dict[str, Any] = msgspec.to_builtins(message)
    fields["role"] = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    fields["content"] = _text(message, f"messages[{number}].content")
    given = message.tool_calls or []
    fields.pop("tool_calls", None)
    here = f"messages[{number}]"
    made = [
        (call.id, call.function, f"{here}.tool_calls[{place}].function.arguments")
        for place, call in enumerate(given)
    ]
    if message.function_call is not None and not given:
        made = [(f"call_{number}", message.function_call, f"{here}.function_call.arguments")]
    if made:
        fields["tool_calls"] = [
            {
                "id": id,
                "type": "function",
                "function": {
                    "name": function.name,
                    "arguments": _arguments(function.arguments, where),
                },
            }
            for id, function, where in made
        ]
    fields.pop("function_call", None)
    return fields


def _text(message: Message, where: str) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts = []
    for part in message.content:
        match part:
            case TextPart(text) | RefusalPart(text):
                texts.append(text)
            case _:
                raise InvalidRequest(f"`{where}`: this model reads text only.", param=where)
    return "\n".join(texts)


def _arguments(text: str, where: str) -> Any:
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(
            f"`{where}` is not the JSON text of an object ({str(error)[:100]}).",
            param=where,
        ) from error
    if nested(value, _MAX_ARGUMENTS_DEPTH):
        raise InvalidRequest(
            f"`{where}` is nested more than {_MAX_ARGUMENTS_DEPTH} levels deep; flatten it.",
            param=where,
        )
    return value
