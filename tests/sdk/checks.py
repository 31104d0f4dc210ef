"""
What the scripts of client libraries share: each is run by an interpreter of its own, `python SCRIPT BASE_URL[,BASE_URL...] KEY`, and
prints one line of JSON for each check at each URL: name, ok, detail. It needs nothing but Python.
"""

import json
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

#: what is spoken at the URLs, in their order
DIALECTS = ("openai", "llamacpp", "chatglm", "fastchat", "alpaca")
CHECKS: dict[str, Callable[[str, str], None]] = {}


def check(function: Callable[[str, str], None]) -> Callable[[str, str], None]:
    """Make a function of the server's base URL and key a check."""
    CHECKS[function.__name__] = function
    return function


def over(*apis: str) -> Callable[[Callable[[str, str, str], None]], None]:
    """Make a function of the server's base URL, key and an API a check of each of these APIs, named `function over API`."""

    def added(function: Callable[[str, str, str], None]) -> None:
        for api in apis:
            CHECKS[f"{function.__name__} over {api}"] = partial(function, api=api)

    return added


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


def of_openai(name: str) -> bool:
    """Whether a check is of OpenAI's dialect only: of errors, which others tell in ways of their own, or of what it has beside."""
    return name in ("tells_errors", "runs_agents", "does_what_its_page_says")


def of_none(name: str) -> bool:
    """Whether a check is asked of the first URL alone: none is."""
    return False


def follow(page: str, base: str, key: str) -> str:
    """What the lines of Python on a page of docs/clients print, for a server and a key in place of the page's."""
    text = (Path(__file__).parents[2] / "docs" / "clients" / page).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = "\n".join(blocks).replace("http://127.0.0.1:8000/v1", base)
    code = code.replace("http://127.0.0.1:8000", base.removesuffix("/v1")).replace("sk-my-key", key)
    assert blocks, f"{page} has no lines of Python"
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(code, page, "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def main(version: str, once: Callable[[str], bool] = of_openai) -> None:
    """
    Run all checks.

    Args:
        version: Of the library.
        once: The names of the checks that further URLs are spared.
    """
    bases, key = sys.argv[1].split(","), sys.argv[2]
    print(json.dumps({"name": "version", "ok": True, "detail": version}), flush=True)
    for number, base in enumerate(bases):
        for name, function in CHECKS.items():
            if number and once(name):
                continue
            ok, detail = True, ""
            try:
                function(base, key)
            except Exception:  # noqa: BLE001 - whatever it is, it is this check's result
                ok, detail = False, traceback.format_exc(limit=-4)
            line = {"name": f"{name}-{number}" if number else name, "ok": ok, "detail": detail}
            print(json.dumps(line), flush=True)
