"""Constraints and texts that once stopped, starved or killed an engine, over HTTP, beside a client that notices nothing."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import psutil
import pytest
from attack import Reply, Request, Target, assert_sound
from hard import GRAMMARS, SCHEMAS, response_format, tool

CHAT, COMPLETIONS, NATIVE, EMBEDDINGS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/completion",
    "/v1/embeddings",
)
USUAL = Request(COMPLETIONS, b'{"prompt": "a", "max_tokens": 2}')
GROWTH_BYTES = 512 * 1024 * 1024
LONG = 15 * 1024 * 1024
PATTERN = {"type": "string", "pattern": "^(a?){2000}a{2000}$"}
WAYS = "root ::= ([a-z]* [a-z]*){0,200}"
DIGIT: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 9}


def nested(levels: int) -> dict[str, Any]:
    """An `anyOf` in an `anyOf`."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"anyOf": [schema, {"type": "null"}]}
    return schema


def doubled(levels: int) -> dict[str, Any]:
    """Definitions, each of which is the next one or the next one: twice as many ways at each level."""
    unions: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": unions | {f"d{levels}": {"type": "string"}}}


#: name, grammar, and the engines that follow it: no other may.
REFUSED: list[tuple[str, str, set[str]]] = [
    ("brackets", "[" * 65_000, set()),
    ("a repetition backwards", GRAMMARS["a repetition backwards"], set()),
    ("hidden left recursion", GRAMMARS["hidden left recursion"], set()),
    ("nullable doubling", GRAMMARS["nullable doubling"], {"hf"}),
    ("groups behind a comment", GRAMMARS["groups behind a comment"], set()),
    ("a chain of rules", GRAMMARS["a chain of rules"], {"gguf"}),
    ("a repetition of a million", GRAMMARS["a repetition of a million"], set()),
    ("a hard pattern", GRAMMARS["a hard pattern"], set()),
    ("a class backwards", GRAMMARS["a class backwards"], set()),
    ("no code point", GRAMMARS["no code point"], set()),
    ("a token", GRAMMARS["a token"], {"gguf"}),
    ("many ways", WAYS, {"hf"}),
]
#: Where a grammar may stand, with what else is there.
FIELDS: list[tuple[str, str, dict[str, Any]]] = [
    (COMPLETIONS, "grammar", {"prompt": "a", "max_tokens": 8}),
    (CHAT, "guided_grammar", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8}),
    (NATIVE, "grammar", {"prompt": "a", "n_predict": 8}),
]
#: What an answer breaks as good as surely, or whatever it is, where the keyword is ignored.
KEYWORDS: dict[str, dict[str, Any]] = {
    "pattern": {"type": "string", "enum": ["a", "b", "c", "d", "e", "7"], "pattern": "[0-9]"},
    "an invalid pattern": {"type": "string", "enum": ["a", "b"], "pattern": "("},
    "patternProperties": {
        "type": "object",
        "properties": {"x": DIGIT},
        "required": ["x"],
        "patternProperties": {"^x": {"const": 7}},
        "additionalProperties": False,
    },
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 99},
    "uniqueItems": {
        "type": "array",
        "items": {"enum": ["a", "b"]},
        "minItems": 3,
        "maxItems": 3,
        "uniqueItems": True,
    },
    "not": DIGIT | {"not": {"type": "integer"}},
    "if": DIGIT | {"if": {"minimum": 5}, "then": {"const": 7}},
    "format": {"type": "string", "enum": ["a", "b"], "format": "smell"},
}
#: What no answer can satisfy, or nobody can tell: refused, whatever the answer would be.
NEVER = {"an invalid pattern", "uniqueItems", "not", "format"}


def told(target: Target, path: str, **body: Any) -> Reply:
    """The answer to a body, in time, while another client's request is answered."""
    request = Request(path, json.dumps(body, ensure_ascii=False).encode())
    reply, usual = target.attacker.send([request, USUAL])
    assert 200 == usual.status, usual
    assert_sound(reply, request)
    return reply


