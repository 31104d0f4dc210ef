"""
A chat template's trial, in the child that will use it: a few conversations in a process of its own, within limits, before the model is loaded.

A template is a program that somebody else has made. One that runs for ever, or takes all memory, would do so while the model loads, or at
a client's first request; here it is seen within two seconds. The process is a fork, so that nothing has to be imported again, and what is
tried runs to its end, crashes or is killed without a trace in the child.
"""

import os
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from unilect.engines.process._stderr_tail import StderrTail
from unilect.runtime.child_limits import limit_growth, name_signal

TIME_S = 2  # of the processor
MEMORY_BYTES = 512 * 1024 * 1024  # beside what the child has
_WALL_S = 10  # on a busy machine
_TURNS = 32
_CHARACTERS = 16 * 1024
_DONE, _FAILED, _NO_MEMORY = 0, 3, 4
_WORDS_BYTES = 64 * 1024
_TOO_LONG = signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL


class TrialError(ValueError):
    """A failed trial: what was tried cannot be used, and the message says why."""


class TrialFailed(TrialError):
    """An error of the code on trial, which kept to its limits."""


def conversations() -> Iterator[dict[str, Any]]:
    """Conversations as templates get them: `messages`, and `tools` where they come with some."""
    user, system = {"role": "user", "content": "Hello."}, {"role": "system", "content": "Be brief."}
    assistant = {"role": "assistant", "content": "Yes."}
    yield {"messages": [user]}
    yield {"messages": [system, user, assistant, {"role": "user", "content": "a b\n" * (_CHARACTERS // 4)}]}  # fmt: skip
    yield {"messages": [system, *[user, assistant] * _TURNS, user]}
    function = {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    }
    call = {
        "id": "abcdef123",
        "type": "function",
        "function": {"name": "look_up", "arguments": '{"word": "a"}'},
    }
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "content": "b", "name": "look_up", "tool_call_id": "abcdef123"}
    yield {
        "messages": [user, calling, result],
        "tools": [{"type": "function", "function": function}],
    }


def run_trial(work: Callable[[], None]) -> None:
    """
    Do some work in a fork of this process, which must not have begun threads that hold locks.

    Raises:
        TrialFailed: It raised an error.
        TrialError: It took too long or too much memory, or crashed.
    """
    with tempfile.TemporaryFile() as words:
        pid = os.fork()
        if pid == 0:
            _run(work, words.fileno())
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        words.seek(0)
        last = StderrTail()
        for line in words.read(_WORDS_BYTES).splitlines():
            last.append(line)
    if status == _DONE:
        return
    if -status in _TOO_LONG:
        raise TrialError(f"it takes longer than {TIME_S} s for a short conversation")
    if status == _NO_MEMORY:
        raise TrialError(f"it takes more than {MEMORY_BYTES >> 20} MiB for a short conversation")
    if status < 0:
        raise TrialError(f"it crashed ({name_signal(-status)})")
    raise TrialFailed(last.of_load(status).rstrip("."))


def _run(work: Callable[[], None], words: int) -> NoReturn:
    """Do the work within the limits, and end; what it or a library says goes to a file."""
    status = _FAILED
    try:
        for stream in (1, 2):
            os.dup2(words, stream)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM, signal.SIGXCPU})
        signal.alarm(_WALL_S)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (TIME_S, TIME_S + 1))
        limit_growth(MEMORY_BYTES, for_good=True)
        work()
        status = _DONE
    except MemoryError:
        status = _NO_MEMORY
    except (RuntimeError, ValueError, TypeError, LookupError, OSError) as error:
        os.write(2, f"\n{error}\n".encode(errors="replace"))
    finally:
        os._exit(status)
