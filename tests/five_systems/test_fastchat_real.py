"""FastChat itself: its worker registered with us, ours registered with its controller, its clients at both."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import openai
import pytest

from five_systems import fastchat_client
from five_systems.real_fastchat import MODEL, Process, stopping
from support.common import environments
from support.servers.serving import Server, serve

CONFIG = """
dialect = "fastchat"
fastchat_controller = true
api_keys = ["sk-test"]
[models.far]
source = "fastchat+{controller}"
model = "tiny"
[models.all]
source = "fastchat+{controller}"
model = "*"
"""
ANSWER = "The capital of France is Paris."
START_TIMEOUT_S = 60.0
pytestmark = [pytest.mark.heavy, environments.may_install]


class World(NamedTuple):
    """
    All that runs.

    Attributes:
        ours: unilect as a controller of FastChat's worker (`tiny`), and as a client of FastChat's controller (`far`).
        controller, api: FastChat's controller and API server.
        worker: FastChat's worker, registered with both controllers.
    """

    ours: Server
    controller: str
    api: str
    worker: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """FastChat and unilect, in both directions."""
    folder = tmp_path_factory.mktemp("fastchat")
    with stopping() as keep:
        controller = keep(Process(folder, "controller"))
        api = keep(Process(folder, "openai_api_server", controller_address=controller.url))
        config = CONFIG.format(controller=controller.url)
        with serve(config=config) as ours:
            worker = keep(
                Process(
                    folder,
                    "model_worker",
                    "--device=cpu",
                    f"--model-path={MODEL}",
                    "--model-names=tiny,small",
                    "--conv-template=qwen-7b-chat",
                    worker_address="",
                    controller_address=ours.root,
                )
            )
            controller.wait()
            with our_worker(folder, controller.url):
                yield _ready(World(ours, controller.url, api.wait(), worker.wait()))


def _ready(world: World) -> World:
    """FastChat's worker knows one controller, and is told to the other one by us."""
    body = {"worker_name": world.worker, "check_heart_beat": False}
    post(f"{world.controller}/register_worker", body)
    return world


@contextmanager
def our_worker(folder: Path, controller: str) -> Iterator[None]:
    """`unilect worker`, registered with FastChat's controller as `ours` and `gpt-4`; it leaves when it is stopped."""
    command = [sys.executable, "-m", "unilect", "worker", "demo:", "--port", "0"]
    command += ["--fastchat-controller", controller, "--model-names", "ours,gpt-4"]
    command += ["--limit-worker-concurrency", "2"]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        until(lambda: "ours" in models(controller))
        yield
    finally:
        process.terminate()
        process.communicate(timeout=START_TIMEOUT_S)
    assert 0 == process.returncode
    assert "ours" not in models(controller)


def until(ready: Any) -> None:
    """Ask a foreign process, which tells nothing by itself, again and again."""
    end = time.monotonic() + START_TIMEOUT_S
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)


def post(url: str, body: Any = None, key: str = "sk-test") -> Any:
    """A POST and its JSON."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body or {}).encode(), headers)
    with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as response:
        return json.load(response)


def models(controller: str) -> list[str]:
    """The models of a controller."""
    found: list[str] = post(f"{controller}/list_models")["models"]
    return found


def served(server: Server) -> list[str]:
    """The models that a server lists."""
    request = urllib.request.Request(
        f"{server.url}/models", headers={"Authorization": "Bearer sk-test"}
    )
    with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as response:
        return [card["id"] for card in json.load(response)["data"]]


def chat(url: str, text: str = "What is the capital of France?", **fields: Any) -> Any:
    """The first choice and the usage of a greedy chat."""
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0} | fields
    answer = post(f"{url}/v1/chat/completions", body)
    return answer["choices"][0]["message"]["content"], answer["usage"]


def test_its_worker_at_our_controller(world: World) -> None:
    """FastChat's worker registers with us under both names, beside our own model, and answers through our OpenAI API."""
    assert {"far", "small", "tiny"} <= set(models(world.ours.root))
    assert {"address": world.worker} == post(
        f"{world.ours.root}/get_worker_address", {"model": "tiny"}
    )
    for name in ("tiny", "small"):
        text, usage = chat(world.ours.root, model=name)
        assert (ANSWER, 27, 9) == (text, usage["prompt_tokens"], usage["completion_tokens"])


def test_its_controller_as_our_upstream(world: World) -> None:
    """`fastchat+http://` of FastChat's controller answers the same, and reads the whole prompt, of which its own server cuts one token off."""
    text, usage = chat(world.ours.root, model="far")
    assert (ANSWER, 27) == (text, usage["prompt_tokens"])
    assert (ANSWER, 26) == (
        chat(world.api, model="tiny")[0],
        chat(world.api, model="tiny")[1]["prompt_tokens"],
    )


