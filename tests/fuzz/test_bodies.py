"""
Random and mutated bodies: whatever a client sends, the answer is an answer or says what is wrong with the request.

OpenAI's older endpoints are attacked by themselves, so that on demand all bodies go to those of the other APIs.
"""

import copy
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from attack import Reply, Request, Target, assert_sound, many
from sound import ADAPTERS, ASKED, IN_QUERY, OF_APIS, OF_OPENAI, QUERIES, VALID

from support.backends.engine import THOROUGH

#: How many bodies; on demand so many at either kind of endpoints.
BODIES = {"openai": 400, "apis": 1200} if THOROUGH else {"openai": 100, "apis": 300}
if "UNILECT_FUZZ" in os.environ:
    BODIES = dict.fromkeys(BODIES, int(os.environ["UNILECT_FUZZ"]))
BATCH = 8  # requests that are under way at the same time
LOOK_EVERY = 50  # batches
Valid = list[tuple[str, dict[str, Any]]]

#: Values at the edges of what JSON can say.
JSON = [
    "-1", "0", "1", "0.5", "-0", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "18446744073709551616", "1e18", "1e308", "1E-999", "true", "false", "null",
    '"x"', '""', "[]", "{}", "[null]", "[[]]", '{"a": 1}', '"5"', '"auto"', '"none"', '"\\u0000"', '"\\ud83d\\ude00"',
    "[" * 40 + "]" * 40, "[" * 130 + "]" * 130, "[" * 962 + "]" * 962, "[" * 972 + "]" * 972, '{"a":' * 500 + "1" + "}" * 500, '"' + "long " * 4000 + '"',
    '"' + "é" * 300 + '"', '"\u2028\u202e"', '"\ufeff"',
]  # fmt: skip
#: Texts that stand in a body as they are: no encoder would write them, and no decoder should take most of them.
RAW = [
    "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "01", "1.", ".5", "+1", "9" * 400, '"\\ud800"',
    '"\\udc00\\ud800"', '"\ud800"', "[" * 2000 + "]" * 2000, "[" * 100_000, "'x'", "/**/1", '"\t"', '"\\x41"',
]  # fmt: skip
NAMED = ("-1", "2147483648", "true", '"x"', "1.5")  # JSON, so that the parameter can be named
NAMES = [
    "",
    "raw_fields",
    "own",
    "prompts",
    "__class__",
    "a\nb",
    "日本",
    "api_base",
    "x" * 300,
    "\x7f",
]

WORDS = ["auto", "none", "required", "user", "text", "json_object", "float", "", "\x00", "\u2028", "é", "🙂"]  # fmt: skip


def json_value(dice: random.Random, levels: int = 3) -> Any:
    """Any JSON."""
    kind = dice.randrange(9 if levels else 6)
    if kind >= 6:
        items = [json_value(dice, levels - 1) for _ in range(dice.randrange(4))]
        return {text(dice, 8): item for item in items} if kind > 6 else items
    plain = [None, dice.random() < 0.5, dice.randint(-(2**70), 2**70), dice.randint(-5, 300)]
    return [*plain, dice.choice(WORDS), dice.choice([text(dice, 20), dice.uniform(-1e9, 1e9)])][
        kind
    ]


def text(dice: random.Random, most: int) -> str:
    """Any text but for halves of surrogates, short marks more often than others."""
    last = dice.choice([0x7F, 0x7F, 0xD7FF, 0x10FFFF])
    marks = [chr(dice.randrange(last + 1)) for _ in range(dice.randrange(most + 1))]
    return "".join(mark for mark in marks if not "\ud800" <= mark <= "\udfff")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside a JSON value."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [p for key, child in items for p in [(*path, key), *places(child, (*path, key))]]


class Raw:
    """A text that is written into the body as it is."""

    def __init__(self, text: str) -> None:
        self.text = text


def encode(value: Any) -> str:
    """JSON, in which a `Raw` is what it says and a list of pairs in a tuple is an object with repeated keys."""
    match value:
        case Raw():
            return value.text
        case dict():
            value = tuple(value.items())
    if isinstance(value, tuple):
        return "{" + ", ".join(f"{json.dumps(key)}: {encode(item)}" for key, item in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(encode, value)) + "]"
    return json.dumps(value)


def mutated(dice: random.Random, valid: Valid) -> Request:
    """A valid body with up to three things wrong, and the path that it is sent to."""
    path, body = copy.deepcopy(dice.choice(valid))
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        _mutate(dice, body)
    data = encode(body).encode("utf-8", "surrogatepass")
    return Request(path, _spoiled(dice, data))


def _mutate(dice: random.Random, body: dict[str, Any]) -> None:
    kind = dice.choice(["raw", "raw", "raw", "value", "drop", "add", "double", "grow"])
    where = dice.choice(places(body) or [("x",)])
    holder: Any = body
    for key in where[:-1]:
        holder = holder[key]
    key = where[-1]
    match kind:
        case "raw":
            holder[key] = Raw(dice.choice(dice.choice([JSON, JSON, RAW])))
        case "value":
            holder[key] = Raw(json.dumps(json_value(dice)))
        case "drop" if isinstance(holder, dict):
            holder.pop(key, None)
        case "add":
            body[dice.choice([*NAMES, text(dice, 10)])] = json_value(dice)
        case "double" if isinstance(holder, dict) and key in holder:
            holder[key] = Raw(f"{encode(holder[key])}, {json.dumps(key)}: {encode(holder[key])}")
        case "grow" if isinstance(holder, list):
            holder *= dice.choice([0, 2, 20, 2000]) // max(1, len(holder) // 10)


