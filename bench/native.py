#!/usr/bin/env python3
"""
What the same gateway costs in front of a server that speaks llama.cpp's native protocol, against one that speaks OpenAI's.

Both are mocks that send 64 words; the clients ask for chats, streamed and whole, and the CPU time of unilect for each is taken as in
bench/gateway.py, which see.

usage: bench/native.py [--rounds 3] [--seconds 4]
       bench/native.py --mock PORT   (the mock of a native server)
Needs `wrk` and `taskset`.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import gateway
import mock_openai
import processes
import report
import uvloop

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROPS = {"default_generation_settings": {"n_ctx": 4096}, "chat_template": TEMPLATE}
SETTINGS = {
    f"setting_{number}": number / 8 for number in range(50)
}  # as many as llama-server tells
ANSWERS = {
    b"/health": mock_openai.whole_answer({"status": "ok"}),
    b"/props": mock_openai.whole_answer(PROPS),
    b"/tokenize": mock_openai.whole_answer({"tokens": []}),
}


def stream() -> list[bytes]:
    """A native stream of the newer generation: the head, then a frame for each word, then the last one."""
    count = mock_openai.CHUNKS
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    piece = {"index": 0, "content": mock_openai.WORD, "tokens": [7], "stop": False, "id_slot": -1, "tokens_predicted": 1, "tokens_evaluated": 10}  # fmt: skip
    last = piece | {"content": "", "stop": True, "stop_type": "eos", "truncated": False, "tokens_predicted": count, "generation_settings": SETTINGS, "timings": {"cache_n": 0, "prompt_n": 10}}  # fmt: skip
    return [
        head + mock_openai.END_OF_HEAD,
        *[mock_openai.http_chunk(json.dumps(piece))] * count,
        mock_openai.http_chunk(json.dumps(last)) + mock_openai.END_OF_CHUNKS,
    ]


class NativeConnection(mock_openai.Connection):
    """One client of the native mock."""

    frames = stream()

    def answer(self, head: bytes, body: bytes) -> None:
        """Write one answer."""
        path = head.split(b" ", 2)[1]
        for data in self.frames if path == b"/completion" else [ANSWERS[path]]:
            self.transport.write(data)


async def serve(port: int) -> None:
    """Serve the native mock until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(NativeConnection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def start(stack: ExitStack, name: str, reuse: bool, folder: Path) -> tuple[int, int]:
    """unilect in front of a mock: its port and its process."""
    mock, port = processes.free_port(), processes.free_port()
    command = [sys.executable, str(gateway.HERE / "mock_openai.py"), str(mock)]
    source = f"http://127.0.0.1:{mock}/v1"
    if name == "native":
        command = [sys.executable, __file__, "--mock", str(mock)]
        source = f"llamacpp+http://127.0.0.1:{mock}"
    stack.enter_context(processes.running(command, port=mock, core=gateway.LOAD_CORE))
    config = folder / f"{name}-{reuse}.toml"
    config.write_text(
        f'log_level = "warning"\napi_keys = ["{gateway.KEY}"]\n[models.m]\nsource = "{source}"\n'
        f"reuse_connections = {str(reuse).lower()}\n"
    )
    command = [str(processes.unilect()), "serve", "--config", str(config), "--port", str(port)]
    pid = stack.enter_context(processes.running(command, port=port, core=gateway.GATEWAY_CORE))
    return port, pid


def main(rounds: int, seconds: float) -> None:
    """Measure, print and write."""
    kinds = [(reuse, streamed) for reuse in (False, True) for streamed in (False, True)]
    found: dict[tuple[bool, bool], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "wrk.lua"
        servers = {
            (name, reuse): start(stack, name, reuse, Path(folder))
            for name in ("openai", "native")
            for reuse in (False, True)
        }
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for reuse, streamed in kinds:
                theirs, ours = (
                    gateway.cost_us(*servers[name, reuse], streamed, seconds, script)
                    for name in ("openai", "native")
                )
                found[reuse, streamed].append((theirs, ours))
    rows: list[list[object]] = []
    for (reuse, streamed), pairs in found.items():
        name = f"{'stream' if streamed else 'JSON'}, {'kept' if reuse else 'fresh'} connections"
        ratio = median(ours / theirs for theirs, ours in pairs)
        rows.append([name, *(median(side) for side in zip(*pairs, strict=True)), f"{ratio:.2f}x"])
    print(report.table(["answer", "OpenAI, us", "native, us", "native / OpenAI"], rows))
    records = [
        {"reuse": reuse, "stream": streamed, "us": us} for (reuse, streamed), us in found.items()
    ]
    report.write("native", report.versions("unilect", "uvloop"), rows=records)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What llama.cpp's native protocol costs.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--mock", type=int)
    given = parser.parse_args()
    if given.mock is not None:
        uvloop.run(serve(given.mock))
    else:
        main(given.rounds, given.seconds)
