"""
Every error that unilect raises on purpose, and the HTTP answer that it becomes.

::

    UnilectError
    + InvalidRequest                400  the request can never work as it is
    | + WrongType                   400  a body that is no JSON, or a field that is missing or of another type
    | + UnsupportedParameter        400  the model's backend does not honour this parameter
    | + PreviousNotFound            400  the response that the request goes on from is not stored
    | + ContextLengthExceeded       400  the prompt is longer than the model's context
    | + RequestKilledEngine         400  the model's engine has died of such a request, not long ago
    + AuthenticationError           401  no key, or a wrong one
    | + MissingKey                  401  no key was sent
    + PermissionDenied              403  known, but not allowed here
    | + RequestCancelled            403  an operator has ended the request
    + ReloadRefused                 400  the new configuration cannot be used; nothing has changed
    + ModelNotFound                 404
    + NotStored                     404  no such response, conversation or item is stored
    + RouteNotFound                 404
    + MethodNotAllowed              405
    + RequestTimeout                408  the body did not come in time
    + BodyTooLarge                  413
    + UnsupportedEncoding           415  a compressed request body
    + MisdirectedRequest            421  a Host that this server does not answer for
    + ConstraintViolated            422  the finished answer does not satisfy its schema or grammar
    + RateLimited                   429
    | + QuotaExceeded               429  all that the caller may use is used up
    | | + QuotaReserved             429  what is left of it is reserved for the caller's running requests
    | | + AnswerTooLong             429  the answer has more tokens than is left; its backend did not keep to `max_tokens`
    | + RequestTooLarge             429  the request may use more than a whole minute's tokens
    | + EngineOverloaded            429  the backend has more requests than it takes
    | + TooManyWaiting              429  the queue is full, of the caller's own requests
    + InternalError                 500  a flaw of ours
    + UnsupportedOperation          501  the backend cannot do what this URL is for
    + BackendError                  502  the backend broke off or answered nonsense
    | + EngineDied                  502  our own engine process ended in mid-answer
    | | + MemoryExhausted           503  our own engine has no memory left, for whatever it does
    | + OutOfMemory                 502  the backend has no memory for this request
    + BackendUnavailable            503  no backend can take the request now
    | + ModelTooLarge               500  the model can never fit into the memory of its machine
    | + BackendUnreachable          503  nobody listens where the backend should be
    | + QueueFull                   503  the queue is full, of other callers' requests
    | + QueueTimeout                503  the request has waited for its turn for too long
    | + CheckerUnavailable          503  grammars and schemas cannot be compiled now
    | + StoreUnavailable            503  stored responses cannot be read or written now
    |   + LedgerUnavailable         503  the ledger, which the request needs, cannot be written now
    | + LimitsUnavailable           503  nobody knows what is left of the caller's limits now
    + BackendTimeout                504  the backend was silent for too long
    ConfigError, ConfigErrors            no answers: mistakes in the configuration, told at start

A message says what was wrong, what was expected, and what to do; it holds no path, no upstream's text and no traceback. The body
(`envelope`) can be read by OpenAI's clients and by FastChat's, which look for `object`, `message` and an integer `code` at the top.

Source: https://platform.openai.com/docs/guides/error-codes
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self


class _OfCaller:
    """The base of errors that the caller causes."""

    type: ClassVar[str] = "invalid_request_error"
    number: ClassVar[int] = 40001


class UnilectError(Exception):
    """
    An error with an HTTP answer. Raise a subclass.

    Attributes:
        status, type, code, number: The HTTP status code, OpenAI's error type, its error code, a string or None, and FastChat's.
        param: The request parameter at fault, or None.
        retry_after_s: Seconds after which a retry makes sense, or None.
        reason: What the operator is told instead of the message: why, with addresses and a server's own words. No client sees it.
        logged: What the log of a request tells instead, where the message or the reason has a backend's own words: they may repeat the request.
        connection_failed: No connection was made, or it ended before a byte of an answer came: no request's doing.
        more: Numbers that its body has beside.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "api_error"
    code: ClassVar[str | None] = None
    number: ClassVar[int] = 50001
    connection_failed: bool = False
    more: dict[str, Any] = {}

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        reason: str | None = None,
        logged: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.reason, self.logged = message, reason, logged
        self.param, self.retry_after_s = param, retry_after_s

    @classmethod
    def at(cls, param: str, text: str) -> Self:
        """Make the error of one parameter: its message is the name of the parameter and a text, such as "is missing." or ": expected 1."."""
        return cls(f"`{param}`{'' if text.startswith(':') else ' '}{text}", param=param)

    @property
    def for_operator(self) -> str:
        """The message for whoever runs the server where no request is in hand: the reason where there is one, else the message."""
        return self.reason or self.message

    @property
    def for_log(self) -> str:
        """The message for the log of a request: without any words of a backend, as they may repeat the request."""
        return self.logged or self.for_operator

    def reword(self, change: Callable[[str], str]) -> None:
        """Change all texts, such as to take secrets out of them."""
        for name in ("message", "param", "reason", "logged"):
            if (text := getattr(self, name)) is not None:
                setattr(self, name, change(text))
        self.args = (self.message,)

    def for_client(self, request_id: str) -> Self:
        """The same error, with the request's id where the log knows more than the client may be told; one error may be told to several."""
        if self.reason is None:
            return self
        told = self.alone()
        told.message = f"{self.message} (Request {request_id}.)"
        return told

    def alone(self) -> Self:
        """The same error to be kept: without its traceback, which holds the request and all that was made of it."""
        kept = type(self).__new__(type(self))
        kept.__dict__.update(self.__dict__)
        kept.args = self.args
        return kept

    def detail(self) -> dict[str, Any]:
        """The inner error object: message, type, param and code, and what `more` has."""
        return {name: getattr(self, name) for name in ("message", "type", "param", "code")} | self.more  # fmt: skip

    def envelope(self) -> dict[str, Any]:
        """The whole JSON body of an error answer."""
        return {"error": self.detail(), "object": "error", "message": self.message, "code": self.number}  # fmt: skip


