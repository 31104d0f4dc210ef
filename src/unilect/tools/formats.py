"""
The formats of models' tool calls: JSON, XML of Qwen Coder, GLM 4.5 and DeepSeek V3.2, Kimi K3's tags, names before JSON, Gemma's, Python.

What a form says is read and never run. Each returns the calls that a text begins with and the text behind them, or None.
Behind a mark that says that a call begins, what has the form of a call is one, also of a tool that there is not: its client tells
the model so, and goes on. Without a mark, only the name of a tool tells a call from an answer in JSON.

Sources: the chat templates of the models; `forms` has an address for each.
"""

import json
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, NoReturn, TypeAlias

from unilect.tools._values import ARGUMENT, PARAMETER, Tag, end_of
from unilect.tools.chatglm import python_calls

#: The JSON Schema of each tool's parameters, by its name.
Tools: TypeAlias = Mapping[str, Mapping[str, Any] | None]
Calls: TypeAlias = list[tuple[str, str]]
_Form: TypeAlias = Callable[[str, Tools], tuple[Calls, str] | None]
_NAMED = re.compile(r"([A-Za-z0-9_.-]{1,128})(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
_DEEPSEEK = re.compile(
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?([\w.-]+)(?:<｜tool▁sep｜>)?\s*(?:```json\s*)?(?=\{)"
)
_KIMI = re.compile(
    r"(?:<\|tool_call_begin\|>)?\s*(?:functions\.)?([\w.-]{1,128})(?::\d+)?\s*"
    r"<\|tool_call_argument_begin\|>\s*(?=\{)"
)
_FENCED = re.compile(
    r"([A-Za-z0-9_.-]{1,128})\s*```(?:python)?\s*tool_call(\(.*?\))\s*(?:```|$)", re.S
)
_FUNCTION, _FUNCTION_END = re.compile(r"<function=([\w.-]+)>\s*"), re.compile(r"\s*</function>")
_BEGINS_PARAMETER = re.compile(r"\s*<parameter=([^<>]+)>")
# names without `<`: whatever is written, nothing is looked through twice
_NAMED_PARAMETER = re.compile("<parameter=([^<>]+)>")
_LISTING = re.compile(r"([\w.-]+)\s*(?=<arg_key>)")
_BEGINS_ARGUMENT = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>")
_TAGGED = re.compile(r"<function=([\w.-]+)>\s*(.*?)(?:</function>|$)", re.S)
_LISTED = re.compile(
    r"([\w.-]+)\s*((?:<arg_key>[^<]*</arg_key>\s*<arg_value>.*?</arg_value>\s*)+)", re.S
)
_PAIR = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.S)
_INVOKED = re.compile(
    r'<｜DSML｜invoke name="([\w.-]{1,128})">\s*(.*?)(?:</｜DSML｜invoke>|$)', re.S
)
_INVOKED_WITH = re.compile(
    r'<｜DSML｜parameter name="([^"<>]*)" string="(true|false)">(.*?)'
    r"(?:</｜DSML｜parameter>|(?=<｜DSML｜parameter )|$)",
    re.S,
)
_OPENED = re.compile(r'<\|open\|>call((?: [a-z]+="[^"<>]*")*)<\|sep\|>')
_CLOSED = "<|close|>call<|sep|>"
_ATTRIBUTE = re.compile(r' ([a-z]+)="([^"]*)"')
_GIVEN = re.compile(
    r'<\|open\|>(argument|json)((?: [a-z]+="[^"]*")*)<\|sep\|>(.*?)'
    r"(?:<\|close\|>\1<\|sep\|>|(?=<\|open\|>argument )|$)",
    re.S,
)
_GEMMA = re.compile(r"call:([\w.-]{1,128})\s*(?=\{)")
_GEMMA_TEXT = '<|"|>'
# what does not end goes on to the end: no mark in it is looked at by itself
_GEMMA_PART = re.compile(r'<\|"\|>.*?(?:<\|"\|>|\Z)|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[{}]', re.S)
_DEPTHS = {"{": 1, "}": -1}
_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]*)\s*:")
_CODE = re.compile(r"```[a-z_]*\n(.*?)(?:\n?```|$)", re.S)
_WRAPS = ("<|python_tag|>", "<|python_start|>", "functools")
_PYTHON = re.compile(r"\[\s*([A-Za-z_]\w*\(.*\))\s*\]", re.S)
_OR_NONE = {"string", "null"}
_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_SIGNS = " \n;,"
_CLOSERS = "]}`\n "
#: Of one text: the rest is copied for each of them.
_MOST_CALLS = 128
_ENDS = ("<｜tool▁call▁end｜>", "<|tool_call_end|>")
_CLOSES = ("</function>", "</｜DSML｜invoke>", _CLOSED)


class _Marked(dict[str, Mapping[str, Any] | None]):
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
    The name and the arguments, as JSON text, of each call that a text begins with; and what follows them.

    Args:
        begin: The mark of a call, which may stand between two.
        marked: What stood before the text said that it is a call; so does `begin`.
        is_cut: More of the text would have come: a call whose end is not to be seen is none.
        is_exact: A call of which an end is missing is none.
    """
    found: Calls = []
    rest = text.strip()
    for wrap in _WRAPS:
        if rest.startswith(wrap):
            marked, rest = True, rest.removeprefix(wrap).lstrip()
    if begin or marked:
        tools = _Marked(tools)
    rest = rest.removesuffix("<|python_end|>").strip()
    if not rest:
        return [], text
    if not begin and (code := _CODE.match(rest)) is not None:
        inside = code[1].strip()
        # a call of Python stands there without a list
        rest = (inside if inside[:1] in "{[<" else f"[{inside}]") + rest[code.end() :]
    forms = _MARKED if begin else _FORMS
    if is_cut or is_exact:
        forms = tuple(one for one in forms if one not in _SLIPS)
    while rest and len(found) < _MOST_CALLS:
        form, read = next(
            ((form, made) for form in forms if (made := _read(form, rest, tools)) is not None),
            (None, None),
        )
        if read is None or (is_cut and form in _UNTIL_THE_END and not _is_closed(rest, read[1])):
            break
        if form in _SLIPS:  # a value without end was looked for up to the end of the text
            forms = tuple(one for one in forms if one not in _EXACT)
        calls, rest = read
        found += calls
        for end in _ENDS:
            rest = rest.removeprefix(end).lstrip(_SIGNS)
        rest = rest.removeprefix(begin).lstrip(_SIGNS) if begin else rest
    # one bracket too many is a slip of the model, and no text
    return (found, rest if rest.strip(_CLOSERS) else "") if found else ([], text)


def is_whole(text: str, tools: Tools, begin: str) -> bool:
    """Whether a text is calls, of which each value ends, and nothing else."""
    calls, rest = calls_of(text, tools, begin, is_exact=True)
    return bool(calls) and not rest.strip()


def _read(form: _Form, text: str, tools: Tools) -> tuple[Calls, str] | None:
    """What a form makes of a text; nothing of one that is too deep to be written: reading takes less of the stack."""
    try:
        return form(text, tools)
    except RecursionError:
        return None


def _json(text: str, tools: Tools) -> tuple[Calls, str] | None:
    value, rest = _value(text)
    calls = [_one(call, tools) for call in (value if isinstance(value, list) else [value])]
    known = [call for call in calls if call is not None]
    return (known, rest) if known and len(known) == len(calls) else None


def _one(call: Any, tools: Tools) -> tuple[str, str] | None:
    if not isinstance(call, dict):
        return None
    call = call.get("function") if isinstance(call.get("function"), dict) else call
    name = call.get("name")
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(name, str) or name not in tools:
        return None
    if isinstance(arguments, str):  # JSON in JSON
        arguments, rest = _value(arguments.strip())
        if rest:
            return None
    if arguments is None:
        return name, "{}"
    return (name, _dumped(arguments)) if isinstance(arguments, dict) else None


def _headed(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """A name, and JSON behind it."""
    head = _NAMED.match(text) or _DEEPSEEK.match(text) or _KIMI.match(text)
    if head is None or head[1] not in tools:
        return None
    value, rest = _value(text[head.end() :])
    if not isinstance(value, dict):
        return None
    return [(head[1], _dumped(value))], rest.removeprefix("\n```")


def _fenced(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """ChatGLM 3: a name, and `tool_call(city='Paris')` in a block of code."""
    found = _FENCED.match(text)
    if found is None or found[1] not in tools:
        return None
    read = python_calls(f"tool_call{found[2]}")
    return ([(found[1], read[0][1])], text[found.end() :]) if read else None


def _function(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Qwen Coder: `<function=name><parameter=city>Paris</parameter></function>`; Llama 3: JSON between the tags."""
    found = _FUNCTION.match(text)
    if found is None or found[1] not in tools:
        return None
    name, at = found[1], found.end()
    if text.startswith("{", at):
        value, rest = _value(text[at:])
        end = _FUNCTION_END.match(rest) if isinstance(value, dict) else None
        return None if end is None else ([(name, _dumped(value))], rest[end.end() :])
    pairs, at = _values(text, at, _BEGINS_PARAMETER, PARAMETER)
    end = _FUNCTION_END.match(text, at)
    given = None if end is None else _exactly(name, _without_breaks(pairs), tools, PARAMETER)
    return None if given is None or end is None else ([(name, given)], text[end.end() :])


def _listing(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """GLM 4.5: `name`, and `<arg_key>city</arg_key><arg_value>Paris</arg_value>` for each argument."""
    found = _LISTING.match(text)
    if found is None or found[1] not in tools:
        return None
    pairs, at = _values(text, found.end(), _BEGINS_ARGUMENT, ARGUMENT)
    rest = text[at:].lstrip()
    given = None if not pairs or rest.startswith("<arg_") else _exactly(found[1], pairs, tools, ARGUMENT)  # fmt: skip
    return None if given is None else ([(found[1], given)], rest)


def _values(text: str, at: int, begin: re.Pattern[str], tag: Tag) -> tuple[list[tuple[str, str]], int]:  # fmt: skip
    """The values without quotes from a place on, each with its name, up to the first that has no end; and where that is."""
    pairs: list[tuple[str, str]] = []
    while (found := begin.match(text, at)) is not None:
        end = end_of(tag, text, found.end())
        if end is None:
            break
        pairs.append((found[1], text[found.end() : end.start()]))
        at = end.end()
    return pairs, at


def _without_breaks(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Values without the line break that the form has before and behind each."""
    return [(key, value.removeprefix("\n").removesuffix("\n")) for key, value in pairs]


def _exactly(name: str, pairs: list[tuple[str, str]], tools: Tools, tag: Tag) -> str | None:
    """The arguments, as JSON text; None where a value that is no text holds an end mark, which is twice there then."""
    known = _properties(name, tools)
    marked = (key for key, value in pairs if tag.end in value)
    if any((kinds := _kinds(known.get(key.strip()))) != {None} and "string" not in kinds for key in marked):  # fmt: skip
        return None
    return _typed(name, pairs, tools)


def _tagged(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """The form of `_function`, of a model that has forgotten an end, or that writes of the beginning of a value."""
    found = _TAGGED.match(text)
    if found is None or found[1] not in tools:
        return None
    name, body, rest = found[1], found[2], text[found.end() :]
    value, behind = _value(body)
    if isinstance(value, dict) and not behind.strip():
        return [(name, _dumped(value))], rest
    pairs = _split(body, _properties(name, tools))
    if body.strip() and not pairs:
        return None
    return [(name, _typed(name, pairs, tools))], rest


def _split(body: str, known: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The values of a call, each up to its first end or the next one; where the end is missing, a name that the tool has not begins none."""
    begins: list[re.Match[str]] = []
    end = -1  # of the value before
    for found in _NAMED_PARAMETER.finditer(body):
        is_outside = not begins or 0 <= end < found.start()
        if is_outside or not known or found[1].strip() in known:
            begins.append(found)
            end = body.find("</parameter>", found.end())
    nexts = [*(found.start() for found in begins[1:]), len(body)]
    values = (body[found.end() : next].partition("</parameter>")[0] for found, next in zip(begins, nexts, strict=False))  # fmt: skip
    return _without_breaks([(found[1], value) for found, value in zip(begins, values, strict=True)])


def _listed(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """The form of `_listing`, of a model that has forgotten an end; or a name alone."""
    if (found := _LISTED.match(text)) is not None and found[1] in tools:
        return [(found[1], _typed(found[1], _PAIR.findall(found[2]), tools))], text[found.end() :]
    # a word alone is a call where it is a tool's name, also behind a mark
    return (
        ([(text, "{}")], "") if "\n" not in text and tools.get(text, _NONE) is not _NONE else None
    )


def _python(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Llama 3.2 and 4: `[name(city="Paris")]`."""
    found = _PYTHON.match(text)
    calls = python_calls(f"[{found[1]}]") if found is not None else None
    if not calls or found is None or not all(name in tools for name, _ in calls):
        return None
    return calls, text[found.end() :]


def _invoked(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """DeepSeek V3.2: an element for the call, and one for each argument, which says whether it is a text."""
    found = _INVOKED.match(text)
    if found is None or found[1] not in tools:
        return None
    given = _INVOKED_WITH.findall(found[2])
    if found[2].strip() and not given:
        return None
    values: dict[str, Any] = {}
    for key, is_text, raw in given:
        value, rest = (raw, "") if is_text == "true" else _value(raw.strip())
        values[key] = raw if rest.strip() or value is _NONE else value
    return [(found[1], _dumped(values))], text[found.end() :].lstrip()


def _opened(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Kimi K3: a tag for the call, and one for each argument, which says its type; or one tag for all of them as JSON."""
    found = _OPENED.match(text)
    name = dict(_ATTRIBUTE.findall(found[1])).get("tool") if found is not None else None
    if found is None or name is None or name not in tools:
        return None
    body, _, rest = text[found.end() :].partition(_CLOSED)
    given = _GIVEN.findall(body)
    if body.strip() and not given:
        return None
    values: dict[str, Any] = {}
    for tag, attributes, raw in given:
        told = dict(_ATTRIBUTE.findall(attributes))
        value, behind = (raw, "") if told.get("type") == "string" else _value(raw.strip())
        if tag == "json":
            if not isinstance(value, dict) or behind.strip():
                return None
            values |= value
        else:
            key = told.get("key", "").replace("&quot;", '"').replace("&amp;", "&")
            values[key] = raw if behind.strip() or value is _NONE else value
    return [(name, _dumped(values))], rest


def _gemma(text: str, tools: Tools) -> tuple[Calls, str] | None:
    """Gemma 4: `call:name{city:<|"|>Paris<|"|>}`, JSON with bare keys and marks of its own around texts."""
    found = _GEMMA.match(text)
    if found is None or found[1] not in tools:
        return None
    depth, end = 0, 0
    for part in _GEMMA_PART.finditer(text, found.end()):
        depth += _DEPTHS.get(part[0], 0)
        if not depth:
            end = part.end()
            break
    pieces = text[found.end() : end].split(_GEMMA_TEXT)
    pieces[::2] = (_BARE_KEY.sub(r'\1"\2":', piece) for piece in pieces[::2])
    pieces[1::2] = map(json.dumps, pieces[1::2])
    value, rest = _value("".join(pieces))
    if not isinstance(value, dict) or rest:
        return None
    return [(found[1], _dumped(value))], text[end:]


_FORMS: tuple[_Form, ...] = (_json, _headed, _fenced, _function, _tagged, _python)
#: Behind a mark only: a bare name may be a word.
_MARKED = (*_FORMS, _invoked, _opened, _gemma, _listing, _listed)
#: Forms of which each value must end.
_EXACT = (_function, _listing)
#: The same with ends that are missing: a value that holds such a mark may be cut there.
_SLIPS = (_tagged, _listed)
#: Arguments stand there without quotes, and a model that forgets the end of a call is read all the same.
_UNTIL_THE_END = (_invoked, _opened, _listing)


def _is_closed(text: str, rest: str) -> bool:
    """Whether the end of a call is to be seen, which a text begins with; of GLM's it is the end of the family's mark."""
    return text.removesuffix(rest).rstrip().endswith(_CLOSES)


def _typed(name: str, pairs: list[tuple[str, str]], tools: Tools) -> str:
    """Arguments that were written without quotes: texts where the schema says so, else JSON where they are some."""
    known = _properties(name, tools)
    values: dict[str, Any] = {}
    for key, raw in pairs:
        kinds = _kinds(known.get(key.strip()))
        is_text = kinds == {"string"} or (kinds == _OR_NONE and raw.strip() != "null")
        value, rest = (raw, "") if is_text else _value(raw.strip())
        values[key.strip()] = raw if rest.strip() or value is _NONE else value
    return _dumped(values)


def _properties(name: str, tools: Tools) -> Mapping[str, Any]:
    """The schemas of a tool's arguments, by their names."""
    found = (tools[name] or {}).get("properties")
    return found if isinstance(found, dict) else {}


def _kinds(schema: Any) -> set[Any]:
    """The types that a schema names, also one by one in `anyOf`, as an optional text is often written."""
    given = schema.get("type", schema.get("anyOf")) if isinstance(schema, dict) else None
    each = given if isinstance(given, list) else [given]
    kinds = (one.get("type") if isinstance(one, dict) else one for one in each)
    return {kind if isinstance(kind, str) else None for kind in kinds}


_NONE = object()


def _value(text: str) -> tuple[Any, str]:
    """The JSON value that a text begins with and the rest; `_NONE` where it begins with none."""
    try:
        value, end = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return _NONE, text
    return value, text[end:]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} cannot be written as JSON")


def _number(written: str) -> float:
    value = float(written)
    return value if isfinite(value) else _refuse(written)


_decoder = json.JSONDecoder(parse_constant=_refuse, parse_float=_number, strict=False)


def _dumped(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair can be written in JSON, and not in UTF-8
        return json.dumps(value)
    return text
