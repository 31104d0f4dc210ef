"""
What the child is asked for an answer, and how it is read.

A plain completion is asked for at the native /completion, which alone says which stop word ended it and what was cut. A chat is
asked for at /v1/chat/completions, whose parsers know each template; where one cannot read what the model wrote, the server
loses the text, so the same text is made again without a parser and read here.
"""

import secrets
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from unilect.backend import Batches
from unilect.engines.gguf import _request as wire
from unilect.engines.gguf._errors import StrayAnswer, fault
from unilect.engines.tools.channels import MARKS, events_of
from unilect.engines.tools.chatglm import new_call_id
from unilect.engines.tools.forced import Call, CallStyle, allowed_calls, call_head
from unilect.engines.tools.formats import Tools
from unilect.engines.tools.parser import Parser, family, thinks
from unilect.errors import BackendError
from unilect.events import (
    Event,
    Extra,
    Finish,
    Opaque,
    Progress,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from unilect.http.client import HttpServer
from unilect.parameters.support import names
from unilect.requests import ChatRequest, CompletionRequest, ImagePart
from unilect.upstreams.llamacpp.frames import FrameDecoder
from unilect.upstreams.llamacpp.request import top_logprobs
from unilect.upstreams.openai.backend import stream
from unilect.upstreams.openai.chunks import ChunkDecoder

#: What belongs to a chat's body and not to that of its text alone.
CONVERSATION = names(
    "messages tools tool_choice parallel_tool_calls response_format chat_template_kwargs verbose response_fields logprobs "
    "top_logprobs"
)
_VERBOSE = "__verbose"
_BUILD = "system_fingerprint"
_SEEDS = 2**32 - 1  # the last one means any


class _Rendered(Struct):
    prompt: str


async def rendered(server: HttpServer, request: ChatRequest) -> str:
    """A conversation as the model reads it."""
    body = msgspec.json.encode(wire.template_body(request))
    answer = await server.post("/apply-template", body)
    return msgspec.json.decode(answer, type=_Rendered).prompt


async def completed(
    server: HttpServer, request: ChatRequest | CompletionRequest, body: dict[str, Any]
) -> Batches:
    """The events of a plain completion."""
    decoder = FrameDecoder(not request.stream, top_logprobs(request), bool(request.return_tokens))
    answer = stream(server, "/completion", msgspec.json.encode(body), decoder)
    try:
        async with aclosing(answer) as batches:
            async for batch in batches:
                yield batch
    except BackendError as error:
        raise fault(error) from error


async def forced_call(
    server: HttpServer, request: ChatRequest, prompt: str, body: dict[str, Any], style: CallStyle
) -> Batches:
    """
    The events of one forced call.

    Args:
        prompt: The rendered conversation.
        body: Sampling and the like for llama.cpp, and the grammar that allows nothing but a call; the prompt is added.

    Raises:
        InvalidRequest: `max_tokens` ends the answer before a call has begun.
        BackendError: The engine wrote something that the grammar forbids.
    """
    call = Call({name: call_head(name, style) for name in allowed_calls(request)})
    bound = body | {"prompt": prompt + style.before}
    async with aclosing(completed(server, request, bound)) as batches:
        async for batch in batches:
            if events := call.read(batch):
                yield events


async def chatted(
    server: HttpServer, request: ChatRequest, body: dict[str, Any], template: str
) -> Batches:
    """
    The events of a chat.

    Args:
        template: The chat template, which shows how its models think and call.

    Raises:
        StrayAnswer: Its parser cannot read the answer, and what has been told cannot be taken back.
    """
    if body.get("seed", _SEEDS) == _SEEDS:  # known, so that the same text can be made again
        body = body | {"seed": secrets.randbelow(_SEEDS)}
    told = _Told()
    try:
        decoder = ChunkDecoder(joined=not request.stream)
        answer = stream(server, "/v1/chat/completions", msgspec.json.encode(body), decoder)
        async with aclosing(answer) as batches:
            async for batch in batches:
                told.add(batch)
                if left := [event for told in batch if (event := _without_verbose(told))]:
                    yield left
        return
    except BackendError as error:
        lost = fault(error)
        if not isinstance(lost, StrayAnswer) or told.calls or _has_images(request):
            raise lost from error
    again = _made_again(server, request, body, template)
    async with aclosing(again) as batches:
        async for batch in batches:
            if rest := told.rest(batch, lost):
                yield rest


class _Told:
    """
    What of an answer has been told, so that its second making can go on from there.

    Attributes:
        calls: A tool call has been told.
    """

    def __init__(self) -> None:
        self.calls = False
        self._told: dict[type, str] = {TextDelta: "", ReasoningDelta: ""}
        self._probabilities = 0

    def add(self, batch: list[Event]) -> None:
        """Note what a batch tells."""
        for event in batch:
            if isinstance(event, TextDelta | ReasoningDelta):
                self._told[type(event)] += event.text
            if isinstance(event, TextDelta):
                self._probabilities += len(event.logprobs or ())
            self.calls = self.calls or isinstance(event, ToolCallDelta)

    def rest(self, batch: list[Event], lost: StrayAnswer) -> list[Event]:
        """
        What of a batch of the second making is new.

        Raises:
            StrayAnswer: It is another text than before.
        """
        events: list[Event] = []
        for event in batch:
            if isinstance(event, TextDelta) and event.logprobs and self._probabilities:
                new = event.logprobs[self._probabilities :]
                self._probabilities -= len(event.logprobs) - len(new)
                event = msgspec.structs.replace(event, logprobs=new or None)
            if isinstance(event, TextDelta | ReasoningDelta) and self._told[type(event)]:
                told = self._told[type(event)]
                if not (told.startswith(event.text) or event.text.startswith(told)):
                    raise lost
                self._told[type(event)] = told[len(event.text) :]
                event = msgspec.structs.replace(event, text=event.text[len(told) :])
                if not event.text:
                    continue
            events.append(event)
        return events


async def _made_again(
    server: HttpServer, request: ChatRequest, body: dict[str, Any], template: str
) -> Batches:
    """The text of a chat, made with the same seed and read leniently: thoughts and calls as far as they are some."""
    prompt = await rendered(server, request)
    kind, (marks, begun) = family(template), thinks(template, prompt)
    tools = None
    if request.tools and request.tool_choice != "none":
        tools = {tool.function.name: tool.function.parameters for tool in request.tools}
    parser = Parser(
        kind,
        tools,
        new_call_id,
        thinking=marks,
        begun=begun,
        most=1 if request.parallel_tool_calls is False else None,
    )
    plain = {name: value for name, value in body.items() if name not in CONVERSATION}
    plain |= {"prompt": prompt, "preserved_tokens": _marks_of(template)}
    if "max_tokens" in plain:
        plain["n_predict"] = plain.pop("max_tokens")
    top = top_logprobs(request)
    if top is not None:
        plain["n_probs"] = max(top, 1)
    answer = completed(server, request, plain)
    if MARKS[0] in template:
        answer = _of_channels(answer, tools)
    async with aclosing(answer) as batches:
        async for batch in batches:
            if events := _parsed(batch, parser):
                yield events


async def _of_channels(answer: Batches, tools: Tools | None) -> Batches:
    """An answer in channels, told when it has ended; one with probabilities as it comes, for they belong to its tokens."""
    texts: list[str] = []
    async with aclosing(answer) as batches:
        async for batch in batches:
            events: list[Event] = []
            for event in batch:
                if isinstance(event, TextDelta) and event.logprobs is None:
                    texts.append(event.text)
                    continue
                if isinstance(event, Finish):
                    said = events_of("".join(texts), tools)
                    called = any(isinstance(one, ToolCallDelta) for one in said)
                    if called and event.reason == "stop":
                        event = msgspec.structs.replace(event, reason="tool_calls")
                    events += said
                events.append(event)
            if events:
                yield events


def _parsed(batch: list[Event], parser: Parser) -> list[Event]:
    """A batch of text as what it means; a text with probabilities is told as it is, for they belong to its tokens."""
    events: list[Event] = []
    for event in batch:
        match event:
            case TextDelta(text, _, None):
                events += parser.add(text)
            case Finish(reason):
                events += parser.end()
                calls = parser.calls and reason == "stop"
                events.append(Finish("tool_calls" if calls else reason, 0, event.extra))
            case TextDelta() | Usage():
                events.append(event)
            case Progress():
                continue
            case _:
                events.append(event)
    return events


def _marks_of(template: str) -> list[str]:
    """The special tokens that the parser looks for; llama.cpp writes no other."""
    kind = family(template)
    marks = (kind.begin, kind.end, *kind.marks, "<think>", "</think>", *MARKS)
    return [mark for mark in marks if mark and mark in template]


def _without_verbose(event: Event) -> Event | None:
    """
    An event with what the server's last chunk says beside OpenAI's fields: that the context was full.

    Its fingerprint names no build, and is left out.
    """
    extra = getattr(event, "extra", None)
    if extra is None or not {_VERBOSE, _BUILD} & extra.chunk.keys():
        return event
    chunk = {name: value for name, value in extra.chunk.items() if name not in (_VERBOSE, _BUILD)}
    if extra.chunk.get(_VERBOSE, {}).get("truncated"):
        chunk["truncated"] = True
    left = msgspec.structs.replace(extra, chunk=chunk)
    if left == Extra() and isinstance(event, Opaque):
        return None
    return msgspec.structs.replace(event, extra=None if left == Extra() else left)


async def without_alternatives(batches: Batches) -> Batches:
    """An answer whose tokens are told without others beside them: llama.cpp tells one at least, or nothing at all."""
    async with aclosing(batches):
        async for batch in batches:
            yield [_bare(event) if isinstance(event, TextDelta) else event for event in batch]


def _bare(event: TextDelta) -> TextDelta:
    told = [msgspec.structs.replace(token, top_logprobs=[]) for token in event.logprobs or ()]
    return msgspec.structs.replace(event, logprobs=told) if told else event


def is_begun(batch: list[Event]) -> bool:
    """How far a prompt is read may be told twice."""
    return any(not isinstance(event, Progress) for event in batch)


def _has_images(request: ChatRequest) -> bool:
    return any(
        isinstance(part, ImagePart)
        for message in request.messages
        if isinstance(message.content, list)
        for part in message.content
    )