def test_parameters_on_its_worker(world: World) -> None:
    """n, echo, logprobs, best_of, stop words, length and embeddings work on FastChat's worker."""
    complete = f"{world.ours.root}/v1/completions"
    body = {"model": "tiny", "prompt": "The capital of France", "temperature": 0, "max_tokens": 4}
    plain = post(complete, body)
    text = plain["choices"][0]["text"]
    two = post(complete, body | {"n": 2, "echo": True})
    logprobs = post(complete, body | {"logprobs": 1})["choices"][0]["logprobs"]
    best = post(complete, body | {"best_of": 2})
    stopped = post(complete, body | {"stop": text[-2:]})

    assert (4, "length") == (
        plain["usage"]["completion_tokens"],
        plain["choices"][0]["finish_reason"],
    )
    assert ["The capital of France" + text] * 2 == [choice["text"] for choice in two["choices"]]
    assert text == "".join(logprobs["tokens"])
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    assert text == best["choices"][0]["text"]
    assert "stop" == stopped["choices"][0]["finish_reason"]
    assert text[:-2].rstrip() == stopped["choices"][0]["text"].rstrip()
    embedded = post(f"{world.ours.root}/v1/embeddings", {"model": "tiny", "input": ["a", "b", "a"]})
    vectors = [item["embedding"] for item in embedded["data"]]
    assert vectors[0] == pytest.approx(vectors[2], abs=1e-5)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-2)


def test_all_models_of_its_controller(world: World) -> None:
    """A table for all models serves those that its controller gets later, too."""
    until(lambda: "gpt-4" in served(world.ours))

    assert ANSWER == chat(world.ours.root, model="ours")[0]


def test_too_long_for_its_worker(world: World) -> None:
    """A prompt that its worker would cut is refused, with FastChat's number."""
    with pytest.raises(urllib.error.HTTPError) as caught:
        chat(world.ours.root, "cat " * 3000, model="tiny")

    assert (400, 40303) == (caught.value.code, json.load(caught.value)["code"])


def test_our_worker_at_its_controller(world: World) -> None:
    """Our worker's models are at FastChat's API server, and a chat there is read with the model's own template."""
    assert {"ours", "gpt-4", "tiny", "small"} == set(models(world.controller))
    direct = [{"role": "system", "content": "Your name is Bob."}]
    direct += [{"role": "user", "content": "What is your name?"}]
    for name in ("ours", "gpt-4"):
        assert "My name is Bob." == chat(world.api, model=name, messages=direct)[0]


def test_token_check_through_its_server(world: World) -> None:
    """FastChat's own server counts with our worker."""
    item = {"model": "ours", "prompt": "Hello there", "max_tokens": 10}
    found = post(f"{world.api}/api/v1/token_check", {"prompts": [item]})

    assert {"prompts": [{"fits": True, "tokenCount": 2, "contextLength": 2048}]} == found


@pytest.mark.parametrize("version", ["0", "3"])
@pytest.mark.parametrize("where", ["ours", "its"])
def test_clients(world: World, version: str, where: str) -> None:
    """openai 0.28 and the newest get the same from us with FastChat's worker as from FastChat with ours."""
    base, model = (world.ours.url, "tiny") if where == "ours" else (f"{world.api}/v1", "ours")
    python = environments.openai_python(version)
    done = subprocess.run(
        [str(python), fastchat_client.__file__, base, "sk-test", model],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    found = json.loads(done.stdout)

    assert (version, model in found["models"]) == (found["version"], True)
    assert (ANSWER, ANSWER, "stop") == (found["whole"], found["streamed"], found["finish"])
    assert 2 == len(found["completions"])
    assert found["completions"][0].startswith(" is")
    assert 1 == len(set(found["dimensions"]))
    expected = {("ours", "0"): "InvalidRequestError", ("its", "0"): "APIError"}
    assert expected.get((where, version), "BadRequestError") == found["unknown model"]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("stream", [False, True])
def test_tools(world: World, choice: str, stream: bool) -> None:
    """A model on FastChat's worker, which drops tools, calls them through us."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}  # fmt: skip
    tool: Any = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather.", "parameters": parameters}}  # fmt: skip
    with openai.OpenAI(base_url=world.ours.url, api_key="sk-test", max_retries=0) as client:
        body: Any = {
            "model": "far",
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
            "tools": [tool],
            "tool_choice": choice,
            "temperature": 0,
            "max_tokens": 64,
        }
        if stream:
            with client.chat.completions.stream(**body) as events:
                answer = events.get_final_completion().choices[0]
        else:
            answer = client.chat.completions.create(**body).choices[0]

    (call,) = answer.message.tool_calls or ()
    assert ("get_weather", {"city": "Paris"}) == (call.function.name, json.loads(call.function.arguments))  # fmt: skip
    assert "tool_calls" == answer.finish_reason
