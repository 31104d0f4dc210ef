"""
Hostile bodies by rule, for every endpoint that takes one.

Each field of each endpoint's body is given what its type takes, at the sizes and in the shapes that hurt parsers, templates,
tokenizers and grammars; constraints are those of hard.py. The order is fixed, so a prefix of it is a sample of everything.
"""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import hard
import msgspec
import worst
from msgspec import inspect

from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.core.requests import Request
from unilect.models.registry import Registry
from unilect.server.app import all_routes
from unilect.web.site import Site

MAX_BODY = 16 * 1024 * 1024 - 4096
SIZES = (64 * 1024, 1024 * 1024, MAX_BODY - 64 * 1024)
HI = [{"role": "user", "content": "Hi"}]
CHAT, COMPLETIONS, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"

#: What each endpoint needs at least. One that is missing here is found by `bodies`, which fails.
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 2},
    "/chat/completions": {"messages": HI, "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/embeddings": {"input": "Hi"},
    "/embeddings": {"input": "Hi"},
    "/api/v1/chat/completions": {"messages": HI, "max_tokens": 2},
    "/api/v1/token_check": {"prompts": [{"model": "demo", "prompt": "Hi", "max_tokens": 2}]},
    "/v1/engines/{model:.+}/embeddings": {"input": "Hi"},
    "/completion": {"prompt": "Hi", "n_predict": 2},
    "/infill": {"model": "filler", "input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "/apply-template": {"messages": HI},
    "/v1/chat/completions/input_tokens": {"messages": HI},
    "/chat/completions/input_tokens": {"messages": HI},
    "/tokenize": {"content": "Hi", "with_pieces": True},
    "/detokenize": {"tokens": [5, 6]},
    "/embedding": {"content": "Hi"},
    "/": {"prompt": "Hi", "history": [], "max_length": 64},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/responses": {"input": "Hi", "max_output_tokens": 2, "store": False},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/responses/input_tokens": {"input": "Hi"},
    "/v1/responses/compact": {"input": "Hi"},
    "/responses/compact": {"input": "Hi"},
    "/v1/conversations": {"metadata": {}},
    "/v1/conversations/{conversation_id}": {"metadata": {}},
    "/v1/conversations/{conversation_id}/items": {"items": HI},
    "/v1/responses/{response_id}/cancel": {},
    "/responses/{response_id}/cancel": {},
    "/v1/messages": {"messages": HI, "max_tokens": 2},
    "/messages": {"messages": HI, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": HI},
    "/messages/count_tokens": {"messages": HI},
    "/api/chat": {"model": "demo", "messages": HI, "options": {"num_predict": 2}},
    "/api/generate": {"model": "demo", "prompt": "Hi", "options": {"num_predict": 2}},
    "/api/embed": {"model": "demo", "input": "Hi"},
    "/api/embeddings": {"model": "demo", "prompt": "Hi"},
    "/api/show": {"model": "demo"},
    "/api/pull": {"model": "demo"},
    "/v1/rerank": {"model": "ranker", "query": "a", "documents": ["b", "c"]},
    "/v2/rerank": {"model": "ranker", "query": "a", "documents": ["b", "c"]},
    "/rerank": {"model": "ranker", "query": "a", "texts": ["b", "c"]},
    "/v1/reranking": {"model": "ranker", "query": "a", "documents": ["b", "c"]},
    "/reranking": {"model": "ranker", "query": "a", "documents": ["b", "c"]},
    "/slots/{slot_id}": {},
}
#: What answers 501 here, whatever the body; and what takes a list, which `worst.py` attacks.
NOT_HERE = {"/api/create", "/api/copy", "/api/push", "/api/blobs/{digest:.+}", "/lora-adapters"}
#: The texts of an endpoint without a Struct, and the lists.
TEXTS = ("prompt", "content", "input_prefix", "input_suffix", "system_prompt", "model")
LISTS = ("prompt", "tokens", "prompts", "history", "stop", "input_extra", "samplers")


@dataclass(frozen=True)
class Hostile:
    """A body, where it goes, and what it is called in a failure."""

    name: str
    path: str
    body: bytes


def bodies(count: int) -> Iterator["Made"]:
    """
    The first so many hostile bodies: what did harm once, all constraints, and then the rest in one fixed random order.

    Raises:
        AssertionError: A route that takes a body is not attacked.
    """
    posted = {route.path: route for route in all_routes(Site(_service())) if route.method == "POST"}
    assert set(posted) <= set(BASES) | NOT_HERE, set(posted) - set(BASES) - NOT_HERE
    rest = [*_by_rule({path: posted[path].request for path in BASES})]
    random.Random(9).shuffle(rest)
    others = map(_worst, worst.bodies(MAX_BODY))
    mended = itertools.islice(others, len(worst.MENDED))
    order = itertools.chain(mended, _known(), rest[:40], others, _known_elsewhere(), rest[40:])
    return itertools.islice(order, count)


def _worst(one: tuple[str, str, Callable[[], bytes]]) -> "Made":
    name, path, body = one
    return lambda: Hostile(name, path, body())


def _service() -> Service:
    return Service(Registry([]), Accounts(Metrics()))


Made = Callable[[], Hostile]  # bodies of 16 MB are made when they are sent


def _known() -> Iterator[Made]:
    """What has once stopped, killed or starved something."""
    for count in (5_000, 50_000, 500_000):
        names = ",".join(f'"k{i}":1' for i in range(count))
        body = f'{{"messages":{json.dumps(HI)},{names}}}'
        yield _raw(f"{count} unknown fields", CHAT, partial(str, body))
    for name, grammar in hard.GRAMMARS.items():
        yield _with(f"grammar: {name}", COMPLETIONS, grammar=grammar)
    for name, schema in hard.SCHEMAS.items():
        format = hard.response_format(schema)
        yield _with(f"schema: {name}", CHAT, response_format=format, max_tokens=16)
    for text in ("cat ", "a", "é"):
        filled = text * ((MAX_BODY - 64 * 1024) // len(text.encode()))
        for path, field in (
            (COMPLETIONS, "prompt"),
            ("/tokenize", "content"),
            ("/v1/embeddings", "input"),
        ):
            yield _with(f"16 MB of {text!r}", path, **{field: filled})


def _known_elsewhere() -> Iterator[Made]:
    """The same constraints where they may stand too."""
    for name, schema in hard.SCHEMAS.items():
        tools = [hard.tool(schema)]
        yield _with(
            f"forced tool: {name}", CHAT, tools=tools, tool_choice="required", max_tokens=16
        )
    for name, grammar in hard.GRAMMARS.items():
        yield _with(f"native grammar: {name}", NATIVE, grammar=grammar)
    for name, schema in hard.SCHEMAS.items():
        yield _with(f"native schema: {name}", NATIVE, json_schema=schema)
        yield _with(f"guided_json: {name}", COMPLETIONS, guided_json=schema)
    for name, pattern in hard.PATTERNS.items():
        yield _with(f"guided_regex: {name}", CHAT, guided_regex=pattern)
        yield _with(f"stop pattern: {name}", CHAT, stop=[pattern[:256]])


def _by_rule(structs: dict[str, Any]) -> Iterator[Made]:
    """Every field of every endpoint, with what its type takes."""
    for path, struct in structs.items():
        yield from _whole(path)
        if isinstance(struct, type) and issubclass(struct, Request):
            for field in msgspec.structs.fields(struct):
                if field.name != "raw_fields":
                    kind = inspect.type_info(field.type)
                    yield from _values(path, field.name, _kinds(kind))
            continue
        for name in TEXTS:
            yield from _values(path, name, {"text"})
        for name in LISTS:
            yield from _values(path, name, {"list"})
    for number in range(64):
        yield _conversation(number)


def _whole(path: str) -> Iterator[Made]:
    """A body that is wrong as a whole."""
    base = json.dumps(BASES[path] or {"y": 1})[1:-1]
    texts: dict[str, Callable[[], str]] = {
        "nested lists": lambda: "[" * 1_000_000,
        "nested objects": lambda: '{"a":' * 200_000,
        "15 MB of blanks": lambda: "{" + base + " " * SIZES[-1] + "}",
        "a name of 15 MB": lambda: f'{{{base},"{"n" * SIZES[-1]}":1}}',
        "a number of 15 MB": lambda: f'{{{base},"x":{"9" * SIZES[-1]}}}',
        "8 million numbers": lambda: f'{{{base},"x":[{"1," * 7_900_000}1]}}',
        "2 million objects": lambda: f'{{{base},"x":[{"{},1," * 2_000_000}1]}}',
        "one field many times": lambda: "{" + ",".join([base] * 20_000) + "}",
        "escapes": lambda: f'{{{base},"x":"{chr(92) + "u0041"}{(chr(92) + "u0000") * 2_000_000}"}}',
        "unknown depth": lambda: f'{{{base},"x":{hard.DEEP_JSON}}}',
        "cut in the middle": lambda: "{" + base + ',"x":"' + "a" * 1_000_000,
    }
    for name, text in texts.items():
        yield _raw(name, path, text)


def _values(path: str, name: str, kinds: set[str]) -> Iterator[Made]:
    """A field with what hurts."""
    where = f"{path} {name}"
    if "text" in kinds:
        for text in (
            "a",
            " ",
            "[",
            "(",
            "\n",
            '"',
            "\\",
            "\x00",
            "é",
            "🙂",
            "<|im_start|>",
            "{{",
            "\u202e",
            "0",
        ):
            for size in SIZES:
                yield _with(f"{where}: {size} bytes of {text!r}", path, lazy={name: (text, size)})
    if "list" in kinds:
        for item in (
            "",
            1,
            "a",
            [],
            [1],
            {},
            None,
            "🙂",
            2**31 - 1,
            -1,
            {"type": "text", "text": ""},
        ):
            for count in (100, 70_000, 1_000_000):
                if (len(json.dumps(item)) + 2) * count < MAX_BODY:
                    yield _with(
                        f"{where}: {count} times {item!r}", path, lazy={name: ([item], count)}
                    )
    if "object" in kinds:
        yield _with(f"{where}: many names", path, **{name: {f"k{i}": i for i in range(50_000)}})
        yield _with(f"{where}: a long name", path, **{name: {"k" * 1_000_000: 1}})
        yield _with(f"{where}: deep", path, **{name: _deep(500)})
        yield _with(f"{where}: a wide list", path, **{name: {"a": [0] * 500_000}})
    if "number" in kinds:
        for number in (
            0,
            -1,
            1,
            2**31 - 1,
            2**31,
            2**63,
            -(2**63),
            10**400,
            1e308,
            5e-324,
            -0.0,
            0.1,
        ):
            yield _with(f"{where}: {str(number)[:20]}", path, **{name: number})
    for wrong in (None, True, "", [], {}, [[[]]], "auto", {"type": "function"}, 7):
        yield _with(f"{where}: {wrong!r}", path, **{name: wrong})


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def _conversation(number: int) -> Made:
    """Messages of many kinds, many of them or large ones."""
    dice = random.Random(number)
    roles = ("system", "developer", "user", "assistant", "tool", "function")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = []
    for _ in range(dice.choice((1, 3, 200, 2048))):
        message: dict[str, Any] = {
            "role": dice.choice(roles),
            "content": dice.choice(
                ("", "a", None, "x" * 5_000, [{"type": "text", "text": "a"}] * 50)
            ),
        }
        if message["role"] == "assistant" and dice.random() < 0.5:
            message["tool_calls"] = [call | {"id": f"c{i}"} for i in range(dice.choice((1, 500)))]
        if message["role"] in ("tool", "function"):
            message |= {"tool_call_id": "c", "name": "f"}
        messages.append(message)
    tools = [
        hard.tool({"type": "object", "properties": {f"p{i}": {} for i in range(50)}})
    ] * dice.choice((0, 1, 128))
    return _with(f"conversation {number}", CHAT, messages=messages, tools=tools)


def _with(name: str, path: str, /, lazy: dict[str, Any] | None = None, **fields: Any) -> Made:
    def made() -> Hostile:
        large = {
            field: text * (size // _written(text)) if isinstance(text, str) else text * size
            for field, (text, size) in (lazy or {}).items()
        }
        body = json.dumps(BASES[path] | fields | large, ensure_ascii=False).encode()
        return Hostile(name, _url(path), body)

    return made


def _written(text: str) -> int:
    """The bytes of a text in a body."""
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2


def _raw(name: str, path: str, text: Callable[[], str]) -> Made:
    return lambda: Hostile(f"{path}: {name}", _url(path), text().encode()[:MAX_BODY])


def _url(path: str) -> str:
    return re.sub(r"{(\w+)(:.\+)?}", "demo", path)


def _kinds(kind: inspect.Type) -> set[str]:
    """What a type takes: text, list, object, number."""
    match kind:
        case inspect.Metadata():
            return _kinds(kind.type)
        case inspect.UnionType():
            return set[str]().union(*map(_kinds, kind.types))
        case inspect.StrType() | inspect.LiteralType():
            return {"text"}
        case inspect.IntType() | inspect.FloatType():
            return {"number"}
        case inspect.ListType() | inspect.VarTupleType() | inspect.TupleType():
            return {"list"}
        case inspect.DictType() | inspect.StructType():
            return {"object"}
        case inspect.AnyType() | inspect.RawType():
            return {"text", "list", "object", "number"}
    return set()
