"""
Converts a request into jobs for the batch, and their output into events. Imports neither torch nor transformers.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from unilect.api.parameters.rules import is_neutral, refusal, token_biases
from unilect.api.parameters.support import names
from unilect.constraints import uncompilable
from unilect.core.errors import BackendError, InvalidRequest, OutOfMemory
from unilect.core.events import (
    Event,
    Finish,
    Progress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from unilect.core.requests import ChatRequest, CompletionRequest, GenerationRequest, TextRequest
from unilect.core.stop_words import StopWords
from unilect.engines.text import Decoder
from unilect.engines.transformers.batch.budget import ThoughtBudget
from unilect.engines.transformers.job import (
    Constraint,
    Failed,
    Job,
    Logprob,
    Output,
    PromptRead,
    Reason,
    Sampling,
    Step,
)
from unilect.engines.transformers.words.prompt_builder import PromptBuilder
from unilect.families import Reading
from unilect.http.error_bodies import too_long
from unilect.templates.thoughts import Ending
from unilect.tools.forced import call_grammar, call_reading, call_style, compact, must_call
from unilect.tools.reader import Reader as AnswerReader
from unilect.tools.reader import reading_of
from unilect.wire.llamacpp_request import check_one_constraint

MAX_BEAMS = 16
_CONTEXT = 6  # tokens of a prompt, beside which the first of an answer are decoded
_LEAST = -9999.0  # JSON has no -inf
_NO_BEAMS = names(
    "logit_bias repetition_penalty repeat_penalty presence_penalty frequency_penalty mirostat thinking_budget_tokens"
)
#: Makes a constraint of a grammar; given a mark, it begins behind the mark.
Compile = Callable[[str, str | None], Any]


def sampling(request: GenerationRequest, tokens: int | None = None) -> Sampling:
    """
    Make the sampling parameters of a request.

    Args:
        tokens: The size of the model's vocabulary, where it is known.

    Raises:
        InvalidRequest: The engine does not support a parameter.
    """
    beams = request.num_beams or 1
    if beams > 1:
        _check_beams(request, beams)
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
        logit_bias=_bias(request.logit_bias or {}, tokens),
        seed=None if request.seed == -1 else request.seed,
        mirostat=request.mirostat or 0,
        mirostat_tau=_or(request.mirostat_tau, 5.0),
        mirostat_eta=_or(request.mirostat_eta, 0.1),
        num_beams=beams,
    )


def _check_beams(request: GenerationRequest, beams: int) -> None:
    """
    Raises:
        InvalidRequest: Something that beam search cannot do.
    """
    if beams > MAX_BEAMS:
        raise InvalidRequest(
            f"`num_beams` is {beams}; the maximum is {MAX_BEAMS}.", param="num_beams"
        )
    forced = isinstance(request, ChatRequest) and must_call(request)
    if request.grammar is not None or request.answer_schema is not None or forced:
        raise refusal("num_beams", "beam search does not support grammars")
    if _logprobs(request) is not None:
        raise refusal("num_beams", "beam search does not support log probabilities")
    if (request.n or 1) > beams:
        raise InvalidRequest(
            f"`n` is {request.n} and `num_beams` is {beams}; `n` must not exceed `num_beams`.",
            param="n",
        )
    if rule := next((rule for rule in _NO_BEAMS if not is_neutral(request, rule)), None):
        raise refusal("num_beams", f"beam search does not support `{rule}`")


def prepare(
    reader: PromptBuilder, request: TextRequest, adapter: str | None, bind: Compile
) -> tuple[Job, "AnswerStream | BeamAnswerStreams"]:
    """
    The job for a request, and what reads its words.

    Args:
        bind: Makes the constraint of a grammar.

    Raises:
        UnilectError: The request cannot be answered.
    """
    rules = sampling(request, reader.rows)
    reading = end = None
    grammar, param = bound_by(request, reader.template)
    if isinstance(request, ChatRequest):
        text = reader.render(request)
        ending = reader.find_open_thoughts(text)
        if must_call(request):
            style = call_style(reader.template)
            reading = call_reading(request, style)
            text += (ending.mark + ending.rest if ending else "") + style.before
        else:
            end = _mark_of(ending, reader.family.thoughts[1])
            reading = reading_of(request, reader.template, end)
        prompt = reader.chat_tokens(text)
    else:
        prompt = reader.prompt(request.prompts[0], "prompt")
    if len(prompt) >= reader.context:
        raise too_long(len(prompt), reader.context)
    constraint = None
    if grammar is not None:
        try:
            constraint = bind(grammar, end)
        except ValueError as error:
            raise uncompilable(param, str(error)) from error
    limit = request.token_limit
    echo = isinstance(request, CompletionRequest) and bool(request.echo)
    job = Job(
        prompt=prompt,
        sampling=rules,
        max_tokens=reader.context - len(prompt) if limit is None else limit,
        adapter=adapter,
        logprobs=_logprobs(request),
        choices=(request.n or 1) if rules.num_beams > 1 else 1,
        prompt_logprobs=echo and _logprobs(request) is not None,
        ignore_eos=bool(request.ignore_eos),
        stop_ids=reader.turn_ends if isinstance(request, ChatRequest) else frozenset(),
        constraint=_limit_thoughts(constraint, request, reader, reading),
        reuse=request.cache_prompt is not False,
    )
    answers = [AnswerStream(reader, request, job, reading, echo) for _ in range(job.choices)]
    return job, answers[0] if job.choices == 1 else BeamAnswerStreams(answers)


def _mark_of(ending: Ending | None, own: str) -> str | None:
    """The end of thoughts: the mark of the family where they end with it; None where there are none."""
    if ending is None:
        return None
    return own if (ending.mark + ending.rest).startswith(own) else ending.mark


def _limit_thoughts(
    constraint: Constraint | None,
    request: TextRequest,
    reader: PromptBuilder,
    reading: Reading | None,
) -> Constraint | None:
    """A constraint that also ends thoughts after as many tokens as the request allows; a grammar leaves no place to begin them."""
    budget = request.thinking_budget_tokens if isinstance(request, ChatRequest) else None
    if reading is None or budget is None or budget < 0 or (constraint and not reading.begun):
        return constraint
    encode = partial(reader.tokens, special=False)
    thoughts = reading.family.thoughts
    return ThoughtBudget(constraint, budget, thoughts, encode, reader.text, reading.begun)


def bound_by(request: TextRequest, template: str) -> tuple[str | None, str]:
    """
    The grammar that an answer must follow, if any, and the parameter that wants it.

    Raises:
        InvalidRequest: Two parameters want one.
    """
    if isinstance(request, ChatRequest) and must_call(request):
        if request.grammar is not None:
            raise refusal("grammar", "a tool call that must come has its own")
        return call_grammar(request, call_style(template)), "tools"
    if request.answer_schema is not None:
        check_one_constraint(request)
        written = msgspec.json.encode(compact(request.answer_schema)).decode()
        return f"%llguidance {{}}\nstart: %json {written}", "response_format"
    return request.grammar, "grammar"


class AnswerStream:
    """
    Reads the words of one job as events.

    Attributes:
        over: The answer has ended; the job may be cancelled.
    """

    def __init__(
        self,
        reader: PromptBuilder,
        request: TextRequest,
        job: Job,
        reading: Reading | None,
        echo: bool,
    ) -> None:
        self.over = False
        self._job = job
        self._is_forced = isinstance(request, ChatRequest) and must_call(request)
        self._echo = echo
        stops, self._written = list(request.stop_words), ""
        answers = AnswerReader(reading) if reading is not None else None
        self._scanner = answers.scanner() if answers is not None else None
        self._read: Callable[[list[Event]], list[Event]] = answers.read if answers else list
        if isinstance(request, ChatRequest):
            stops += reader.stops
            self._decoder = Decoder(reader.decode)
        else:
            prompt = request.prompts[0]
            self._written = prompt if isinstance(prompt, str) else reader.text(prompt)
            self._decoder = Decoder(reader.decode, before=job.prompt[-_CONTEXT:])
        self._stops = StopWords([] if self._is_forced else stops)
        self._made = self._told = self._thought = self._cached = 0
        self._blamed = _param_at_fault(request, self._is_forced)
        self._pending: list[TokenLogprob] = []

    def read(self, output: Output, bytes_of: Callable[[int], bytes]) -> list[Event]:
        """
        The events of a word.

        Raises:
            UnilectError: The job has failed.
        """
        match output:
            case Failed(message, of_request, of_reader, of_memory):
                if of_request or of_reader:
                    raise InvalidRequest(message, param=self._blamed if of_request else None)
                raise OutOfMemory(message) if of_memory else BackendError(message)
            case PromptRead():
                return self._prompt(output, bytes_of)
            case Step():
                events: list[Event] = []
                for step in _one_by_one(output):
                    if not self.over:
                        events += self._step(step, bytes_of)
                return events

    def _prompt(self, output: PromptRead, bytes_of: Callable[[int], bytes]) -> list[Event]:
        self._cached = output.cached
        read = Progress(output.processed, output.total, output.cached)
        if output.processed < output.total or not self._echo:
            return [read]
        told = None
        if self._job.prompt_logprobs:
            told = [_token(bytes_of(self._job.prompt[0]), math.nan)]
            told += [_logprob(one, bytes_of) for one in output.logprobs]
        return [read, TextDelta(self._written, 0, told, tokens=0)]

    def _step(self, step: Step, bytes_of: Callable[[int], bytes]) -> list[Event]:
        self._made += len(step.tokens) + (step.finish == "stop" and not step.tokens)
        self._pending += [_logprob(one, bytes_of) for one in step.logprobs]
        text = "".join(map(self._decoder.feed, step.tokens))
        if step.finish is not None:
            text += self._decoder.end()
        whole = self._stops.held + text
        text = self._stops.feed(text)
        stopped = self._stops.found is not None
        reason = "stop" if stopped else step.finish
        if reason is not None and not stopped:
            text += self._stops.end()
        if stopped:
            self._pending = _without(self._pending, whole[len(text) :])
        if self._scanner is not None and self._scanner.thinks:
            self._thought += len(step.tokens)
        events = self._with_logprobs(self._events(text, reason), reason is not None)
        self.over = reason is not None or (self._scanner is not None and self._scanner.full)
        if not self.over:
            return events
        if reason is None:  # there have been as many calls as may be
            events.append(Finish("tool_calls"))
        used = Usage(len(self._job.prompt), self._made, self._cached, self._thought)
        return [*events, used]

    def _events(self, text: str, reason: Reason | None) -> list[Event]:
        """The events of a piece of text: plain text, thoughts or calls; its tokens are all since the last piece."""
        batch: list[Event] = []
        if text:
            batch.append(TextDelta(text, tokens=self._made - self._told))
            self._told = self._made
        if reason is not None:
            batch.append(Finish(reason, stop=self._stops.found))
        return self._read(batch)

    def _with_logprobs(self, events: list[Event], last: bool) -> list[Event]:
        """The events, the first text among them with the log probabilities of its tokens; thoughts and calls have none."""
        if not self._pending:
            return events
        place = next((i for i, event in enumerate(events) if isinstance(event, TextDelta)), None)
        if place is None:
            if any(isinstance(event, ReasoningDelta | ToolCallDelta) for event in events):
                self._pending = []
            elif last and not self._is_forced:  # tokens without any text
                return [TextDelta("", 0, self._pending), *events]
            return events
        held = (self._scanner.held if self._scanner is not None else "") + self._stops.held
        told = _without(self._pending, held)
        self._pending = self._pending[len(told) :]
        if self._scanner is not None:  # a mark may stand before the text
            texts = (event.text for event in events if isinstance(event, TextDelta))
            told = _last(told, "".join(texts))
        changed = msgspec.structs.replace(events[place], logprobs=told)
        return [*events[:place], changed, *events[place + 1 :]]


class BeamAnswerStreams:
    """
    Reads the words of a beam search for several answers as events.

    Attributes:
        over: All answers have ended.
    """

    def __init__(self, answers: list[AnswerStream]) -> None:
        self.over = False
        self._answers = answers
        self._usages: list[Usage] = []

    def read(self, output: Output, bytes_of: Callable[[int], bytes]) -> list[Event]:
        """
        The events of a word: what is told of the prompt is told for each answer, and of tokens for their own.

        Raises:
            UnilectError: The job has failed.
        """
        events: list[Event] = []
        for index, answer in enumerate(self._answers):
            if not isinstance(output, Step) or output.choice == index:
                events += self._of_one(index, answer.read(output, bytes_of))
        self.over = all(answer.over for answer in self._answers)
        if self.over:
            thought = sum(usage.reasoning_tokens or 0 for usage in self._usages)
            made = sum(usage.completion_tokens for usage in self._usages)
            total = msgspec.structs.replace(
                self._usages[0], completion_tokens=made, reasoning_tokens=thought
            )
            events.append(total)
        return events

    def _of_one(self, index: int, batch: list[Event]) -> list[Event]:
        """The events of one answer with its index; the usage is told once for all, and so is progress."""
        told: list[Event] = []
        for event in batch:
            if isinstance(event, Usage):
                self._usages.append(event)
            elif not isinstance(event, Progress):
                told.append(msgspec.structs.replace(event, index=index))
            elif index == 0:
                told.append(event)
        return told


def _one_by_one(step: Step) -> list[Step]:
    """A search's whole answer as any other is told: token by token, and an end as a token of its own."""
    if len(step.tokens) < 2:
        return [step]
    single = [Step([token]) for token in step.tokens]
    if step.finish == "stop":
        return [*single, Step(finish="stop")]
    return [*single[:-1], Step(step.tokens[-1:], [], step.finish)]


