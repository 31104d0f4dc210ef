"""
The template that unilect's worker sends to FastChat's servers, and the conversion of their prompts back to messages.

An API server of FastChat's makes the prompt itself, from the worker's template, and knows no other. So ours is no model's
template but marks between the messages: the prompt that comes is taken apart again, and the model's own template does the
rest. The marks hold a tag that stays the same for one address and model, because those servers keep a template for ever.
A prompt without them is read as it is.

Source: https://github.com/lm-sys/FastChat (fastchat/conversation.py: NO_COLON_SINGLE, which has the number 4 everywhere)
"""

import hashlib
import re
from typing import Any

from unilect.core.requests import Message

_NO_COLON_SINGLE = 4


class TurnMarkers:
    """
    The marks of one model.

    Args:
        address: Our worker's address.
        model: The model's name.
    """

    def __init__(self, address: str, model: str) -> None:
        tag = hashlib.sha256(f"{address} {model}".encode()).hexdigest()[:12]
        self._mark = f"<|unilect-{tag}:%s|>"
        self._split = re.compile(re.escape(self._mark).replace("%s", "(system|user|assistant)"))

    def conv(self, chat: bool) -> dict[str, Any]:
        """
        Return the template, as /worker_get_conv_template tells it.

        Args:
            chat: The model answers chats; else prompts go to it as they are.
        """
        mark = self._mark if chat else ""
        return {
            "name": "unilect" if chat else "raw",
            "system_template": mark.replace("%s", "system") + "{system_message}",
            "system_message": "",
            "roles": [mark.replace("%s", "user"), mark.replace("%s", "assistant")],
            "messages": [],
            "offset": 0,
            "sep_style": _NO_COLON_SINGLE,
            "sep": "",
            "sep2": None,
            "stop_str": None,
            "stop_token_ids": None,
        }

    def messages(self, prompt: str) -> list[Message] | None:
        """Return the messages of a prompt that was made with this template; None for any other prompt."""
        first, *rest = self._split.split(prompt)
        if first or len(rest) < 4:
            return None
        pairs = list(zip(rest[::2], rest[1::2], strict=True))
        if pairs[-1] == ("assistant", ""):
            pairs.pop()
        messages = [
            Message(role, text)  # type: ignore[arg-type]
            for role, text in pairs
            if text or role != "system"
        ]
        return messages or None
