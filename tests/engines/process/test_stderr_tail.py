"""Tests of unilect.engines.process._stderr_tail, on lines as llama.cpp, torch, Python and gdb write them."""

import pytest

from support.common.effort import effort_s
from unilect.engines.process._stderr_tail import StderrTail, describe_exit
from unilect.runtime.line_log import MOST_CHARACTERS

GDB = [
    "[New LWP 4822]",
    "[Thread debugging using libthread_db enabled]",
    'Using host libthread_db library "/lib/x86_64-linux-gnu/libthread_db.so.1".',
    "0x00007f23a1 in __GI___wait4 (pid=4823) at ../sysdeps/unix/sysv/linux/wait4.c:30",
    "#0  0x00007f23a1 in __GI___wait4 () from /lib/libc.so.6",
    "warning: 30 ../sysdeps/unix/sysv/linux/wait4.c: No such file or directory",
    "[Inferior 1 (process 4814) detached]",
]
ASSERT = "/w/llama.cpp/src/llama-context.cpp:2289: GGML_ASSERT(n_outputs_max <= cparams.n_outputs_max) failed"


@pytest.mark.parametrize("unit", ["a", "a:", "a.c:1 ", "slot ", "\u2028"])
def test_a_line_without_an_end(unit: str) -> None:
    """A long line is cut before anything is looked for in it."""
    kept = StderrTail(tells_all=True)
    told = kept.append(unit.encode() * 300_000)

    assert max(map(len, [told, *kept._lines]), default=0) <= 4 * MOST_CHARACTERS
    assert effort_s(kept.of_memory, 0.1) < 0.1


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["(A) ERROR 11-28 [core.py:1] 5 left", "x.y.EngineDeadError: gone", "INFO: bye", "- leaked function"], "x.y.EngineDeadError: gone"),
        (["INFO: NoError here", "GET / 200"], "GET / 200"),
        ([], ""),
    ],
)  # fmt: skip
def test_last_word_of_another(lines: list[str], told: str) -> None:
    """Of the log of another's server the last line that tells of an error is told, and where there is none, the last one."""
    kept = StderrTail(tells_all=True)
    for line in lines:
        kept.append(line.encode())

    assert told == kept.last_word


def words(*lines: str) -> StderrTail:
    """What is kept of these lines."""
    kept = StderrTail()
    for line in lines:
        kept.append(line.encode())
    return kept


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([ASSERT, *GDB], ASSERT),
        (GDB, "crashed (SIGABRT)"),
        ([], "crashed (SIGABRT)"),
        (["0.01.295.305 E buffer: failed to allocate buffer of size 46080983040", "Traceback"],
         "buffer: failed to allocate buffer of size 46080983040"),
        (["\x1b[31mE\x1b[0m llama_model_load: error loading model: \x07missing tensor"],
         "E  llama_model_load: error loading model:  missing tensor"),
        (["x" * 1000 + " error"], "x" * 300),
    ],
)  # fmt: skip
def test_why_a_child_ended_while_it_loaded(lines: list[str], expected: str) -> None:
    """The first line that speaks of an error is told, bounded and clean, and never a debugger's."""
    assert expected == words(*lines).of_load(-6)


@pytest.mark.parametrize(
    ("lines", "status", "expected"),
    [
        ([ASSERT, *GDB], -6, "llama-context.cpp:2289: GGML_ASSERT (crashed (SIGABRT))"),
        (["terminate called after throwing an instance of 'std::bad_alloc'", "  what():  std::bad_alloc"], -6,
         "std::bad_alloc (crashed (SIGABRT))"),
        (['parse: error parsing grammar: root ::= "my secret" error', "secret error"], -11, "crashed (SIGSEGV)"),
        (["MemoryError: my secret"], 1, "MemoryError (exit status 1)"),
        (["0.1 E ggml_aligned_malloc: insufficient memory (attempted to allocate  123.45 MB)", ASSERT], -6,
         "insufficient memory (attempted to allocate  123.45 MB) (crashed (SIGABRT))"),
        (["0.1 E CUDA error: out of memory"], -6, "CUDA error: out of memory (crashed (SIGABRT))"),
        ([], -9, "killed (SIGKILL): by hand, or by the system for want of memory"),
    ],
)  # fmt: skip
def test_why_a_child_ended_that_served(lines: list[str], status: int, expected: str) -> None:
    """Only what cannot hold a client's text is told, and how the process ended."""
    assert expected == words(*lines).of_death(status)


def test_many_lines() -> None:
    """Of a child that talks for ever only the last lines are kept."""
    kept = words(*(f"line {n}" for n in range(1000)))

    assert "line 999" == kept.of_load(0)
    assert len(kept._lines) < 100


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("terminate called after throwing an instance of 'std::bad_alloc'", True),
        ("terminate called after throwing an instance of 'std::runtime_error'", False),
        ("buffer: failed to allocate buffer of size 46080983040", True),
        ("0.1 E CUDA error: out of memory", True),
        ("cannot allocate memory for thread-local data: ABORT", True),
        ("0.17.644.295 E slot      iterate: id  0 | task 0 | got exception: std::bad_alloc", True),
        (
            "0.17.644.295 E slot      iterate: id  0 | task 0 | got exception: x: std::bad_alloc",
            False,
        ),
        (ASSERT, False),
        ("parse: error parsing grammar: root ::= 'std::bad_alloc' error", False),
    ],
)
def test_want_of_memory(line: str, expected: bool) -> None:
    """Want of memory is known by lines in which no client's text stands."""
    assert expected == words(line, "more").of_memory()


def test_lines_about_requests() -> None:
    """Once a child serves, of llama.cpp's lines those are kept that are errors or have numbers only, each with the lines that belong to it."""
    tail = words("0.00.004.964 I srv          init: loading model")
    tail.serves = True
    lines = {
        "0.01.562.648 I slot get_availabl: id  0 | task -1 | selected slot by id (0)": True,
        "0.01.789.060 I slot print_timing: id  0 | task 0 | eval time = 37.96 ms / 4 tokens": True,
        '0.01.789.1 I srv  log_server_r: response: {"error": "Jinja Exception': False,
        "my secret": False,
        "0.01.789.2 W srv  operator(): my secret": False,
        "0.01.789.3 I slot   operator(): id  0 | task 1 | my secret": False,
        "0.01.789.4 E slot       update: id  0 | task 1 | failed to decode": True,
        "which goes on": True,
    }
    assert lines == {line: bool(tail.append(line.encode())) for line in lines}
    assert "loading" in tail._lines[0]


def test_signal_without_a_name() -> None:
    """A signal for real time, which has no name, is told by its number."""
    assert "crashed (signal 40)" == describe_exit(-40)
    assert "crashed (SIGSEGV)" == describe_exit(-11)