class InvalidRequest(_OfCaller, UnilectError):
    """The request is invalid."""

    status = 400
    code = "invalid_value"
    number = 40302

    def envelope(self) -> dict[str, Any]:
        """Clients of chatglm.cpp's and Alpaca's servers look for FastAPI's `detail`."""
        where = ["body", self.param] if self.param else ["body"]
        detail = [{"loc": where, "msg": self.message, "type": "value_error"}]
        return super().envelope() | {"detail": detail}


class WrongType(InvalidRequest):
    """The body is not valid JSON, or a field is missing or has the wrong type."""

    number = 40001


class PreviousNotFound(InvalidRequest):
    """The response that a request goes on from is not stored, or not the caller's."""

    code = "previous_response_not_found"


class UnsupportedParameter(InvalidRequest):
    """The model's backend does not support a parameter at this value."""

    code = "unsupported_parameter"


class UnsupportedOperation(UnilectError):
    """The model's backend does not support this endpoint."""

    status = 501
    type = "not_supported_error"
    code = "unsupported_operation"


class ContextLengthExceeded(InvalidRequest):
    """The prompt exceeds the model's context; `prompt_tokens` (at least) and `context`, of prompt and answer together, may be None."""

    code = "context_length_exceeded"
    number = 40303
    prompt_tokens: int | None = None
    context: int | None = None

    def with_counts(self, prompt_tokens: object, context: object) -> Self:
        """This error with its numbers, where they are known."""
        if isinstance(prompt_tokens, int) and isinstance(context, int):
            self.prompt_tokens, self.context = prompt_tokens, context
            self.more = {"n_prompt_tokens": prompt_tokens, "n_ctx": context}
        return self


class RequestKilledEngine(InvalidRequest):
    """The same request recently crashed the model's engine, or made it hang, and is refused for a while."""

    code = "request_killed_engine"


class AuthenticationError(_OfCaller, UnilectError):
    """The API key is missing or wrong."""

    status = 401
    code = "invalid_api_key"
    number = 40102
    wrong = False  # a key was sent; some older servers told that apart

    def envelope(self) -> dict[str, Any]:
        """FastChat's clients look for the error under `detail`."""
        return super().envelope() | {"detail": {"error": self.detail()}}


class MissingKey(AuthenticationError):
    """The API key is missing."""

    number = 40101


class PermissionDenied(_OfCaller, UnilectError):
    """The caller is not allowed to do this."""

    status = 403
    code = "permission_denied"
    number = 40103


class RequestCancelled(PermissionDenied):
    """An operator of the server has ended the request."""

    code = "request_cancelled"


class ReloadRefused(_OfCaller, UnilectError):
    """The configuration cannot be reloaded; nothing has changed."""

    status = 400
    code = "reload_refused"


class ModelNotFound(_OfCaller, UnilectError):
    """The model does not exist."""

    status = 404
    code = "model_not_found"
    number = 40301


class NotStored(_OfCaller, UnilectError):
    """A stored response, conversation or item does not exist, or is not the caller's."""

    status = 404
    code = "not_found"


class RouteNotFound(_OfCaller, UnilectError):
    """The URL does not exist."""

    status = 404
    code = "unknown_url"


class MethodNotAllowed(_OfCaller, UnilectError):
    """The URL does not support this method."""

    status = 405
    code = "method_not_allowed"