@pytest.mark.heavy
@pytest.mark.parametrize(("path", "field", "rest"), FIELDS, ids=lambda one: str(one)[:20])
def test_grammars(target: Target, engine: str, path: str, field: str, rest: dict[str, Any]) -> None:
    """A grammar that an engine cannot follow is refused with the field's name, wherever it stands."""
    for name, grammar, followed in REFUSED:
        reply = told(target, path, **rest, **{field: grammar})
        if engine in followed:
            assert 200 == reply.status, (name, reply)
        else:
            assert (400, field) == (reply.status, reply.error["param"]), (name, reply)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "schema",
    [PATTERN, nested(40), SCHEMAS["a chain of definitions"], SCHEMAS["a pattern: deep"]],
    ids=["pattern", "unions", "references", "groups"],
)
def test_schemas(target: Target, engine: str, schema: dict[str, Any]) -> None:
    """A schema that is too hard for an engine is refused, as the answer's and as a tool's; a pattern is left to validation where that is possible."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 64}
    for name, value in (
        ("response_format", response_format(schema)),
        ("guided_json", schema),
        ("tools", [tool({"type": "object", "properties": {"a": schema}})]),
    ):
        forced = {"tool_choice": "required"} if name == "tools" else {}
        reply = told(target, CHAT, **chat, **forced, **{name: value})
        if engine == "gguf" and schema is PATTERN:
            assert reply.status in (200, 422), (name, reply)
            continue
        assert 400 == reply.status, (name, reply)
        message = reply.error["message"]  # a matcher that gives up midway tells no parameter
        assert name in message or "grammar or schema" in message, (name, reply)


@pytest.mark.heavy
def test_a_schema_of_many_ways(target: Target) -> None:
    """Forty unions of two equal choices each are followed as one way."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 64}
    reply = told(target, CHAT, **chat, response_format=response_format(doubled(40)))
    assert 200 == reply.status, reply


@pytest.mark.parametrize("name", KEYWORDS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_keywords(target: Target, name: str, stream: bool) -> None:
    """A finished answer satisfies every keyword of its schema, or the keyword is refused by its name."""
    schema = KEYWORDS[name]
    reply = told(
        target,
        CHAT,
        messages=[{"role": "user", "content": "a"}],
        max_tokens=48,
        stream=stream,
        response_format=response_format(schema),
    )
    if reply.status != 200:
        keyword = "pattern" if name == "an invalid pattern" else name
        assert keyword in reply.error["message"] or 422 == reply.status, reply
        return
    text, finish = _answer(reply, stream)
    if finish is not None:
        assert name not in NEVER, text
    if finish == "stop":
        assert jsonschema_rs.is_valid(schema, json.loads(text)), text


@pytest.mark.parametrize(
    ("path", "field"),
    [(COMPLETIONS, "prompt"), ("/tokenize", "content"), (EMBEDDINGS, "input"), (NATIVE, "prompt")],
    ids=lambda one: one,
)
@pytest.mark.parametrize("unit", ["a", "cat "])
def test_long_texts(target: Target, path: str, field: str, unit: str) -> None:
    """A text of megabytes is refused before an engine takes memory for it."""
    before = _peaks(target)
    reply = told(target, path, **{field: unit * (LONG // len(unit))})
    assert reply.status in (400, 413), reply
    grown = {pid: peak - before[pid] for pid, peak in _peaks(target).items() if pid in before}
    assert max(grown.values()) < GROWTH_BYTES, grown


def _answer(reply: Reply, stream: bool) -> tuple[str, str | None]:
    """The text of an answer, and why it ended; an error in a stream is no end."""
    if not stream:
        choice = json.loads(reply.body)["choices"][0]
        return choice["message"]["content"] or "", choice["finish_reason"]
    text, finish = "", None
    for frame in reply.body.decode().split("\n\n"):
        data = frame.removeprefix("data: ")
        if data.startswith("{") and (choices := json.loads(data).get("choices")):
            text += choices[0]["delta"].get("content") or ""
            finish = choices[0]["finish_reason"] or finish
    return text, finish


def _peaks(target: Target) -> dict[int, int]:
    """The most memory that the server and each of its children have had."""
    peaks = {}
    server = psutil.Process(target.server.pid)
    for process in (server, *server.children(recursive=True)):
        status = Path(f"/proc/{process.pid}/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        peaks[process.pid] = 1024 * int(lines["VmHWM"].split()[0])
    return peaks
