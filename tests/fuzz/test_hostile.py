"""Hostile bodies by rule: no 5xx, no dead engine, no stall that others feel, no memory without bounds, no endless answer."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest
from attack import EMBED, Attacker, Request, Target, assert_sound, attackable, many
from hostile import bodies
from watch import Felt, Watch, watching
from worst import LONG

from support.backends.engine import ENGINES_IN_CI, THOROUGH
from support.servers.serving import KEY

#: How many bodies; on demand more, such as 5,000, and then the seconds are held against the promise, too.
COUNT = int(os.environ.get("UNILECT_HOSTILE", "110" if THOROUGH else "40"))
TIMED = "UNILECT_HOSTILE" in os.environ
ANSWER_S = 15.0 if TIMED else 60.0  # a test that runs beside others gives up late
GROWTH_BYTES = 10**9
HEALTHZ_S = GAP_S = 0.25  # for large prompts less: tests/reliability/test_large_prompts.py
LOOK_EVERY = 10
pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module", params=ENGINES_IN_CI)
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Target, Watch]]:
    """A server on an engine, and who feels how it does."""
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("watched")
        server = stack.enter_context(attackable(request.param, folder))
        attacker = stack.enter_context(Attacker(server, timeout_s=ANSWER_S))
        watch = stack.enter_context(watching(server.port, server.pid, KEY))
        yield Target(server, attacker), watch


@many
def test_hostile_bodies(watched: tuple[Target, Watch], tmp_path: Path) -> None:
    """Every hostile body is answered or refused, or its work ends with its client, and neither the engine nor another client comes to harm."""
    target, watch = watched
    worst: dict[str, tuple[float, str]] = {}
    faults: list[str] = []
    names: list[str] = []
    for number, made in enumerate(bodies(COUNT), 1):
        hostile = made()
        names.append(hostile.name)
        begun = time.monotonic()
        try:
            _attack(target, Request(hostile.path, hostile.body), hostile.name in LONG)
        except (AssertionError, ValueError, LookupError, TimeoutError) as error:
            faults.append(f"{hostile.name}: {error!r:.300}")
        _note(worst, "answer_s", time.monotonic() - begun, hostile.name)
        if number % LOOK_EVERY == 0 or number == COUNT:
            target.look()
            felt = watch.felt()
            faults += [f"{names[-LOOK_EVERY:]}: {what}" for what in _harm(felt)]
            for figure in (
                "healthz_s",
                "busy_s",
                "busy_gap_s",
                "gap_s",
                "healthz_own_s",
                "gap_own_s",
            ):
                _note(worst, figure, getattr(felt, figure), " | ".join(names[-LOOK_EVERY:]))
            growth = max(felt.grown_bytes.values(), default=0)
            _note(worst, "grown_mb", growth / 1e6, " | ".join(names[-LOOK_EVERY:]))
    print(json.dumps(worst, indent=1))
    assert faults == []


def _attack(target: Target, request: Request, is_long: bool) -> None:
    """Send a body; where its answer takes long, leave, and have something else embedded."""
    try:
        [reply] = target.attacker.send([request])
    except TimeoutError:
        if not is_long:
            raise
        request = Request("/v1/embeddings", EMBED)
        [reply] = target.attacker.send([request])
        assert reply.status == 200, reply
    assert_sound(reply, request)


def _note(worst: dict[str, tuple[float, str]], figure: str, value: float, where: str) -> None:
    if value >= worst.get(figure, (0.0, ""))[0]:
        worst[figure] = (round(value, 3), where[:400])


def _harm(felt: Felt) -> Iterator[str]:
    """What the others may not feel."""
    grown = max(felt.grown_bytes.values(), default=0)
    if felt.broken:
        yield f"another's stream broke: {felt.broken}"
    if grown > GROWTH_BYTES:
        yield f"a process grew: {asdict(felt)}"
    if felt.busy_s > HEALTHZ_S or (TIMED and felt.healthz_own_s > HEALTHZ_S):
        yield f"/healthz waited: {asdict(felt)}"
    if felt.busy_gap_s > GAP_S or (TIMED and felt.gap_own_s > GAP_S):
        yield f"another's stream stood still: {asdict(felt)}"
