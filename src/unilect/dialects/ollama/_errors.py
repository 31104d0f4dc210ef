"""
Errors in Ollama's form: `{"error": "text"}`, with the parameters' names as its clients write them.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

import msgspec
from aiohttp import web

from unilect.core.errors import EngineOverloaded, UnilectError, UnsupportedParameter
from unilect.dialects.ollama._options import NAMES
from unilect.runtime.context import current_request
from unilect.web.param_locations import ParamLocations
from unilect.web.streaming import JSON

#: What a model lacks, in the words that clients look for, by our name of the parameter.
_LACKS = {"tools": "tools", "enable_thinking": "thinking", "reasoning_effort": "thinking"}
_NAMES = ParamLocations(NAMES)
_BUSY = "server busy, please try again.  maximum pending requests exceeded"


def ollama_error(error: UnilectError, status: int) -> web.Response:
    """Return an error as the answer to a request; a full queue is a 503 here."""
    status = 503 if isinstance(error, EngineOverloaded) else status
    return web.Response(status=status, body=error_body(error), content_type=JSON)


def error_body(error: UnilectError) -> bytes:
    """Return an error as a body, or as a row without its line break."""
    return msgspec.json.encode({"error": describe_error(error)})


def describe_error(error: UnilectError) -> str:
    """Return the text of an error for a client of Ollama."""
    if isinstance(error, EngineOverloaded):
        return f"{_BUSY}: {error.message}"
    if isinstance(error, UnsupportedParameter) and (what := _LACKS.get(error.param or "")):
        return f'"{current_request().model}" does not support {what}: {error.message}'
    ours = error.param or ""  # else what stands in backticks may be the client's own word
    return error.message if _NAMES.locate(ours) == ours else _NAMES.rename(error).message
