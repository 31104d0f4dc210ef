"""
Functionary 3.2: parts of an answer that begin with a line for whom they are; 3.1 writes as Llama 3 does.

Source: https://github.com/MeetKai/functionary
"""

import re
from collections.abc import Callable

from unilect.core.events import Event
from unilect.families._calls import new_call_id
from unilect.families._family import Family, ToolFormat
from unilect.families._scanner import Reading
from unilect.families._writing import dumped
from unilect.families.gpt_oss import ChannelScanner

_BEGIN = ">>>"
_HEAD = re.compile(r">>>(?:>>>)?([\w.-]{1,128})\n")
_OPEN_HEAD = re.compile(r">{1,6}[\w.-]{0,128}\Z")
_MOST_HEAD = 134


class PartScanner(ChannelScanner):
    """Reads the parts of an answer as messages; see `Scanner`."""

    others: frozenset[str] = frozenset({"all"})

    def __init__(self, reading: Reading, new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__(reading, new_id)
        self._open = _BEGIN  # the prompt has written it
        self._is_begin = True

    def add(self, text: str) -> list[Event]:
        """See `Scanner`."""
        text = self._open + text
        found = _OPEN_HEAD.search(text, max(0, len(text) - _MOST_HEAD))
        kept = found.start() if found is not None else len(text)
        text, self._open = text[:kept], text[kept:]
        if text and self._is_begin and _HEAD.match(text) is None:
            text = text.removeprefix(_BEGIN)
        self._is_begin = self._is_begin and not text
        return super().add(_HEAD.sub(r"<|start|>assistant to=\1<|message|>", text))

    def end(self, is_cut: bool = False, by_word: bool = False) -> list[Event]:
        """See `Scanner`."""
        rest, self._open = self._open, ""
        rest = rest.removeprefix(_BEGIN) if self._is_begin else rest
        if is_cut and not by_word and self._may_name(rest.lstrip(">")):
            rest = ""
        return [*super().add(rest), *super().end(is_cut, by_word)]

    def _may_name(self, word: str) -> bool:
        return any(name.startswith(word) for name in (*(self._tools or ()), *self.others))


FUNCTIONARY = Family(
    name="functionary",
    shown=(">>>${recipient}",),
    called=("functionary",),
    scanner=PartScanner,
    written=ToolFormat(
        rules="\n\nTo call some, write for each:\n>>>name\narguments as JSON",
        call=lambda name, given, number: f">>>{name}\n{dumped(given)}",
        calls=("", "", ""),
    ),
)
