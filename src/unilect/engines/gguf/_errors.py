"""
llama.cpp's errors, as an error of the request if the request caused it.

Its server answers 500 to some faults of a request; those must not count against the model, nor be hidden from the client.
"""

import re
from collections.abc import Mapping
from typing import Any

from unilect.constraints import uncompilable
from unilect.core.errors import BackendError, InvalidRequest, MemoryExhausted, UnilectError
from unilect.engines.gguf._images import BROKEN
from unilect.http.client import raise_for_answer
from unilect.http.error_bodies import clean, error_message, error_text, server_fault, unknown_token
from unilect.templates.chat import template_refusal

#: llama.cpp's words about a part of a request that it cannot use, and the parameters that the part may have come from.
_TOLD = {
    "contains invalid tokens": ("prompt", "input"),
    "failed to parse grammar": ("grammar", "json_schema", "response_format", "tools"),
    "JSON schema error": ("json_schema", "response_format", "tools"),
    "empty grammar stack": ("grammar", "json_schema", "response_format", "tools"),
    "longer than 33554432 bytes": ("prompt", "messages", "input"),
}
#: llama.cpp's words about images; of texts it says neither.
_OF_IMAGES = ("Failed to load image", "Failed to tokenize prompt")
#: The C++ library's words where there is no memory, behind whatever the server was doing.
_NO_MEMORY = "std::bad_alloc"
#: The form of its Jinja's errors: the place in the template, a mark below it, and then the template's own words or what is wrong.
_IN_TEMPLATE = "While executing "
_BELOW = re.compile(r"\n *\^\nError: (?:Jinja Exception: )?")
_STRAYS = "does not match the expected"


class StrayAnswer(BackendError):
    """The model wrote what the parser of its chat template cannot read; the server then loses the text."""


def raise_for_child(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """
    Turn an error answer of the child's into ours; return where it is none.

    Raises:
        InvalidRequest: Also a 500 that tells a fault of the request, such as what its chat template refuses.
        UnilectError: As `raise_for_answer` otherwise.
    """
    if status in (400, 500) and (words := _words_of_template(error_message(body))) is not None:
        raise template_refusal(clean(words))
    if status == 500 or (status == 400 and _NO_MEMORY in error_text(body)):
        raise fault(server_fault(error_text(body)))
    raise_for_answer(status, headers, body)


def _words_of_template(message: str) -> str | None:
    """Return the words of an error in a template, behind the last place; None for another error. A message may be as long as a conversation."""
    first = message.find(_IN_TEMPLATE)
    places = [place.end() for place in _BELOW.finditer(message, first)] if first >= 0 else []
    return message[places[-1] :] if places else None


def fault(error: BackendError) -> UnilectError:
    """Return the error itself, or what it means where its words tell a want of memory, a fault of the request, or an answer that was lost."""
    if _NO_MEMORY in error.message:
        return MemoryExhausted("", logged=error.logged)  # the supervisor knows the sizes
    if any(words in error.message for words in _TOLD):
        return InvalidRequest(error.message, logged=error.logged)
    if _STRAYS in error.message:
        return StrayAnswer(error.message, logged=error.logged)
    return error


def attribute_error(error: InvalidRequest, request: Any) -> InvalidRequest:
    """Return llama.cpp's error with the parameter at fault, where it can be only one."""
    if any(words in error.message for words in _OF_IMAGES):
        return InvalidRequest(BROKEN, param="messages")
    for words, names in _TOLD.items():
        given = [name for name in names if getattr(request, name, None) is not None]
        if error.param is not None or words not in error.message or not given:
            continue
        if words == "contains invalid tokens":
            return unknown_token(given[0])
        if len(given) == 1 or given[0] == "grammar":
            return uncompilable(given[0], error.message[error.message.index(words) :])
    return error
