"""
Compatibility profiles, for clients of different servers that expect conflicting behaviour: one row per server.

Everything that both can live with is done for everybody and stands nowhere here; the first row is OpenAI's own way.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from unilect.config.server import Config


class CompatProfile(Struct, frozen=True, kw_only=True):
    """
    The responses of one listener, where servers differ.

    Attributes:
        done: A stream ends with `[DONE]`.
        completion_chunk: `object` of a streamed plain completion.
        string_messages: The meaning of `messages` as a text: one turn of the user, or the prompt as the model reads it.
        unknown_model: A name that no model has is an error, or means the default model.
        tool_finish: The finish reason of an answer that calls tools.
        conversation_choices: A whole answer to `messages` as one text repeats it before its own choice, as one to messages with the
            key `message` does on every listener; who writes `content` speaks OpenAI's API, and gets its answers.
        wrong_key_status: The status for a key that is unknown; a missing one is always 401.
        any_key_scheme: `Authorization` may have the key after any word, not only after `Bearer`.
        error_detail: Clients look for `detail` in errors, on routes of OpenAI's API too.
        error_status: The status of every other error, instead of its own.
        home: The text that programs get at `GET /`, instead of links.
    """

    done: bool = True
    completion_chunk: Literal["text_completion", "text_completion.chunk"] = "text_completion"
    string_messages: Literal["user", "raw"] = "user"
    unknown_model: Literal["error", "default"] = "error"
    tool_finish: Literal["tool_calls", "function_call"] = "tool_calls"
    conversation_choices: bool = False
    wrong_key_status: int = 401
    any_key_scheme: bool = False
    error_detail: bool = False
    error_status: int | None = None
    home: str | None = None


OPENAI = CompatProfile()

#: The name of a dialect, as the configuration has it -> its compatibility profile.
PROFILES = {
    "openai": OPENAI,
    "llamacpp": CompatProfile(
        completion_chunk="text_completion.chunk",
        unknown_model="default",
        wrong_key_status=403,
        any_key_scheme=True,
    ),
    "chatglm": CompatProfile(
        unknown_model="default", tool_finish="function_call", error_detail=True
    ),
    "fastchat": CompatProfile(string_messages="raw", error_detail=True, error_status=400),
    "alpaca": CompatProfile(unknown_model="default", conversation_choices=True, error_detail=True),
    "ollama": CompatProfile(home="Ollama is running"),
}


def profile_of(config: Config) -> CompatProfile:
    """Return the compatibility profile of a listener: its dialect's, but for what its own options say."""
    options = {"done": config.done, "unknown_model": config.on_unknown_model}
    chosen = {name: value for name, value in options.items() if value is not None}
    return msgspec.structs.replace(PROFILES[config.dialect], **chosen)
