"""
The reason why a child ended, from its stderr, for the operator: without texts of clients and without a debugger's lines.

While a model loads no client's text is in the process, so the first line that speaks of an error is the reason. Later a library
may repeat a client's grammar or a piece of an answer: of these lines only known forms are shown, which have none of it.
"""

import re
from collections import deque

from unilect.runtime.child_limits import name_signal
from unilect.runtime.line_log import MOST_CHARACTERS

_KEPT_LINES = 60
_TOLD_LINES = 10
_MOST_CHARACTERS = 300
#: Control characters, also those that only some terminals follow; a line's text is all that is told.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
#: llama.cpp's beginning of a line: time, level. What has none goes on the line before.
_PREFIX = re.compile(r"^[\d.:]+ [DIWE] ")
#: Of llama.cpp's lines about requests, errors and those with numbers only; others repeat what it answers, with a piece of a prompt.
_OF_REQUESTS = re.compile(
    r"[\d.:]+ (?:E |I slot +(?:get_availabl|launch_slot_|print_timing|release): id +\d+ \| task -?\d+ \| )"
)
#: gdb's words when a library calls it to show where it ended.
_DEBUGGER = re.compile(
    r"\[(?:Inferior|New LWP|Thread|Detaching)|#\d+ |0x[0-9a-f]+ in |warning: |Using host libthread_db|This GDB|Enable debuginfod|Debuginfod"
    r"|Downloading |To make this setting|See:|Reading symbols|\(gdb\)|Could not attach|ptrace|No stack"
)
_TELLING = re.compile(
    r"error|failed|cannot|unable|invalid|unknown|not support|out of memory|bad_alloc", re.IGNORECASE
)
#: In the log of a server of another make, a line that tells of an error, by its level or by the name of an exception.
_OF_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|\w{0,64}(?:Error|Exception)(?=:))")
#: Forms that leave no room for what a client wrote: the place of an assertion, the name of an exception, a size.
_HARMLESS = (
    re.compile(r"\S*?(?P<told>[\w-]{1,40}\.(?:c|cpp|h|cu|m):\d{1,6}: GGML_ASSERT)\("),
    re.compile(
        r"terminate called after throwing an instance of '(?P<told>std::(?:bad_alloc|length_error|runtime_error|out_of_range))'"
    ),
    re.compile(r"\S*?: ?(?P<told>failed to allocate (?:\w{1,10} )?buffer of size \d{1,20})$"),
    re.compile(
        r"(?P<told>CUDA error(?:: out of memory)?|MemoryError|RecursionError|torch\.OutOfMemoryError)\b"
    ),
    re.compile(
        r"\S*?: ?(?P<told>insufficient memory \(attempted to allocate {1,20}[\d.]{1,20} MB\))"
    ),
    re.compile(
        r"slot +\w{1,40}: id +\d{1,6} \| task -?\d{1,12} \| got exception: (?P<told>std::bad_alloc)$"
    ),
    re.compile(r"(?P<told>cannot allocate memory for thread-local data): ABORT$"),
)
_OF_MEMORY = re.compile(
    r"bad_alloc|(?:failed to|cannot) allocate|MemoryError|out of memory|insufficient memory"
)


class StderrTail:
    """
    The last lines that a child wrote to stderr.

    Args:
        tells_all: They are the log of a server of another make, whose forms nobody knows: all are kept, and the last ones told at its death.

    Attributes:
        serves: The child has loaded: clients' texts are in it.
    """

    def __init__(self, tells_all: bool = False) -> None:
        self._tells_all = tells_all
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._is_harmless = True  # of the last line with a beginning
        self.serves = False

    def append(self, line: bytes) -> str:
        """Keep a line; returns it as it may be logged, or nothing."""
        begin = line[: 4 * MOST_CHARACTERS]  # no more is logged, in whatever characters
        text = _CONTROL.sub(" ", begin.decode(errors="replace")).strip()
        if self.serves and not self._tells_all and _PREFIX.match(text):
            self._is_harmless = bool(_OF_REQUESTS.match(text))
        if text and self._is_harmless:
            self._lines.append(text[:MOST_CHARACTERS])
            return text
        return ""

    def of_load(self, status: int | None) -> str:
        """Return the reason why a child ended while it loaded."""
        lines = [_PREFIX.sub("", line) for line in self._lines if not _DEBUGGER.match(line)]
        telling = [line for line in lines if _TELLING.search(line)]
        return (telling or lines[-1:] or [describe_exit(status)])[0][:_MOST_CHARACTERS]

    def of_death(self, status: int | None) -> str:
        """Return the reason why a child ended that served."""
        if self._tells_all and self._lines:
            last = (line[:_MOST_CHARACTERS] for line in [*self._lines][-_TOLD_LINES:])
            return f"{describe_exit(status)}. Its log ends: {' | '.join(last)}"
        told = self.last_word
        return f"{told} ({describe_exit(status)})" if told else describe_exit(status)

    @property
    def last_word(self) -> str:
        """
        The line that is told of a child that served: of another's server the last one that tells of an error, else its last one; of ours the
        first whose form may be told; empty for none.
        """
        if self._tells_all:
            errors = [line for line in self._lines if _OF_ERROR.search(line)]
            return (errors or [*self._lines] or [""])[-1][:_MOST_CHARACTERS]
        return next(iter(self._select_harmless()), "")

    def of_memory(self) -> bool:
        """Return True if its last lines say that it had no memory left."""
        return any(_OF_MEMORY.search(told) for told in self._select_harmless())

    def _select_harmless(self) -> list[str]:
        """Return those of its lines whose form may be told."""
        lines = [_PREFIX.sub("", line) for line in self._lines]
        found = (form.match(line) for line in lines for form in _HARMLESS)
        return [match["told"] for match in found if match]


def describe_exit(status: int | None) -> str:
    """Describe how a process ended, by its exit status, which is the number of a signal below 0."""
    if status is None or status >= 0:
        return f"exit status {status}"
    name = name_signal(-status)
    if name == "SIGKILL":
        return "killed (SIGKILL): by hand, or by the system for want of memory"
    return f"crashed ({name})"
