"""
OpenAI's chat completions: POST /v1/chat/completions, and /chat/completions for older clients.

A body may hold what older clients write; `DecodedRequest` says what became of it.

Rules that real clients need (measured with the official ones): the role in a choice's first delta and only there, `index`
everywhere, a call's id and name in its first delta only, one finish reason per choice, errors in a stream as `data:` frames.

Source: https://platform.openai.com/docs/api-reference/chat
"""

from codecs import BOM_UTF8
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from unilect.core.bounds import LARGE_BYTES, MAX_PARTS, check_free_form, most_values
from unilect.core.errors import InvalidRequest
from unilect.core.events import (
    Answer,
    Choice,
    Event,
    Finish,
    Opaque,
    Progress,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from unilect.core.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    JsonFormat,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    NamedFunction,
    TextRequest,
    Tool,
    ToolChoice,
)
from unilect.dialects.openai import _older
from unilect.dialects.openai.chunks import (
    ChunkEncoder,
    chat_logprobs,
    encode_json,
    encode_lines,
    progress_object,
)
from unilect.web.decode import BodyDecoder, RawFields, decode_request, raw_fields_of
from unilect.web.profile import OPENAI, CompatProfile
from unilect.web.route import Route, both
from unilect.web.site import Site
from unilect.web.streaming import respond

_decoder = BodyDecoder(ChatRequest)
_raw_decoder = BodyDecoder(CompletionRequest)
_FIRST = b'"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}'
_NOTHING = b'"delta":{},"logprobs":null,"finish_reason":null}'
_TEXT = b'{"index":0,"delta":{"content":'
_AFTER = b'},"logprobs":null,"finish_reason":null}'


def routes(site: Site) -> list[Route]:
    """The URLs of this dialect."""
    service, profile = site.service, site.profile
    decode_body = partial(decode, profile=profile)

    async def create_chat_completion(request: web.Request) -> web.StreamResponse:
        """Answer a conversation."""
        asked = await decode_request(request, decode_body)
        run = service.run(asked.request)
        encoder = ChatEncoder(asked.request, run.model.name, asked.legacy, asked.echoed, profile)
        return await respond(request, run, encoder)

    path, summary = "/chat/completions", "Answer a conversation"
    return both(path, create_chat_completion, summary, ChatRequest, "chat.completions")


class DecodedRequest(Struct, frozen=True):
    """
    A decoded body.

    Attributes:
        request: The typed request; a plain completion where `messages` was a prompt as the model reads it.
        legacy: It came with `functions`, so that the answer must use them.
        echoed: The conversation, where the answer repeats it.
    """

    request: TextRequest
    legacy: bool = False
    echoed: Sequence[Message] = ()


def decode(
    body: bytes, raw: RawFields | None = None, profile: CompatProfile = OPENAI
) -> DecodedRequest:
    """
    Decode a body. The older `functions` become `tools`; a text becomes a turn of the user, or a prompt.

    Raises:
        InvalidRequest: As `BodyDecoder.decode`; or two fields contradict each other.
    """
    try:
        request = _decoder.decode(body, raw)
        if not _older.MAY_BE_ALIASES.isdisjoint(request.raw_fields):
            request = _older.normalize_aliases(request)
    except InvalidRequest as error:
        fields = raw_fields_of(body.removeprefix(BOM_UTF8)) if raw is None else raw
        if error.param == "messages" and _older.is_one_text(fields):
            return _of_one_text(fields, profile)
        raise
    # to look for the word is quicker than to look at the messages of a body that is not large
    echoes = (len(body) > LARGE_BYTES or b'"message"' in body) and _older.speaks_alpaca(request)
    if echoes:
        request = _older.with_contents(request)
    legacy = bool(request.functions)
    if legacy:
        request = _with_tools(request)
    _check(request)
    return DecodedRequest(request, legacy, request.messages if echoes else ())


def _of_one_text(fields: RawFields, profile: CompatProfile) -> DecodedRequest:
    """The question of a body whose `messages` is one text: a prompt, or a turn of the user."""
    if profile.string_messages == "raw":
        fields = _older.as_prompt(fields)
        return DecodedRequest(
            _older.normalize_aliases(_raw_decoder.decode(encode_json(fields), fields))
        )
    fields = _older.as_messages(fields)
    asked = decode(encode_json(fields), fields, profile)
    if profile.conversation_choices and isinstance(asked.request, ChatRequest):
        return msgspec.structs.replace(asked, echoed=asked.request.messages)
    return asked


