"""The functions of commands, which end as on a command line."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from unilect.cli._screen import or_exit


class Commands:
    """
    The commands of a module of `unilect.cli`: a mistake ends one with what is wrong on stderr.

    Args:
        code: The exit code then.
    """

    def __init__(self, module: ModuleType, code: int = 1) -> None:
        self._module, self._code = module, code

    def __getattr__(self, name: str) -> Callable[..., None]:
        command = getattr(self._module, name)

        def run(*args: Any, **kwargs: Any) -> None:
            or_exit(lambda: command(*args, **kwargs), self._code)

        return run
