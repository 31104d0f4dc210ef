"""Tests of unilect.engines.chatglm._child with a model that, like the library, lets no other thread run while it makes a token."""

import json
import subprocess
import sys
from pathlib import Path

from support.models.tiny_chatglm import need_library

#: Prints how many bytes of its answer a client had when each token was begun.
SCRIPT = """
import ctypes, json, socket, sys, threading
from unilect.engines.chatglm._child import _Child
from unilect.engines.text import Decoder
from unilect.wire import frames

class Model:
    context, ends, observation, assistant = 100, frozenset(), -1, -1
    arrived, done = [0], threading.Event()
    step = ctypes.PyDLL(None).usleep  # which keeps the lock of the interpreter

    def tokens(self, prompt):
        return prompt

    def has_text(self, token):
        return True

    def decoder(self):
        return Decoder(lambda ids: "a" * len(ids), ())

    def next_token(self, *_):
        try:
            while data := client.recv(2**16):
                self.arrived[-1] += len(data)
        except BlockingIOError:
            pass
        if len(self.arrived) == 5:
            self.done.set()
        self.arrived.append(self.arrived[-1])
        self.step(20_000)
        return 7

model, client = Model(), socket.socket(socket.AF_UNIX)
_Child(model).start(sys.argv[1])
client.connect(sys.argv[1])
client.setblocking(False)
body = {"prompt": [1, 2], "max_tokens": 20, "sampling": {}, "stop": []}
client.sendall(frames.pack(frames.Call("generate", frames.raw(body))))
model.done.wait(20)
print(json.dumps(model.arrived[:5]))
"""


def test_each_token_before_the_next(tmp_path: Path) -> None:
    """A client has a token before the next one is made, though the library lets no other thread run meanwhile."""
    need_library()
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "socket")]

    done = subprocess.run(command, capture_output=True, timeout=60)

    assert 0 == done.returncode, done.stderr.decode()
    arrived = json.loads(done.stdout)
    assert 5 == len(arrived)
    assert arrived[0] > 0
    assert sorted(set(arrived)) == arrived
