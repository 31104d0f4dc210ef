"""
The calls that a text begins with: JSON, a name before JSON, Python, and those of `_tagged`.

Calls are read, and never run. Each function returns the calls that a text begins with and the text behind them, or None.
Behind a mark that says that a call begins, what has the form of a call is one, also of a tool that there is not: its client tells
the model so, and goes on. Without a mark, only the name of a tool tells a call from an answer in JSON. Every form is read behind every
mark: models write those of others, too.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from unilect.families._python import NONE, python_calls
from unilect.families._tagged import (
    CLOSED,
    read_function,
    read_function_slip,
    read_gemma,
    read_invoke,
    read_invoke_slip,
    read_kimi,
    read_listing,
    read_listing_slip,
    read_minimax,
)
from unilect.families._typing import Calls, Tools, dump_json, json_value
from unilect.families._values import BEHIND

_Read: TypeAlias = Callable[[str, Tools], tuple[Calls, str] | None]
_NAMED = re.compile(
    r"([A-Za-z0-9_.-]{1,128})(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?:```json\s*)?(?=\{)"
)
_DEEPSEEK = re.compile(
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?([\w.-]+)(?:<｜tool▁sep｜>)?\s*(?:```json\s*)?(?=\{)"
)
_SOLAR = re.compile(
    r"<\|tool_call:begin\|>\w{0,64}<\|tool_call:name\|>([\w.-]{1,128})<\|tool_call:args\|>\s*(?=\{)"
)
_KIMI = re.compile(
    r"(?:<\|tool_call_begin\|>)?\s*(?:functions\.)?([\w.-]{1,128})(?::\d+)?\s*"
    r"<\|tool_call_argument_begin\|>\s*(?=\{)"
)
_HEADS = (_NAMED, _DEEPSEEK, _KIMI, _SOLAR)
_FENCED = re.compile(
    r"([A-Za-z0-9_.-]{1,128})\s*```(?:python)?\s*tool_call(\(.*?\))\s*(?:```|$)", re.S
)
_CODE = re.compile(r"```[a-z_]*\n(.*?)(?:\n?```|$)", re.S)
_PYTHON = re.compile(r"\[\s*([A-Za-z_]\w*\(.*\))\s*\]", re.S)
_LINES = re.compile(r"([A-Za-z_]\w*(?:\.call)?\(.*\))", re.S)
_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_TAG = re.compile(r'<(?:function=|(?:invoke|function) name=")([\w.-]+)')
_SIGNS = " \n;,"
_CLOSERS = "]}`\n "
#: Of one text: the rest is copied for each of them.
_MOST_CALLS = 128
#: Marks of single calls within those of all, which say nothing.
_BETWEEN = re.compile(
    rf"(?:[ \n;,]|<｜tool▁call▁end｜>|<\|tool_call[_:]end\|>|</?tool_call{BEHIND}>|<｜tool_call_(?:begin|end)｜>|function<｜tool_sep｜>|</?atem:function_calls>)*+"
)
_CLOSES = (
    "</function>",
    "</｜DSML｜invoke>",
    "</steptml:invoke>",
    "</atem:invoke>",
    "</invoke>",
    CLOSED,
)


def new_call_id() -> str:
    """Return an id for a call, as OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"


class MarkedTools(dict[str, Mapping[str, Any] | None]):
    """The tools, where a call names another one as well."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _NAME.fullmatch(name) is not None

    def __missing__(self, name: str) -> None:
        return None


def calls_of(
    text: str,
    tools: Tools,
    begin: str = "",
    marked: bool = False,
    is_cut: bool = False,
    is_exact: bool = False,
) -> tuple[Calls, str]:
    """
    Return the name and the arguments, as JSON text, of each call that a text begins with; and what follows them.

    Args:
        begin: The mark of a call, which may stand between two.
        marked: What stood before the text said that it is a call; so does `begin`.
        is_cut: More of the text would have come: a call whose end is not to be seen is none.
        is_exact: A call of which an end is missing is none.
    """
    found: Calls = []
    rest = text.strip()
    if begin or marked:
        tools = MarkedTools(tools)
    if begin:
        rest = rest[skip_between(rest) :]
    if not rest:
        return [], text
    if rest[0] == "<" and not (begin or marked):
        named = _TAG.match(rest)
        if named is None or named[1] not in tools:
            return [], text
    if not begin and (code := _CODE.match(rest)) is not None:
        inside = code[1].strip()
        # a call of Python stands there without a list
        rest = (inside if inside[:1] in "{[<" else f"[{inside}]") + rest[code.end() :]
    forms = _MARKED if begin else _FORMS
    if is_cut or is_exact:
        forms = tuple(one for one in forms if not one.is_slip)
    while rest and len(found) < _MOST_CALLS:
        made = _read_first(forms, rest, tools)
        if made is None:
            break
        form, read = made
        if is_cut and form.is_open and not _is_closed(rest, read[1]):
            break
        if form.is_slip:  # a value without end was looked for up to the end of the text
            forms = tuple(one for one in forms if not one.is_exact)
        calls, rest = read
        found += calls
        rest = rest[skip_between(rest) :] if begin else rest.lstrip(_SIGNS)
        rest = rest.removeprefix(begin).lstrip(_SIGNS) if begin else rest
    # one bracket too many is a slip of the model, and no text
    return (found, rest if rest.strip(_CLOSERS) else "") if found else ([], text)


def skip_between(text: str) -> int:
    """Return the length of what stands before a text's first call and says nothing."""
    found = _BETWEEN.match(text)
    return found.end() if found is not None else 0


