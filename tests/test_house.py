"""The rules of this repository that a machine can see: sizes, docstrings, and what no module may do."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from aiohttp import web

from unilect.accounting.account import Accounts
from unilect.accounting.metrics import Metrics
from unilect.answers.service import Service
from unilect.models.registry import Registry
from unilect.server.app import all_routes
from unilect.web.site import Site

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "unilect"
MODULES = {str(file.relative_to(SOURCE)): file.read_text() for file in SOURCE.rglob("*.py")}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
#: Lines of a module of the page.
MAX_PAGE_LINES = 300
#: Packages and modules in `src/unilect`.
MAX_ROOMS = 30
#: Lines of code in each package, without docstrings, comments and blank lines.
BUDGETS = {
    "": 17,
    "accounting": 967,
    "adapt": 972,
    "answers": 1_479,
    "api": 168,
    "api/parameters": 678,
    "auth": 340,
    "cli": 5_272,
    "cli/bench": 1_021,
    "cli/connect": 408,
    "cli/imports": 1_116,
    "config": 2_898,
    "constraints": 1_408,
    "constraints/process": 674,
    "core": 965,
    "demo": 15,
    "dialects": 374,
    "dialects/fastchat": 902,
    "dialects/llamacpp": 607,
    "dialects/messages": 980,
    "dialects/ollama": 991,
    "dialects/openai": 821,
    "dialects/responses": 1_903,
    "engines": 225,
    "engines/chatglm": 487,
    "engines/command": 924,
    "engines/gguf": 3_601,
    "engines/process": 1_314,
    "engines/transformers": 838,
    "engines/transformers/batch": 1_258,
    "engines/transformers/model": 1_090,
    "engines/transformers/words": 656,
    "families": 2_417,
    "fleet": 983,
    "fleet/driver": 1_004,
    "http": 1_087,
    "hub": 1_265,
    "limits": 1_108,
    "models": 1_534,
    "residency": 1_035,
    "runtime": 916,
    "scheduling": 1_037,
    "server": 3_202,
    "store": 1_593,
    "store/sql": 880,
    "templates": 956,
    "testing": 361,
    "tools": 340,
    "upstreams": 0,
    "upstreams/fastchat": 682,
    "upstreams/llamacpp": 330,
    "upstreams/openai": 994,
    "web": 1_692,
    "web/connect": 560,
    "wire": 1_602,
}

#: Where the environment is read or passed on, and why.
ENVIRONMENT = {
    "config/server.py": "the configuration's only reader",
    "cli/_chat.py": "a server of its own gets it, with a key",
    "runtime/child_environment.py": "a child gets what it may need of it, without proxies and secrets",
}
#: Where everything may be caught, and why.
CATCH_ALL = {
    "runtime/logs.py": "a line that cannot be formatted is lost alone; it is told why",
    "constraints/process/child.py": "a flaw in a job is told to the server, which logs it, and the helper is replaced",
    "constraints/process/jobs.py": "llguidance's converter raises the bare class for a grammar that it cannot read",
    "web/guard.py": "a flaw of ours becomes a 500 in the envelope",
    "adapt/emulation.py": "a task's flaw is carried to the reader, which raises it",
    "runtime/plugins.py": "what somebody else made raises anything; it is told and left out",
    "scheduling/pool.py": "a flaw in a look at a backend is logged, and is not the last look",
    "http/connection.py": "a flaw in who takes bytes past their reader is the reader's to raise",
    "wire/frames.py": "a flaw in one call is told to its caller, and the process goes on",
    "runtime/tasks.py": "what a thread raises is carried to who waits, who raises it",
    "engines/transformers/batch/constraint.py": "llguidance raises the bare class for a grammar that it cannot read",
    "engines/transformers/child.py": "a flaw in one answer is carried to its reader, and the others go on",
    "engines/transformers/model/load.py": "a folder that somebody else made makes transformers raise anything; it is told and not loaded",
    "engines/transformers/batch/loop.py": "a model raises anything in a step; all whom it concerns are told",
}
#: The modules that know aiohttp: the server, and what reads requests and writes answers.
AIOHTTP = re.compile(r"server/\w+|web/\w+|dialects/[\w/]+|cli/_chat|cli/_conversation")
#: The one that knows what aiohttp keeps to itself.
AIOHTTP_INTERNALS = "web/aiohttp_internals.py"
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "breakpoint"}
FORBIDDEN_IMPORTS = {"pickle", "marshal", "shelve", "dill", "requests", "httpx"}

#: The most docstrings that begin with a question word, and functions that are called by a participle; never raised.
MOST_QUESTIONS, MOST_PARTICIPLES = 1, 4
QUESTION = re.compile(r"\W*(What|Who|Whether|How|Where|Why)\b")
PARTICIPLES = frozenset(
    [
        "told",
        "found",
        "made",
        "asked",
        "held",
        "known",
        "given",
        "placed",
        "learnt",
        "emptied",
        "taken",
        "begun",
        "sent",
        "kept",
        "said",
        "seen",
        "done",
        "gone",
        "written",
        "drawn",
        "chosen",
        "spoken",
        "broken",
        "shown",
        "built",
        "meant",
        "heard",
        "lost",
        "paid",
        "sold",
        "spent",
        "thought",
        "understood",
        "worn",
        "won",
    ]
)
NO_PARTICIPLES = frozenset({"need", "embed", "feed", "heed", "proceed", "succeed", "shared"})

Function = ast.FunctionDef | ast.AsyncFunctionDef
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The modules, read."""
    return {name: ast.parse(text) for name, text in MODULES.items()}


