"""The one reader of generated text: what a model has written, as thoughts, text, calls and the reason of its end."""

from collections.abc import Sequence

from msgspec.structs import replace

from unilect.core.events import Event, Finish, Opaque, ReasoningDelta, TextDelta, ToolCallDelta
from unilect.core.requests import ChatRequest
from unilect.families import PLAIN, Reading, Scanner, Tools, of_template, thoughts_of


def reading_of(request: ChatRequest, template: str, end: str | None = None) -> Reading:
    """
    Choose how answers of a model with this chat template are read.

    Args:
        end: What ends the thoughts that the prompt has begun; None where it has begun none.
    """
    family, thoughts = of_template(template) or PLAIN, thoughts_of(template)
    if end is not None:
        thoughts = (thoughts or family.thoughts)[0], end
    if thoughts is not None and thoughts != family.thoughts:
        family = replace(family, thoughts=thoughts)
    return Reading(
        family=family,
        tools=tools_of(request),
        thinking=thoughts is not None,
        begun=end is not None,
        most=1 if request.parallel_tool_calls is False else None,
        stop_words=request.stop_words,
    )


def tools_of(request: ChatRequest) -> Tools | None:
    """Return the tools that a model may call, with the schemas of their parameters; None for none."""
    if not request.tools or request.tool_choice == "none":
        return None
    return {tool.function.name: tool.function.parameters for tool in request.tools}


class Reader:
    """
    Reads the answers to a request, of which there may be several.

    A text with log probabilities is told as it is, for they belong to its tokens. The first event of what was held back counts all of its
    tokens.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._scanners: dict[int, Scanner] = {}
        self._tokens = 0

    def scanner(self, index: int = 0) -> Scanner:
        """Return the scanner of the answer with this number."""
        if (found := self._scanners.get(index)) is None:
            found = self._scanners[index] = self._reading.scanner()
        return found

    def read(self, batch: Sequence[Event]) -> list[Event]:
        """Return the events that a batch of text completes; others are told as they are."""
        events: list[Event] = []
        for event in batch:
            match event:
                case TextDelta(text, index, logprobs=None, extra=extra):
                    if extra is not None and "turn" in extra.delta:
                        events += self._label(self.scanner(index).turn(), index)
                        continue
                    if extra is not None:
                        events.append(Opaque(extra, index))
                    self._tokens += event.tokens
                    events += self._label(self.scanner(index).add(text), index)
                case Finish(index=index):
                    events += self._finish(event, index)
                case _:
                    events.append(event)
        return events

    def _finish(self, event: Finish, index: int) -> list[Event]:
        """Return the rest, and the reason: an end with calls is of calls, unless a limit or a stop word has cut the answer."""
        scanner = self.scanner(index)
        by_word = event.stop in self._reading.stop_words
        is_cut = by_word or event.reason not in self._reading.family.ended_by
        events = self._label(scanner.end(is_cut, by_word), index)
        if event.reason in ("stop", "tool_calls"):
            event = replace(event, reason="tool_calls" if scanner.calls else "stop")
        return [*events, event]

    def _label(self, events: list[Event], index: int) -> list[Event]:
        told: list[Event] = []
        for event in events:
            assert isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta)
            told.append(replace(event, index=index, tokens=self._tokens))
            self._tokens = 0
        return told
