"""What a person sees while models load: one line for each, redrawn in place; nothing where stderr is no terminal."""

import sys
from typing import Any


class Progress:
    """Progress of several models on a terminal."""

    def __init__(self) -> None:
        self._live: Any = None
        self._tasks: dict[tuple[str, str], Any] = {}

    def show(self, model: str, what: str, fraction: float) -> None:
        """Draw how far a model is, from 0 to 1."""
        if not sys.stderr.isatty():
            return
        if self._live is None:
            # rich takes 0.1 s to import, which only a person who watches shall pay
            from rich.console import Console
            from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bars

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TimeElapsedColumn(),
            )
            self._live = Bars(*columns, console=Console(stderr=True), transient=True)
            self._live.start()
        key = (model, what)
        if key not in self._tasks:
            self._tasks[key] = self._live.add_task(f"{what} {model}", total=1.0)
        self._live.update(self._tasks[key], completed=fraction)

    def stop(self) -> None:
        """Take the lines away."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._tasks.clear()