def _last(tokens: list[TokenLogprob], text: str) -> list[TokenLogprob]:
    """The last tokens, as many as it takes to write a text."""
    missing, first = len(text.encode()), len(tokens)
    while missing > 0 and first > 0:
        first -= 1
        missing -= len(tokens[first].bytes or ())
    return tokens[first:]


def _without(tokens: list[TokenLogprob], text: str) -> list[TokenLogprob]:
    """The tokens but the last ones that write nothing but a text's end."""
    spare, count = len(text.encode()), len(tokens)
    while count > 0 and (size := len(tokens[count - 1].bytes or ())) <= spare:
        spare -= size
        count -= 1
    return tokens[:count]


def _logprob(one: Logprob, bytes_of: Callable[[int], bytes]) -> TokenLogprob:
    top = [_token(bytes_of(token), value) for token, value in one.top]
    return msgspec.structs.replace(_token(bytes_of(one.token), one.value), top_logprobs=top)


def _token(text: bytes, value: float) -> TokenLogprob:
    """A token as it is written: what a tokenizer makes of one alone lacks the blank before a word."""
    return TokenLogprob(text.decode(errors="replace"), max(value, _LEAST), list(text))


def _param_at_fault(request: GenerationRequest, forced: bool) -> str:
    """Name the parameter at fault where no token can come next."""
    if forced:
        return "tools"
    if request.grammar is not None:
        return "grammar"
    return "response_format" if request.answer_schema is not None else "logit_bias"


def _logprobs(request: GenerationRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if isinstance(request, ChatRequest) and request.logprobs:
        return request.top_logprobs or 0
    return None


def _bias(given: Mapping[str, float | bool], tokens: int | None) -> dict[int, float]:
    """OpenAI's 100 and -100 are always and never, and so is llama.cpp's false."""
    return {
        id: -math.inf if value is False or value <= -100 else value
        for id, value in token_biases(given, tokens).items()
    }


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
