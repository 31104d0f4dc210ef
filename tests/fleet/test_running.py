"""running.py: the nodes of this machine are found by their files, and ended as the processes that wrote them."""

import subprocess
import sys
from pathlib import Path

import msgspec

from unilect.fleet import running
from unilect.fleet.running import Running

SLEEPS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_DFL); print(flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


def put(folder: Path, one: Running) -> Path:
    """The file of a node."""
    file = folder / "unilect" / "fleet" / f"{one.pid}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(one))
    return file


def test_one_is_told_and_found(tmp_path: Path) -> None:
    """A node is found while its block runs, by others of the same user only."""
    env = {"XDG_DATA_HOME": str(tmp_path)}
    with running.announce(env, "10.0.0.1:6379", "10.0.0.1", Path("/t")):
        (one,) = running.list_running(env)
        assert (one.address, one.host, one.token_file) == ("10.0.0.1:6379", "10.0.0.1", "/t")
        assert one.is_head
        assert [] == running.list_running({"XDG_DATA_HOME": str(tmp_path / "other")})
    assert [] == running.list_running(env)


def test_without_a_folder() -> None:
    """A user without a folder for data is told nothing wrong: nobody finds the node."""
    with running.announce({}, "10.0.0.1:6379", "10.0.0.2", Path("/t")):
        assert [] == running.list_running({})


def test_what_is_left_behind(tmp_path: Path) -> None:
    """The file of a process that was killed is removed, also where another process has its number now; a broken one is left out."""
    env = {"XDG_DATA_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", SLEEPS]) as process:
        started = running.start_time(process.pid)
        assert started is not None
        one = Running(process.pid, started, "a:1", "b", "/t")
        file = put(tmp_path, one)
        (file.parent / "x.json").write_text("{")
        assert [one] == running.list_running(env)

        put(tmp_path, msgspec.structs.replace(one, started=started - 1))
        assert [] == running.list_running(env)
        assert not file.exists()
        put(tmp_path, one)
        process.kill()
        process.wait()
        assert [] == running.list_running(env)
        assert not file.exists()


def test_end(tmp_path: Path) -> None:
    """A process is ended by SIGTERM, and one that is gone or is another one is left alone."""
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it may have inherited that SIGTERM is ignored
        one = Running(process.pid, running.start_time(process.pid) or 0, "a:1", "b", "/t")
        other = msgspec.structs.replace(one, started=one.started - 1)

        assert running.end(other, 30)
        assert process.poll() is None
        assert running.end(one, 30)
        assert -15 == process.wait()
        assert running.end(one, 30)


def test_one_that_does_not_end() -> None:
    """What has not ended within the time is told."""
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it listens to no SIGTERM from now on
        one = Running(process.pid, running.start_time(process.pid) or 0, "a:1", "b", "/t")
        try:
            assert not running.end(one, 0.05)
        finally:
            process.kill()