class RequestTimeout(_OfCaller, UnilectError):
    """The request body did not arrive in time."""

    status = 408
    code = "request_timeout"


class BodyTooLarge(_OfCaller, UnilectError):
    """The request body is too large."""

    status = 413
    code = "request_too_large"


class UnsupportedEncoding(_OfCaller, UnilectError):
    """The request body has a Content-Encoding, which is not supported."""

    status = 415
    code = "unsupported_content_encoding"


class MisdirectedRequest(_OfCaller, UnilectError):
    """The Host header is not allowed (protection against DNS rebinding)."""

    status = 421
    code = "misdirected_request"


class ConstraintViolated(_OfCaller, UnilectError):
    """The finished answer does not satisfy its schema or grammar; a retry may succeed."""

    status = 422  # client libraries repeat a 5xx by themselves, and each time costs several answers
    code = "constraint_violated"
    number = 40302


class RateLimited(UnilectError):
    """The caller, or the backend, exceeds its rate limit."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    number = 42901


class QuotaExceeded(RateLimited):
    """The quota of the caller, or of this server at its upstream, is exhausted."""

    code = "insufficient_quota"
    number = 42902


class QuotaReserved(QuotaExceeded):
    """The rest of the caller's quota is reserved for running requests, which may leave some of it."""


class AnswerTooLong(QuotaExceeded):
    """The answer has more tokens than the caller's limits leave: its backend did not keep to `max_tokens`."""


class RequestTooLarge(RateLimited):
    """The request may use more tokens than the caller's limit allows in a minute."""


class EngineOverloaded(RateLimited):
    """The backend is overloaded."""

    code = "engine_overloaded"
    number = 42903


class TooManyWaiting(RateLimited):
    """The caller's own requests take the caller's share of a full queue, of a model or of constraints to compile, or of the memory for large requests."""

    code = "too_many_waiting"


class InternalError(UnilectError):
    """A bug in unilect."""

    code = "internal_error"


class BackendError(UnilectError):
    """The backend broke off, or sent an invalid answer."""

    status = 502
    type, code = "upstream_error", "backend_error"


class EngineDied(BackendError):
    """The engine process ended during the answer."""

    code = "engine_died"
    blamed = False  # it died of this request, as far as is known
    from_outside = False  # it died of no request


class MemoryExhausted(EngineDied):
    """The engine has no memory left, through no fault of the request."""

    status = 503
    code = "memory_exhausted"


class OutOfMemory(BackendError):
    """The backend is out of memory for this request."""

    code = "out_of_memory"
    number = 50002


class BackendUnavailable(UnilectError):
    """No backend is available."""

    status = 503
    type = "upstream_error"
    code = "backend_unavailable"
    number = 50005


class ModelTooLarge(BackendUnavailable):
    """The model can never fit into the memory of its machine."""

    status = 500
    code = "model_too_large"


class BackendUnreachable(BackendUnavailable):
    """The backend is unreachable."""

    code = "backend_unreachable"
    connection_failed = True


class QueueFull(BackendUnavailable):
    """The model's queue is full, of other callers' requests."""

    code = "queue_full"


class QueueTimeout(BackendUnavailable):
    """The request waited in the model's queue for too long."""

    code = "queue_timeout"


class CheckerUnavailable(BackendUnavailable):
    """Grammars and schemas cannot be compiled now; the backend itself is available."""

    code = "checker_unavailable"


class StoreUnavailable(BackendUnavailable):
    """Stored responses and conversations cannot be read or written now; the backend itself is available."""

    type = "server_error"
    code = "store_unavailable"


class LedgerUnavailable(StoreUnavailable):
    """The request must be recorded in the ledger, which cannot be written now."""

    code = "ledger_unavailable"


class LimitsUnavailable(BackendUnavailable):
    """The limits of the caller cannot be checked now; the backend itself is available."""

    type = "server_error"
    code = "limits_unavailable"


class BackendTimeout(UnilectError):
    """The backend timed out."""

    status = 504
    type = "upstream_error"
    code = "backend_timeout"
    number = 50006


class ConfigError(Exception):
    """
    A mistake in the configuration or the command line: one sentence, told at start.

    Args:
        message: What is wrong, and what to do.
        path: The option that is wrong: the names of its tables and its own; empty where it is none, or where the message has it.
    """

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.path = path

    @property
    def each(self) -> list["ConfigError"]:
        """The mistakes, one by one."""
        return [self]


def join_names(names: Iterable[str], most: int = 20) -> str:
    """Names with commas between them; of many the first ones, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


class ConfigErrors(ConfigError):
    """Several mistakes of one configuration, told together."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self._errors = list(errors)

    @property
    def each(self) -> list[ConfigError]:
        """The mistakes, one by one."""
        return self._errors
