"""`unilect docs`: the pages that messages name can be read by whoever has installed the package."""

import re
from pathlib import Path

import pytest

from support.common.commands import Commands
from unilect.cli import _docs

docs = Commands(_docs)

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "unilect"


def test_all_pages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each page is listed with its title."""
    docs.show(None)
    listed = capsys.readouterr().out
    assert re.search(r"^keys +API keys$", listed, re.MULTILINE)
    assert len(list((ROOT / "docs").rglob("*.md"))) == len(re.findall(r"^[\w/-]+  +\S", listed, re.MULTILINE))  # fmt: skip


@pytest.mark.parametrize("name", ["backends/gguf", "docs/backends/gguf.md", "gguf", "docs/backends/gguf.md#options"])  # fmt: skip
def test_a_page(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A page is found by its name, by its path as messages have it, and by the end of its name."""
    docs.show(name)
    assert (ROOT / "docs/backends/gguf.md").read_text() == capsys.readouterr().out


def test_a_page_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong name ends the command with the names that are near."""
    with pytest.raises(SystemExit) as ended:
        docs.show("docs/confguration.md")
    assert 1 == ended.value.code
    assert "there is no page 'docs/confguration.md'. Is configuration meant?" in capsys.readouterr().err  # fmt: skip


def test_pages_that_messages_name() -> None:
    """Each page of docs/ that a message of the program names exists."""
    named = {
        found
        for file in SOURCE.rglob("*.py")
        for line in file.read_text().splitlines()
        if "http" not in line and not line.lstrip().startswith(('"""', "#", "Source"))
        for found in re.findall(r"\bdocs/[a-z/-]+\.md\b", line)
    }
    assert len(named) > 5
    assert [] == [one for one in sorted(named) if not (ROOT / one).is_file()]
