"""
The progress of models that load: one line for each, redrawn in place; nothing where stderr is no terminal.

A download has bytes, speed and the time that is left; loading has the time that has passed, since nobody knows how long it takes.
"""

import sys
from typing import Any

from unilect.cli._screen import visible

DOWNLOADING = "downloading"


class Progress:
    """Progress of several models on a terminal."""

    def __init__(self) -> None:
        self._downloads: Any = None
        self._others: Any = None
        self._live: Any = None
        self._tasks: dict[tuple[str, str], Any] = {}

    def show(self, model: str, what: str, part: float, size_bytes: int = 0, /) -> None:
        """
        Draw how far a model is.

        Args:
            part: From 0 to 1.
            size_bytes: Of what is being downloaded, where that is known.
        """
        if not sys.stderr.isatty():
            return
        if self._live is None:
            self._begin()
        bars = self._downloads if what == DOWNLOADING and size_bytes else self._others
        key = (model, what)
        if key not in self._tasks:
            self._tasks[key] = bars.add_task(visible(f"{what} {model}"), total=None)
        if bars is self._downloads:
            bars.update(self._tasks[key], total=size_bytes, completed=part * size_bytes)
        elif part < 1:
            bars.update(self._tasks[key], total=1.0, completed=part)
        else:  # all of it is in memory, and it does not answer yet: nothing says how far it is
            bars.update(self._tasks[key], total=None, description=visible(f"preparing {model}"))

    def stop(self) -> None:
        """Take the lines away."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._tasks.clear()

    def _begin(self) -> None:
        # rich takes 0.1 s to import, which only a person who watches shall pay
        from rich import progress
        from rich.console import Console, Group
        from rich.live import Live

        text = progress.TextColumn("{task.description}", markup=False)
        bar = progress.BarColumn()
        self._downloads = progress.Progress(
            text,
            bar,
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("left"),
        )
        self._others = progress.Progress(
            text, bar, progress.TimeElapsedColumn(), progress.TextColumn("so far")
        )
        lines = Group(self._downloads, self._others)
        self._live = Live(lines, console=Console(stderr=True), transient=True)
        self._live.start()
