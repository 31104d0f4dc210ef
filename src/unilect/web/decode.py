"""
Decodes bodies into typed requests, or raises an error that names the parameter.

The body is decoded twice: once into the Struct, which validates, and once into its raw fields, which are passed on as they
were written. Both are one pass of a C parser. JSON is read whatever the Content-Type says: old clients send none.
Between the passes over a large body others are served.

Source: https://jcristharif.com/msgspec/api.html (the form of its error messages)
"""

import asyncio
import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from types import UnionType
from typing import (
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from aiohttp import web
from msgspec import Raw, Struct
from msgspec.structs import force_setattr

from unilect.core.bounds import (
    LARGE_BYTES,
    MAX_FIELDS,
    SMALL_BYTES,
    check_body,
    has_many_values,
    one_pass,
)
from unilect.core.errors import InvalidRequest, WrongType
from unilect.core.requests import Request
from unilect.web.streaming import SHORTENED

RequestT = TypeVar("RequestT", bound=Request)
AskedT = TypeVar("AskedT")
ConvertedT = TypeVar("ConvertedT")
RawFields: TypeAlias = dict[str, Raw]
_RAW_FIELDS = msgspec.json.Decoder(RawFields)
_LIST = msgspec.json.Decoder(list[Raw])
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
_AT = " - at `"
_MISSING = re.compile(r"Object missing required field `(.+?)`")
_OF_TYPE = re.compile(r", got `\w+`$")  # the type is wrong; else the value
_OF_LENGTH = re.compile(r"Expected `(?:array|object)` of length <= \d+")
_EXPECTED = re.compile(
    r"Expected `([a-z| ]{1,80})`(?: of length (<= |>= |)(\d{1,20})|, got `([a-z]{1,20})`|)( .+|)",
    re.DOTALL,
)
#: JSON's names of the types of msgspec.
_TYPES = {
    "int": "an integer", "float": "a number", "str": "a string", "bytes": "a string in base64", "bool": "a boolean", "array": "an array",
    "object": "an object", "null": "null",
}  # fmt: skip
_ITEMS = {"array": "item", "object": "field"}
_LENGTHS = {"<= ": "at most ", ">= ": "at least ", "": ""}
_OF_ENUM = re.compile(r"Invalid (?:enum )?value (.+)", re.DOTALL)
_STEPS = re.compile(r"\.(\w+)|\[(\d+)\]")


class BodyDecoder(Generic[RequestT]):
    """
    Decodes the bodies of one endpoint.

    Args:
        request_class: The Struct that they become.
    """

    def __init__(self, request_class: type[RequestT]) -> None:
        self._decoder = msgspec.json.Decoder(request_class)

    def decode(self, body: bytes, raw: RawFields | None = None) -> RequestT:
        """
        Return a body as a typed request; its raw fields need not be read again where they are known.

        Raises:
            InvalidRequest: It is not JSON, or a field is missing or wrong; the message names it.
        """
        body = body.removeprefix(codecs.BOM_UTF8)
        try:
            request = self._decoder.decode(body)
            fields = _RAW_FIELDS.decode(body) if raw is None else raw
        except _UNREADABLE as error:
            known = body if raw is None else raw
            raise _unreadable(error, known, self._decoder.type) from error
        if len(fields) > MAX_FIELDS:
            raise _too_many_fields(len(fields))
        # nobody else has it yet, and a copy of its hundred fields costs as much as reading them
        force_setattr(request, "raw_fields", fields)
        return request


async def decode_request(
    request: web.Request, decode: Callable[[bytes, RawFields | None], AskedT]
) -> AskedT:
    """
    Decode a request's body.

    Args:
        decode: Called with the body, and its raw fields where they are known.

    Raises:
        InvalidRequest: As `decode`.
    """
    body = await request.read()
    if len(body) > LARGE_BYTES:
        await asyncio.sleep(0)
        return await _in_steps(body, request.get(SHORTENED, b""), decode)
    if len(body) > SMALL_BYTES and has_many_values(body):
        async with one_pass():
            return decode(body, None)
    return decode(body, None)


async def decode_translation(
    fields: Mapping[str, Any], decode: Callable[[bytes, RawFields | None], AskedT]
) -> AskedT:
    """
    Decode fields that were translated from a request's to another API, of which None is one that is not given; errors as `decode_request`.

    They may have more values than the request's, and have the same bound.
    """
    body = msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
    if len(body) <= LARGE_BYTES:
        return decode(body, None)
    return await _in_steps(body, await check_body(body), decode)


async def _in_steps(
    body: bytes, short: bytes, decode: Callable[[bytes, RawFields | None], AskedT]
) -> AskedT:
    """Return a large body, with others served between the passes over it; what is wrong is looked for in its shortened form first."""
    async with one_pass():
        try:
            if short:
                decode(short, None)
        except InvalidRequest as error:
            if error.param:  # a place in the body is told of the body itself
                raise
        raw = raw_fields_of(body.removeprefix(codecs.BOM_UTF8))
    async with one_pass():
        return decode(body, raw)


def raw_fields_of(body: bytes) -> RawFields:
    """
    Return the fields of a body as they were written.

    Raises:
        InvalidRequest: It is no JSON object, or one of too many fields.
    """
    try:
        fields = _RAW_FIELDS.decode(body)
    except _UNREADABLE as error:
        raise _unreadable(error) from error
    if len(fields) > MAX_FIELDS:
        raise _too_many_fields(len(fields))
    return fields


def decode_value(body: bytes, kind: type[ConvertedT]) -> ConvertedT:
    """Return a body as any type, for calls that pass nothing on of it; errors as `decode_request`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except _UNREADABLE as error:
        raise _unreadable(error, body, kind) from error


def _too_many_fields(count: int) -> InvalidRequest:
    return InvalidRequest(f"The request's body has {count} fields; the maximum is {MAX_FIELDS}.")


def read_number(name: str, text: str, expected: str, least: int = 0, most: int = 10**9 - 1) -> int:
    """
    Return the number that a query or a URL has for a parameter.

    Args:
        expected: What it has to be, for the error.

    Raises:
        InvalidRequest: It is none, or out of bounds.
    """
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    if not is_number or not least <= int(text) <= most:
        raise InvalidRequest.at(name, f"is {text[:50]!r}; expected {expected}.")
    return int(text)


def no_json(error: Exception) -> WrongType:
    """Return the error for a body that is none."""
    return WrongType(
        f"The request's body is not valid JSON ({str(error)[:100]}). Send one JSON object."
    )


def check_one_kind(name: str, given: object) -> None:
    """
    Look at what a field of texts or token ids holds, where that is a list.

    Raises:
        InvalidRequest: Texts, ids and lists of ids are mixed.
    """
    if isinstance(given, list) and len(set(map(type, given))) > 1:
        raise InvalidRequest(
            f"`{name}`: expected a text, a list of texts, a list of token ids or a list of such lists; "
            "texts and token ids are mixed.",
            param=name,
        )


def _unreadable(
    error: Exception, body: bytes | RawFields | None = None, request_class: Any = None
) -> InvalidRequest:
    if isinstance(error, msgspec.ValidationError):
        return wrong_field(str(error), body, request_class)
    return no_json(error)


def convert(fields: Mapping[str, Any], kind: type[ConvertedT], where: str = "") -> ConvertedT:
    """
    Make a Struct of its fields, of which None is one that is not given.

    Args:
        where: The place of the fields in the body.

    Raises:
        InvalidRequest: A field is wrong; the message names it.
    """
    known = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(known, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        raise wrong_field(str(error), where=where) from error


def wrong_field(
    message: str,
    body: bytes | RawFields | None = None,
    request_class: Any = None,
    where: str = "",
) -> InvalidRequest:
    """
    Return the error for a field that msgspec refused, from its message.

    Args:
        body: Where the field stands, or its raw fields: how long a list is that is too long is seen there.
        request_class: What the body becomes: the values of an enumeration are seen there.
        where: The place in the body of what msgspec has read.

    >>> wrong_field("Expected `int | null`, got `str` - at `$.max_tokens`").message
    '`max_tokens`: expected an integer (or null), got a string.'
    """
    what, at, path = message.rpartition(_AT)  # what stands before may be a client's text
    what, path = (what, path.removesuffix("`")[:1000]) if at else (message, "")
    what = what[:300] if len(what) <= 300 else f"{what[:200]} ... {what[-50:]}"
    param = (where + path.removeprefix("$")).removeprefix(".")
    if missing := _MISSING.match(what):
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
        return WrongType(f"`{param[:100]}` is missing; it is required.", param=param[:100])
    told = _in_json_words(what)
    if request_class is not None and (found := _OF_ENUM.fullmatch(what)):
        allowed = ", ".join(f"`{value}`" for value in _values(request_class, path))
        told = f"expected one of {allowed}, found {found.group(1)}" if allowed else told
    if not param:
        return WrongType(f"The request's body: {told}. Send one JSON object.")
    if body is not None and _OF_LENGTH.fullmatch(what) and (has := _length(body, path)) is not None:
        told += f"; it has {has}"
    kind = WrongType if _OF_TYPE.search(what) else InvalidRequest
    return kind(f"`{param[:100]}`: {told}.", param=param[:100])


def _in_json_words(what: str) -> str:
    """
    Translate what msgspec says of a value, without its place, into the words of JSON.

    >>> _in_json_words("Expected `array` of length >= 1")
    'expected at least 1 item'
    """
    found = _EXPECTED.fullmatch(what)
    if found is None:
        return what[:1].lower() + what[1:]
    kinds, compared, length, given, rest = found.groups()
    if length is not None:
        unit = _ITEMS.get(kinds, "character") + ("" if length == "1" else "s")
        return f"expected {_LENGTHS[compared]}{length} {unit}{rest}"
    *others, last = (_TYPES.get(kind, kind) for kind in kinds.removesuffix(" | null").split(" | "))
    expected = f"{', '.join(others)} or {last}" if others else last
    nullable = " (or null)" if kinds.endswith(" | null") else ""
    got = f", got {_TYPES.get(given, given)}" if given else ""
    return f"expected {expected}{nullable}{got}{rest}"


def _length(body: bytes | RawFields, path: str) -> int | None:
    """Count the items or members at a path of msgspec's; None if the path cannot be followed, or its value is large."""
    if "[...]" in path:
        return None
    steps = _STEPS.findall(path)
    try:
        raw: bytes | Raw = body[steps.pop(0)[0]] if isinstance(body, dict) else body
        for name, number in steps:
            raw = _RAW_FIELDS.decode(raw)[name] if name else _LIST.decode(raw)[int(number)]
        if len(memoryview(raw)) > LARGE_BYTES:
            return None
        is_list = memoryview(raw)[:64].tobytes().lstrip()[:1] == b"["
        return len(_LIST.decode(raw)) if is_list else len(_RAW_FIELDS.decode(raw))
    except (msgspec.DecodeError, UnicodeError, RecursionError, LookupError):
        return None


def _values(kind: Any, path: str) -> list[Any]:
    """Return the values of the enumeration at a path of msgspec's; none where the path is not followed."""
    kinds = [kind]
    for name, _ in _STEPS.findall(path):
        kinds = list(_flat(kinds))
        if name:
            structs = [one for one in kinds if isinstance(one, type) and issubclass(one, Struct)]
            kinds = [_kinds_of(one)[name] for one in structs if name in one.__struct_fields__] or [
                Literal[one.__struct_config__.tag]
                for one in structs
                if one.__struct_config__.tag_field == name
            ]
    found = dict[Any, None]()
    for one in _flat(kinds, lists=False):
        if get_origin(one) is Literal:
            found |= dict.fromkeys(get_args(one))
    return list(found)


# evaluating the annotations of one class costs more than decoding a hundred bodies
@lru_cache(1024)
def _kinds_of(struct: type[Struct]) -> dict[str, Any]:
    """Return the types of the fields of a Struct."""
    return get_type_hints(struct)


def _flat(kinds: Iterable[Any], lists: bool = True) -> Iterator[Any]:
    """Yield the kinds that a union, or the items of a list, may be."""
    for kind in kinds:
        origin = get_origin(kind)
        if origin in (UnionType, Union) or (lists and origin is list):
            yield from _flat(get_args(kind), lists)
        else:
            yield kind
