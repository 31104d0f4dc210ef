"""A process in a terminal: what it shows, and keys for it."""

import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

PROMPT = "\x1b[1m> \x1b[0m"
TIMEOUT_S = 30.0


class Terminal:
    """A chat in a terminal of its own."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        """Type; a line ends with `\\r`."""
        os.write(self._master, text.encode())

    def interrupt(self) -> str:
        """What is shown after Ctrl-C at a prompt, up to the next one; once more where it came before `input` waited, which then does not see it."""
        self.type("\x03")
        again = time.monotonic() + 2.0
        while PROMPT not in self.seen and time.monotonic() < again:
            self._read(0.1)
        if PROMPT not in self.seen:
            self.type("\x03")
        return self.until(PROMPT)

    def until(self, text: str) -> str:
        """All that was shown since the last call, up to a text."""
        deadline = time.monotonic() + TIMEOUT_S
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.seen!r}"
            self._read(0.1)
        shown, found, self.seen = self.seen.partition(text)
        return shown + found

    def _read(self, timeout_s: float) -> None:
        if select.select([self._master], [], [], timeout_s)[0]:
            with suppress(OSError):  # Linux' way to say that the other side is closed
                self.seen += os.read(self._master, 65536).decode()

    def ends(self) -> int:
        """Wait for the end; the exit code."""
        code = self.process.wait(TIMEOUT_S)
        os.close(self._master)
        return code
