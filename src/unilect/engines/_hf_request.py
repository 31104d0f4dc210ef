"""
A request as a job for the batch, and the job's words as the events of an answer. Knows neither torch nor transformers.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from unilect.engines import _tool_calls as calls
from unilect.engines._forced_call import Call as ForcedCall
from unilect.engines._forced_call import bound_call, call_style, must_call
from unilect.engines._gguf_request import compact
from unilect.engines._hf_job import Failed, Job, Logprob, PromptRead, Sampling, Step, Word
from unilect.engines._hf_reader import Reader
from unilect.engines._hf_text import Detokenizer, StopWords
from unilect.errors import BackendError, ContextLengthExceeded, InvalidRequest
from unilect.events import Event, Finish, Progress, TextDelta, TokenLogprob, ToolCallDelta, Usage
from unilect.parameters import refusal, token_biases
from unilect.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
)

MAX_BEAMS = 16
#: Makes a constraint of a grammar; given a mark, it begins behind the mark.
Compile = Callable[[str, str | None], Any]


def sampling(request: GenerationRequest) -> Sampling:
    """
    How a request wants its tokens chosen.

    Raises:
        InvalidRequest: A parameter that the model's engine cannot follow.
    """
    beams = request.num_beams or 1
    if beams > MAX_BEAMS:
        raise InvalidRequest(
            f"`num_beams` is {beams}; at most {MAX_BEAMS} are searched.", param="num_beams"
        )
    if beams > 1:
        if request.grammar or getattr(request, "response_format", None) is not None:
            raise refusal("num_beams", "beam search follows no grammar")
        if request.logprobs:  # type: ignore[attr-defined]
            raise refusal("logprobs", "beam search tells none")
        if request.logit_bias or request.repetition_penalty or request.repeat_penalty:
            raise refusal("num_beams", "beam search knows no bias and no penalties")
    greedy = request.do_sample is False
    window = request.repeat_last_n
    return Sampling(
        temperature=0.0 if greedy else _or(request.temperature, 1.0),
        top_k=max(0, request.top_k or 0),
        top_p=_or(request.top_p, 1.0),
        min_p=request.min_p or 0.0,
        typical_p=_or(request.typical_p, 1.0),
        repetition_penalty=request.repetition_penalty or request.repeat_penalty or 1.0,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repeat_last_n=None if window is None or window < 0 else window,
        logit_bias=_bias(request.logit_bias or {}),
        seed=None if request.seed == -1 else request.seed,
        mirostat=request.mirostat or 0,
        mirostat_tau=_or(request.mirostat_tau, 5.0),
        mirostat_eta=_or(request.mirostat_eta, 0.1),
        num_beams=beams,
    )


def prepare(
    reader: Reader, request: ChatRequest | CompletionRequest, adapter: str | None, bind: Compile
) -> tuple[Job, "Answer"]:
    """
    The job for a request, and what reads its words.

    Args:
        bind: Makes the constraint of a grammar.

    Raises:
        UnilectError: The request cannot be answered.
    """
    rules = sampling(request)
    forced: ForcedCall | None = None
    grammar, param, begun = request.grammar, "grammar", False
    if isinstance(request, ChatRequest):
        text = reader.rendered(request)
        _, begun = calls.thinks(reader.template, text)
        if must_call(request):
            style = call_style(reader.template)
            forced, grammar = bound_call(request, style)
            text += (calls.THINK[1] + "\n\n" if begun else "") + style.before
            param, begun = "tools", False
        elif (schema := _schema(request)) is not None:
            grammar, param = _schema_grammar(request, schema), "response_format"
        prompt = reader.tokens(text, special=False) or reader.prompt("", "messages")
    else:
        prompt = reader.prompt(request.prompts[0], "prompt")
    if len(prompt) >= reader.context:
        raise ContextLengthExceeded(
            f"This model's context is {reader.context} tokens, and the prompt has {len(prompt)}. "
            "Shorten the prompt, or serve the model with a larger context."
        )
    constraint = None
    if grammar is not None:
        try:
            constraint = bind(grammar, calls.THINK[1] if begun else None)
        except ValueError as error:
            raise InvalidRequest(f"`{param}` cannot be followed: {error}", param=param) from error
    limit = request.token_limit
    echo = isinstance(request, CompletionRequest) and bool(request.echo)
    job = Job(
        prompt=prompt,
        sampling=rules,
        max_tokens=reader.context - len(prompt) if limit is None else limit,
        deliver=_nobody,
        adapter=adapter,
        logprobs=_logprobs(request),
        prompt_logprobs=echo and _logprobs(request) is not None,
        ignore_eos=bool(request.ignore_eos),
        constraint=constraint,
        reuse=request.cache_prompt is not False,
    )
    return job, Answer(reader, request, job, forced, begun, echo)


class Answer:
    """
    Reads the words of one job as events.

    Attributes:
        over: The answer has ended; the job may be cancelled.
    """

    def __init__(
        self,
        reader: Reader,
        request: ChatRequest | CompletionRequest,
        job: Job,
        forced: ForcedCall | None,
        begun: bool,
        echo: bool,
    ) -> None:
        self.over = False
        self._reader = reader
        self._job = job
        self._forced = forced
        self._echo = echo
        self._prompt_text = _text(request, reader) if echo else ""
        self._stops = StopWords([] if forced is not None else _stop_words(request, reader))
        before = job.prompt if isinstance(request, CompletionRequest) else ()
        self._detokenizer = Detokenizer(reader.decode, before)
        self._parser = None
        self._one_call = False
        if isinstance(request, ChatRequest) and forced is None:
            wanted = bool(request.tools) and request.tool_choice != "none"
            names = frozenset(tool.function.name for tool in request.tools or ())
            thinking, _ = calls.thinks(reader.template, "")
            self._one_call = request.parallel_tool_calls is False
            self._parser = calls.Parser(
                reader.family, names if wanted else None, _new_id, thinking=thinking, begun=begun
            )
        self._made = self._cached = 0
        self._blamed = "tools" if forced is not None else "response_format"
        if request.grammar is not None:
            self._blamed = "grammar"
        self._pending: list[TokenLogprob] = []
        self._beyond = 0  # bytes of tokens that are in no text that was told

    def read(self, word: Word, bytes_of: Callable[[int], bytes]) -> list[Event]:
        """
        The events of a word.

        Raises:
            UnilectError: The job has failed.
        """
        match word:
            case Failed(message, of_request):
                if of_request:
                    raise InvalidRequest(message, param=self._blamed)
                raise BackendError(message)
            case PromptRead():
                return self._prompt(word, bytes_of)
            case Step():
                return self._step(word, bytes_of)

    def _prompt(self, word: PromptRead, bytes_of: Callable[[int], bytes]) -> list[Event]:
        self._cached = word.cached
        if word.processed < word.total:
            return [Progress(word.processed, word.total)]
        if not self._echo:
            return []
        told = None
        if self._job.prompt_logprobs:
            first = self._job.prompt[0]
            told = [TokenLogprob(self._reader.text([first]), math.nan, list(bytes_of(first)))]
            told += [self._logprob(one, bytes_of) for one in word.logprobs]
        return [TextDelta(self._prompt_text, 0, told)]

    def _step(self, step: Step, bytes_of: Callable[[int], bytes]) -> list[Event]:
        self._made += len(step.tokens) + (step.finish == "stop" and not step.tokens)
        new = [self._logprob(one, bytes_of) for one in step.logprobs]
        self._pending += new
        text = "".join(map(self._detokenizer.add, step.tokens))
        if step.finish is not None:
            text += self._detokenizer.end()
        text, stopped = self._stops.add(text)
        reason = "stop" if stopped else step.finish
        if reason is not None and not stopped:
            text += self._stops.end()
        self._beyond += sum(len(token.bytes or ()) for token in new) - len(text.encode())
        events = self._events(text, reason)
        if self._pending and (reason is not None or any(isinstance(e, TextDelta) for e in events)):
            events = _with_logprobs(events, self._told(stopped))
            self._pending = []
        if reason is None:
            return events
        self.over = True
        if not any(isinstance(event, Finish) for event in events):
            called = self._parser is not None and self._parser.calls > 0
            events.append(Finish("tool_calls" if called and reason == "stop" else reason))
        return [*events, Usage(len(self._job.prompt), self._made, self._cached)]

    def _told(self, stopped: bool) -> list[TokenLogprob]:
        """The tokens to be told now: without those that lie behind the beginning of a stop word."""
        told = self._pending
        while stopped and told and len(told[-1].bytes or ()) <= self._beyond:
            self._beyond -= len(told.pop().bytes or ())
        return told

    def _events(self, text: str, reason: Any) -> list[Event]:
        """What a piece of text says: plain text, thoughts or calls."""
        if self._forced is not None:
            batch: list[Event] = [TextDelta(text)] if text else []
            return self._forced.read([*batch, *([Finish(reason)] if reason else [])])
        if self._parser is None:
            return [TextDelta(text)] if text else []
        events = self._parser.add(text) if text else []
        if self._one_call and self._parser.calls and reason is None:
            self.over = True
            first = [event for event in events if not _later(event)]
            usage = Usage(len(self._job.prompt), self._made, self._cached)
            return [*first, Finish("tool_calls"), usage]
        return [*events, *self._parser.end()] if reason is not None else events

    def _logprob(self, one: Logprob, bytes_of: Callable[[int], bytes]) -> TokenLogprob:
        top = [
            TokenLogprob(self._reader.text([token]), _finite(value), list(bytes_of(token)))
            for token, value in one.top
        ]
        text = self._reader.text([one.token])
        return TokenLogprob(text, _finite(one.value), list(bytes_of(one.token)), top)


def _stop_words(request: ChatRequest | CompletionRequest, reader: Reader) -> list[str]:
    """Those of the request, and those of the chat's format."""
    return [*request.stop_words, *(reader.stop if isinstance(request, ChatRequest) else ())]


