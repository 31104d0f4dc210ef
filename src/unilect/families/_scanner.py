"""
Scans a model's output for reasoning, text, and tool calls, by the marks of its family.

Nothing of a call is told as text, and nothing that is no call is lost: what looked like one and cannot be read is told as text. What
is told depends on the text alone, and not on the pieces in which it comes: whatever is decided is decided by the shortest beginning of
the text that decides it.
"""

import re
from collections.abc import Callable, Collection

from msgspec import Struct

from unilect.core.events import Event, ReasoningDelta, TextDelta, ToolCallDelta
from unilect.core.marks import count_overlaps, split_at
from unilect.families._beginnings import begins_call
from unilect.families._calls import calls_of, is_whole, new_call_id
from unilect.families._cut import read_cut_calls
from unilect.families._family import Family, Marks
from unilect.families._typing import Tools
from unilect.families._values import Ending

_OPEN_TAG = re.compile(r'<\w+(?:=| name="?)[\w.-]{0,128}"?\Z')
_MOST_BREAKS = 16
#: Characters that are looked through for marks at a time: what follows a mark is looked through again, and copied.
_AT_ONCE = 512
#: Characters by which it shows whether an answer begins with thoughts, or is a call; also the most blanks that stand before either.
_MOST_HEAD = 4096
#: So often what looks like a call may be none; then no call is looked for any more in the same answer.
_MOST_MISSES = 256


class Reading(Struct, frozen=True, kw_only=True):
    """
    The way in which the answers to a request are read.

    Attributes:
        family: The model's.
        tools: The tools; None where calls are not looked for.
        thinking: Thoughts are marked in the text.
        begun: The prompt has begun them.
        most: The most calls that are told; what comes after the last of them is not.
        bare: Calls may come without their marks, which are special tokens to some tokenizers, and lost on the way.
        stop_words: The client's own, of which one may cut a call.
    """

    family: Family
    tools: Tools | None = None
    thinking: bool = False
    begun: bool = False
    most: int | None = None
    bare: bool = False
    stop_words: Collection[str] = ()

    def scanner(self, new_id: Callable[[], str] = new_call_id) -> "Scanner":
        """Make a scanner for the text of one answer; `new_id` makes an id for a call."""
        scanner: Scanner = (self.family.scanner or MarkScanner)(self, new_id)
        return scanner


class Scanner:
    """
    Tells the events of one answer's text.

    Attributes:
        calls: How many have been told.
        thinks: True while the text is a thought.
        held: What is not told yet.
    """

    def __init__(self, reading: Reading, new_id: Callable[[], str] = new_call_id) -> None:
        self.calls = 0
        self.held = ""
        self.thinks = reading.begun
        self._family = reading.family
        self._tools = reading.tools
        self._new_id = new_id
        self._thinking = reading.thinking
        self._most = reading.most
        self._bare = reading.bare or reading.family.is_bare

    @property
    def full(self) -> bool:
        """True when as many calls as may be have been told."""
        return self._most is not None and self.calls >= self._most

    def add(self, text: str) -> list[Event]:
        """Return the events that a piece of text completes."""
        raise NotImplementedError

    def end(self, is_cut: bool = False, by_word: bool = False) -> list[Event]:
        """
        Return the events of what was held back.

        Args:
            is_cut: The answer has no end of its own: of a call that has begun is told what there is.
            by_word: It was a stop word, and such a call is text.
        """
        raise NotImplementedError

    def turn(self) -> list[Event]:
        """Return the events of what was held back where a turn has ended and another begins."""
        return self.end()

    def _make_call(self, name: str, arguments: str) -> list[Event]:
        """Return a call, unless there have been enough."""
        if self.full:
            return []
        self.calls += 1
        return [ToolCallDelta(self.calls - 1, arguments, self._new_id(), name)]


