"""Stop words of a server that ends an answer behind them: what its text has from the first one on is taken away."""

from collections.abc import Callable

from msgspec import structs

from unilect.core.events import Event, Finish, TextDelta
from unilect.core.requests import TextRequest
from unilect.core.stop_words import StopWords


def cutter(request: TextRequest) -> Callable[[list[Event]], list[Event]]:
    """Return what cuts the text of each choice before the first stop word of a request, batch by batch."""
    words, stops = request.stop_words, dict[int, StopWords]()

    def cut(batch: list[Event]) -> list[Event]:
        events = list[Event]()
        for event in batch:
            if isinstance(event, TextDelta):
                stop = stops.setdefault(event.index, StopWords(words))
                text = "" if stop.found is not None else stop.feed(event.text)
                event = structs.replace(event, text=text)
            elif isinstance(event, Finish) and event.index in stops:
                stop = stops.pop(event.index)
                if held := stop.end():
                    events.append(TextDelta(held, event.index, tokens=0))
                event = structs.replace(event, stop=stop.found)
            events.append(event)
        return events

    return cut
