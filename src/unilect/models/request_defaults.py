"""
A model's settings applied to a request, before its backend gets it: a system message, a wrapped prompt, stop sequences, defaults of
plain completions.

It is the same for every kind of backend. `Settings.apply` calls it, and adds the defaults of every request.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from unilect.api.parameters.rules import fill_defaults
from unilect.config.model import ModelConfig
from unilect.core.errors import ConfigError
from unilect.core.requests import ChatRequest, CompletionRequest, Message, Prompt, TextRequest
from unilect.templates.chat import ChatTemplate, find

Prepare: TypeAlias = Callable[[TextRequest], TextRequest]


def request_defaults(config: ModelConfig) -> Prepare:
    """
    Make the function that applies a model's settings to its requests: its system message, defaults and template of plain completions,
    and stop words.

    Raises:
        ConfigError: `completion_template` is not a valid template.
    """
    template = None
    if config.completion_template is not None:
        try:
            template = find(config.completion_template)
        except ConfigError as error:
            raise ConfigError(str(error).replace("chat_template", "completion_template")) from error

    def prepare(request: TextRequest) -> TextRequest:
        words = list(config.stop)
        if config.system is not None and isinstance(request, ChatRequest):
            request = with_system(request, config.system)
        if isinstance(request, CompletionRequest):
            request = fill_defaults(request, config.completion_defaults)
        if template is not None and isinstance(request, CompletionRequest):
            request = wrap_prompts(request, template)
            words += template.stop
        return with_stop(request, words)

    return prepare


def with_system(request: ChatRequest, text: str) -> ChatRequest:
    """A chat that begins with a system message, unless it has one."""
    if any(message.role in ("system", "developer") for message in request.messages):
        return request
    return request.changed(messages=[Message("system", text), *request.messages])


def wrap_prompts(request: CompletionRequest, template: ChatTemplate) -> CompletionRequest:
    """A plain completion with each prompt as one turn of a user; token ids stay as they are, they have been through a template."""

    def wrap(prompt: Prompt) -> Prompt:
        if isinstance(prompt, list):
            return prompt
        return template.render([Message("user", prompt)])

    prompts = [wrap(prompt) for prompt in request.prompts]
    return request.changed(prompt=prompts[0] if len(prompts) == 1 else prompts)


def with_stop(request: TextRequest, words: Sequence[str]) -> TextRequest:
    """The request with further stop words beside its own."""
    more = [word for word in dict.fromkeys(words) if word not in request.stop_words]
    return request.changed(stop=[*request.stop_words, *more]) if more else request
