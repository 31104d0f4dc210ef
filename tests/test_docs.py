"""The documentation says what the code does: generated pages are fresh, nothing is missing, examples run."""

import io
import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import pytest

from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.cli import main as cli
from unilect.config import load as config_load
from unilect.config.admin import AdminConfig
from unilect.config.fleet import FleetConfig
from unilect.config.kinds import KIND_OF
from unilect.config.limits import LimitsConfig
from unilect.config.otel import OtelConfig
from unilect.config.page import PageConfig
from unilect.config.server import Config, ModelConfig
from unilect.config.store import StoreConfig
from unilect.core import errors
from unilect.models import sources
from unilect.models.registry import Registry
from unilect.server.app import all_routes
from unilect.testing import answer, chat, check_backend
from unilect.web.site import Site

ROOT = Path(__file__).resolve().parent.parent
DOCS = {file: file.read_text() for file in (ROOT / "docs").rglob("*.md")}
PAGES = DOCS | {file: file.read_text() for file in ROOT.glob("*.md")}
ALL_DOCS = "\n".join(DOCS.values())
OPTIONS = [
    field.name
    for struct in (
        Config,
        StoreConfig,
        LimitsConfig,
        AdminConfig,
        OtelConfig,
        PageConfig,
        FleetConfig,
        ModelConfig,
    )
    for field in msgspec.structs.fields(struct)
]
#: What the configurations of the documentation take from the environment.
KEYS = {
    "GPU_KEY": "a",
    "UPSTREAM_KEY": "b",
    "UNILECT_API_KEY": "c",
    "ADMIN_KEY": "d",
    "METRICS_KEY": "e",
}
START_TIMEOUT_S = 30.0


