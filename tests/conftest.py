"""Fixtures that several folders of tests share."""

import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from support.backends.engine import SOURCES, THOROUGH
from support.servers.postgresql import POSTGRESQL, PostgreSQL, postgresql
from support.servers.redis_server import RedisServer, redis_server
from support.servers.serving import KEY, Server, serve
from unilect.runtime.context import CURRENT_REQUEST

#: How many modules the account of a whole run names.
LONGEST = 25
#: How long a test that is over its time has to end, fixtures included, before it is told so once more.
OVERTIME_S = 30.0
# What is started with signals ignored, as by nohup or in the background of a script, leaves them so: the servers of tests would not reload,
# and no Ctrl-C would end them.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """
    Leave tests that are marked `heavy` to continuous integration and UNILECT_PEERS=1, unless their file was named.

    `heavy(but=2)` leaves all cases of a test but the first two.
    """
    if THOROUGH:
        return
    named = {Path(arg.partition("::")[0]).resolve() for arg in config.args}
    cases, heavy = Counter[object](), []
    for item in items:
        marker = item.get_closest_marker("heavy")
        if marker is None or item.path in named:
            continue
        test = (item.path, getattr(item, "originalname", item.name))
        cases[test] += 1
        if cases[test] > marker.kwargs.get("but", 0):
            heavy.append(item)
    config.hook.pytest_deselected(items=heavy)
    left_out = set(heavy)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer() -> Generator[None, object, object]:
    """Repeat the signal of a timeout: an event loop swallows what is raised in one of its callbacks, and the run would hang for ever."""
    result = yield
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    signal.setitimer(signal.ITIMER_REAL, left_s, OVERTIME_S)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After a whole run, say which modules took longest."""
    seconds, tests = Counter[str](), Counter[str]()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            module = report.nodeid.partition("::")[0]
            seconds[module] += report.duration  # type: ignore[assignment]
            tests[module] += report.when == "call"
    if not THOROUGH or len(seconds) <= LONGEST:
        return
    terminalreporter.section(f"longest {LONGEST} of {len(seconds)} modules")
    for module, took in seconds.most_common(LONGEST):
        terminalreporter.write_line(f"{took:6.1f} s {tests[module]:5} tests {module}")


@pytest.fixture(scope="session", autouse=True)
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test finds what the user's own servers have stored, or leaves something there."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("data")
        patch.setenv("XDG_DATA_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def no_keys(data_folder: Path) -> Iterator[None]:
    """No test leaves a store where the servers of later ones would find its keys, and ask for them."""
    yield
    if left := list((data_folder / "unilect").glob("unilect.db*")):
        for file in left:
            file.unlink()
        pytest.fail("the test made a store in the folder that all tests share")


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    """
    No test depends on those before it: torch's random numbers are the same in every run, no request is in hand, and signals are as they were.

    A server that ran in this process ignores signals in the end, and so would all that are started from it. It is one fixture, since each
    costs every test a little.
    """
    if torch := sys.modules.get("torch"):
        torch.manual_seed(7)
    CURRENT_REQUEST.set(None)
    before = {one: signal.getsignal(one) for one in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.fixture(scope="session")
def server_on() -> Iterator[Callable[[str], Server]]:
    """The server of the bundled model on an engine, that wants the key `sk-test`; one for all tests."""
    with ExitStack() as stack:
        yield cache(
            lambda engine: stack.enter_context(serve(f"demo={SOURCES[engine]}", "--api-key", KEY))
        )


@pytest.fixture(scope="session")
def server(server_on: Callable[[str], Server]) -> Server:
    """A server of the bundled model, on whatever engine, that wants the key `sk-test`."""
    return server_on("gguf")


@pytest.fixture(scope="session")
def server_of_postgresql() -> Iterator[PostgreSQL]:
    """One PostgreSQL server for all tests of this process."""
    with postgresql() as server:
        yield server


@pytest.fixture(scope="session")
def server_of_redis() -> Iterator[RedisServer]:
    """One Redis server for all tests of this process; who needs it empty flushes it."""
    with redis_server() as server:
        yield server


@pytest.fixture
def new_url(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """A new database's URL, by its kind."""

    def new(kind: str) -> str:
        if kind == "postgresql":
            return request.getfixturevalue("server_of_postgresql").new_database()
        return "sqlite://" if kind == "memory" else f"sqlite:///{tmp_path / 'unilect.db'}"

    return new


@pytest.fixture(params=["sqlite", POSTGRESQL])
def url(request: pytest.FixtureRequest, new_url: Callable[[str], str]) -> str:
    """The URL of a new database that several processes can use, of each kind."""
    return new_url(request.param)
