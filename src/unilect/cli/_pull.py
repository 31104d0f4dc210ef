"""The work of `unilect pull`: files of models are fetched before anybody serves them."""

import logging
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore

from unilect.cli._progress import DOWNLOADING, Progress
from unilect.cli._screen import tell, tell_table
from unilect.config.kinds import ENGINES, FILES
from unilect.config.mistakes import ErrorCollector
from unilect.config.model import ModelConfig
from unilect.config.paths import expand
from unilect.core.errors import ConfigError
from unilect.hub import download as hub
from unilect.hub.download import RemoteFile
from unilect.hub.transfer import check_room
from unilect.models import sources
from unilect.runtime.logs import log_to_stderr
from unilect.runtime.redact import redact

MAX_AT_ONCE = 4
_STEP = 0.1  # of a file, between two lines where stderr is no terminal


def pull(given: Sequence[str], dry_run: bool) -> None:
    """
    Fetch the files of models, several at once.

    Args:
        given: Sources.
        dry_run: Only say what would be fetched.

    Raises:
        ConfigError: Something of it cannot be fetched; the rest is here.
    """
    log_to_stderr("info")
    for noisy in ("huggingface_hub", "httpx2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    found, plans = ErrorCollector(), dict[str, list[RemoteFile]]()
    for source in dict.fromkeys(given):
        with found:
            plans[source] = _plan(source)
    _check_room(plans)
    if dry_run:
        _tell_plans(plans)
    else:
        found.errors += _fetch(plans).errors
    found.raise_all()


def _plan(source: str) -> list[RemoteFile]:
    """
    Return the files that a source consists of.

    Raises:
        ConfigError: It is nothing that can be fetched.
    """
    scheme, location = sources.split(source)
    if scheme not in FILES:
        what = "comes with unilect" if scheme == sources.DEMO else "is no model whose files can be fetched"  # fmt: skip
        what = what if sources.kind_of(scheme) in ENGINES else "is a server, which has its models itself"  # fmt: skip
        raise ConfigError(
            f"{source}: {what}. Name a model of the Hugging Face hub (org/repo, org/repo:Q4_K_M) or the web address of a GGUF file."
        )
    if expand(location).exists() or location.startswith((".", "/", "~")):
        there = expand(location).exists()
        raise ConfigError(
            f"{source}: {'is on this machine already; serve it' if there else 'there is no such file or folder. Check the path'}."
        )
    if FILES[scheme] == "hf":
        return hub.plan_folder(location)
    from unilect.engines.gguf.fit import may_fit

    return hub.plan_file(location, partial(may_fit, ModelConfig()), with_projector=True)


def _check_room(plans: dict[str, list[RemoteFile]]) -> None:
    """
    Raises:
        ConfigError: A disk has no room for what all plans together fetch to it.
    """
    needed = defaultdict[Path, dict[str, int]](dict)
    for files in plans.values():
        for file in files:
            if not file.is_here:
                folder = next(one for one in (file.folder, *file.folder.parents) if one.exists())
                needed[folder][file.name] = file.size
    for folder, sizes in needed.items():
        name = next(iter(sizes)) if len(sizes) == 1 else f"{len(sizes)} files"
        check_room(name, sum(sizes.values()), folder)


def _tell_plans(plans: dict[str, list[RemoteFile]]) -> None:
    from rich.filesize import decimal

    rows = [
        [file.name, decimal(file.size) if file.size else "?", "yes" if file.is_here else "no"]
        for files in plans.values()
        for file in files
    ]
    if rows:
        rest = sum(file.size for files in plans.values() for file in files if not file.is_here)
        tell_table(("FILE", "SIZE", "HERE"), rows, right=(1,))
        tell(f"{decimal(rest)} would be fetched.")


def _fetch(plans: dict[str, list[RemoteFile]]) -> ErrorCollector:
    """Fetch all, a few at once, in threads that end with the process; what came of each is told as it comes."""
    places, progress, found = BoundedSemaphore(MAX_AT_ONCE), _Told(), ErrorCollector()

    def run(source: str, files: list[RemoteFile], came: Future[None]) -> None:
        def show(part: float, size_bytes: int = 0, /) -> None:
            progress.show(source, part, size_bytes)

        try:
            with places:
                path = hub.fetch_all(files, show)
            progress.end(source, path if files[0].name.lower().endswith(".gguf") else path.parent)
            came.set_result(None)
        except ConfigError as error:
            came.set_exception(error)
        finally:
            if not came.done():  # a flaw, which the thread shows
                came.set_exception(ConfigError(f"{source}: was not fetched."))

    waits = list[Future[None]]()
    try:
        for source, files in plans.items():
            waits.append(Future())
            threading.Thread(target=run, args=(source, files, waits[-1]), daemon=True).start()
        for came in waits:
            with found:
                came.result()
    finally:
        progress.stop()
    return found


class _Told:
    """The progress of several downloads: bars on a terminal, else a line for each step."""

    def __init__(self) -> None:
        self._bars, self._lock = Progress(), threading.Lock()
        self._steps = dict[str, float]()

    def show(self, source: str, part: float, size: int) -> None:
        """Tell how far a download is."""
        from rich.filesize import decimal

        shown = redact(source)
        with self._lock:
            if sys.stderr.isatty():
                self._bars.show(shown, DOWNLOADING, part, size)
                return
            if part >= self._steps.get(source, 0) + _STEP and part < 1:
                self._steps[source] = part
                tell(f"{shown}: {part:.0%} of {decimal(size)}", on_stderr=True)

    def end(self, source: str, path: Path) -> None:
        """Tell that a download is here."""
        with self._lock:
            tell(f"{redact(source)}: {path}", flush=True)

    def stop(self) -> None:
        """Take the bars away."""
        with self._lock:
            self._bars.stop()
