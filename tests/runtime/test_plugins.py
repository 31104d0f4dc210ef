"""Packages installed beside unilect: tests/plugin in an environment of its own, and broken ones."""

import json
import logging
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.common.environments import ROOT, may_install, plugin_python
from support.servers.serving import serve
from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.cli._commands import check_config
from unilect.config.server import Config, ModelConfig
from unilect.core.errors import ConfigError
from unilect.models import sources
from unilect.models.registry import Registry
from unilect.runtime import plugins
from unilect.server.app import all_routes
from unilect.web.site import Site

pytestmark = may_install
CONFIG = """
[models.loud]
source = "shout:"
[models.loud.options]
volume = 3
"""
CONTRACT = """
import asyncio
from unilect.testing import check_backend
from unilect_shout.backend import Options, Shout
asyncio.run(check_backend(lambda: Shout(Options())))
print("kept")
"""
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of the environment that has the package of tests/plugin."""
    return plugin_python(ROOT / "tests" / "plugin")


def ran(*command: str | Path) -> "subprocess.CompletedProcess[str]":
    """A command that has ended."""
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def asked(url: str, body: dict[str, Any] | None = None) -> str:
    """What a server answers."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(url, data, timeout=TIMEOUT_S) as response:
        return str(response.read().decode())


def test_its_backend_keeps_the_contract(python: Path) -> None:
    """The backend of an installed package passes `check_backend`."""
    done = ran(python, "-c", CONTRACT)

    assert (0, "kept\n", "") == (done.returncode, done.stdout, done.stderr)


def test_it_is_served(python: Path) -> None:
    """Its backend is served with its options and listed, and its dialect answers for every model, whole and streamed."""
    with serve(config=CONFIG + "[models.demo]\n", python=python) as server:
        (loud, demo) = json.loads(asked(f"{server.url}/models"))["data"]
        card = json.loads(asked(f"{server.url}/models/loud"))
        body = {"model": "loud", "messages": [{"role": "user", "content": "good day"}]}
        answer = json.loads(asked(f"{server.url}/chat/completions", body))
        whole = json.loads(asked(f"{server.root}/shout", {"say": "you there"}))
        stream = asked(f"{server.root}/shout", {"say": "you there", "stream": True})
        other = asked(f"{server.root}/shout", {"say": "Hello!", "stream": True, "model": "demo"})
        paths = json.loads(asked(f"{server.root}/openapi.json"))["paths"]

    assert ("loud", "demo") == (loud["id"], demo["id"])
    assert "refused" == card["unilect"]["parameters"]["stop"]
    assert "GOOD DAY!!!" == answer["choices"][0]["message"]["content"]
    assert ({"shouted": "YOU THERE!!!"}, "YOU THERE!!!\n") == (whole, stream)
    assert other.strip()
    assert "/shout" in paths


