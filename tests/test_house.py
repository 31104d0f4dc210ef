"""The rules of this repository that a machine can see: sizes, docstrings, and what no module may do."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from unilect.app import all_routes
from unilect.gateway.metrics import Metrics
from unilect.registry import Registry
from unilect.service import Service

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "unilect"
MODULES = {str(file.relative_to(SOURCE)): file.read_text() for file in SOURCE.rglob("*.py")}
TREES = {name: ast.parse(text) for name, text in MODULES.items()}
TESTS = {
    str(file.relative_to(ROOT)): ast.parse(file.read_text())
    for file in (ROOT / "tests").rglob("test_*.py")
}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
#: Lines of code in each package, without docstrings, comments and blank lines.
BUDGETS = {
    "": 7_900,
    "constraints": 1_350,
    "demo": 15,
    "dialects": 2_350,
    "engines": 7_200,
    "gateway": 700,
    "upstreams": 3_900,
}

#: Where the environment is read or passed on, and why.
ENVIRONMENT = {
    "config.py": "the configuration's only reader",
    "chat.py": "a server of its own gets it, with a key",
    "child_environment.py": "a child gets what it may need of it, without proxies and secrets",
}
#: Where everything may be caught, and why.
CATCH_ALL = {
    "constraints/_jobs.py": "llguidance's converter raises the bare class for a grammar that it cannot read",
    "gateway/guard.py": "a flaw of ours becomes a 500 in the envelope",
    "emulation.py": "a task's flaw is carried to the reader, which raises it",
    "pool.py": "a flaw in a look at a backend is logged, and is not the last look",
    "engines/_fetched.py": "what a thread raises is carried to who waits, who raises it",
    "engines/_hf_constraint.py": "llguidance raises the bare class for a grammar that it cannot read",
    "engines/_hf_child.py": "a flaw in one answer is carried to its reader, and the others go on",
    "engines/_hf_load.py": "a folder that somebody else made makes transformers raise anything; it is told and not loaded",
    "engines/_hf_loop.py": "a model raises anything in a step; all whom it concerns are told",
}
#: The modules that know aiohttp: the server, and what reads requests and writes answers.
AIOHTTP = re.compile(
    r"app|server|listener|acceptor|connections|streaming|openapi|gateway/guard|dialects/\w+|chat|conversation"
)
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "breakpoint"}
FORBIDDEN_IMPORTS = {"pickle", "marshal", "shelve", "dill", "requests", "httpx"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def functions(tree: ast.AST) -> list[Function]:
    """All functions of a module, the inner ones too."""
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def public(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """The public classes and functions of a module, and the public methods of such classes."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node, f"{node.name}.")


def code_lines(text: str) -> int:
    """Lines with code on them: no docstring, no comment, no blank."""
    documented = (ast.Module, ast.ClassDef, *Function.__args__)
    strings = [
        node.body[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented) and ast.get_docstring(node) is not None
    ]
    docstrings = {
        line for node in strings for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - docstrings)


def imports(tree: ast.AST) -> set[str]:
    """The top-level packages that a module imports, also inside functions."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("name", sorted(MODULES))
def test_sizes(name: str) -> None:
    """A file has at most 500 lines, and a function fits a screen."""
    assert len(MODULES[name].splitlines()) <= MAX_FILE_LINES
    for function in functions(TREES[name]):
        lines = (function.end_lineno or 0) - function.lineno + 1
        assert lines <= MAX_FUNCTION_LINES, function.name


def test_the_budget() -> None:
    """Every package stays small enough to be read."""
    spent = dict.fromkeys(BUDGETS, 0)
    for name, text in MODULES.items():
        spent["" if "/" not in name else name.partition("/")[0]] += code_lines(text)

    assert [] == [name for name, lines in spent.items() if lines > BUDGETS[name]], spent


@pytest.mark.parametrize("name", sorted(MODULES))
def test_docstrings(name: str) -> None:
    """Every module, public class and public function says what it is for."""
    missing = [path for path, node in public(TREES[name]) if not ast.get_docstring(node)]

    assert missing == []
    assert ast.get_docstring(TREES[name])


@pytest.mark.parametrize("name", sorted(TESTS))
def test_docstrings_of_tests(name: str) -> None:
    """Every test says in one sentence how the server behaves."""
    for function in functions(TESTS[name]):
        if function.name.startswith("test_"):
            docstring = ast.get_docstring(function) or ""
            assert re.fullmatch(r"\S.*[.]", docstring), f"{function.name}: {docstring!r}"
            assert not re.search(r"[.!?] [A-Z]", docstring), f"{function.name}: two sentences"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_globals(name: str) -> None:
    """No module changes its own names while it runs."""
    assert [] == [node.names for node in ast.walk(TREES[name]) if isinstance(node, ast.Global)]


@pytest.mark.parametrize("name", sorted(set(MODULES) - set(ENVIRONMENT)))
def test_the_environment(name: str) -> None:
    """The environment is read in one place."""
    used = {node.attr for node in ast.walk(TREES[name]) if isinstance(node, ast.Attribute)}

    assert set() == used & {"environ", "environb", "getenv", "putenv"}


@pytest.mark.parametrize("name", sorted(set(MODULES) - set(CATCH_ALL)))
def test_nothing_is_swallowed(name: str) -> None:
    """What catches everything raises it again; only the named places do not."""
    for node in ast.walk(TREES[name]):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = ast.unparse(node.type) if node.type is not None else "everything"
        assert caught not in ("everything", "Exception"), f"line {node.lineno}"
        if caught == "BaseException":
            last = node.body[-1]
            assert isinstance(last, ast.Raise), f"line {node.lineno}"
            assert last.exc is None


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_code_from_data(name: str) -> None:
    """Nothing is run or unpickled that comes as data."""
    called = {
        node.func.id
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }

    assert set() == called & FORBIDDEN_CALLS
    assert set() == imports(TREES[name]) & FORBIDDEN_IMPORTS
    assert "literal_eval" not in MODULES[name]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_who_knows_aiohttp(name: str) -> None:
    """Only the server's own modules know the HTTP library."""
    allowed = AIOHTTP.fullmatch(name.removesuffix(".py")) is not None

    assert allowed or "aiohttp" not in imports(TREES[name])


def test_every_route_needs_a_key() -> None:
    """Every route needs a key, but those that say nothing else than that the server lives."""
    routes = all_routes(Service(Registry([]), Metrics()))

    assert {route.path for route in routes if route.public} == {"/healthz", "/readyz", "/health"}
    assert len({(route.method, route.path) for route in routes}) == len(routes)


def test_the_version_is_told_once() -> None:
    """No module repeats the version that the package metadata holds."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert version is not None
    assert [] == [name for name, text in MODULES.items() if f'"{version.group(1)}"' in text]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_leftovers(name: str) -> None:
    """No module holds a note to its authors, or prints where it should log."""
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", MODULES[name])
