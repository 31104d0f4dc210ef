"""
The child that runs chatglm.cpp: prompts in, events of generated tokens out. The only file that knows the library.

The library answers one request at a time, so requests stand in line, in the order in which they came. Between two tokens it is asked
whether the client is still there; a prompt is read in one call, which nothing can stop. What would make the library end the
process never comes here, the engine's side refuses it.

Source: https://github.com/li-plus/chatglm.cpp/blob/main/chatglm_cpp/__init__.py
"""

import asyncio
import os
import queue
import re
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chatglm_cpp
import msgspec
from chatglm_cpp._C import GenerationConfig

from unilect.core.errors import UnilectError
from unilect.core.events import Event, Extra, Finish, FinishReason, Progress, TextDelta, Usage
from unilect.core.stop_words import StopWords
from unilect.engines.process import child
from unilect.engines.text import PUNCTUATION, REPLACEMENT, Decoder
from unilect.http.error_bodies import server_fault, too_long
from unilect.wire import frames

_NO_LIMIT = 2**31 - 1
#: In place of a token that begins a new turn of the model.
_TURN = TextDelta("", extra=Extra(delta={"turn": "assistant"}))


def serve(settings: dict[str, Any]) -> dict[str, Any]:
    """
    Load the model and listen on the socket of the settings.

    Raises:
        ValueError: The library refuses the model.
    """
    try:
        pipeline = chatglm_cpp.Pipeline(settings["path"], max_length=settings["context"])
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"chatglm.cpp cannot load the model: {error}") from error
    _Child(Model(pipeline, settings["family"], settings["context"])).start(settings["socket_path"])
    return {"openmp": has_openmp()}


def has_openmp() -> bool:
    """Return True if the library's threads can be limited: by OpenMP's own variable, which it reads where it was built with it."""
    return re.search(r"/lib(g|i)?omp\d*[.-]", Path("/proc/self/maps").read_text()) is not None


class Model:
    """
    A loaded model: tokens, and the next token.

    Args:
        pipeline: The library's.
        family: The generation of ChatGLM.
        context: The most tokens of prompt and answer together.
    """

    def __init__(self, pipeline: Any, family: str, context: int) -> None:
        self._model = pipeline.model
        self._tokenizer = pipeline.tokenizer
        # its special tokens stand behind the text, everybody else's before it
        self._suffixed = family == "ChatGLM"
        self._speaks_turns = family in ("ChatGLM3", "ChatGLM4")
        self.context = context
        config = self._model.config
        self.ends = {config.eos_token_id, *config.extra_eos_token_ids}
        self.observation = config.extra_eos_token_ids[0] if self._speaks_turns else -1
        self._special = self._tokenizer.encode("", _NO_LIMIT)
        self.assistant = -1
        if self._speaks_turns:
            user = chatglm_cpp.ChatMessage(role="user", content="")
            self.assistant = self._tokenizer.apply_chat_template([user], _NO_LIMIT)[-1]
        # beyond the texts' ids lie the special ones, and beyond those a padding that the tokenizer must not be asked for
        below = {"ChatGLM2": 1, "ChatGLM3": 1, "ChatGLM4": 2}
        self._texts: int = (
            self._special[0] - below[family] if family in below else config.vocab_size
        )
        self._unsettled = (REPLACEMENT,) if self._speaks_turns else (REPLACEMENT, *PUNCTUATION)

    def tokens(self, prompt: str | list[int] | list[dict[str, str]]) -> list[int]:
        """Return the ids of a prompt: a text, ids, or turns."""
        if isinstance(prompt, str):
            return list(self._tokenizer.encode(prompt, _NO_LIMIT))
        ids = [item for item in prompt if isinstance(item, int)]
        turns = [item for item in prompt if isinstance(item, dict)]
        if not turns:
            return ids
        if not self._speaks_turns:
            return self._template(turns)
        ids = list(self._special)
        for turn in turns:
            if "metadata" in turn:  # the library would leave the line behind the role empty
                ids += [self.assistant, *self.plain(turn["metadata"] + "\n")]
                ids += self.plain(turn["content"])
            else:
                ids += self._template([turn])[2:-1]
        return [*ids, self.assistant]

    def plain(self, text: str) -> list[int]:
        """Return the ids of a text, without special ones."""
        ids = list(self._tokenizer.encode(text, _NO_LIMIT))
        return ids[:-2] if self._suffixed else ids[2:]

    def text(self, ids: list[int]) -> str:
        """Return the text of ids; special ones have none."""
        return str(self._tokenizer.decode([id for id in ids if self.has_text(id)]))

    def has_text(self, id: int) -> bool:
        """Return True for an id that is no special one."""
        return 0 <= id < self._texts

    def decoder(self) -> Decoder:
        """Return a decoder for one answer."""
        return Decoder(self.text, self._unsettled)

    def next_token(self, ids: list[int], config: Any, read: int, prompt: int) -> int:
        """
        One more token.

        Args:
            ids: All so far.
            read: How many of them the model has read.
            prompt: How many of them are the prompt.
        """
        return int(self._model.generate_next_token(ids, None, config, read, prompt))

    def _template(self, turns: list[dict[str, str]]) -> list[int]:
        messages = [chatglm_cpp.ChatMessage(**turn) for turn in turns]
        return list(self._tokenizer.apply_chat_template(messages, _NO_LIMIT))


