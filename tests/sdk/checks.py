"""
What the scripts of client libraries share: each is run by an interpreter of its own, `python SCRIPT BASE_URL[,BASE_URL...] KEY`, and
prints one line of JSON for each check at each URL: name, ok, detail. It needs nothing but Python.
"""

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

#: what is spoken at the URLs, in their order
DIALECTS = ("openai", "llamacpp", "chatglm", "fastchat", "alpaca")
CHECKS: dict[str, Callable[[str, str], None]] = {}


def check(function: Callable[[str, str], None]) -> Callable[[str, str], None]:
    """Make a function of the server's base URL and key a check."""
    CHECKS[function.__name__] = function
    return function


def dialect(base: str) -> str:
    """What is spoken at one of the URLs."""
    return DIALECTS[sys.argv[1].split(",").index(base)]


def equal(expected: Any, actual: Any) -> None:
    """Fail unless two values are equal."""
    assert expected == actual, f"expected {expected!r}, got {actual!r}"


def raises(kind: type[Exception], call: Callable[[], Any], *words: str) -> Exception:
    """The exception that a call raises; fail unless it is of this kind and says these words."""
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def main(version: str) -> None:
    """Run all checks; at further URLs all but those of errors, which dialects tell in ways of their own."""
    bases, key = sys.argv[1].split(","), sys.argv[2]
    print(json.dumps({"name": "version", "ok": True, "detail": version}), flush=True)
    for number, base in enumerate(bases):
        for name, function in CHECKS.items():
            if number and name == "tells_errors":
                continue
            ok, detail = True, ""
            try:
                function(base, key)
            except Exception:  # noqa: BLE001 - whatever it is, it is this check's result
                ok, detail = False, traceback.format_exc(limit=-4)
            line = {"name": f"{name}-{number}" if number else name, "ok": ok, "detail": detail}
            print(json.dumps(line), flush=True)