def _check(request: ChatRequest) -> None:
    """Refuse fields that are wrong together and messages without content, and bound what has no fixed form."""
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest.at("top_logprobs", "requires `logprobs: true`.")
    calls = False
    for number, message in enumerate(request.messages):
        if message.content is None and message.role != "assistant":
            where = f"messages[{number}].content"
            raise InvalidRequest.at(
                where, f"is missing; a message of role {message.role} needs it."
            )
        calls = calls or message.tool_calls is not None or message.function_call is not None
    if calls:
        _check_calls(request.messages)
    if request.response_format is not None or request.metadata is not None:
        check_format(request)
    if request.chat_template_kwargs is not None:
        check_free_form("chat_template_kwargs", request.chat_template_kwargs)
    values = 0
    for number, tool in enumerate(request.tools or ()):
        where = f"tools[{number}].function.parameters"
        values = check_free_form(where, tool.function.parameters, before=values)
    if request.tool_choice is not None:
        _check_tool_choice(request)


def check_format(request: GenerationRequest) -> None:
    """
    Bound the schema of a request, and what else has no fixed form beside it.

    Raises:
        InvalidRequest: It is too large or too deep.
    """
    if request.metadata is not None:
        check_free_form("metadata", request.metadata)
    if request.response_format is None:
        return
    match request.response_format:
        case JsonSchemaFormat(json_schema):
            check_free_form("response_format", json_schema.schema)
        case JsonObjectFormat(schema) | JsonFormat(schema):
            check_free_form("response_format", schema)


def _check_calls(messages: Sequence[Message]) -> None:
    """
    Bound the JSON that stands in texts: templates want the arguments of earlier calls as values.

    Raises:
        InvalidRequest: The calls have too many values.
    """
    marks = 0
    for number, message in enumerate(messages):
        calls = [call.function for call in message.tool_calls or ()]
        for call in calls if message.function_call is None else [*calls, message.function_call]:
            marks += most_values(call.arguments)
        if marks > MAX_PARTS:
            raise InvalidRequest.at(
                f"messages[{number}]",
                f": the calls up to here have more than {MAX_PARTS} values in their arguments; "
                "that is the maximum. Remove older calls.",
            )


def _with_tools(request: ChatRequest) -> ChatRequest:
    choice: Any = request.function_call
    if isinstance(choice, NamedFunction):
        choice = ToolChoice(choice)
    if request.tools:
        raise InvalidRequest.at("functions", "and `tools` cannot be combined; use `tools`.")
    tools = [Tool(function) for function in request.functions or ()]
    return request.changed(tools=tools, tool_choice=choice, functions=None, function_call=None)


def _check_tool_choice(request: ChatRequest) -> None:
    choice = request.tool_choice
    if choice == "none":
        return
    names = [tool.function.name for tool in request.tools or ()]
    if not names and choice != "auto":
        raise InvalidRequest.at("tool_choice", "requires `tools`.")
    if isinstance(choice, ToolChoice) and choice.function.name not in names:
        raise InvalidRequest.at(
            "tool_choice", f"names `{choice.function.name[:100]}`, which is not in `tools`."
        )