def _text(request: ChatRequest | CompletionRequest, reader: Reader) -> str:
    """A prompt as it was given; what its tokenizer puts before it is not in it."""
    prompt = request.prompts[0] if isinstance(request, CompletionRequest) else ""
    return prompt if isinstance(prompt, str) else reader.text(prompt)


def _later(event: Event) -> bool:
    return isinstance(event, ToolCallDelta) and event.call > 0


def _with_logprobs(events: list[Event], told: list[TokenLogprob]) -> list[Event]:
    """The events, the log probabilities with the first text among them."""
    for place, event in enumerate(events):
        if isinstance(event, TextDelta):
            changed = msgspec.structs.replace(event, logprobs=told)
            return [*events[:place], changed, *events[place + 1 :]]
    return [TextDelta("", 0, told), *events] if told else events


def _schema(request: ChatRequest) -> dict[str, Any] | None:
    match request.response_format:
        case JsonObjectFormat(schema):
            return schema or {"type": "object"}
        case JsonSchemaFormat(json_schema):
            return json_schema.schema or {}
    return None


def _schema_grammar(request: ChatRequest, schema: dict[str, Any]) -> str:
    if request.grammar is not None:
        raise InvalidRequest(
            "`grammar` and `response_format` cannot stand together; send one of them.",
            param="grammar",
        )
    return "%llguidance {}\nstart: %json " + msgspec.json.encode(compact(schema)).decode()


def _logprobs(request: GenerationRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if isinstance(request, ChatRequest) and request.logprobs:
        return request.top_logprobs or 0
    return None


def _bias(given: Mapping[str, float | bool]) -> dict[int, float]:
    """OpenAI's 100 and -100 are always and never, and so is llama.cpp's false."""
    return {
        id: -math.inf if value is False or value <= -100 else value
        for id, value in token_biases(given).items()
    }


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _finite(value: float) -> float:
    return max(value, -9999.0)  # JSON has no -inf


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _nobody(job: Job, word: Word) -> None:
    """Who gets the words is known when the job is handed over."""
