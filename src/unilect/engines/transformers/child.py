"""
The child that runs a transformers model: the batch in one thread, calls over a unix socket in another.

Texts are rendered, tokenised and compiled beside both, so that a long one stops nobody.

Source: see `_frames` for what is said over the socket.
"""

import asyncio
import os
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import torch

from unilect.core.errors import (
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    OutOfMemory,
    UnilectError,
    UnsupportedOperation,
)
from unilect.core.ranking import RerankRequest
from unilect.core.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from unilect.engines.text_bounds import beyond
from unilect.engines.transformers.batch.constraint import AfterThought, Grammars
from unilect.engines.transformers.batch.loop import BatchLoop
from unilect.engines.transformers.batch.pairs import Pair, Pairs
from unilect.engines.transformers.job import Job, Output, failure
from unilect.engines.transformers.model.folder import one_template
from unilect.engines.transformers.model.load import LoadedModel
from unilect.engines.transformers.words.prompt_builder import PromptBuilder, try_template
from unilect.engines.transformers.words.request import prepare
from unilect.wire import frames

_CPU_CHUNK = 128
_GPU_CHUNK = 2048
_EMBED_CHUNKS = 4  # of prompt tokens, that are embedded between two steps
_PAIRS = 64  # of a query and a document, whose tokens are in memory at the same time
_PREPARERS = 2
_MAX_UNSENT = 128 * 1024  # of an answer that wait to be read; then it waits too


class AdapterParts(msgspec.Struct):
    """A LoRA blend: its name, and the folders with their scales; none takes it away."""

    name: str
    parts: list[tuple[str, float]] = []


