"""
Measure what runs for one streamed chat of 23 frames, of an echo: functions of unilect that are entered, their files, their calls.

The shortest of three later requests is measured, once bare and once with a key, two limits, a ledger and a queue. With `-v` each function is listed in the
order in which it is entered first, and with `--check` a measure above its limit is an error. A limit is lowered where the path gets shorter, and
never raised.
"""

import asyncio
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import unilect
from unilect.config.limits import LimitsConfig
from unilect.config.model import ModelConfig
from unilect.config.page import PageConfig
from unilect.config.server import Config
from unilect.config.store import StoreConfig
from unilect.models import sources
from unilect.server.listener import Listener

#: The most functions and files of each.
LIMITS = {"bare": (95, 24), "a key, two limits, a ledger and a queue": (141, 33)}
TEXT = "hello there, friend"
BODY = json.dumps(
    {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello there"}]}
).encode()
_ROOT = str(Path(unilect.__file__).parent)
_NO_PAGE = PageConfig(on=False)  # what it samples it samples by the clock, for no request
_BEFORE = 3  # requests that are answered first, so that nothing is looked up for the first time
_TRACED = 3  # requests; what a server does beside, such as its look at the store once a second, falls into one of them at most

#: Calls of each function, by its file and its name.
Calls = Counter[tuple[str, str]]


def bare(folder: str) -> Config:
    """A server that only answers."""
    model = ModelConfig(source=f"echo:{TEXT}")
    return Config(port=0, models={"m": model}, store=StoreConfig(url="sqlite://"), page=_NO_PAGE)


def whole(folder: str) -> Config:
    """A server that lets in, limits, records and queues."""
    return Config(
        port=0,
        models={"m": ModelConfig(source=f"echo:{TEXT}", max_in_flight=4)},
        api_keys=["k"],
        limits=LimitsConfig(requests_per_minute=1000, tokens_per_day=10**9),
        store=StoreConfig(url=f"sqlite:///{folder}/store.db"),
        page=_NO_PAGE,
    )


async def ask(address: str) -> bytes:
    """The answer of a server, head and all; the connection is closed after it."""
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer k\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
    answer = await reader.read()
    writer.close()
    return answer


async def trace(config: Config) -> Calls:
    """The calls of one request to a server of a configuration: of the one with the fewest functions."""
    each = list[Calls]()

    def enter(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_ROOT):
            each[-1][code.co_filename[len(_ROOT) + 1 :], code.co_qualname] += 1

    registry = sources.registry(config)
    listener = Listener(config, registry)
    try:
        (address,) = await listener.listen()
        await registry.start(registry.models)
        for _ in range(_BEFORE):
            assert b"[DONE]" in await ask(address)
        for _ in range(_TRACED):
            each.append(Calls())
            sys.setprofile(enter)
            await ask(address)
            await asyncio.sleep(0.05)  # for what ends after its client has the answer
            sys.setprofile(None)
    finally:
        await listener.aclose()
        await registry.aclose()
    return min(each, key=len)


def main() -> int:
    """Tell the length of each path; with `--check` hold it against its limit."""
    too_long = False
    for (name, limits), make in zip(LIMITS.items(), (bare, whole), strict=True):
        with tempfile.TemporaryDirectory() as folder:
            calls = asyncio.run(trace(make(folder)))
        found = len(calls), len({file for file, _ in calls})
        told = "{} functions in {} files".format
        print(f"{name}: {told(*found)}, {calls.total()} calls; at most {told(*limits)}")
        for (file, function), count in calls.items() if "-v" in sys.argv[1:] else ():
            print(f"  {count:>4} {file} {function}")
        too_long |= any(map(int.__gt__, found, limits))
    return int(too_long and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
