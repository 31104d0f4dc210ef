"""
Request bodies for llama.cpp's server.

What it bends or refuses is put right here, as measured: every LoRA adapter is named in every request, since a
request that names none reuses the prompt cache of one that did; progress is asked for, since only then can a prompt be given up
while it is read; a developer is a system; `repetition_penalty` is `repeat_penalty`.

Source: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from typing import Any

import msgspec

from unilect.api.parameters.rules import refusal
from unilect.api.parameters.support import declare_support, names
from unilect.core.errors import InvalidRequest
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    ImagePart,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    MessageToolCall,
    Part,
    RefusalPart,
    TextPart,
    TextRequest,
)
from unilect.engines.gguf._images import check_image
from unilect.tools.messages import arguments_text, template_flags, text, tools
from unilect.wire.llamacpp_request import (
    ROLES,
    SAMPLING,
    check_images,
    check_one_constraint,
    sampling_fields,
    top_logprobs,
    wrong_part,
)

_SAME_NAME = ("seed", "cache_prompt", "n_keep", "n_discard")
_NATIVE = names(
    "logit_bias n_probs id_slot return_progress top_k repeat_penalty repetition_penalty max_tokens max_completion_tokens tokenize stop logprobs top_logprobs "
    "response_format tools parallel_tool_calls reasoning_effort chat_template_kwargs "
    "echo add_generation_prompt continue_final_message reasoning_format "
    "enable_thinking thinking_budget_tokens "  # these two where the template knows them
    "suffix input_extra "  # where the model has tokens for a gap
    "lora"  # where it has adapters
)
PARAMETERS = declare_support(
    (*SAMPLING, *_SAME_NAME, *_NATIVE),
    names("n best_of tool_choice functions function_call encoding_format dimensions"),
)
MAX_REPEAT_LAST_N = 1_000_000  # -1 is the whole context, which llama.cpp's server no longer takes


def chat_body(
    request: ChatRequest, lora: dict[str, Any], tokens: int | None = None
) -> dict[str, Any]:
    """
    Return the body for /v1/chat/completions.

    Args:
        lora: What it says of adapters.
        tokens: How many the model has, where that is known.

    Raises:
        InvalidRequest: The request holds what llama.cpp cannot be given.
    """
    for name in ("return_tokens", "post_sampling_probs"):
        if getattr(request, name):
            raise refusal(name, "only plain completions support it")
    body = _common(request, lora, tokens)
    body["messages"] = messages(request.messages)
    body |= {
        "verbose": True,
        "response_fields": ["truncated", "stopping_word"],
    }  # what only a native answer says
    body |= template_flags(request) | _ending(request)
    if request.reasoning_format:
        body["reasoning_format"] = request.reasoning_format
    if request.thinking_budget_tokens is not None:
        body["thinking_budget_tokens"] = request.thinking_budget_tokens
    if request.token_limit is not None:
        body["max_tokens"] = request.token_limit
    top = top_logprobs(request)
    if top is not None:
        if request.tools and request.tool_choice != "none":
            raise refusal("logprobs", "the engine does not support it with tools")
        body["logprobs"] = True
        body["top_logprobs"] = max(top, 1)
    if request.tools and request.tool_choice != "none":
        if request.grammar:
            raise refusal("grammar", "the engine does not support it with tools")
        body["tools"] = tools(request.tools)
        body["tool_choice"] = "auto"
        body["parallel_tool_calls"] = request.parallel_tool_calls is not False
    match request.response_format:
        case JsonObjectFormat(schema):
            body["response_format"] = _json_format("object", schema or {"type": "object"})
        case JsonSchemaFormat(json_schema):
            body["response_format"] = _json_format(json_schema.name, json_schema.schema or {})
    check_one_constraint(request)
    return body


def _json_format(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def completion_body(
    request: CompletionRequest, lora: dict[str, Any], tokens: int | None = None
) -> dict[str, Any]:
    """Return the body for /completion, the native call: one prompt, one choice."""
    body = _common(request, lora, tokens)
    prompt = request.prompts[0]
    body["prompt"] = prompt if prompt else ""
    if request.token_limit is not None:
        body["n_predict"] = request.token_limit
    top = top_logprobs(request)
    if top is not None:
        body["n_probs"] = max(top, 1)
    check_one_constraint(request)
    return body


def bound_shifts(body: dict[str, Any], limit: str, context: int) -> None:
    """
    Have the context shift behind the prompt, and not for ever.

    Args:
        body: A request's, which is changed.
        limit: What it calls the most tokens of an answer.
        context: As many tokens an answer has at most, as where one is asked for by a client.
    """
    body.setdefault(limit, context)
    body.setdefault("n_keep", -1)  # the whole prompt


def conversation(request: TextRequest) -> bytes:
    """Encode the content of a prompt in the order of templates; the next turn's encoding begins with it."""
    if isinstance(request, CompletionRequest):
        return msgspec.json.encode(request.prompts[0])
    return msgspec.json.encode([request.tools, request.messages])