def is_whole(text: str, tools: Tools, begin: str) -> bool:
    """Return True if a text is calls, of which each value ends, and nothing else."""
    calls, rest = calls_of(text, tools, begin, is_exact=True)
    return bool(calls) and not rest.strip()


def _read_first(
    forms: Sequence["_Form"], text: str, tools: Tools
) -> tuple["_Form", tuple[Calls, str]] | None:
    """Read a text in the first of some forms that it has."""
    for form in forms:
        if (text[0] != "<" or form.is_tag) and (read := _read(form, text, tools)):
            return form, read
    return None


def _read(form: "_Form", text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read a text in one form; nothing is found in one that is too deep to be written: reading takes less of the stack."""
    try:
        return form.read(text, tools)
    except RecursionError:
        return None


def _read_json(text: str, tools: Tools) -> tuple[Calls, str] | None:
    value, rest = json_value(text)
    if value is NONE:
        return None
    calls = [_one(call, tools) for call in (value if isinstance(value, list) else [value])]
    known = [call for call in calls if call is not None]
    return (known, rest) if known and len(known) == len(calls) else None


def _one(call: Any, tools: Tools) -> tuple[str, str] | None:
    if not isinstance(call, dict):
        return None
    call = call.get("function") if isinstance(call.get("function"), dict) else call
    if len(call) == 1 and tools.get(key := next(iter(call)), NONE) is not NONE:
        call = {"name": key, "arguments": call[key]}  # Apertus
    name = call.get("name", call.get("tool_name"))
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(name, str) or name not in tools:
        return None
    if isinstance(arguments, str):  # JSON in JSON
        arguments, rest = json_value(arguments.strip())
        if rest:
            return None
    if arguments is None:
        return name, "{}"
    return (name, dump_json(arguments)) if isinstance(arguments, dict) else None


def head_of(text: str) -> re.Match[str] | None:
    """Return the head of a call with a name, behind which its arguments begin as JSON."""
    return next(filter(None, (one.match(text) for one in _HEADS)), None)


def _read_named_json(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read a name, and JSON behind it."""
    head = head_of(text)
    if head is None or head[1] not in tools:
        return None
    value, rest = json_value(text[head.end() :])
    if not isinstance(value, dict):
        return None
    return [(head[1], dump_json(value))], rest.removeprefix("\n```")


def _read_fence(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read ChatGLM 3's: a name, and `tool_call(city='Paris')` in a block of code."""
    found = _FENCED.match(text)
    if found is None or found[1] not in tools:
        return None
    read = python_calls(f"tool_call{found[2]}")
    return ([(found[1], read[0][1])], text[found.end() :]) if read else None


def _read_python(
    text: str, tools: Tools, form: re.Pattern[str] = _PYTHON
) -> tuple[Calls, str] | None:
    """Read Llama 3.2's and 4's: `[name(city="Paris")]`."""
    found = form.match(text)
    calls = (
        python_calls(f"[{found[1]}]" if form is _PYTHON else found[1])
        if found is not None
        else None
    )
    if not calls or found is None or not all(name in tools for name, _ in calls):
        return None
    return calls, text[found.end() :]


def _read_lines(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Read OLMo 3's: `name(city="Paris")`, a line for each call; Llama 3's: `name.call(city="Paris")`."""
    return _read_python(text, tools, _LINES)


class _Form(NamedTuple):
    """
    A form of calls.

    Attributes:
        read: Reads the calls that a text begins with.
        is_marked: It is looked for behind a mark only: a bare name may be a word.
        is_tag: It may begin with a tag.
        is_exact: Each value must end.
        is_slip: The same as an exact form, with ends that are missing: a value that holds such a mark may be cut there.
        is_open: Arguments stand there without quotes, and a model that forgets the end of a call is read all the same.
    """

    read: _Read
    is_marked: bool = False
    is_tag: bool = False
    is_exact: bool = False
    is_slip: bool = False
    is_open: bool = False


_MARKED = (
    _Form(_read_json),
    _Form(_read_named_json, is_tag=True),
    _Form(_read_fence),
    _Form(read_function, is_tag=True, is_exact=True),
    _Form(read_invoke, is_tag=True, is_exact=True),
    _Form(read_function_slip, is_tag=True, is_slip=True),
    _Form(read_invoke_slip, is_tag=True, is_slip=True),
    _Form(_read_python),
    _Form(_read_lines, is_marked=True),
    _Form(read_kimi, is_marked=True, is_tag=True, is_open=True),
    _Form(read_gemma, is_marked=True),
    _Form(read_listing, is_marked=True, is_exact=True, is_open=True),
    _Form(read_listing_slip, is_marked=True, is_slip=True),
    _Form(read_minimax, is_marked=True),
)
_FORMS = tuple(form for form in _MARKED if not form.is_marked)


def _is_closed(text: str, rest: str) -> bool:
    """Return True if the end of a call is to be seen, which a text begins with; of GLM's it is the end of the family's mark."""
    return text.removesuffix(rest).rstrip().endswith(_CLOSES)
