"""
The input and output of a person in a chat.

Where stdin or stdout is no terminal, stdout gets the answers and nothing else, and what else there is to say goes to stderr.
"""

import sys
from collections.abc import Callable
from contextlib import suppress

from unilect.cli._history import History
from unilect.core.errors import UnilectError
from unilect.core.events import Event, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta

#: Begins and ends a text of several lines.
_QUOTES = '"""'
_DIM, _BOLD, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[0m"
#: Characters that turn the text around them; marks and joiners, which scripts and emoji are written with, do not.
_TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
#: An answer must not move the cursor, rename the window or write to the clipboard: such characters are shown as blanks.
_HARMLESS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *_TURNS), " ") | {
    0x09: "\t",
    0x0A: "\n",
}


class Console:
    """
    The output that the person sees.

    Args:
        history: Brings the messages of earlier chats back; gets those of this one.

    Attributes:
        interactive: Somebody sits at a terminal.
    """

    def __init__(self, history: History) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._remember = _line_editing(history) if self.interactive else None
        self._colours = sys.stdout.isatty()
        # what is being written: a kind of event, or the number of a tool call
        self._part: object = None

    def ask(self, prompt: str) -> str:
        """
        Read one message: a line or a pasted text, joined with the next lines where it ends with a backslash or begins with quotes.

        Raises:
            EOFError: There are no more.
        """
        text = self._line(prompt)
        quoted = text.startswith(_QUOTES) and ("\n" not in text or _is_closed(text))
        parts = [text]
        with suppress(EOFError):
            while not _is_closed(text) if quoted else text.endswith("\\"):
                if not quoted:
                    parts[-1] = text[:-1]
                text = self._line("... ")
                parts.append(text)
                if quoted and text.rstrip().endswith(_QUOTES):
                    break
        text = "\n".join(parts)
        if self._remember is not None:
            self._remember(text)
        if not quoted:
            return text
        text = text.removeprefix(_QUOTES).rstrip().removesuffix(_QUOTES).strip("\n")
        return f"/{text}" if text.startswith("/") else text  # what is quoted is no command

    def show(self, batch: list[Event]) -> None:
        """Write what a batch of events brings."""
        for event in batch:
            match event:
                case TextDelta(text) | RefusalDelta(text):
                    self._piece(TextDelta, text)
                case ReasoningDelta(text) if self._colours:
                    self._piece(ReasoningDelta, text)
                case ToolCallDelta(call, arguments, _, name):
                    self._begin(call)
                    self._write(f"{name}({arguments}" if name else arguments)
        sys.stdout.flush()

    def end(self, what: str = "") -> None:
        """End an answer, and say how it went where it is a terminal."""
        self._begin(None)
        if what and self._colours:
            print(f"{_DIM}{what}{_PLAIN}")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Say something that is no part of an answer."""
        file = sys.stdout if self.interactive else sys.stderr
        text = _clean(text)
        print(f"{_DIM}{text}{_PLAIN}" if self.interactive else text, file=file, flush=True)

    def error(self, error: Exception) -> None:
        """Say in one line what went wrong."""
        sys.stdout.flush()
        why = error.for_operator if isinstance(error, UnilectError) else str(error)
        print(f"unilect: {_clean(' '.join(why.split()))}", file=sys.stderr, flush=True)

    def _line(self, prompt: str) -> str:
        if self.interactive:
            # readline counts what lies between \1 and \2 as no column
            return input(f"\1{_BOLD}\2{prompt}\1{_PLAIN}\2")
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def _piece(self, part: type, text: str) -> None:
        if self._part is not part:
            text = text.lstrip("\n")  # models put blank lines between thoughts and answer
        if text:
            self._begin(part)
            self._write(text)

    def _begin(self, part: object) -> None:
        if part == self._part:
            return
        if isinstance(self._part, int):
            self._write(")")
        if self._part is not None:
            print(_PLAIN if self._part is ReasoningDelta else "")
        if part is ReasoningDelta:
            print(_DIM, end="")
        self._part = part

    def _write(self, text: str) -> None:
        print(_clean(text) if self._colours else text, end="")


def _is_closed(text: str) -> bool:
    """Return True where quotes end the text that they began."""
    return len(text.rstrip()) >= 2 * len(_QUOTES) and text.rstrip().endswith(_QUOTES)


def _line_editing(history: History) -> Callable[[str], None] | None:
    """
    Give `input` line editing, pasted texts of several lines as one, and the messages of earlier chats.

    Returns:
        What keeps a message; None where Python has no line editing.
    """
    try:
        import readline
    except ImportError:
        return None
    if "libedit" not in (readline.__doc__ or ""):
        readline.parse_and_bind("set enable-bracketed-paste on")
    readline.set_auto_history(False)  # it would keep lines, and not messages
    for text in history.load():
        readline.add_history(text)

    def remember(text: str) -> None:
        if text.strip():
            readline.add_history(text)
            history.add(text)

    return remember


def _clean(text: str) -> str:
    return text.translate(_HARMLESS)
