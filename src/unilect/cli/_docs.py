"""The pages of documentation that are installed with the package, in the terminal."""

import difflib
import sys
from pathlib import Path

import click

from unilect.core.errors import ConfigError

_PACKAGE = Path(__file__).parent.parent
#: In a wheel, or in a clone that is installed with `--editable`.
_FOLDERS = (_PACKAGE / "docs", _PACKAGE.parent.parent / "docs")


def show(page: str | None) -> None:
    """Print a page, or the list of all with their titles; a terminal gets it formatted, in its pager."""
    folder = next((one for one in _FOLDERS if (one / "quickstart.md").is_file()), None)
    if folder is None:
        raise ConfigError(
            "the documentation is not installed with this package; a clone has it in docs/. Install the package again, or read it there."
        )
    pages = {str(file.relative_to(folder).with_suffix("")): file for file in sorted(folder.rglob("*.md"))}  # fmt: skip
    if page is None:
        width = max(map(len, pages)) + 2
        for name, file in pages.items():
            with file.open(encoding="utf-8") as lines:
                title = next(lines, "").strip("# \n")
            print(f"{name:{width}}{title}")
        print("\n`unilect docs PAGE` shows one.")
        return
    _print(pages[_find(page, list(pages))].read_text("utf-8"))


def _find(page: str, names: list[str]) -> str:
    """Return the name of a page: `keys`, `docs/keys.md`, `gguf` for `backends/gguf`; ConfigError where there is none."""
    name = page.removeprefix("./").removeprefix("docs/").partition("#")[0].removesuffix(".md")
    if name in names:
        return name
    short = [one for one in names if one.rpartition("/")[2] == name]
    if len(short) == 1:
        return short[0]
    near = short or difflib.get_close_matches(name, names, 3, 0.75)
    hint = f" Is {' or '.join(near)} meant?" if near else ""
    raise ConfigError(f"there is no page {page!r}.{hint} `unilect docs` lists all.")


def _print(text: str) -> None:
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=min(100, Console().width))
    with console.capture() as captured:
        console.print(Markdown(text))
    click.echo_via_pager(captured.get(), color=True)
