"""
Where clients of two servers need opposite things: one row of choices for each server that unilect succeeds.

Everything that both can live with is done for everybody and stands nowhere here; the first row is OpenAI's own way.
"""

from typing import Literal

from msgspec import Struct


class Manners(Struct, frozen=True, kw_only=True):
    """
    How one listener answers.

    Attributes:
        done: A stream ends with `[DONE]`.
        completion_chunk: `object` of a streamed plain completion.
        string_messages: What `messages` as a text is: one turn of the user, or the prompt as the model reads it.
        unknown_model: A name that no model has is an error, or means the default model.
        tool_finish: The finish reason of an answer that calls tools.
        conversation_choices: A whole chat answer repeats the conversation, one choice for each turn.
        wrong_key_status: The status for a key that is unknown; a missing one is always 401.
        error_status: The status of every other error, instead of its own.
    """

    done: bool = True
    completion_chunk: Literal["text_completion", "text_completion.chunk"] = "text_completion"
    string_messages: Literal["user", "raw"] = "user"
    unknown_model: Literal["error", "default"] = "error"
    tool_finish: Literal["tool_calls", "function_call"] = "tool_calls"
    conversation_choices: bool = False
    wrong_key_status: int = 401
    error_status: int | None = None


#: The name of a dialect, as the configuration has it -> its manners.
MANNERS = {
    "openai": Manners(),
    "llamacpp": Manners(
        completion_chunk="text_completion.chunk", unknown_model="default", wrong_key_status=403
    ),
    "chatglm": Manners(unknown_model="default", tool_finish="function_call"),
    "fastchat": Manners(string_messages="raw", error_status=400),
    "alpaca": Manners(unknown_model="default", conversation_choices=True),
}