class MarkScanner(Scanner):
    """Looks for the marks of a family; see `Scanner`."""

    def __init__(self, reading: Reading, new_id: Callable[[], str] = new_call_id) -> None:
        super().__init__(reading, new_id)
        known = self._family.calls if self._tools is not None else ()
        self._begins = {one.begin: one for one in known}
        self._wraps = self._family.wraps
        self._marks = (*self._begins, *self._family.dropped)  # that a text may hold
        self._state = "thought" if self.thinks else "start"
        self._mark: Marks | None = None  # of the call that is being read, or was last
        self._begin = self._end = (
            ""  # its mark, where that has been taken from the text, and its end
        )
        self._looked = 0  # how far the end of a call was looked for
        self._ending = Ending()
        self._strays = False  # True once a model has not kept to its form
        self._passed: int | None = None  # the first mark that is within a value of the call
        self._breaks = ""  # before what may be a call; they are text where it is none
        self._fresh = False  # behind a call or thoughts, where line breaks are none of the answer's
        self._blank = True  # nothing has been told of a thought
        self._misses = 0  # what looked like a call and was none

    def add(self, text: str) -> list[Event]:
        """See `Scanner`."""
        if len(text) <= _AT_ONCE:
            return self._add(text)
        pieces = (text[at : at + _AT_ONCE] for at in range(0, len(text), _AT_ONCE))
        return [event for piece in pieces for event in self._add(piece)]

    def _add(self, text: str) -> list[Event]:
        self.held += text
        events: list[Event] = []
        while True:
            if self._fresh and not self._freshen():
                return events
            before = (self._state, self.held)
            events += self._advance()
            self.thinks = self._state == "thought"
            if before == (self._state, self.held) or not self.held:
                return events

    def _freshen(self) -> bool:
        """Leave out what may stand behind a call; False while that may go on."""
        self.held = self.held.lstrip("\n")
        behind = self._mark.behind if self._mark is not None else ""
        if behind and self.held.startswith(behind):
            self.held = self.held.removeprefix(behind).lstrip("\n")
            self._mark = None
            behind = ""
        self._fresh = behind.startswith(self.held)
        return not self._fresh

    def end(self, is_cut: bool = False, by_word: bool = False) -> list[Event]:
        """See `Scanner`."""
        if self._passed is not None and not is_cut:
            return [*self._end_early(), *self.end()]
        text, self.held = self.held, ""
        if is_cut and not by_word:
            return self._cut(text)
        if self._state == "call":
            if (
                self._passed is not None
            ):  # a value was cut, which may hold calls that are only told of
                return [TextDelta(self._breaks + self._begin + text)]
            return self._calls(text, is_cut=is_cut) if text or self._begin else []
        if not text:
            return []
        if self._state == "thought":
            return [ReasoningDelta(text)] if not self._blank or text.strip() else []
        if self._state == "whole":
            return self._calls(text, is_cut=is_cut)
        return [TextDelta(text)]

    def _cut(self, text: str) -> list[Event]:
        """Return the events of what a limit has cut: a mark that has begun is told of no more than a call that has no name yet."""
        match self._state:
            case "thought":
                text = text[: len(text) - count_overlaps(text, self._family.thoughts[1:])]
                return [ReasoningDelta(text)] if text and (not self._blank or text.strip()) else []
            case "call" | "whole" as state:
                begin = self._begin if state == "call" else ""
                calls = read_cut_calls(text, self._tools or {}, begin)
                if calls is None and state == "call" and not begin and _OPEN_TAG.match(text):
                    calls = []
                if calls is not None:
                    return [event for one in calls for event in self._make_call(*one)]
                text = self._breaks + begin + text
            case state:
                heads = self._family.thoughts if state == "start" and self._thinking else ()
                kept = count_overlaps(text, (*self._marks, *heads))
                if self._fresh or not text[len(text) - kept :].isalpha():
                    text = "" if self._fresh else text[: len(text) - kept].rstrip("\n")
        return [TextDelta(text)] if text else []

    def _advance(self) -> list[Event]:
        match self._state:
            case "text":
                return self._plain()
            case "call":
                return self._call()
            case "thought":
                return self._read_thought()
            case "start":
                self._start()
        return []  # a whole answer that may be a call is told at its end

    def _start(self) -> None:
        """See what an answer begins with; nothing is decided that more text could change."""
        head = self.held[:_MOST_HEAD].lstrip()
        thoughts: tuple[str, ...] = self._family.thoughts if self._thinking else ()
        wraps = {begin: end for begin, end in self._wraps if self._thinking}
        begins = (*thoughts, *wraps)
        found = next((one for one in begins if head.startswith(one)), None)
        if found is not None:
            self.held = self.held.lstrip().removeprefix(found)
            self._fresh = found != thoughts[0]
            if found in wraps:
                self._wraps, self._marks = (), (*self._marks, wraps[found])
            elif found == thoughts[0]:  # else they end without a beginning: there are none
                self._state, self._blank = "thought", True
            return
        is_open = any(one.startswith(head) for one in begins)
        is_call: bool | None = False
        if self._tools is not None and self._bare:
            is_call = self._is_bare_call(head)
        if (is_open or is_call is None) and len(self.held) < _MOST_HEAD:
            return
        self._state = "whole" if is_call else "text"

    def _is_bare_call(self, head: str) -> bool | None:
        """Return True if an answer is a call without a mark; None while that is open."""
        if head.startswith(self._marks):
            return False
        if any(one.startswith(head) for one in self._marks):
            return None
        return begins_call(head, self._tools or {})

    def _read_thought(self) -> list[Event]:
        told, found, rest = split_at(self.held, self._family.thoughts[1:])
        if self._blank and not told.strip() and len(told) <= _MOST_HEAD:
            self.held = rest if found else told + rest
            told = ""
        else:
            self.held, self._blank = rest, False
        if found:
            self._state, self._fresh = "start", True
        return [ReasoningDelta(told)] if told else []

    def _plain(self) -> list[Event]:
        if not self._marks:
            told, self.held = self.held, ""
            return [TextDelta(told)]
        told, found, self.held = split_at(self.held, self._marks)
        if found in self._family.dropped:
            return [TextDelta(told)] if told else []
        # line breaks before a call are none of the text; more than a few are a model's that has lost its way
        plain = told.rstrip("\n")
        if len(told) > _MOST_BREAKS:
            plain += told[len(plain) : -_MOST_BREAKS]
        if found in self._begins:
            self._mark = mark = self._begins[found]
            self._state, self._breaks = "call", told[len(plain) :]
            self._begin, self._end = "" if mark.is_part else mark.begin, mark.end
            if mark.is_part:
                self.held = found + self.held
        elif found:  # the end of what the text stands between
            self._marks = tuple(one for one in self._marks if one != found)
        else:
            self.held = told[len(plain) :] + self.held
        return [TextDelta(plain)] if plain else []

    def _call(self) -> list[Event]:
        end = self._end
        is_part = not self._begin
        place = self.held.find(end, self._looked) if end else -1
        while place > 0 and not self._strays and not self._ending.is_at(self.held, place, is_part):
            if not is_part:
                self._passed = place if self._passed is None else self._passed
            place = self.held.find(end, place + len(end))
        if place < 0:  # a long call is not searched from its beginning for each of its tokens
            self._looked = max(0, len(self.held) - len(end))
            return []
        body = self.held[:place]
        if self._passed is not None and not is_whole(body, self._tools or {}, self._begin):
            return self._end_early()
        self.held = self.held[place + len(end) :]
        return self._end_call(body + end * is_part)

    def _end_call(self, body: str) -> list[Event]:
        self._looked, self._passed = 0, None
        self._ending.begin()
        before = self.calls
        events = self._calls(body, self._end if self._begin else "")
        self._state, self._fresh = "text", self.calls > before
        return events

    def _end_early(self) -> list[Event]:
        """End a call that no value explains at the first mark that seemed to be in one; once, since what follows is read again."""
        assert self._passed is not None
        body, rest = self.held[: self._passed], self.held[self._passed + len(self._end) :]
        self.held, self._strays = "", True
        return [*self._end_call(body), *self.add(rest)]

    def _calls(self, body: str, end: str = "", is_cut: bool = False) -> list[Event]:
        """Return the calls of a text; the text itself where it has none."""
        begin = self._begin if self._state == "call" else ""
        found, rest = calls_of(body, self._tools or {}, begin, is_cut=is_cut)
        breaks, self._breaks = self._breaks, ""
        if not found:
            self._misses += 1
            if self._misses == _MOST_MISSES:  # each costs a look in every form
                self._marks = tuple(one for one in self._marks if one not in self._begins)
                self._begins = {}
            text = breaks + begin + body + end
            return [TextDelta(text)] if text else []
        events = [event for name, arguments in found for event in self._make_call(name, arguments)]
        return [*events, TextDelta(rest)] if rest and not self.full else events