def test_generated_pages_are_fresh() -> None:
    """What `scripts/docs.py` makes is what is committed."""
    done = subprocess.run(
        [sys.executable, "scripts/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_options_are_documented() -> None:
    """Every option has a heading, with a description under it."""
    for option in OPTIONS:
        section = re.search(rf"### `{option}`\n\n.+\n\n(.+)\n", ALL_DOCS)
        assert section is not None, option
        assert section.group(1)[0].isupper(), option


def test_errors_are_documented() -> None:
    """Every error code is in the documentation."""
    codes = {
        value.code
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.UnilectError)
    } - {None}

    assert [code for code in codes if f"`{code}`" not in ALL_DOCS] == []


def test_schemes_are_documented() -> None:
    """Every scheme of a source is on the page of its backend."""
    pages = "\n".join(text for file, text in DOCS.items() if file.parent.name == "backends")

    assert [scheme for scheme in KIND_OF if f"`{scheme}:" not in pages] == []


def test_endpoints_are_documented() -> None:
    """Every endpoint is in docs/api.md, with its method where it stands first."""
    routes = all_routes(Site(Service(Registry([]), Accounts(Metrics()))))
    api = DOCS[ROOT / "docs" / "api.md"]
    paths = {re.sub(r":[^}]+}", "}", route.path): route.method for route in routes}

    assert [
        path
        for path, method in paths.items()
        if f"`{method} {path}`" not in api and f"| `{path}` |" not in api
    ] == []


def test_commands_are_documented() -> None:
    """Every command is in the documentation, and the documentation names no other."""
    commands = {name for name, command in cli.app.commands.items() if not command.hidden}
    code = re.findall(r"```.*?```|`[^`\n]+`", "\n".join(PAGES.values()), re.S)
    named = set(re.findall(r"(?:^|`|[$|&] *)unilect ([a-z]+)\b(?! at http)", "\n".join(code), re.M))

    assert named == commands


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link to a file of the repository finds it."""
    links = re.findall(r"\]\(([^)#:]+)\)", PAGES[page])

    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [ROOT / "docs" / "reliability.md", ROOT / "SECURITY.md"], ids=lambda page: page.name)  # fmt: skip
def test_named_tests_exist(page: Path) -> None:
    """Every test, module of tests and bench that these pages name is there."""
    defined = {
        str(file.relative_to(ROOT)): set(re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.M))
        for file in (ROOT / "tests").rglob("test_*.py")
    }  # fmt: skip
    everywhere = set().union(*defined.values())
    missing = []
    for name in re.findall(r"`([\w/]+(?:\.py)?(?:::test_\w+)?)`", PAGES[page]):
        file, _, test = name.partition("::")
        file = file if file.startswith(("tests/", "bench/", "scripts/")) else f"tests/{file}"
        if (
            (test and test not in defined.get(file, ()))
            or (
                name.startswith("test_")
                and not name.endswith(".py")
                and name not in everywhere
                and "::" not in name
            )
            or (not test and name.endswith(".py") and not (ROOT / file).exists())
        ):
            missing.append(name)

    assert [] == missing


def test_every_row_has_a_state() -> None:
    """Every row of docs/reliability.md tells what is promised, what shows it, a number and a state; one that holds names a test or a bench."""
    rows = re.findall(r"^\| ([A-G]\d+) \|(.*)\|$", PAGES[ROOT / "docs" / "reliability.md"], re.M)
    for row, rest in rows:
        promise, shown, number, state = (cell.strip() for cell in rest.split(" | "))
        assert promise.endswith("."), row
        assert number, row
        assert re.match(r"holds$|partly: .|missing$", state), row
        assert state == "missing" or ".py" in shown, row

    assert len({row for row, _ in rows}) == len(rows) == 66


def test_example_file_loads() -> None:
    """unilect.example.toml is the default configuration, with the bundled model under three names."""
    loaded = config_load.load(ROOT / "unilect.example.toml", environment={})

    assert loaded == Config(models=dict.fromkeys(("demo", "spare", "brief"), ModelConfig()))


def test_example_file_has_every_option(tmp_path: Path) -> None:
    """With the comment signs before its options taken away it loads too, and sets every option."""
    text = (ROOT / "unilect.example.toml").read_text()
    names = re.findall(r"^# ([a-z_]+) = ", text, re.M)
    file = tmp_path / "all.toml"
    file.write_text(re.sub(r"^# (?=[a-z_]+ = )", "", text, flags=re.M))

    config_load.load(file, environment=KEYS)

    tables = {"models", "store", "owners", "admin", "page", "otel", "fleet"}
    assert sorted(set(names)) == sorted(set(OPTIONS) - tables)


@pytest.mark.parametrize(
    ("page", "block"),
    [
        (page.name, block)
        for page, text in DOCS.items()
        for block in re.findall(r"```toml\n(.*?)```", text, re.S)
        if "entry-points" not in block
    ],
)
def test_configurations_load(page: str, block: str, tmp_path: Path) -> None:
    """The configurations in the documentation are right."""
    file = tmp_path / "unilect.toml"
    file.write_text(block)

    loaded = config_load.load(file, environment=KEYS)

    assert loaded.models


async def test_example_backend_works() -> None:
    """The backend of docs/writing-a-backend.md keeps the contract, and gives the last message back."""
    text = DOCS[ROOT / "docs" / "writing-a-backend.md"]
    code = re.search(r"```python\n(.*?)```", text, re.S)
    assert code is not None
    names: dict[str, Any] = {}
    exec(code.group(1), names)
    spec = sources.spec_of("m", "echo:", ModelConfig())

    def made() -> Any:
        return names["backend"](msgspec.structs.replace(spec, options=names["Options"](prefix="a")))

    await check_backend(made)
    assert "a b " == (await answer(made().generate(chat("b")))).choices[0].text


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """The address of a server of the bundled model."""
    process = subprocess.Popen(
        [sys.executable, "-m", "unilect", "serve", "--port", "0", "--log-level", "error"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process.stdout.readline().removeprefix("unilect answers at ").strip()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=START_TIMEOUT_S)


def test_readme_curl_line_works(base_url: str) -> None:
    """The README's curl line gets an answer."""
    line = re.search(r"^curl .+$", PAGES[ROOT / "README.md"], re.M)
    assert line is not None
    _, url, option, body = shlex.split(line.group(0))
    url = url.replace("http://127.0.0.1:8000/v1", base_url)

    with urllib.request.urlopen(url, data=body.encode(), timeout=START_TIMEOUT_S) as answer:
        content = json.load(answer)["choices"][0]["message"]["content"]

    assert option == "-d"
    assert content.strip() != ""


def test_readme_python_snippet_works(base_url: str) -> None:
    """The README's Python lines print an answer."""
    code = re.search(r"```python\n(.*?)```", PAGES[ROOT / "README.md"], re.S)
    assert code is not None
    names: dict[str, Any] = {}
    printed = io.StringIO()

    with redirect_stdout(printed):
        exec(code.group(1).replace("http://127.0.0.1:8000/v1", base_url), names)
    names["client"].close()

    assert printed.getvalue().strip() != ""