class _Answer:
    """
    One request in line.

    Args:
        send: Takes the events in a frame, and whether they are the last.

    Attributes:
        left: The client has left.
    """

    def __init__(
        self, model: Model, body: dict[str, Any], send: Callable[[bytes, bool], None]
    ) -> None:
        self._model = model
        self._body = body
        self._send = send
        self.left = False

    def run(self) -> None:
        """Generate, until the end or until the client has left."""
        try:
            if not self.left:
                self._generate()
        except (RuntimeError, IndexError, ValueError, UnilectError) as error:
            self._send(frames.of_error(_meaning(error)), True)

    def _generate(self) -> None:
        model, body = self._model, self._body
        ids = model.tokens(body["prompt"])
        prompt, read = len(ids), 0
        room = model.context - prompt
        if room < 1:
            raise too_long(prompt, model.context)
        limit = room if body["max_tokens"] is None else min(body["max_tokens"], room)
        config = GenerationConfig(
            max_length=prompt + limit,
            max_new_tokens=limit,
            max_context_length=prompt,
            **body["sampling"],
        )
        self._tell(Progress(0, prompt))
        decoder, stop = model.decoder(), StopWords(body["stop"])
        reason: FinishReason = "length"
        while len(ids) < prompt + limit and stop.found is None and not self.left:
            token = model.next_token(ids, config, read, prompt)
            read = len(ids)
            ids.append(token)
            if token in model.ends:
                reason = "tool_calls" if token == model.observation else "stop"
                break
            if token == model.assistant:
                self._tell_text(stop.feed(decoder.end()))
                self._tell(_TURN)
            elif model.has_text(token):
                self._tell_text(stop.feed(decoder.feed(token)))
        if stop.found is None:
            self._tell_text(stop.feed(decoder.end()) + stop.end())
        finish = Finish(reason if stop.found is None else "stop", stop=stop.found)
        self._tell(finish, Usage(prompt, len(ids) - prompt), last=True)

    def _tell_text(self, text: str) -> None:
        if text:
            self._tell(TextDelta(text))

    def _tell(self, *events: Event, last: bool = False) -> None:
        self._send(frames.of_events([*events], last), last)


class _Child:
    """Answers calls: those that generate one after the other, in a thread of their own, others at once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._line: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()

    def start(self, socket_path: str) -> None:
        """Serve, in threads."""
        frames.listen(self._loop, socket_path, self._answer, _meaning)
        threading.Thread(target=self._generate_forever, daemon=True).start()

    def _generate_forever(self) -> None:
        """Make one answer after the other; a flaw of ours ends the child, and another one is started."""
        try:
            while True:
                self._line.get().run()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    async def _answer(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        call = frames.call_of(body)
        asked = msgspec.msgpack.decode(call.body)
        if call.operation == "generate":
            await self._generate(asked, writer)
            return
        operation = getattr(self._model, call.operation)
        value = await self._loop.run_in_executor(None, operation, asked)
        writer.write(frames.pack(frames.Reply(value=frames.raw(value), last=True)))

    async def _generate(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        ended = self._loop.create_future()

        def take(frame: bytes, last: bool, taken: threading.Event) -> None:
            if not ended.done():
                writer.write(frame)
                if last:
                    ended.set_result(None)
            taken.set()

        def send(frame: bytes, last: bool) -> None:
            """Send a frame, and wait until it is written: the library makes a token without letting any other thread run."""
            taken = threading.Event()
            self._loop.call_soon_threadsafe(take, frame, last, taken)
            taken.wait()

        answer = _Answer(self._model, body, send)
        self._line.put(answer)
        try:
            await ended
        finally:
            answer.left = True


def _meaning(failure: Exception) -> UnilectError:
    """Return the error that answers a failed call; one that is not ours is logged, too."""
    if isinstance(failure, UnilectError):
        return failure
    traceback.print_exception(failure)
    return server_fault(f"chatglm.cpp failed: {failure}")


if __name__ == "__main__":
    child.run(serve)
