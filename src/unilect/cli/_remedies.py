"""Remedies: what a caller or an operator can do about an error; docs/errors.md and `unilect why` tell them."""

from unilect.core import errors
from unilect.core.errors import UnilectError

_REMEDIES: dict[type[UnilectError], str] = {
    errors.InvalidRequest: "Correct the parameter that `param` names.",
    errors.WrongType: "Send JSON with the field that `param` names, of the type that the message names.",
    errors.PreviousNotFound: "Send the whole conversation as `input`, or the id of a response that is still stored.",
    errors.UnsupportedParameter: "Leave the parameter out, or choose a model that supports it; docs/api.md has the table.",
    errors.ContextLengthExceeded: "Send a shorter prompt or a smaller `max_tokens`, or raise the model's `context`.",
    errors.RequestKilledEngine: "Change the request; report the crash to whoever makes the engine.",
    errors.ReloadRefused: "Mend the file at the lines that the message names; `unilect config check` repeats them.",
    errors.AuthenticationError: "Send a key that is valid; `unilect keys list` shows those of the store.",
    errors.MissingKey: "Send `Authorization: Bearer KEY`; `unilect keys create NAME` makes a key.",
    errors.PermissionDenied: "Use a key that may do this.",
    errors.RequestCancelled: "Ask the operator; the log has the time.",
    errors.ModelNotFound: "Choose a model of `GET /v1/models`; a key may be restricted to some.",
    errors.NotStored: "Look at the id, at the key, and at how long the store keeps it.",
    errors.RouteNotFound: "Look at the base URL, which ends in `/v1` for OpenAI's clients; `/docs` lists the endpoints.",
    errors.MethodNotAllowed: "Use the method that `/docs` lists.",
    errors.RequestTimeout: "Send the request again, over a faster connection.",
    errors.BodyTooLarge: "Send less, or raise `max_body_bytes`.",
    errors.UnsupportedEncoding: "Send the body as it is, without compression.",
    errors.MisdirectedRequest: "Use the server's own address, or add the host to `allowed_hosts`.",
    errors.ConstraintViolated: "Send the request again, with a larger `max_tokens` or a simpler schema.",
    errors.RateLimited: "Wait for `Retry-After`; `unilect keys limit` raises the limit of a key.",
    errors.QuotaExceeded: "Wait until the budget begins anew, or raise it with `unilect keys limit`.",
    errors.QuotaReserved: "Wait for the running requests, or send a smaller `max_tokens`.",
    errors.AnswerTooLong: "Raise the key's limit, or use a backend that obeys `max_tokens`.",
    errors.RequestTooLarge: "Send a smaller `max_tokens` or a shorter prompt, or raise the limit.",
    errors.EngineOverloaded: "Wait for `Retry-After`; more `parallel` or another backend helps for good.",
    errors.TooManyWaiting: "Send fewer requests at a time, or raise `max_queue`.",
    errors.InternalError: "Report it with the request's id and the traceback of the log.",
    errors.UnsupportedOperation: "Choose a model whose backend supports the endpoint.",
    errors.BackendError: "Send the request again; the log has the backend's own words.",
    errors.EngineDied: "Send the request again: the engine is started anew. The log has the reason.",
    errors.MemoryExhausted: "Lower the model's `context`, `parallel` or `cache_ram_mib`; the log's first lines tell what it takes.",
    errors.OutOfMemory: "Send a shorter request, or lower the model's `context` or `parallel`.",
    errors.BackendUnavailable: "Wait for `Retry-After`; `unilect ps` shows which backends are out, and why.",
    errors.ModelTooLarge: "Lower the model's `context` or `parallel`, take one with fewer bits (`unilect fit SOURCE` shows which fit), or raise `memory`.",
    errors.BackendUnreachable: "Start the backend, or correct its address; `unilect ps` shows it.",
    errors.QueueFull: "Wait for `Retry-After`, or raise `max_queue`.",
    errors.QueueTimeout: "Wait for `Retry-After`, or raise `queue_timeout_s`.",
    errors.CheckerUnavailable: "Wait for `Retry-After`, or send a simpler schema.",
    errors.StoreUnavailable: "`unilect store check` says what is wrong; `store: false` goes without.",
    errors.LedgerUnavailable: "`unilect store check` says what is wrong with the store.",
    errors.LimitsUnavailable: "Look at the store, or at Redis; the log has the reason.",
    errors.BackendTimeout: "Send a shorter request, or raise the model's `timeout_s`.",
}
_OF_CODES = {error.code: remedy for error, remedy in reversed(_REMEDIES.items())}


def of_error(error: type[UnilectError]) -> str:
    """Return the remedy for a class of errors, or for the nearest of those that it is made of; empty for none."""
    return next((_REMEDIES[one] for one in error.__mro__ if one in _REMEDIES), "")


def of_code(code: str | None) -> str:
    """Return the remedy for an error code, of the most general error that has it; empty for none."""
    return _OF_CODES.get(code, "")