class ChatEncoder(ChunkEncoder):
    """
    The words of one chat answer.

    Args:
        request: What was asked for.
        model: The model's name, as the answer gives it.
        legacy: Tool calls are told as `function_call`.
        echoed: Messages that a whole answer repeats, one choice each, before its own.
        profile: The listener's.
    """

    def __init__(
        self,
        request: GenerationRequest,
        model: str,
        legacy: bool = False,
        echoed: Sequence[Message] = (),
        profile: CompatProfile = OPENAI,
    ) -> None:
        kind = "chat.completion.chunk" if request.stream else "chat.completion"
        super().__init__("chatcmpl-", kind, model, request, profile.done)
        self._legacy = legacy
        self._tool_finish = "function_call" if legacy else profile.tool_finish
        self._echoed = echoed
        self._stop_words = frozenset(request.stop_words)
        self._begun: set[int] = set()

    def encode(self, batch: list[Event]) -> bytes:
        """The frames for a batch of events; those of texts of the first choice that nothing comes with are made all at once."""
        begun, frames, texts = 0 in self._begun, list[bytes](), list[str]()
        for event in batch:
            if (
                begun
                and type(event) is TextDelta
                and event.index == 0
                and event.logprobs is None
                and event.extra is None
            ):
                texts.append(event.text)
                continue
            if texts:
                self._add_texts(texts, frames)
                texts.clear()
            self._encode_other(event, frames)
            begun = 0 in self._begun
        if len(texts) == 1 == len(batch):  # as where a model's tokens come one at a time
            return b"%b%b%b%b%b" % (self.head, _TEXT, encode_json(texts[0]), _AFTER, self.tail)
        if texts:
            self._add_texts(texts, frames)
        return b"".join(frames)

    def _add_texts(self, texts: list[str], frames: list[bytes]) -> None:
        """Add the frames of texts for the first choice, encoded in one call; no JSON text has a line end in it."""
        before, after = self.head + _TEXT, _AFTER + self.tail
        frames += before, encode_lines(texts)[:-1].replace(b"\n", after + before), after

    def whole(self, answer: Answer, ignored: tuple[str, ...]) -> bytes:
        """The body of a whole answer."""
        echoed: list[dict[str, Any]] = [
            {"index": index, "message": {"role": message.role, "content": message.content}}
            for index, message in enumerate(self._echoed)
        ]
        choices = [self._choice(choice) for choice in answer.choices]
        for choice in choices if echoed else ():
            choice["index"] += len(echoed)
        return self.body(echoed + choices, answer, ignored)

    def _encode_other(self, event: Event, frames: list[bytes]) -> None:
        if isinstance(event, Usage):
            self.usage = event
            return
        if isinstance(event, Progress):
            if self.tells_progress:
                frames.append(self._progress(event))
            return
        extra = event.extra
        more = self.add(extra.chunk) if extra is not None else None
        if isinstance(event, Opaque) and event.index is None:
            self.keep(more or {})
            return
        index = event.index or 0
        if index not in self._begun:
            self._begun.add(index)
            first, more = (more, None) if isinstance(event, Opaque) else (None, more)
            frames.append(self.frame(b'{"index":%d,' % index + _FIRST, first))
            if extra is not None and first and not (extra.choice or extra.delta):
                return
        if isinstance(event, TextDelta) and not (event.text or event.logprobs or extra):
            return
        if isinstance(event, Finish):
            # without a usage chunk the last one of a choice carries what came without a choice
            more = ({} if self._usage_wanted else self._late) | (more or {})
        frames.append(self.frame(self._choice_of(event), more))

    def _progress(self, event: Progress) -> bytes:
        """The frame that tells how far the prompt has been read; the first one begins the answer, as any first frame does."""
        choice = b'{"index":0,' + (_NOTHING if 0 in self._begun else _FIRST)
        self._begun.add(0)
        return self.frame(choice, progress_object(event))

    def _choice_of(self, event: Any) -> bytes:
        """The choice of a chunk for an event, with what an upstream has put beside."""
        delta: dict[str, Any] = {}
        match event:
            case TextDelta(text):
                delta = {"content": text}
            case ReasoningDelta(text):
                delta = {"reasoning_content": text, "reasoning": text}
            case RefusalDelta(text):
                delta = {"refusal": text}
            case ToolCallDelta():
                delta = self._tool_delta(event)
        logprobs, extra = getattr(event, "logprobs", None), event.extra
        reason = event.reason if isinstance(event, Finish) else None
        choice = {
            "index": event.index or 0,
            "delta": delta if extra is None else delta | extra.delta,
            "logprobs": chat_logprobs(logprobs) if logprobs is not None else None,
        } | self._ending(reason, getattr(event, "stop", None))
        return encode_json(choice if extra is None else choice | extra.choice)

    def _tool_delta(self, event: ToolCallDelta) -> dict[str, Any]:
        extra = event.extra.call if event.extra is not None and not self._legacy else {}
        call = _call(event.id, event.name, event.arguments, extra)
        if self._legacy:
            return {"function_call": call["function"]}
        return {"tool_calls": [{"index": event.call} | call]}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": choice.text,
            "refusal": choice.refusal,
        }
        if choice.text is None and not choice.tool_calls and choice.refusal is None:
            message["content"] = ""
        if choice.reasoning is not None:
            message |= {"reasoning_content": choice.reasoning, "reasoning": choice.reasoning}
        calls = [
            _call(call.id, call.name, call.arguments, call.extra) for call in choice.tool_calls
        ]
        if calls and self._legacy:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return {
            "index": choice.index,
            "message": message | choice.message_extra,
            "logprobs": chat_logprobs(choice.logprobs) if choice.logprobs is not None else None,
            **self._ending(choice.finish_reason, choice.stop),
        } | choice.extra

    def _ending(self, reason: str | None, word: str | None) -> dict[str, str | None]:
        """Make the fields of a choice's end: its reason as the client's API has it, and its stop word, as vLLM tells it."""
        ending = {"finish_reason": self._tool_finish if reason == "tool_calls" else reason}
        return ending | {"stop_reason": word} if word in self._stop_words else ending


def _call(
    id: str | None, name: str | None, arguments: str, extra: dict[str, Any]
) -> dict[str, Any]:
    """A call, or a piece of one, with the upstream's further fields, those of its function included."""
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    call: dict[str, Any] = {} if id is None else {"id": id, "type": "function"}
    return (
        call | {"function": function} | extra | {"function": function | extra.get("function", {})}
    )
