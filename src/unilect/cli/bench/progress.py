"""The progress of a run on stderr: a bar on a terminal, else a line for each step."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unilect.cli._screen import tell, visible
from unilect.cli.bench.load import Load


class Progress:
    """The progress of a run whose loads have a unit."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._bar: Any = None

    @contextmanager
    def draw(self) -> Iterator[None]:
        """Have the bar on the terminal while the block runs."""
        if not sys.stderr.isatty():
            yield
            return
        # rich takes 0.1 s to import, which only a person who watches shall pay
        from rich import progress
        from rich.console import Console

        words = progress.TextColumn("{task.description}", markup=False)
        columns = (progress.BarColumn(), progress.TaskProgressColumn(), words)
        with progress.Progress(*columns, console=Console(stderr=True), transient=True) as self._bar:
            self._bar.add_task("the first requests ...", total=1.0)
            yield

    def show(self, load: Load, part: float, ended: bool) -> None:
        """Show the state of a step, or how it has ended; see `Run`."""
        done = len(load.outcomes) - load.running
        words = f"{load.target.name}, {load.value:g} {self._unit}: {load.running} running, {done} done, {load.failed} failed, {load.tokens} tokens"
        if self._bar is not None:
            self._bar.update(0, completed=part, description=visible(words))
        elif ended:
            tell(words, on_stderr=True, flush=True)
