"""
The checker of a server: compiles clients' grammars and schemas in helper processes before an engine sees them.

A job belongs to the checker and not to a request: a disconnect does not cancel it, and requests with the same
constraint share one job. Results, also refusals, are cached by digest, for each caller apart: a schema may be as secret as a prompt, and
compiling one takes long enough to be told from finding it.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from unilect.constraints import ConstraintError, gbnf, uncompilable
from unilect.constraints.process import helper
from unilect.constraints.process.lane import Lane
from unilect.constraints.schema import Use
from unilect.core.errors import InvalidRequest
from unilect.runtime.context import cache_owner
from unilect.runtime.tasks import spawn_detached

MAX_SCHEMA_BYTES = 256 * 1024
MAX_LLGUIDANCE_BYTES = 512 * 1024  # one that we make holds the schemas of all tools
MAX_REMEMBERED = 512
_REMEMBERED_BYTES = 16 * 1024 * 1024
MAX_WAITING = 64  # of all callers; who has the most gives way
_MAX_PATIENT = 4
MODEL = Path(__file__).parent.parent / "demo" / "model.gguf"


class Checker:
    """
    Compiles constraints in helper processes, with limits of time (2 s), memory and stack; results are cached by digest. Callers take turns by
    the time that their constraints take.

    No process is started before the first use.

    Args:
        command: The helpers' command line, if not the default.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        command = command or helper.command(MODEL)
        self._quick = Lane(command, helper.QUICK_S, MAX_WAITING)
        self._patient = Lane(command, helper.PATIENT_S, _MAX_PATIENT)
        self._running: dict[bytes, asyncio.Task[Any]] = {}
        self._results: OrderedDict[bytes, Any] = OrderedDict()
        self._sizes = 0

    async def gbnf(self, grammar: str, param: str) -> None:
        """
        Check that llama.cpp can run a GBNF grammar.

        Raises:
            InvalidRequest: It cannot; the message says why, and names `param`.
        """
        _check_size(grammar.encode("utf-8", "replace"), gbnf.MAX_BYTES, param)
        await self._compile("gbnf", {"grammar": grammar}, param)

    async def llguidance(self, grammar: str, param: str) -> None:
        """
        Check that llguidance can run a grammar: its own (`%llguidance`), or GBNF.

        Raises:
            InvalidRequest: It cannot; the message says why, and names `param`.
        """
        _check_size(grammar.encode("utf-8", "replace"), MAX_LLGUIDANCE_BYTES, param)
        await self._compile("llguidance", {"grammar": grammar}, param)

    async def schema_to_gbnf(self, schema: Mapping[str, Any], param: str) -> str:
        """
        Return the GBNF of a JSON Schema, already checked, with at most one space between two symbols.

        Raises:
            InvalidRequest: The schema is invalid, or llama.cpp cannot follow it.
        """
        text = _schema_text(schema, param)
        return str(await self._compile("schema_to_gbnf", {"schema": text}, param))

    async def is_taken(self, schema: Mapping[str, Any]) -> bool:
        """Return True if llama.cpp's own converter takes a JSON Schema, and llama.cpp can follow the result."""
        try:
            await self._compile("takes", {"schema": _schema_text(schema, "tools")}, "tools")
        except InvalidRequest:
            return False
        return True

    async def schema(self, schema: Mapping[str, Any], param: str) -> list[Use]:
        """
        Return the keywords that a JSON Schema uses, and where.

        Raises:
            InvalidRequest: The schema is invalid (a pattern, a type or a reference), or too large.
        """
        uses = await self._compile("schema", {"schema": _schema_text(schema, param)}, param)
        return [Use(*use) for use in uses]

    async def validate(self, schema: Mapping[str, Any], text: str) -> str | None:
        """Return None if the JSON text satisfies the schema, else why not. References to URLs are not fetched."""
        arguments = {"schema": msgspec.json.encode(schema).decode(), "text": text}
        return await self._judge("validate", arguments)

    async def matches(self, grammar: str, text: str) -> str | None:
        """Return None if the text satisfies a `%llguidance` or GBNF grammar, else why not."""
        return await self._judge("matches", {"grammar": grammar, "text": text})

    async def aclose(self) -> None:
        """End the helpers for good; waiting and later jobs fail, because the server is stopping."""
        await asyncio.gather(self._quick.aclose(), self._patient.aclose())
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _judge(self, job: str, arguments: dict[str, Any]) -> str | None:
        """Return the verdict on a finished answer; urgent, because the answer has already been generated."""
        try:
            said = await self._do(job, arguments, cache_owner(), urgent=True)
        except ConstraintError as error:
            return str(error)
        return None if said is None else str(said)

    async def _compile(self, job: str, arguments: dict[str, Any], param: str) -> Any:
        """
        Return the result of a job, cached for the caller or new.

        Raises:
            InvalidRequest: The constraint is refused.
        """
        digest = hashlib.sha256(msgspec.json.encode([cache_owner(), job, arguments])).digest()
        if digest in self._results:
            self._results.move_to_end(digest)
            result = self._results[digest]
        else:
            if digest not in self._running:
                self._running[digest] = task = spawn_detached(
                    self._work_out(digest, job, arguments, cache_owner())
                )
                task.add_done_callback(lambda _: self._running.pop(digest, None))
            result = await asyncio.shield(self._running[digest])
        if isinstance(result, ConstraintError):
            raise uncompilable(param, str(result))
        return result

    async def _work_out(
        self, digest: bytes, job: str, arguments: dict[str, Any], caller: str
    ) -> Any:
        try:
            result = await self._do(job, arguments, caller)
        except ConstraintError as error:
            result = error
        self._remember(digest, result)
        return result

    def _remember(self, digest: bytes, result: Any) -> None:
        self._results[digest] = result
        self._sizes += _size(result)
        while len(self._results) > MAX_REMEMBERED or self._sizes > _REMEMBERED_BYTES:
            self._sizes -= _size(self._results.popitem(last=False)[1])

    async def _do(
        self, job: str, arguments: dict[str, Any], caller: str, urgent: bool = False
    ) -> Any:
        """Run a job in the quick lane, and in the patient lane if it exceeds the limit there."""
        try:
            return await self._quick.do(job, arguments, caller, urgent)
        except helper.TooLong:
            return await self._patient.do(job, arguments, caller, urgent)


def _schema_text(schema: Mapping[str, Any], param: str) -> str:
    text = msgspec.json.encode(schema)
    _check_size(text, MAX_SCHEMA_BYTES, param)
    return text.decode()


def _check_size(text: bytes, most: int, param: str) -> None:
    if len(text) > most:
        raise InvalidRequest(
            f"`{param}` cannot be compiled: it has {len(text)} bytes; the maximum is {most}. Shorten it.",
            param=param,
        )


def _size(result: Any) -> int:
    """Return the approximate memory of a result."""
    return 200 + (
        len(result) * (1 if isinstance(result, str) else 200)
        if result and not isinstance(result, ConstraintError)
        else 0
    )