@pytest.fixture(scope="module")
def nodes(trees: dict[str, ast.Module]) -> dict[str, list[ast.AST]]:
    """All that is in each module: it is gathered once, for all rules."""
    return {name: list(ast.walk(tree)) for name, tree in trees.items()}


def is_participle(function: Function) -> bool:
    """True for a function, and no property, whose name begins with a participle."""
    word = function.name.strip("_").partition("_")[0]
    if any(ast.unparse(one).endswith(("property", ".setter")) for one in function.decorator_list):
        return False
    return word in PARTICIPLES or (word.endswith("ed") and word not in NO_PARTICIPLES)


def functions(nodes: Iterable[ast.AST]) -> list[Function]:
    """The functions among these nodes."""
    return [node for node in nodes if isinstance(node, Function)]


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


def imports(nodes: Iterable[ast.AST]) -> set[str]:
    """The top-level packages that a module imports, also inside functions."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_sizes(nodes: dict[str, list[ast.AST]]) -> None:
    """A file has at most 500 lines, and a function fits a screen."""
    assert [] == [name for name, text in MODULES.items() if len(text.splitlines()) > MAX_FILE_LINES]
    assert [] == [
        (name, function.name)
        for name, inside in nodes.items()
        for function in functions(inside)
        if (function.end_lineno or 0) - function.lineno >= MAX_FUNCTION_LINES
    ]


def test_rooms() -> None:
    """The house has so few rooms that the eye counts them."""
    rooms = {name.partition("/")[0] for name in MODULES} - {"__init__.py"}

    assert MAX_ROOMS >= len(rooms), rooms


def test_imports_have_a_direction(nodes: dict[str, list[ast.AST]]) -> None:
    """No modules import each other in a circle, and a private one imports no public one beside it."""
    modules = {".".join(("unilect", *Path(name).with_suffix("").parts)).removesuffix(".__init__") for name in MODULES}  # fmt: skip
    graph = dict[str, set[str]]()
    for name, inside in nodes.items():
        importer = ".".join(("unilect", *Path(name).with_suffix("").parts))
        needed = {
            f"{node.module}.{alias.name}"
            if f"{node.module}.{alias.name}" in modules
            else node.module
            for node in inside
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        graph[importer.removesuffix(".__init__")] = needed & modules
        room, _, leaf = importer.rpartition(".")
        if leaf.startswith("_") and not leaf.startswith("__"):
            beside = {one for one in needed if one.rpartition(".")[0] == room}
            assert all(one.rpartition(".")[2].startswith("_") for one in beside), (importer, beside)

    TopologicalSorter(graph).prepare()


@pytest.mark.heavy
def test_the_budget() -> None:
    """Every package stays small enough to be read."""
    spent = dict.fromkeys(BUDGETS, 0)
    for name, text in MODULES.items():
        spent[name.rpartition("/")[0]] += code_lines(text)

    assert [] == [name for name, lines in spent.items() if lines > BUDGETS[name]], spent


def test_docstrings(trees: dict[str, ast.Module]) -> None:
    """Every module, public class and public function says what it is for."""
    missing = [
        (name, path)
        for name, tree in trees.items()
        for path, node in [("", tree), *public(tree)]
        if not ast.get_docstring(node)
    ]

    assert missing == []


def test_words(nodes: dict[str, list[ast.AST]]) -> None:
    """A docstring names the thing or says what a function does, and a function is called by a verb."""
    every = [(name, node) for name, inside in nodes.items() for node in inside]
    documented = (ast.Module, ast.ClassDef, *Function.__args__)
    questions = [
        (name, docstring[:60])
        for name, node in every
        if isinstance(node, documented)
        and (docstring := ast.get_docstring(node))
        and QUESTION.match(docstring)
    ]
    participles = [(name, node.name) for name, node in every if isinstance(node, Function) and is_participle(node)]  # fmt: skip

    assert MOST_QUESTIONS >= len(questions), questions
    assert MOST_PARTICIPLES >= len(participles), participles


@pytest.mark.heavy
def test_docstrings_of_tests() -> None:
    """Every test says in one sentence how the server behaves."""
    for file in (ROOT / "tests").rglob("test_*.py"):
        for function in functions(ast.walk(ast.parse(file.read_text()))):
            if function.name.startswith("test_"):
                docstring = ast.get_docstring(function) or ""
                told = f"{file.name}: {function.name}: {docstring!r}"
                assert re.fullmatch(r"\S.*[.]", docstring), told
                assert not re.search(r"[.!?] [A-Z]", docstring), f"{told}: two sentences"


def test_no_globals(nodes: dict[str, list[ast.AST]]) -> None:
    """No module changes its own names while it runs."""
    assert [] == [
        (name, node.names)
        for name, inside in nodes.items()
        for node in inside
        if isinstance(node, ast.Global)
    ]


def test_the_environment(nodes: dict[str, list[ast.AST]]) -> None:
    """The environment is read in one place."""
    for name in set(nodes) - set(ENVIRONMENT):
        used = {node.attr for node in nodes[name] if isinstance(node, ast.Attribute)}

        assert set() == used & {"environ", "environb", "getenv", "putenv"}, name


def test_nothing_is_swallowed(nodes: dict[str, list[ast.AST]]) -> None:
    """What catches everything raises it again; only the named places do not."""
    for name in set(nodes) - set(CATCH_ALL):
        for node in nodes[name]:
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = ast.unparse(node.type) if node.type is not None else "everything"
            assert caught not in ("everything", "Exception"), f"{name}, line {node.lineno}"
            if caught == "BaseException":
                last = node.body[-1]
                assert isinstance(last, ast.Raise), f"{name}, line {node.lineno}"
                assert last.exc is None, f"{name}, line {node.lineno}"


def test_no_code_from_data(nodes: dict[str, list[ast.AST]]) -> None:
    """Nothing is run or unpickled that comes as data."""
    for name, inside in nodes.items():
        called = {
            node.func.id
            for node in inside
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }

        assert set() == called & FORBIDDEN_CALLS, name
        assert set() == imports(inside) & FORBIDDEN_IMPORTS, name
        assert "literal_eval" not in MODULES[name], name


def test_no_sql_is_put_together(nodes: dict[str, list[ast.AST]]) -> None:
    """What a database is told is made of parameters and of constants; settings and names of tables, which cannot be, are our own."""
    for name, inside in nodes.items():
        for node in inside:
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in {"execute", "executemany", "executescript", "rows", "row", "scalar", "run", "run_many"}:  # fmt: skip
                made, first = node.args[0], ""
                if isinstance(made, ast.JoinedStr) and isinstance(made.values[0], ast.Constant):
                    first = str(made.values[0].value)
                put_in = [
                    one.value for one in ast.walk(made) if isinstance(one, ast.FormattedValue)
                ]
                are_ours = all(re.fullmatch("_[A-Z_]+", ast.unparse(one)) for one in put_in)
                is_made = isinstance(made, ast.BinOp) or not are_ours
                setting = first.startswith(("PRAGMA ", "SELECT count(*) FROM "))
                assert setting or not is_made, f"{name}:{node.lineno}"


def test_who_knows_aiohttp(nodes: dict[str, list[ast.AST]]) -> None:
    """Only the server's own modules know the HTTP library."""
    know = {name for name, inside in nodes.items() if "aiohttp" in imports(inside)}

    assert [] == [name for name in know if not AIOHTTP.fullmatch(name.removesuffix(".py"))]


