"""
Capture a terminal for the README: `unilect serve`, and a chat with the bundled model, as docs/images/terminal.svg.

Both run in a pseudo-terminal. What they redraw and the time of a line of the log are left out; the rest stands as they wrote it.
"""

import os
import pty
import re
import select
import signal
import sys
import time
from html import escape
from pathlib import Path

COLUMNS, LINE, CHARACTER = 132, 19, 8.4
PROGRAM = str(Path(sys.executable).with_name("unilect"))
IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "terminal.svg"
#: Of each command: what is waited for, and what is typed then.
COMMANDS = [
    (["serve"], [("stop: Ctrl-C", "\x03")]),
    (["chat"], [("> ", "What is the capital of France?\r"), ("tokens/s", "\x04")]),
]
_TIMEOUT_S = 30.0
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def run(arguments: list[str], script: list[tuple[str, str]]) -> str:
    """All that a command writes to its terminal, with what was typed."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm", "COLUMNS": f"{COLUMNS}"}
        os.execv(PROGRAM, [PROGRAM, *arguments])
    written = ""
    for text, keys in [*script, ("\0", "")]:
        begin, end = len(written), time.monotonic() + _TIMEOUT_S
        while text not in written[begin:] and time.monotonic() < end:
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                written += os.read(terminal, 65536).decode()
            except OSError:  # it has ended
                break
        os.write(terminal, keys.encode()) if keys else None
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    return written


def shown(written: str) -> list[str]:
    """The lines that stand on a terminal in the end, without what was redrawn, and what follows the last key."""
    lines = []
    for line in written.replace("\r\n", "\n").split("\n"):
        line = _ESCAPE.sub("", re.split(r"\r|\x1b\[2K", line)[-1]).rstrip()
        line = re.sub(r"^\d{4}-\d\d-\d\d [\d:.]+ ", "", line)
        if not line.startswith(("INFO", "loading", "preparing", "^C")) and line != ">":
            lines.append(line)
    return lines


def draw(lines: list[str]) -> str:
    """An image of lines of text; a line that begins with `$` or `>` was typed."""
    rows = []
    for number, line in enumerate(lines):
        typed = re.fullmatch(r"([$>] )(.*)", line)
        text = (
            f'<tspan class="p">{escape(typed[1])}</tspan>{escape(typed[2])}'
            if typed
            else escape(line)
        )
        kind = "t" if typed else "o"
        rows.append(f'<text class="{kind}" x="16" y="{44 + number * LINE}">{text}</text>')
    width, height = COLUMNS * CHARACTER + 32, 52 + len(lines) * LINE
    dots = "".join(
        f'<circle cx="{18 + 18 * n}" cy="16" r="5" fill="{c}"/>'
        for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    style = "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#fff;white-space:pre}.o{fill:#b9c2d0}.p{fill:#7ee787}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" aria-label="unilect in a terminal">'
        f'<style>{style}</style><rect width="100%" height="100%" rx="8" fill="#161b22"/>{dots}{"".join(rows)}</svg>\n'
    )


def main() -> None:
    """Run the commands, and write the image."""
    lines: list[str] = []
    for arguments, script in COMMANDS:
        lines += [f"$ unilect {' '.join(arguments)}", *shown(run(arguments, script))]
    while lines and not lines[-1]:
        lines.pop()
    folded = [
        line[at : at + COLUMNS] for line in lines for at in range(0, max(1, len(line)), COLUMNS)
    ]
    IMAGE.parent.mkdir(exist_ok=True)
    IMAGE.write_text(draw(folded))


if __name__ == "__main__":
    main()
