"""Tests of unilect.engines.process.trial: what runs too long, takes too much or crashes is told, and leaves nothing."""

import os
import signal
from collections.abc import Callable

import pytest

from unilect.engines.process import trial


def _loop() -> None:
    while True:
        pass


def _eat() -> None:
    kept = []
    while True:
        kept.append(bytearray(2**24))


def _crash() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


def _refuse() -> None:
    os.write(2, b"an error of a library\n")
    raise ValueError("it is wrong")


@pytest.mark.heavy(but=2)
@pytest.mark.parametrize(
    ("work", "told"),
    [
        (_loop, "it takes longer than 1 s"),
        (_eat, "it takes more than 512 MiB"),
        (_crash, r"it crashed \(SIGSEGV\)"),
        (_refuse, "an error of a library"),
    ],
)
def test_what_cannot_be_used(
    work: Callable[[], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is told, and this process goes on."""
    # on a busy machine to take 512 MiB takes longer than a second of the processor
    monkeypatch.setattr(trial, "TIME_S", 1 if work is _loop else 20)

    with pytest.raises(trial.TrialError, match=told):
        trial.run_trial(work)


def test_what_can_be_used() -> None:
    """Work that ends is done in a process of its own, with the conversations that templates see."""
    seen: list[object] = []

    trial.run_trial(lambda: seen.extend(trial.conversations()))

    assert [] == seen
    assert [1, 4, 66, 3] == [len(one["messages"]) for one in trial.conversations()]
