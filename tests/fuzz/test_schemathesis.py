"""Requests made from /openapi.json: what it allows, and what it does not, never makes the server fail."""

import os
import sys
from typing import Any

import pytest
import schemathesis
from attack import TIMEOUT_S, Reply, Request, Target, assert_sound, many
from hypothesis import given, settings
from hypothesis import strategies as st

from support.backends.engine import THOROUGH, TOGETHER
from support.servers.serving import KEY, Server

#: Of each operation and mode.
EXAMPLES = max(10, int(os.environ.get("UNILECT_FUZZ", "200" if THOROUGH else "100")) // 10)
# nothing can be wrong with a request of these
BODILESS = [
    "home",
    "healthz",
    "readyz",
    "metrics",
    "get_page_settings",
    "get_page_clients",
    "get_page_file",
    "get_usage",
    "list_models",
    "native_props",
    "native_health",
]
OPERATIONS = [
    "retrieve_model",
    "create_chat_completion",
    "create_completion",
    "create_embedding",
]
OPERATIONS += ["create_raw_chat_completion", "check_tokens", "create_engine_embedding"]
OPERATIONS += ["create_langchain_answer", "create_message", "count_message_tokens"]
#: The bundled model ranks nothing: what is sound is 501. `test_rerank_bodies.py` attacks a reranker.
RANKING = ["create_rerank", "create_rerank_v2", "create_reranking"]
OPERATIONS += [
    f"native_{name}" for name in ("completion", "infill", "tokenize", "detokenize", "embedding")
]
BODILESS += ["native_slots", "native_lora_adapters"]
OPERATIONS += ["native_apply_template", "native_input_tokens"]
BODILESS += ["ollama_urls", "ollama_version", "ollama_tags", "ollama_ps"]
OPERATIONS += [
    f"ollama_{name}" for name in ("chat", "generate", "embed", "embeddings", "show", "pull")
]
OPERATIONS += ["create_response", "count_input_tokens", "compact_response", "create_conversation"]
#: Of what is stored: a made-up id is not there. `tests/dialects/responses` asks for ids that are.
OPERATIONS += [
    "retrieve_response", "delete_response", "cancel_response", "list_input_items", "retrieve_conversation", "update_conversation",
    "delete_conversation", "create_items", "list_items", "retrieve_item", "delete_item",
]  # fmt: skip
#: Whatever is asked, they answer that it cannot be done.
REFUSED = [f"ollama_{name}" for name in ("delete", "copy", "create", "push", "blob")]
REFUSED += ["native_set_lora_adapters"]
REFUSED += ["native_slot_action"]  # without `action`, which is part of the URL
ATTACKS = [(name, "positive") for name in BODILESS + OPERATIONS]
ATTACKS += [(name, "negative") for name in OPERATIONS]
#: Those of any run; the others are for CI, and random bodies reach all endpoints in any run.
QUICK = [*BODILESS, "create_chat_completion"]
CASES = [
    pytest.param(*attack, marks=[] if attack[0] in QUICK else [pytest.mark.heavy])
    for attack in ATTACKS
]
HEADERS = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def api(server: Server) -> Any:
    """The OpenAPI document of the running server, as a maker of requests."""
    api = schemathesis.openapi.from_url(f"{server.root}/openapi.json", headers=HEADERS)
    api.config.max_stream_events = sys.maxsize  # its own bound of 20 would show a torn answer
    return api


@pytest.fixture(scope="module")
def operations(api: Any) -> dict[str, Any]:
    """The document's operations, by name."""
    found = [result.ok() for result in api.get_all_operations()]
    names = [one.definition.raw["operationId"].removesuffix("_unversioned") for one in found]
    return dict(zip(names[::-1], found[::-1], strict=True))  # the first of a name counts


def test_operations(api: Any) -> None:
    """Every operation of the document is attacked below, but for another spelling of one."""
    paths = api.raw_schema["paths"].values()
    names = {operation["operationId"] for path in paths for operation in path.values()}
    names = {name.removesuffix("_unversioned") for name in names}
    assert {*BODILESS, *OPERATIONS, *REFUSED, *RANKING} == names


@pytest.mark.heavy(but=4)
@many
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_operation(
    targets: dict[str, Target], operations: dict[str, Any], name: str, mode: str
) -> None:
    """A generated request is answered, or refused in the one envelope, by the servers of both engines."""
    operation = operations[name]
    strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))
    examples = EXAMPLES if operation.body else 10
    engines = TOGETHER[:1] if name in (*BODILESS, "retrieve_model") else TOGETHER

    @settings(max_examples=examples)
    @given(data=st.data())
    def attack(data: st.DataObject) -> None:
        case = data.draw(strategy)
        if mode == "positive" and isinstance(case.body, dict):
            case.body |= {"max_tokens": 2, "n_predict": 2}
        for engine in engines:
            attack_one(targets[engine].server.root, case)

    def attack_one(url: str, case: Any) -> None:
        answer = case.call(base_url=url, headers=HEADERS, timeout=TIMEOUT_S)
        body = answer.request.body or b""
        request = Request(str(answer.request.path_url), body if isinstance(body, bytes) else b"")
        assert not answer.stream_cut_short, request  # by the client, after its timeout
        headers = {name.title(): values[0] for name, values in answer.headers.items()}
        if answer.status_code >= 400 or name.startswith(("create_", "native_", "ollama_")):
            assert_sound(Reply(answer.status_code, headers, answer.content), request)
        assert answer.status_code < 500 or name == "get_usage"  # nothing is recorded there

    attack()
