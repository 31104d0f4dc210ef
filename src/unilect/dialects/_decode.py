"""
Bodies in, typed requests out, or an error that names the parameter.

The body is decoded twice: once into the Struct, which validates, and once into its raw fields, which are passed on as they
were written. Both are one pass of a C parser. JSON is read whatever the Content-Type says: old clients send none.

Source: https://jcristharif.com/msgspec/api.html (the form of its error messages)
"""

import codecs
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from unilect.errors import InvalidRequest, WrongType
from unilect.requests import Prompt, Request, nested

RequestT = TypeVar("RequestT", bound=Request)
_WIRE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_AT = re.compile(r"^(.*?)(?: - at `(.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.+?)`")
_OF_TYPE = re.compile(r", got `\w+`$")  # the type is wrong; else the value
MAX_DEPTH = 32  # of a JSON schema or any other free-form part; deeper ones are bombs


class BodyDecoder(Generic[RequestT]):
    """
    Decodes the bodies of one endpoint.

    Args:
        request_class: The Struct that they become.
    """

    def __init__(self, request_class: type[RequestT]) -> None:
        self._decoder = msgspec.json.Decoder(request_class)

    def decode(self, body: bytes) -> RequestT:
        """
        A body as a typed request.

        Raises:
            InvalidRequest: It is not JSON, or a field is missing or wrong; the message names it.
        """
        body = body.removeprefix(codecs.BOM_UTF8)
        try:
            request = self._decoder.decode(body)
            wire = _WIRE.decode(body)
        except msgspec.ValidationError as error:
            raise wrong_field(str(error)) from error
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise WrongType(
                f"The request's body is not valid JSON ({str(error)[:100]}). Send one JSON object.",
            ) from error
        return msgspec.structs.replace(request, wire=wire)


def listed(name: str, sort: Callable[[], list[Prompt]]) -> list[Prompt]:
    """
    What a field of texts or token ids holds, one by one.

    Raises:
        InvalidRequest: Texts and ids are mixed.
    """
    try:
        return sort()
    except ValueError as error:
        raise InvalidRequest(
            f"`{name}`: expected a text, a list of texts, a list of token ids or a list of such lists; "
            f"{error}.",
            param=name,
        ) from error


def wrong_field(message: str) -> InvalidRequest:
    """
    The error for a field that msgspec refused, from its message.

    >>> wrong_field("Expected `int`, got `str` - at `$.max_tokens`").message
    '`max_tokens`: expected `int`, got `str`.'
    """
    match = _AT.match(message)
    what, path = (match.group(1), match.group(2)) if match else (message, None)
    param = path.removeprefix("$").removeprefix(".") if path else ""
    if missing := _MISSING.match(what):
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return WrongType(f"`{param[:100]}` is missing; it is required.", param=param[:100])
    told = _lower(what[:300])
    if not param:
        return WrongType(f"The request's body: {told}. Send one JSON object.")
    kind = WrongType if _OF_TYPE.search(what) else InvalidRequest
    return kind(f"`{param[:100]}`: {told}.", param=param[:100])


def check_free_form(name: str, value: Any, max_bytes: int = 64 * 1024) -> None:
    """
    Bound a part of a request that has no fixed form: a schema, a tool's parameters.

    Raises:
        InvalidRequest: It is nested too deep, or too large.
    """
    if nested(value, MAX_DEPTH):
        raise InvalidRequest(
            f"`{name}` is nested more than {MAX_DEPTH} levels deep; flatten it.", param=name
        )
    if len(msgspec.json.encode(value)) > max_bytes:
        raise InvalidRequest(f"`{name}` is larger than {max_bytes} bytes.", param=name)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