@pytest.fixture
def no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config check` finds no store that another test has made."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.mark.usefixtures("no_store")
def test_it_is_checked(python: Path, tmp_path: Path) -> None:
    """`config check` says what package a model's backend and the dialects come from, and names options that it does not have."""
    right, wrong = tmp_path / "right.toml", tmp_path / "wrong.toml"
    right.write_text(CONFIG)
    wrong.write_text(f"{CONFIG}volum = 11\ngreeting = 11\n")
    done = ran(python, "-m", "unilect", "config", "check", right)
    failed = ran(python, "-m", "unilect", "config", "check", wrong)

    assert (0, "") == (done.returncode, done.stderr)
    assert [
        "http://127.0.0.1:8000: openai, no key",
        "loud: shout of unilect-shout 0.1 shout:, options volume",
        "found: the backend `shout` of unilect-shout 0.1",
        "found: the dialect `shout` of unilect-shout 0.1",
        "OK",
    ] == done.stdout.splitlines()
    assert 2 == failed.returncode
    assert [
        "unilect: 2 mistakes:",
        f"  {wrong}:6: models.loud.options.volum: unknown option; did you mean `volume`?",
        f"  {wrong}:7: models.loud.options.greeting: expected text, found 11. Put it in quotes.",
    ] == failed.stderr.splitlines()


class Packages:
    """A folder of packages that are found as installed ones are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, package: str, group: str, name: str, module: str, code: str | None) -> None:
        """Install a package with one entry point; without code its module is missing."""
        info = self.folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
        if code is not None:
            (self.folder / f"{module.partition(':')[0]}.py").write_text(code)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Packages]:
    """Where packages can be added."""
    monkeypatch.syspath_prepend(tmp_path)
    plugins._all.cache_clear()
    plugins.find_others.cache_clear()
    plugins.warn.cache_clear()
    yield Packages(tmp_path)
    plugins._all.cache_clear()
    plugins.find_others.cache_clear()


ROUTE = """
from unilect.web.route import Route

async def say(request):
    '''Say.'''

def routes(site):
    return [{}]
"""
BROKEN = {
    "missing": (None, "ModuleNotFoundError: No module named 'broken_missing'"),
    "raising": ("raise RuntimeError('not today\\nnor tomorrow')", "RuntimeError: not today"),
    "leaving": ("raise SystemExit('bye')", "SystemExit: bye"),
    "empty": ("", "AttributeError: module 'broken_empty' has no attribute 'routes'"),
    "clash": (ROUTE.format("Route('GET', '/v1/models', say)"), "ValueError: GET /v1/models belongs to another dialect"),
    "path": (ROUTE.format("Route('GET', 'no slash', say)"), "ValueError: path should be started with / or be empty"),
    "admin": (ROUTE.format("Route('GET', '/keys', say, admin=True)"), "ValueError: GET /keys is no route of clients: it has `admin`"),
    "no_route": (ROUTE.format("'/v1/x'"), "AttributeError: 'str' object has no attribute 'method'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_dialect(packages: Packages, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A dialect that is broken is told once, in one line with its package and the error, and all others are there."""
    code, error = BROKEN[name]
    service = Service(Registry([]), Accounts(Metrics()))
    before = [route.path for route in all_routes(Site(service))]
    plugins._all.cache_clear()
    plugins.find_others.cache_clear()
    packages.add("bad", plugins.DIALECTS, name, f"broken_{name}", code)
    with caplog.at_level(logging.WARNING, "unilect"):
        routes = [[route.path for route in all_routes(Site(service))] for _ in range(2)]

    assert [before, before] == routes
    assert [f"the dialect `{name}` of bad 1.0 cannot be used: {error}"] == caplog.messages


@pytest.mark.heavy
def test_a_broken_package_beside_a_server(packages: Packages) -> None:
    """A server starts with broken packages beside it, and its log names the one that it would have used."""
    packages.add(
        "bad", plugins.DIALECTS, "bad", "broken_dialect", "raise RuntimeError('not today')"
    )
    packages.add(
        "worse", plugins.BACKENDS, "worse", "broken_backend:backend", "import nothing_there"
    )
    told = "the dialect `bad` of bad 1.0 cannot be used: RuntimeError: not today"
    with serve("demo:", env={"PYTHONPATH": str(packages.folder)}) as server:
        models = json.loads(asked(f"{server.url}/models"))["data"]
        deadline = time.monotonic() + TIMEOUT_S
        while told not in (log := server.log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.01)

    assert ["demo"] == [model["id"] for model in models]
    assert 1 == log.count(told)
    assert "Traceback" not in log


@pytest.mark.usefixtures("no_store")
def test_config_check_names_broken_packages(
    packages: Packages, capsys: pytest.CaptureFixture[str]
) -> None:
    """`config check` tells what is left out, which is no mistake of the configuration."""
    packages.add("bad", plugins.DIALECTS, "bad", "broken_told", "raise RuntimeError('not today')")
    packages.add("worse", plugins.BACKENDS, "worse", "no_factory:backend", "backend = 1")
    file = packages.folder / "c.toml"
    file.write_text("[models.demo]\n")
    check_config(file)

    assert [
        "left out: the backend `worse` of worse 1.0 cannot be used: AttributeError: 'int' object has no attribute '__call__'",
        "left out: the dialect `bad` of bad 1.0 cannot be used: RuntimeError: not today",
        "OK",
    ] == capsys.readouterr().out.splitlines()[2:]


FACTORY = "def backend(place):\n    {}\n"


@pytest.mark.parametrize(
    ("code", "options", "expected"),
    [
        (None, {}, "ModuleNotFoundError: No module named 'broken_factory_0'"),
        (FACTORY.format("raise KeyError('weights')"), {}, "KeyError: 'weights'"),
        (FACTORY.format("return object()"), {"a": 1}, "models.m: options: the backend of `bad:` has none; leave it out."),
    ],
)  # fmt: skip
def test_a_broken_backend_of_a_model(
    packages: Packages, code: str | None, options: dict[str, Any], expected: str
) -> None:
    """A model whose backend is broken is a mistake of the configuration that names the package and the error in one line."""
    module = f"broken_factory_{len(code or '')}"
    packages.add("bad", plugins.BACKENDS, "bad", f"{module}:backend", code)
    config = Config(models={"m": ModelConfig(source="bad:", options=options)})
    with pytest.raises(ConfigError) as caught:
        sources.registry(config)

    (line,) = str(caught.value).splitlines()
    assert expected in line
    assert options or line.startswith("models.m: the backend `bad` of bad 1.0 cannot be used: ")


@pytest.mark.parametrize("group", [plugins.BACKENDS, plugins.DIALECTS])
def test_two_packages_with_one_name(
    packages: Packages, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two packages that bring the same name neither is used, and both are named."""
    for package in ("one", "two"):
        packages.add(package, group, "same", f"{package}_module", "raise RuntimeError('loaded')")
    kind = group.removeprefix("unilect.").removesuffix("s")
    told = f"the {kind} `same` is in one 1.0 and in two 1.0, and neither is used: uninstall one of them."
    if group == plugins.BACKENDS:
        config = Config(models={"m": ModelConfig(source="same:")})
        with pytest.raises(ConfigError, match=f"^models.m: {told}$"):
            sources.registry(config)
    else:
        with caplog.at_level(logging.WARNING, "unilect"):
            all_routes(Site(Service(Registry([]), Accounts(Metrics()))))
        assert [told] == caplog.messages


def test_our_own_schemes_stay_ours(packages: Packages) -> None:
    """A package cannot take the place of a backend of unilect."""
    packages.add("taker", plugins.BACKENDS, "echo", "taker:backend", "raise RuntimeError('loaded')")
    (member,) = sources.model("m", ModelConfig(source="echo:")).pool.members

    assert "unilect.testing.echo" == type(member.backend).__module__


def test_a_scheme_that_is_misspelt(packages: Packages) -> None:
    """Schemes of packages are among those that are named for one that there is not."""
    packages.add("whisper", plugins.BACKENDS, "whisper", "whisper_module:backend", "")
    with pytest.raises(ConfigError, match="whisper"):
        sources.split("whispr://x")
