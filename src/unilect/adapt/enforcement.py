"""
Enforcement of schemas and grammars for answers of engines: a keyword that the engine does not enforce during generation is refused by name,
or enforced by validating the finished answer and retrying.

No answer is reported as finished before it was validated. What was streamed cannot be taken back: a stream whose keywords the engine enforces ends
with an error if validation fails, and one with another keyword is held back until an answer is valid.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from unilect.adapt.suppressed import SuppressedUsage
from unilect.api.backend import Batches, Capabilities, Generates
from unilect.api.parameters.rules import Unsupported
from unilect.constraints import is_llguidance, keywords
from unilect.constraints.checker import Checker
from unilect.constraints.schema import Use, find_unenforced, shorten_path
from unilect.core.errors import ConstraintViolated, UnsupportedParameter
from unilect.core.events import ENDED, Choice, Event, Finish, Fold, Progress, Usage
from unilect.core.requests import ANY_SEED, ChatRequest, TextRequest
from unilect.tools.forced import callable_tools, must_call

ATTEMPTS = 3
_WARMER = 0.7  # when asked again: the likeliest answer would come again
#: Finds what is wrong with the choices of a finished answer, as a text; None where nothing is.
FindFault: TypeAlias = Callable[[list[Choice]], Awaitable[str | None]]


class OutputConstraint(Struct, frozen=True):
    """
    A constraint of an answer.

    Attributes:
        param: The parameter with the constraint.
        schema: A JSON Schema, for the text or for a tool's arguments.
        grammar: A grammar for the text.
        tool: The tool of the arguments.
    """

    param: str
    schema: dict[str, Any] | None = None
    grammar: str | None = None
    tool: str | None = None


def output_constraints(request: TextRequest) -> list[OutputConstraint]:
    """
    Return the constraints of the answer to a request that can be validated at its end.

    The schemas of tools are a hint but for those that are `strict` where a call must come. GBNF is enforced by the engines at each token.
    """
    if isinstance(request, ChatRequest) and must_call(request):
        called = callable_tools(request)
        tools = [tool.function for tool in request.tools or () if tool.function.name in called]
        return [
            OutputConstraint("tools", schema=tool.parameters, tool=tool.name)
            for tool in tools
            if tool.strict and tool.parameters
        ]
    if request.answer_schema is not None:
        return [OutputConstraint("response_format", schema=request.answer_schema)]
    if request.grammar is not None and is_llguidance(request.grammar):
        return [OutputConstraint("grammar", grammar=request.grammar)]
    return []


class Stage(ABC):
    """
    A backend that stands in front of another, and has its capabilities; see `Backend`.

    Args:
        backend: The other.
        checker: Compiles constraints, and validates answers.
    """

    def __init__(self, backend: Generates, checker: Checker) -> None:
        self._backend = backend
        self._checker = checker

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the backend."""
        return self._backend.capabilities

    async def generate(self, request: TextRequest) -> Batches:
        """Answer a request; see `Backend`."""
        async with aclosing(await self._start(request)) as batches:
            async for batch in batches:
                yield batch

    @abstractmethod
    async def _start(self, request: TextRequest) -> Batches:
        """Check a request, and return the answer to it."""


class ConstraintEnforcer(Stage):
    """
    A backend whose answers are validated against their constraints; see `Stage`.

    Args:
        unsupported: The option for keywords that cannot be enforced.
        report: Called with the ignored keywords.
    """

    def __init__(
        self,
        backend: Generates,
        checker: Checker,
        unsupported: Unsupported,
        report: Callable[[str], None],
    ) -> None:
        super().__init__(backend, checker)
        self._unsupported = unsupported
        self._report = report

    async def _start(self, request: TextRequest) -> Batches:
        """
        See `Stage`.

        Raises:
            UnsupportedParameter: A keyword that nothing can enforce.
            ConstraintViolated: The answer has ended and does not satisfy its schema or grammar.
        """
        wanted = output_constraints(request)
        retried, lenient = await self._check(wanted)

        async def find_fault(choices: list[Choice]) -> str | None:
            return None if lenient else await self._find_violation(request, wanted, choices)

        if request.stream and (lenient or not retried):
            return self._stream(request, find_fault)
        return generate_valid(self._backend, request, find_fault)

    async def _check(self, wanted: list[OutputConstraint]) -> tuple[bool, bool]:
        """
        Check that the constraints can be enforced, and report the keywords that cannot.

        Returns:
            True if a keyword is enforced by retries alone, and True if a keyword is not enforced at all and was reported.

        Raises:
            InvalidRequest: A schema or a grammar is invalid.
            UnsupportedParameter: A schema has a keyword that nothing can enforce.
        """
        retried = lenient = False
        for constraint in wanted:
            if constraint.schema is None:
                await self._checker.llguidance(constraint.grammar or "", constraint.param)
                continue
            uses = await self._checker.schema(constraint.schema, constraint.param)
            missing = find_unenforced(uses, self.capabilities.schema_keywords or ())
            never = [use for use in missing if not keywords.can_be_validated(use)]
            if never and self._unsupported == "refuse":
                raise keyword_error(constraint.param, never[0])
            for use in never:
                self._report(f"{constraint.param}.{use.keyword}")
            retried = retried or len(missing) > len(never)
            lenient = lenient or bool(never)
        return retried, lenient

    async def _stream(self, request: TextRequest, find_fault: FindFault) -> Batches:
        """Yield the answer as it comes; its end not before it holds."""
        folding = Fold()
        async with aclosing(self._backend.generate(request)) as batches:
            async for batch in batches:
                folding.add(batch)
                if any(isinstance(event, Finish) and event.reason in ENDED for event in batch):
                    why = await find_fault(folding.answer().choices)
                    if why is not None:
                        raise violation_error(why, 1)
                yield batch

    async def _find_violation(
        self, request: TextRequest, wanted: list[OutputConstraint], choices: list[Choice]
    ) -> str | None:
        """Return the first violation of a constraint in a finished answer, as a text; None if there is none."""
        for choice in choices:
            for constraint in wanted:
                for text in _texts(choice, constraint):
                    if constraint.schema is not None:
                        why = await self._checker.validate(constraint.schema, text)
                    else:
                        why = await self._checker.matches(constraint.grammar or "", text)
                    if why is not None and not _may_be_cut(request, constraint, text):
                        return f"`{constraint.param}`: {why}"
        return None