def template_body(request: ChatRequest) -> dict[str, Any]:
    """Return the body for /apply-template and for counting tokens."""
    body: dict[str, Any] = {"messages": messages(request.messages)}
    body |= template_flags(request) | _ending(request)
    if request.tools and request.tool_choice != "none":
        # nothing is made here that a grammar could bind, and llama.cpp would make one of every schema
        body |= {"tools": tools(request.tools), "tool_choice": "none"}
    return body


def _ending(request: ChatRequest) -> dict[str, Any]:
    """
    Make the fields for the end of a chat's prompt: behind the opening of an answer, or within the last message.

    Raises:
        InvalidRequest: The last message cannot be continued so; llama.cpp would leave it out, or turn it into the model's.
    """
    name, part = "continue_final_message", request.continue_final_message
    if not part:
        opens = request.add_generation_prompt
        return {} if opens is None else {"add_generation_prompt": opens}
    last = request.messages[-1]
    why = ""
    if request.add_generation_prompt:
        why = "it cannot be combined with `add_generation_prompt: true`; leave that out"
    elif last.role != "assistant":
        why = f"the last message must be the assistant's; it is of role {last.role}"
    elif part == "reasoning_content" and (last.content or not last.reasoning_content):
        why = "the last message must have `reasoning_content` and no `content`"
    if why:
        raise InvalidRequest(f"`{name}`: {why}.", param=name)
    return {name: part, "add_generation_prompt": False}


def messages(conversation: list[Message]) -> list[dict[str, Any]]:
    """
    Messages that every chat template knows.

    Raises:
        InvalidRequest: A part that this engine cannot read.
    """
    out, images = [], 0
    for number, message in enumerate(conversation):
        fields: dict[str, Any] = msgspec.to_builtins(message)
        fields["role"] = ROLES.get(message.role, message.role)
        if isinstance(message.content, list) and all(map(_is_text, message.content)):
            fields["content"] = text(message, "")  # templates join parts in ways of their own
        elif isinstance(message.content, list):
            where = f"messages[{number}].content"
            fields["content"] = [_part(part, where) for part in message.content]
            images += sum(isinstance(part, ImagePart) for part in message.content)
        elif message.content is None:
            fields["content"] = ""
        if message.tool_calls:
            fields["tool_calls"] = [_call(call) for call in message.tool_calls]
        elif message.function_call is not None:  # the older form, which templates do not know
            call = MessageToolCall(f"call_{number}", message.function_call)
            fields["tool_calls"] = [_call(call)]
        fields.pop("reasoning", None)
        fields.pop("refusal", None)
        fields.pop("function_call", None)
        out.append(fields)
    check_images(images)
    return out


def _call(call: MessageToolCall) -> dict[str, Any]:
    """Return an earlier call, whose arguments llama.cpp can read."""
    function = {"name": call.function.name, "arguments": arguments_text(call.function.arguments)}
    return {"id": call.id, "type": call.type, "function": function}


def _is_text(part: Part) -> bool:
    return isinstance(part, TextPart | RefusalPart)


def _part(part: Part, where: str) -> dict[str, Any]:
    match part:
        case TextPart(text) | RefusalPart(text):
            return {"type": "text", "text": text}
        case ImagePart(image) if image.url.startswith("data:image/"):
            check_image(image.url)
            return {"type": "image_url", "image_url": {"url": image.url}}
    raise wrong_part(part, where)


def _common(request: GenerationRequest, lora: dict[str, Any], tokens: int | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,
    }
    body |= sampling_fields(request, tokens)
    for name in _SAME_NAME:
        if (value := getattr(request, name)) is not None:
            body[name] = value
    if isinstance(request.samplers, list):
        older = {"typical_p": "typ_p"}
        body["samplers"] = [older.get(name, name) for name in request.samplers if name != "tfs_z"]
    for name in ("repeat_last_n", "dry_penalty_last_n"):
        if body.get(name) == -1:
            body[name] = MAX_REPEAT_LAST_N
    if request.stop_words:
        body["stop"] = request.stop_words
    if request.seed is not None:
        body["seed"] = _seed(request.seed)
    return body | lora


def _seed(seed: int) -> int:
    """Return a seed in llama.cpp's 32 bits; the last one is none there, which is for -1 alone to say."""
    cut = seed % 2**32
    return cut if seed == -1 or cut < 2**32 - 1 else 0