class Child:
    """
    Serves one model.

    Args:
        settings: As the engine's `_settings` writes them.

    Raises:
        ValueError, OSError: The model cannot be loaded.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        try_template(settings["tried_template"])
        torch.set_num_threads(settings["threads"])
        self._model = LoadedModel(settings)
        self._ranks: Any = settings["ranks"]
        self._pooling: str = settings["pooling"]
        self._context: int = settings["context"]
        template = settings["chat_template"] or _template(self._model.tokenizer)
        if template != settings["tried_template"]:  # only the tokenizer knew it
            try_template(template)
        self._reader = PromptBuilder(
            self._model.tokenizer,
            template,
            self._context,
            self._model.stop_ids,
            self._model.size,
            stops=settings["stop"],
            stop_token_ids=settings["stop_token_ids"],
            foreign=settings["foreign_template"],
        )
        gpu = self._model.device.type != "cpu"
        self._chunk: int = settings["batch"] or (_GPU_CHUNK if gpu else _CPU_CHUNK)
        remembered = self._model.prompt_cache_tokens()
        self._grows_bytes = self._model.grows_bytes(remembered)
        self._batch = BatchLoop(
            self._model,
            parallel=settings["parallel"],
            context=self._context,
            chunk=self._chunk,
            remember=remembered,
            after_step=self._flush,
        )
        self._grammars: Grammars | None = None
        self._grammars_lock = threading.Lock()
        self._preparers = ThreadPoolExecutor(_PREPARERS)
        self._outputs: list[tuple[Callable[[Output], None], Output]] = []
        self._loop = asyncio.new_event_loop()

    def start(self, socket_path: str) -> dict[str, Any]:
        """Serve, in threads; what the engine is told."""
        threading.Thread(target=self._run_batch, daemon=True).start()
        frames.listen(self._loop, socket_path, self._answer, meaning)
        return self._describe()

    def _describe(self) -> dict[str, Any]:
        """Return what the engine is told of the model."""
        return {
            "template": self._reader.template,
            "template_fault": self._reader.template_fault,
            "takes_tools": self._reader.takes_tools,
            "warning": self._model.warning,
            "device": str(self._model.device),
            "grows_bytes": self._grows_bytes,
        }

    def _run_batch(self) -> None:
        """Run the batch; without it the child is of no use, and is started again."""
        try:
            self._batch.run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
            raise

    def _flush(self) -> None:
        """Hand a step's words over to the thread of the socket."""
        if self._outputs:
            outputs, self._outputs = self._outputs, []
            self._loop.call_soon_threadsafe(self._dispatch, outputs)

    def _dispatch(self, outputs: list[tuple[Callable[[Output], None], Output]]) -> None:
        for read, output in outputs:
            read(output)

    async def _answer(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        call = frames.call_of(body)
        self._check_adapter(call.adapter)
        if call.operation in ("chat", "completion"):
            await self._generate(call, writer)
        elif of_texts := {"embed": self._embed, "rerank": self._rerank}.get(call.operation):
            await of_texts(call, writer)
            writer.write(frames.pack(frames.Reply(last=True)))
        else:
            value = await self._value(call)
            writer.write(frames.pack(frames.Reply(value=frames.raw(value), last=True)))

    def _check_adapter(self, name: str | None) -> None:
        if name is not None and not self._model.adapters.has(name):
            raise BackendUnavailable(
                "The model's LoRA adapter is no longer loaded. Try again.", retry_after_s=1
            )

    def _check_room(self) -> None:
        if self._batch.full:
            raise BackendUnavailable(
                "The request queue of this model is full. Try again later.", retry_after_s=5
            )

    async def _beside(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function of texts in a thread that blocks nobody; returns its result."""
        return await self._loop.run_in_executor(self._preparers, function, *args)

    async def _generate(self, call: frames.Call, writer: asyncio.StreamWriter) -> None:
        """Make an answer."""
        self._check_room()
        kind: Any = ChatRequest if call.operation == "chat" else CompletionRequest
        request = msgspec.msgpack.decode(call.body, type=kind)
        self._batch.announce(1)
        try:
            job, answer = await self._beside(
                prepare, self._reader, request, call.adapter, self._compile
            )
            job.owner = call.owner
            if job.logprobs is not None:  # not at the first token: all others would wait
                await self._beside(self._all_grammars)
        finally:
            self._loop.call_soon(self._batch.announce, -1)  # once it has been submitted
        ended = self._loop.create_future()
        catching_up: asyncio.Task[None] | None = None
        writer.transport.set_write_buffer_limits(_MAX_UNSENT)

        def read(output: Output) -> None:
            nonlocal catching_up
            if ended.done():
                return
            try:
                batch = answer.read(output, self._bytes_of)
            except UnilectError as error:
                ended.set_exception(error)
                return
            except Exception:  # noqa: BLE001 - the outputs of the other answers come after it
                traceback.print_exc()
                ended.set_exception(
                    BackendError("The answer could not be decoded. Send the request again.")
                )
                return
            if batch:
                writer.write(frames.of_events(batch, answer.over))
                if not job.backpressured and writer.transport.get_write_buffer_size() > _MAX_UNSENT:
                    job.backpressured = True
                    catching_up = self._loop.create_task(self._catch_up(job, writer))
            if answer.over:
                ended.set_result(None)

        job.emit = lambda output: self._outputs.append((read, output))
        try:
            self._batch.submit(job)
            self._check_adapter(call.adapter)  # one that goes from here on ends the answer
            await ended
        finally:
            job.cancelled = True
            self._batch.wake()
            ended.cancel()  # nothing is read any longer
            if catching_up is not None:
                catching_up.cancel()

    async def _catch_up(self, job: Job, writer: asyncio.StreamWriter) -> None:
        """Have an answer go on when most of what was written has been read."""
        with suppress(ConnectionError):
            await writer.drain()
        job.backpressured = False
        self._batch.wake()

    async def _value(self, call: frames.Call) -> Any:
        """The value that a call asks for."""
        decode, reader = msgspec.msgpack.decode, self._reader
        match call.operation:
            case "ping":
                return await asyncio.wrap_future(
                    self._batch.call(lambda: self._batch.running, first=True)
                )
            case "tokenize" | "tokenize_plain" as kind:
                text, special = decode(call.body, type=tuple[str, bool])
                tokenize = reader.tokens if kind == "tokenize" else reader.plain_tokens
                return await self._beside(tokenize, text, special)
            case "detokenize" | "pieces" as kind:
                tokens = reader.check_ids(decode(call.body, type=list[int]), "prompt")
                write = reader.text if kind == "detokenize" else self._pieces
                return await self._beside(write, tokens)
            case "render" | "chat_tokens" as kind:
                text = await self._beside(reader.render, decode(call.body, type=ChatRequest))
                read = reader.restore if kind == "render" else reader.chat_tokens
                return await self._beside(read, text)
            case "count":
                prompt = decode(call.body, type=str | list[int])
                return len(await self._beside(reader.prompt, prompt, "prompt"))
            case "adapter":
                return await self._set_adapter(decode(call.body, type=AdapterParts))
        raise UnsupportedOperation(f"The engine has no operation {call.operation}.")

    async def _embed(self, call: frames.Call, writer: asyncio.StreamWriter) -> None:
        """Embed texts, the longest first; running answers go on between, and who leaves is not embedded further."""
        request = msgspec.msgpack.decode(call.body, type=EmbeddingRequest)
        texts: list[list[int]] = []
        for given in request.inputs:
            text = await self._beside(self._reader.prompt, given, "input")
            if len(text) > self._context:
                raise beyond(self._context, len(text), "input")
            texts.append(text)

        def begin(places: list[int]) -> Iterator[Any]:
            some = [texts[place] for place in places]
            return self._model.embedding(some, self._pooling, call.adapter, self._chunk)

        async for places, vectors in self._in_batches(texts, begin, call.adapter):
            tokens = sum(len(texts[place]) for place in places)
            await self._send(frames.Vectors(places, vectors, tokens), writer)

    async def _rerank(self, call: frames.Call, writer: asyncio.StreamWriter) -> None:
        """Score documents, the longest first, as texts are embedded."""
        request = msgspec.msgpack.decode(call.body, type=RerankRequest)
        documents, tokenizer = request.texts, self._model.tokenizer
        pairs = await self._beside(Pairs, tokenizer, self._ranks, self._context, request)
        order = sorted(range(len(documents)), key=lambda place: -len(documents[place]))
        for at in range(0, len(order), _PAIRS):
            some = order[at : at + _PAIRS]
            read: list[Pair] = [
                await self._beside(pairs.pair, place, documents[place]) for place in some
            ]
            ids, types = [pair.ids for pair in read], [pair.types for pair in read]

            def begin(
                rows: list[int], ids: list[list[int]] = ids, types: list[list[int]] = types
            ) -> Iterator[Any]:
                chosen = [ids[row] for row in rows], [types[row] for row in rows]
                return self._model.scores(*chosen, call.adapter, self._chunk)

            async for rows, logits in self._in_batches(ids, begin, call.adapter):
                cut = [some[row] for row in rows if read[row].is_cut]
                tokens = sum(len(ids[row]) for row in rows)
                part = frames.Vectors([some[row] for row in rows], logits, tokens, cut)
                await self._send(part, writer)

    async def _in_batches(
        self,
        texts: list[list[int]],
        begin: Callable[[list[int]], Iterator[Any]],
        adapter: str | None,
    ) -> AsyncIterator[tuple[list[int], Any]]:
        """
        The places of texts, the longest first, and what is made of them.

        Args:
            begin: Begins with the texts at these places: a None for each chunk of them, then what is made of all.
        """
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        while order:
            count = max(1, _EMBED_CHUNKS * self._chunk // len(texts[order[-1]]))
            places = order[-count:]
            del order[-count:]
            step = partial(self._embed_chunk, begin(places), adapter)
            made = None
            while made is None:
                made = await asyncio.wrap_future(self._batch.call(step))
            yield places, made

    async def _send(self, part: frames.Vectors, writer: asyncio.StreamWriter) -> None:
        writer.write(frames.pack(frames.Reply(value=frames.raw(part))))
        await writer.drain()

    def _embed_chunk(self, work: Iterator[Any], adapter: str | None) -> Any:
        """One more step, in the batch's thread."""
        self._check_adapter(adapter)  # it may have gone since the last
        return next(work)

    async def _set_adapter(self, blend: AdapterParts) -> bool:
        """Add a LoRA blend, or take it away, while answers run."""
        try:
            return await asyncio.wrap_future(self._batch.call(partial(self._change, blend)))
        except (ValueError, OSError) as error:
            raise BackendUnavailable(str(error)) from error
        except (RuntimeError, MemoryError) as error:
            raise BackendUnavailable(failure(error).message) from error

    def _change(self, blend: AdapterParts) -> bool:
        """Add a LoRA blend, or take it away, in the batch's thread."""
        try:
            if blend.parts:
                self._model.adapters.add(blend.name, blend.parts)
            else:
                self._model.adapters.remove(blend.name)
        finally:
            self._batch.end(blend.name)  # not before: an answer could come in between
        return True

    def _compile(self, grammar: str, mark: str | None) -> Any:
        constraint = self._all_grammars().compile(grammar)
        if mark is None:
            return constraint
        ends = self._model.stop_ids | self._reader.turn_ends
        return AfterThought(constraint, mark, self._reader.text, sorted(ends))

    def _bytes_of(self, token: int) -> bytes:
        return self._all_grammars().bytes_of(token)

    def _pieces(self, tokens: list[int]) -> list[bytes]:
        return [self._bytes_of(token) for token in tokens]

    def _all_grammars(self) -> Grammars:
        """Made when first needed: it takes a second for a large vocabulary."""
        with self._grammars_lock:
            if self._grammars is None:
                backend = getattr(self._model.tokenizer, "backend_tokenizer", None)
                if backend is None:
                    raise InvalidRequest(
                        "Grammars and log probabilities require a fast tokenizer, which this model lacks."
                    )
                self._grammars = Grammars(
                    backend.to_str(), self._model.size, sorted(self._model.stop_ids)
                )
            return self._grammars


def meaning(error: Exception) -> UnilectError:
    """Return the error that answers a failed call. Any exception but a UnilectError is logged, too."""
    if isinstance(error, UnilectError):
        return error
    traceback.print_exception(error)
    said = failure(error)
    return OutOfMemory(said.message) if said.of_memory else BackendError(said.message)


def _template(tokenizer: Any) -> str:
    template = getattr(tokenizer, "chat_template", None) or ""
    return one_template(template) if isinstance(template, dict) else str(template)