def _spoiled(dice: random.Random, data: bytes) -> bytes:
    """The bytes as they are, most of the time; or cut, with a byte changed, or with something before or after."""
    place = dice.randrange(len(data) + 1)
    match dice.randrange(40):
        case 0:
            return data[:place]
        case 1:
            return data[:place] + dice.randbytes(dice.randrange(1, 4)) + data[place:]
        case 2:
            return b"\xef\xbb\xbf" + data
        case 3:
            return data + dice.choice([b"\x00", b"{}", b" ", b"\n\n", b",", b"]"])
        case 4:
            kind = dice.choice(["utf-16", "utf-32", "latin-1"])
            return data.decode("utf-8", "replace").encode(kind, "replace")
    return data


def written(dice: random.Random, valid: Valid) -> Request:
    """Any JSON, or what is none."""
    body = dice.choice([json.dumps(json_value(dice)).encode(), dice.randbytes(dice.randrange(60))])
    return Request(dice.choice([path for path, _ in valid]), body)


def asked(dice: random.Random) -> Request:
    """A request without a body, with a query of all that may be in one."""
    method, path = dice.choice(ASKED)
    query = [f"{dice.choice(IN_QUERY)}={dice.choice(QUERIES)}" for _ in range(dice.randrange(4))]
    return Request(f"{path}?{'&'.join(query)}", b"", method)


def scales(dice: random.Random) -> Request:
    """Scales of LoRA adapters, which are a list."""
    items = [{"id": dice.randint(-1, 3), "scale": json_value(dice)} for _ in range(dice.randrange(4))]  # fmt: skip
    return Request(ADAPTERS, json.dumps(items).encode())


def any_request(dice: random.Random, kind: str) -> Request:
    """A request to one of the endpoints of a kind."""
    valid = OF_OPENAI if kind == "openai" else OF_APIS
    match dice.randrange(12):
        case 0:
            return written(dice, valid)
        case 1 if kind == "apis":
            return asked(dice)
        case 2 if kind == "apis":
            return scales(dice)
    return mutated(dice, valid)


class Tally:
    """What was answered."""

    def __init__(self) -> None:
        self._statuses = Counter[int]()
        self._paths = Counter[str]()
        self._longest = (0.0, "")

    def add(self, request: Request, reply: Reply) -> None:
        """Count an answer."""
        self._statuses[reply.status] += 1
        self._paths[f"{request.method} {request.path.partition('?')[0]}"] += 1
        self._longest = max(self._longest, (round(reply.took_s, 3), request.path))

    def told(self) -> str:
        """One line."""
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(self._statuses.items()))  # fmt: skip
        return f"{self._statuses.total()} requests at {len(self._paths)} URLs; {statuses}; longest {self._longest}"


@pytest.fixture(scope="module", params=BODIES)
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of endpoints."""
    return str(request.param)


@pytest.fixture
def tally(engine: str, kind: str) -> Iterator[Tally]:
    """Counts the answers of a test, and tells them at its end."""
    found = Tally()
    yield found
    print(f"\n{engine}, {kind}: {found.told()}")


@many
def test_random_requests(target: Target, kind: str, tally: Tally) -> None:
    """Random and mutated requests, eight at a time, are answered or refused, never with a failure of the server's."""
    dice = random.Random(11)
    for number in range(BODIES[kind] // BATCH):
        batch = [any_request(dice, kind) for _ in range(BATCH)]
        requests = [target.filled(one) for one in batch]
        replies = target.attacker.send(requests)
        for raw, request, reply in zip(batch, requests, replies, strict=True):
            tally.add(raw, reply)
            assert_sound(reply, request)
        if number % LOOK_EVERY == 0:
            target.look()


def numeric_fields() -> list[tuple[str, dict[str, Any], tuple[Any, ...]]]:
    """Every place of the valid bodies that holds a number."""
    found = []
    for path, body in VALID:
        for where in places(body):
            value: Any = body
            for key in where:
                value = value[key]
            if isinstance(value, int | float) and not isinstance(value, bool):
                found.append((path, body, where))
    return found


@pytest.mark.heavy(but=2)
@pytest.mark.parametrize(
    "raw",
    ["-1", "0", "1", "2", "16", "17", "20", "21", "128", "2147483647", "2147483648", "1e18", "1e999",
     "-1e999", "NaN", "true", '"x"', "null", "1.5", "9" * 400],
)  # fmt: skip
def test_numbers(target: Target, raw: str) -> None:
    """Every numeric field, at the edge of what is allowed and beyond, is taken or refused by name."""
    fields, requests = numeric_fields(), []
    for path, body, where in fields:
        changed = copy.deepcopy(body)
        holder: Any = changed
        for key in where[:-1]:
            holder = holder[key]
        holder[where[-1]] = Raw(raw)
        requests.append(target.filled(Request(path, encode(changed).encode())))
    replies = target.attacker.send(requests)
    for (_, _, where), request, reply in zip(fields, requests, replies, strict=True):
        assert_sound(reply, request)
        if reply.status == 400 and len(where) == 1 and raw in NAMED:
            named = (reply.error["param"], None)[request.path.startswith("/api/")]
            assert where[0] == named or (named is None and where[0] in reply.error["message"]), (request, reply)  # fmt: skip