def test_who_knows_the_private_attributes_of_aiohttp(nodes: dict[str, list[ast.AST]]) -> None:
    """What aiohttp keeps to itself is used in one module: in all others an underscore is one of their own."""
    private = re.compile(r"_[^_]")
    kinds = (web.Application, web.Request, web.RequestHandler, web.Response, web.Server)
    theirs = {name for kind in kinds for name in dir(kind) if private.match(name)}
    bases = re.compile(
        r"web\.|Protocol|ChunkedResponse$|FullResponse$"
    )  # those of the module are aiohttp's, too
    found = []
    for name in {name for name in nodes if "aiohttp" in MODULES[name]} - {AIOHTTP_INTERNALS}:
        derived = {
            id(node)
            for one in nodes[name]
            if isinstance(one, ast.ClassDef) and any(map(bases.match, map(ast.unparse, one.bases)))
            for node in ast.walk(one)
        }
        for node in nodes[name]:
            if isinstance(node, ast.Attribute) and private.match(node.attr):
                is_own = ast.unparse(node.value) in ("self", "cls")
                is_theirs = id(node) in derived and node.attr in theirs
                if (not is_own or is_theirs) and node.attr != "_asdict":
                    found.append((name, node.lineno, node.attr))

    assert found == []


def test_private_stays_private(nodes: dict[str, list[ast.AST]]) -> None:
    """What begins with an underscore, a module or a name, is imported in its own package only."""
    found = []
    for name, inside in nodes.items():
        room = ".".join(("unilect", *Path(name).parent.parts))
        for node in inside:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unilect"):
                for path in (f"{node.module}.{alias.name}" for alias in node.names):
                    owner, private, _ = path.partition("._")
                    if private and not f"{room}.".startswith(f"{owner}."):
                        found.append((name, path))

    assert found == []


