"""
The child that runs chatglm.cpp: prompts in, events of generated tokens out. The only file that knows the library.

It speaks HTTP on a unix socket: POST /generate (server-sent events in OpenAI's form), /tokenize and /detokenize. The library
answers one request at a time, so requests stand in line, in the order in which they came. Between two tokens it is asked
whether the client is still there; a prompt is read in one call, which nothing can stop. What would make the library end the
process never comes here, the engine's side refuses it.

Source: https://github.com/li-plus/chatglm.cpp/blob/main/chatglm_cpp/__init__.py
"""

import json
import os
import queue
import re
import secrets
import select
import signal
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import chatglm_cpp
from chatglm_cpp._C import GenerationConfig

from unilect.engines.process import child
from unilect.engines.text import PUNCTUATION, REPLACEMENT, Decoder, StopWords

_NO_LIMIT = 2**31 - 1
_STOP = "unilect:stop"  # what the decoder of these frames takes for the stop word
_WRITE_TIMEOUT_S = 60.0  # a client that does not read holds up all others


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
    server = _Server(settings["socket_path"], _Handler)
    server.model = Model(pipeline, settings["family"], settings["context"])
    server.authorization = f"Bearer {settings['api_key']}"
    threading.Thread(target=server.generate_forever, daemon=True).start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
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
    """One request in line, and the connection that waits for its answer."""

    def __init__(self, model: Model, body: dict[str, Any], connection: socket.socket) -> None:
        self._model = model
        self._body = body
        self._connection = connection
        self._closing = select.poll()
        self._closing.register(connection, select.POLLIN)
        self.done = threading.Event()

    def run(self) -> None:
        """Generate, until the end or until the client has left."""
        try:
            with suppress(OSError):  # it left while it was written to
                try:
                    if not self._client_left():
                        self._generate()
                except (RuntimeError, IndexError, ValueError) as error:
                    self._frame({"error": {"message": f"chatglm.cpp failed: {error}"}})
        finally:
            self.done.set()

    def _generate(self) -> None:
        model, body = self._model, self._body
        ids = model.tokens(body["prompt"])
        prompt, read = len(ids), 0
        room = model.context - prompt
        if room < 1:
            self._refuse(prompt)
            return
        limit = room if body["max_tokens"] is None else min(body["max_tokens"], room)
        config = GenerationConfig(
            max_length=prompt + limit,
            max_new_tokens=limit,
            max_context_length=prompt,
            **body["sampling"],
        )
        self._connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        self._frame({"prompt_progress": {"processed": 0, "total": prompt}})
        decoder, stop, reason = model.decoder(), StopWords(body["stop"]), "length"
        while len(ids) < prompt + limit and stop.found is None and not self._client_left():
            token = model.next_token(ids, config, read, prompt)
            read = len(ids)
            ids.append(token)
            if token in model.ends:
                reason = "tool_calls" if token == model.observation else "stop"
                break
            if token == model.assistant:
                self._text(stop.feed(decoder.end()))
                self._send({"content": "", "turn": "assistant"})
            elif model.has_text(token):
                self._text(stop.feed(decoder.feed(token)))
        if stop.found is None:
            self._text(stop.feed(decoder.end()) + stop.end())
        self._send({}, reason if stop.found is None else "stop", stop.found)
        usage = {"prompt_tokens": prompt, "completion_tokens": len(ids) - prompt}
        self._frame({"choices": [], "usage": usage})
        self._connection.sendall(b"data: [DONE]\n\n")

    def _refuse(self, prompt: int) -> None:
        error = {
            "type": "exceed_context_size_error",
            "message": "The prompt is too long.",
            "n_prompt_tokens": prompt,
            "n_ctx": self._model.context,
        }
        body = json.dumps({"error": error}).encode()
        head = "HTTP/1.0 400 Bad Request\r\nContent-Type: application/json\r\n"
        self._connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def _text(self, text: str) -> None:
        if text:
            self._send({"content": text})

    def _send(
        self, delta: dict[str, str], reason: str | None = None, stop: str | None = None
    ) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, _STOP: stop}
        self._frame({"choices": [choice]})

    def _frame(self, value: dict[str, Any]) -> None:
        data = json.dumps(value, ensure_ascii=False)
        self._connection.sendall(f"data: {data}\n\n".encode(errors="replace"))

    def _client_left(self) -> bool:
        """Return True once the client has closed its side, which is all that it ever does after its request."""
        return bool(self._closing.poll(0)) and not self._connection.recv(1, socket.MSG_PEEK)


class _Server(ThreadingMixIn, UnixStreamServer):
    """One thread for each connection, and one that generates."""

    daemon_threads = True
    request_queue_size = 1024
    model: Model
    authorization: str

    def __init__(self, path: str, handler: type["_Handler"]) -> None:
        super().__init__(path, handler)
        self.line: queue.SimpleQueue[_Answer] = queue.SimpleQueue()

    def generate_forever(self) -> None:
        """Answer one after the other; a flaw of ours ends the child, and another one is started."""
        try:
            while True:
                self.line.get().run()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server

    def do_POST(self) -> None:
        """Answer by the path."""
        if not secrets.compare_digest(
            self.headers.get("Authorization", ""), self.server.authorization
        ):
            self.send_error(401)
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model = self.server.model
        match self.path:
            case "/generate":
                self.connection.settimeout(_WRITE_TIMEOUT_S)
                answer = _Answer(model, body, self.connection)
                self.server.line.put(answer)
                answer.done.wait()
            case "/tokenize":
                self._json({"tokens": model.tokens(body["prompt"])})
            case "/tokenize_plain":
                self._json({"tokens": model.plain(body["prompt"])})
            case "/detokenize":
                self._json({"content": model.text(body["tokens"])})
            case _:
                self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: what is asked is nobody's business."""

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    child.run(serve)
