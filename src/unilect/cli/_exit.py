"""The ends of commands: what is wrong, on stderr, and an exit code."""

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from unilect.cli._screen import tell
from unilect.config.file import Origin
from unilect.core.errors import ConfigError
from unilect.runtime.logs import escape, sink_of
from unilect.runtime.redact import redact


def or_exit(step: Callable[[], Any], code: int = 1, origin: Origin | None = None) -> Any:
    """Return what a step returns; a mistake ends the process with what is wrong on stderr."""
    try:
        return step()
    except ConfigError as error:
        errors = error.each if origin is None else origin.locate(error.each)
        if len(errors) == 1:
            fail(escape(str(errors[0])), code)
        fail(f"{len(errors)} mistakes:\n  " + "\n  ".join(escape(str(one)) for one in errors), code)


def fail(message: str, code: int = 1) -> NoReturn:
    """End with one sentence on stderr, or a line for each of several; without the credentials of a URL in it."""
    say(message, "critical")
    raise SystemExit(code)


def say(message: str, level: str) -> None:
    """Say something on stderr, without the credentials of a URL; as the log does where that is JSON."""
    sink = sink_of(logging.getLogger())
    if sink is not None and sink.form == "json":
        sink.add(redact(message), level)
    else:
        tell(f"unilect: {redact(message)}", on_stderr=True)