def test_every_route_needs_a_key() -> None:
    """Every route needs a key, but those that say that the server lives, and the files of the page, which have no data."""
    routes = all_routes(Site(Service(Registry([]), Accounts(Metrics()))))

    assert {route.path for route in routes if route.public} == {
        "/healthz",
        "/readyz",
        "/health",
        "/v1/health",
        "/",
        "/page/settings",
        "/page/{file}",
    }
    assert len({(route.method, route.path, route.needs_header) for route in routes}) == len(routes)


def test_the_version_is_told_once() -> None:
    """No module repeats the version that the package metadata holds."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)

    assert version is not None
    assert [] == [name for name, text in MODULES.items() if f'"{version.group(1)}"' in text]


def test_no_leftovers() -> None:
    """No module holds a note to its authors, or prints where it should log."""
    left = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

    assert [] == [name for name, text in MODULES.items() if left.search(text)]


def test_the_page() -> None:
    """A file of the page is small, says what it is, imports what lies beside it, and makes neither code nor HTML of a text."""
    for file in (SOURCE / "page").glob("*.js"):
        text = file.read_text()
        imported = re.findall(r'(?:from|import\()\s*"([^"]+)"', text)
        assert len(text.splitlines()) <= MAX_PAGE_LINES, file.name
        assert text.startswith("/**"), file.name
        assert [] == [one for one in imported if not (one.startswith("./") and (file.parent / one).is_file())]  # fmt: skip
        assert [] == re.findall(r"\b(?:inner|outer)HTML\b|insertAdjacentHTML|\.write\(|\beval\(|Function\(|srcdoc|setTimeout\(\"", text)  # fmt: skip