async def generate_valid(
    backend: Generates,
    request: TextRequest,
    find_fault: FindFault,
    clean: Callable[[list[Event]], list[Event]] = list,
    note: Callable[[int], object] = int,
) -> Batches:
    """
    Yield the first whole answer without a fault, in one batch; none of it is told before.

    Args:
        clean: Makes the events of the answer of those that the backend gave.
        note: Called with the number of each attempt.

    Raises:
        ConstraintViolated: None of the answers is valid.
    """
    used, why = list[Usage](), ""
    for attempt in range(ATTEMPTS):
        events, held = list[Event](), SuppressedUsage()
        asked = request if attempt == 0 else again(request, attempt)
        async with aclosing(backend.generate(asked)) as batches:
            async for batch in batches:
                held.see(batch)
                events += batch
        events, folding = clean(events), Fold()
        folding.add(events)
        answer = folding.answer()
        used.append(answer.usage)
        note(attempt + 1)
        fault = await find_fault(answer.choices)
        if fault is None:
            held.release()
            yield [
                sum_usage(used) if isinstance(event, Usage) else event
                for event in events
                if not isinstance(event, Progress)
            ]
            return
        why = fault
    raise violation_error(why, ATTEMPTS)


def _texts(choice: Choice, constraint: OutputConstraint) -> list[str]:
    """Return the texts of a choice that must hold; none of one that was cut, or that calls a tool instead."""
    if constraint.tool is not None:
        calls = [call.arguments for call in choice.tool_calls if call.name == constraint.tool]
        return calls if choice.finish_reason in ENDED else []
    return [choice.text or ""] if choice.finish_reason == "stop" else []


def _may_be_cut(request: TextRequest, constraint: OutputConstraint, text: str) -> bool:
    """Return True if a stop word may have cut an answer. An answer for a schema that is complete JSON was not cut."""
    if not request.stop_words or constraint.schema is None:
        return bool(request.stop_words)
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return True
    return False


def again(request: TextRequest, attempt: int) -> TextRequest:
    """Return the request with other dice."""
    changes: dict[str, Any] = {}
    if request.seed not in (None, ANY_SEED):
        changes["seed"] = (request.seed + 1009 * attempt + 2**63) % 2**64 - 2**63
    if request.temperature is not None and request.temperature < _WARMER:
        changes["temperature"] = _WARMER
    if request.do_sample is False:
        changes["do_sample"] = None
    return request.changed(**changes)


def sum_usage(used: list[Usage]) -> Usage:
    """Add up the usage of several answers; what else there is to it is that of the last."""
    if len(used) == 1:
        return used[0]
    cached = [usage.cached_tokens for usage in used if usage.cached_tokens is not None]
    return replace(
        used[-1],
        prompt_tokens=sum(usage.prompt_tokens for usage in used),
        completion_tokens=sum(usage.completion_tokens for usage in used),
        cached_tokens=sum(cached) if cached else None,
        reasoning_tokens=sum(usage.reasoning_tokens or 0 for usage in used),
    )


def keyword_error(param: str, use: Use) -> UnsupportedParameter:
    """Return the error for a keyword that nothing can enforce."""
    use = Use(use.keyword, shorten_path(use.path))
    return UnsupportedParameter(
        f"`{param}` uses the JSON Schema keyword {keywords.in_words(use)}: neither the model's engine nor the validator supports it. Remove it.",
        param=param,
    )


def violation_error(why: str, attempts: int) -> ConstraintViolated:
    """Return the error for so many answers, of which none is as it must be."""
    which = "The answer" if attempts == 1 else f"None of {attempts} answers"
    does = "does not satisfy" if attempts == 1 else "satisfies"
    told = f"{which} of the model {does} what the request asks for."
    return ConstraintViolated(f"{told} {why.rstrip('.')}. Try again, or ask for less.", logged=told)
