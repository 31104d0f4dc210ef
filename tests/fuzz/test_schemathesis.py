"""Requests made from /openapi.json: what it allows, and what it does not, never makes the server fail."""

import os
import sys
from typing import Any

import pytest
import schemathesis
from attack import TIMEOUT_S, Reply, Request, Target, assert_sound, many
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import ENGINES_IN_CI, THOROUGH
from serving import KEY, Server

#: Of each operation and mode.
EXAMPLES = max(10, int(os.environ.get("UNILECT_FUZZ", "200" if THOROUGH else "100")) // 10)
# nothing can be wrong with a request of these
BODILESS = ["home", "healthz", "readyz", "metrics", "list_models", "native_props", "native_health"]
OPERATIONS = ["retrieve_model", "create_chat_completion", "create_completion", "create_embedding"]
OPERATIONS += ["create_raw_chat_completion", "check_tokens", "create_engine_embedding"]
OPERATIONS += ["create_langchain_answer"]
OPERATIONS += [
    f"native_{name}" for name in ("completion", "infill", "tokenize", "detokenize", "embedding")
]
ATTACKS = [(name, "positive") for name in BODILESS + OPERATIONS]
ATTACKS += [(name, "negative") for name in OPERATIONS]
#: Each, and those that reach an engine once more for every other one.
CASES = [pytest.param("gguf", *attack, id=f"{'-'.join(attack)}") for attack in ATTACKS]
CASES += [
    pytest.param(*engine.values, *attack, marks=engine.marks)
    for engine in ENGINES_IN_CI[1:]
    for attack in ATTACKS
    if attack[0] not in (*BODILESS, "retrieve_model")
]
HEADERS = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def api(server: Server) -> Any:
    """The OpenAPI document of the running server, as a maker of requests."""
    api = schemathesis.openapi.from_url(f"{server.root}/openapi.json", headers=HEADERS)
    api.config.max_stream_events = sys.maxsize  # its own bound of 20 would show a torn answer
    return api


def _operation(api: Any, name: str) -> Any:
    for result in api.get_all_operations():
        operation = result.ok()
        if operation.definition.raw["operationId"].removesuffix("_unversioned") == name:
            return operation
    raise AssertionError(f"no operation {name}")


def test_operations(api: Any) -> None:
    """Every operation of the document is attacked below, but for another spelling of one."""
    paths = api.raw_schema["paths"].values()
    names = {operation["operationId"] for path in paths for operation in path.values()}
    names = {name.removesuffix("_unversioned") for name in names}
    assert {*BODILESS, *OPERATIONS} == names


@many
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@pytest.mark.parametrize(("engine", "name", "mode"), CASES, scope="session")
def test_operation(target: Target, api: Any, name: str, mode: str) -> None:
    """A generated request is answered, or refused in the one envelope."""
    operation = _operation(api, name)
    strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))
    examples = EXAMPLES if operation.body else 10

    @settings(max_examples=examples)
    @given(data=st.data())
    def attack(data: st.DataObject) -> None:
        case = data.draw(strategy)
        if mode == "positive" and isinstance(case.body, dict):
            case.body |= {"max_tokens": 2, "n_predict": 2}
        answer = case.call(base_url=target.server.root, headers=HEADERS, timeout=TIMEOUT_S)
        body = answer.request.body or b""
        request = Request(str(answer.request.path_url), body if isinstance(body, bytes) else b"")
        assert not answer.stream_cut_short, request  # by the client, after its timeout
        headers = {name.title(): values[0] for name, values in answer.headers.items()}
        if answer.status_code >= 400 or name.startswith(("create_", "native_")):
            assert_sound(Reply(answer.status_code, headers, answer.content), request)
        assert answer.status_code < 500

    attack()
