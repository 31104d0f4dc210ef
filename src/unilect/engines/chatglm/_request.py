"""
Requests for ChatGLM's models and chatglm.cpp, and refusals of what they do not support.

The library ends its process where a conversation is not what it expects, so all of that is looked at here.

Source: https://github.com/THUDM/ChatGLM3/blob/main/PROMPT_en.md
"""

from typing import Any, TypeAlias

from unilect.api.parameters.support import declare_support, names
from unilect.core.errors import InvalidRequest
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Message,
    Prompt,
    TextRequest,
)
from unilect.engines.chatglm._file import Family
from unilect.families.chatglm import system_text, write_call
from unilect.templates.takes import LEAST
from unilect.templates.turns import fit
from unilect.tools.messages import text

Turn: TypeAlias = dict[str, str]

#: The library's own values where a request does not say.
DEFAULTS = {"temperature": 0.95, "top_p": 0.7}
TOOL_PARAMETERS = ("tools", "functions", "parallel_tool_calls")  # it calls one tool at a time
PARAMETERS = declare_support(
    names(
        "temperature top_p top_k repetition_penalty repeat_penalty max_tokens max_completion_tokens "
        "tools functions parallel_tool_calls"
    ),
    ("stop", "n", "echo"),
)
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "observation",
    "function": "observation",
}


def generate_body(request: TextRequest, family: Family, vocabulary: int) -> dict[str, Any]:
    """
    Return the body of the child's `generate`.

    Raises:
        InvalidRequest: The model cannot be asked this.
    """
    return {
        "prompt": prompt_of(request, family, vocabulary),
        "max_tokens": request.token_limit,
        "stop": request.stop_words,
        "sampling": sampling(request),
    }


def sampling(request: GenerationRequest) -> dict[str, Any]:
    """
    Return the library's sampling. Where only the likeliest token may be taken, it is: the library reads a `top_p` or a temperature of
    0 as none.
    """
    temperature = _or(request.temperature, DEFAULTS["temperature"])
    top_p = _or(request.top_p, DEFAULTS["top_p"])
    penalty = _or(request.repetition_penalty, request.repeat_penalty)
    return {
        "do_sample": temperature > 0 and top_p > 0,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": max(0, request.top_k or 0),
        "repetition_penalty": _or(penalty, 1.0),
    }


def prompt_of(
    request: TextRequest | Prompt, family: Family, vocabulary: int
) -> Prompt | list[Turn]:
    """
    Return the prompt as the model reads it: a text, token ids, or turns.

    Raises:
        InvalidRequest: The model cannot read it.
    """
    if isinstance(request, ChatRequest):
        return turns(request, family)
    prompt = request.prompts[0] if isinstance(request, CompletionRequest) else request
    if prompt == []:
        raise InvalidRequest("`prompt` has no token ids; it needs at least one.", param="prompt")
    if isinstance(prompt, list) and any(id >= vocabulary for id in prompt):
        raise InvalidRequest(
            f"`prompt` holds a token id that the model does not have; it has {vocabulary}. Send ids of its own tokenizer.",
            param="prompt",
        )
    return prompt


def turns(request: ChatRequest, family: Family) -> list[Turn]:
    """
    Return the conversation as turns.

    Raises:
        InvalidRequest: The model was not made for such a conversation.
    """
    if not any(message.role == "user" for message in request.messages):
        raise _wrong("`messages` has no user message; ChatGLM's models require one.")
    if request.messages[-1].role == "assistant":
        raise _wrong(
            "`messages` ends with an assistant message; ChatGLM's models require a user message or a tool's result at the end."
        )
    if family in ("ChatGLM", "ChatGLM2"):
        return _alternating(request, family)
    found = []
    if request.tools and request.tool_choice != "none":
        found.append({"role": "system", "content": system_text(request.tools)})
    for number, message in enumerate(request.messages):
        found += _turns_of(message, number, family)
    return found


def _turns_of(message: Message, number: int, family: Family) -> list[Turn]:
    content = text(message, f"messages[{number}].content")
    calls = [call.function for call in message.tool_calls or ()]
    if message.function_call is not None:
        calls.append(message.function_call)
    found = [{"role": _ROLES[message.role], "content": content}] if content or not calls else []
    for call in calls:
        code = write_call(call) if family == "ChatGLM3" else call.arguments
        found.append({"role": "assistant", "metadata": call.name, "content": code})
    return found


def _alternating(request: ChatRequest, family: Family) -> list[Turn]:
    """User and assistant in turn; these models know no system, so its text goes before what the user says next."""
    told: list[Turn] = []
    said = False  # by the user
    for number, message in enumerate(request.messages):
        role, content = _ROLES[message.role], text(message, f"messages[{number}].content")
        where = f"messages[{number}]"
        if role == "observation" or message.tool_calls or message.function_call:
            raise _wrong(f"`{where}` uses tools; {family} models do not support them.", where)
        said = said or role == "user"
        if role == "assistant" and not said:
            raise _wrong(
                f"`{where}.role` is {message.role}, and user was expected: {family} models want user and assistant in turn.",
                where,
            )
        told.append({"role": role, "content": content})
    return fit(told, LEAST)


def _wrong(message: str, param: str = "messages") -> InvalidRequest:
    return InvalidRequest(message, param=param)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
