"""Prompts as large as a body may be keep the event loop from nobody: other clients' answers and streams go on meanwhile."""

import json
from collections.abc import Iterator

import pytest
from attack import Attacker, Request
from watch import watching

from support.servers.serving import KEY, Server, serve

CONFIG = f"""
api_keys = ["{KEY}"]
[models.m]
source = "echo:"
[models.bundled]
source = "demo:"
"""
TIMES = 20
#: The processor's time of the event loop within a wait for `/healthz`, and within a gap of another's stream.
HEALTHZ_S, GAP_S = 0.1, 0.25
_USER = {"role": "user", "content": ""}
PROMPTS = {
    "100,000 messages": {"messages": [_USER] * 100_000},
    "2,048 messages of 7 kB": {"messages": [{"role": "user", "content": "word " * 1400}] * 2048},
    "a message of 15 MB": {"messages": [{"role": "user", "content": "word " * 3_000_000}]},
    "100,000 parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 100_000}]
    },
    "900,000 tokens": {"prompt": [5] * 900_000},
    "a list of 900,000 tokens": {"model": "bundled", "prompt": [[5] * 900_000]},
    "65,000 tokens": {"model": "bundled", "prompt": [12345] * 65_000},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of an echo and of the bundled model, which is loaded, with a key."""
    with serve("--log-level", "warning", config=CONFIG) as running:
        body = {"model": "bundled", "prompt": "a", "max_tokens": 1}
        with Attacker(running) as attacker:
            attacker.send([Request("/v1/completions", json.dumps(body).encode())])
        yield running


@pytest.mark.heavy
@pytest.mark.parametrize("kind", PROMPTS)
def test_large_prompts(server: Server, kind: str) -> None:
    """Of 20 large prompts, 8 at a time, none keeps the event loop from other clients for longer than it may."""
    path = "/v1/completions" if "prompt" in PROMPTS[kind] else "/v1/chat/completions"
    body = json.dumps({"model": "m", "max_tokens": 1, **PROMPTS[kind]}).encode()
    with watching(server.port, server.pid, KEY) as watch, Attacker(server) as attacker:
        replies = attacker.send([Request(path, body)] * TIMES)
        felt = watch.felt()

    print(
        f"{kind}: {replies[0].status}, /healthz {felt.busy_s * 1000:.0f} ms, a stream {felt.busy_gap_s * 1000:.0f} ms"
    )
    assert {reply.status for reply in replies} <= {200, 400, 503}, replies[0]
    assert felt.broken == []
    assert felt.busy_s <= HEALTHZ_S
    assert felt.busy_gap_s <= GAP_S
