"""LoRA adapters of a GGUF model: scales of one request, and of one caller, change nobody else's answers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import completion, engine
from support.servers.appserver import App, serving
from unilect.config.server import Config
from unilect.core.events import TextDelta
from unilect.core.requests import LoraScale
from unilect.demo import FOLDER
from unilect.engines.gguf.engine import GgufEngine

in_one_loop = pytest.mark.asyncio(loop_scope="module")
PIRATE, ROBOT = (f"lora-{name}.gguf" for name in ("pirate", "robot"))
SETTINGS: dict[str, Any] = {"lora": [str(FOLDER / PIRATE), f"{FOLDER / ROBOT}=0"], "context": 1024}
TALK = "<|im_start|>user\nTell me about a dog and a cat and a house. " * 8
STORY = "Once upon a time there was a zebra who lived in a zoo. " * 8
AS_ROBOT = [{"id": 1, "scale": 1.0}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[GgufEngine]:
    """The bundled model as a pirate, which could be a robot, with one slot and a cache beside it."""
    async with engine(parallel=1, cache_ram_mib=64, **SETTINGS) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app(model: GgufEngine) -> AsyncIterator[App]:
    """An application in front of it."""
    async with serving(model) as app:
        yield app


async def likeliest(app: App, **fields: Any) -> tuple[list[float], int]:
    """How likely the likeliest next tokens of a prompt are, and how many tokens of it were in the cache."""
    body = {"prompt": TALK, "n_predict": 1, "temperature": 0, "n_probs": 3} | fields
    async with app.post("/completion", **body) as response:
        told = await response.json()
    assert 200 == response.status, told
    [token] = told["completion_probabilities"]
    return [round(top["logprob"], 3) for top in token["top_logprobs"]], told["timings"]["cache_n"]


@in_one_loop
async def test_scales_of_one_request(app: App) -> None:
    """Neither the slot nor the cache beside it gives what was read with some scales to a request with others."""
    pirate, _ = await likeliest(app, cache_prompt=False)
    robot, _ = await likeliest(app, cache_prompt=False, lora=AS_ROBOT)
    told = [
        await likeliest(app, **fields)
        for fields in (
            {},  # into the slot
            {"lora": AS_ROBOT},  # in the same slot
            {"prompt": STORY, "lora": AS_ROBOT},  # the pirate's is in the cache beside
            {"lora": AS_ROBOT},
            {"prompt": STORY},
            {},
            {"lora": [{"id": 0, "scale": 1}]},  # the settings' own
        )
    ]

    assert pirate != robot
    assert [robot] * 2 == [told[1][0], told[3][0]]
    assert [0, 0] == [told[1][1], told[3][1]]
    assert pirate == pytest.approx(told[5][0], abs=0.1)
    assert pirate == pytest.approx(told[6][0], abs=0.1)
    assert told[6][1] > 100, "what is asked as the settings say it is in the cache"


@in_one_loop
async def test_both_at_once(app: App) -> None:
    """Requests that come at once get their own scales each."""
    robot, _ = await likeliest(app, cache_prompt=False, lora=AS_ROBOT)
    pirate, _ = await likeliest(app, cache_prompt=False)
    told = await asyncio.gather(
        *(likeliest(app, **fields) for fields in ({}, {"lora": AS_ROBOT}) * 3)
    )

    for number, (found, _) in enumerate(told):
        assert [pirate, robot][number % 2] == pytest.approx(found, abs=0.1)


@in_one_loop
async def test_a_client_that_leaves(model: GgufEngine, app: App) -> None:
    """A slot is emptied also where its client has left in the middle of the answer."""
    robot, _ = await likeliest(app, cache_prompt=False, lora=AS_ROBOT)
    pirate, _ = await likeliest(app, cache_prompt=False)
    answer = model.generate(
        completion(TALK, max_tokens=200, ignore_eos=True, stream=True, lora=[LoraScale(1, 1.0)])
    )
    async for batch in answer:
        if any(isinstance(event, TextDelta) for event in batch):
            break
    await answer.aclose()

    assert pirate != robot
    assert pirate == pytest.approx((await likeliest(app))[0], abs=0.1)


async def asked(app: App, method: str, key: str = "", **more: Any) -> tuple[int, Any]:
    """The status and the body of a request for /lora-adapters."""
    url, headers = f"http://127.0.0.1:{app.port}/lora-adapters", {"Authorization": f"Bearer {key}"}
    async with app.session.request(method, url, headers=headers, **more) as response:
        return response.status, await response.json()


@in_one_loop
async def test_scales_of_one_caller(model: GgufEngine) -> None:
    """A caller sets the scales of its own requests at every endpoint, which `lora` of a request goes before; others see and get none of it."""
    config = Config(api_keys=["sk-a", "sk-b"])
    async with serving(model, config) as app:
        before = await asked(app, "GET", "sk-a")
        done = await asked(app, "POST", "sk-a", json=AS_ROBOT)
        listed = [[one["scale"] for one in (await asked(app, "GET", key))[1]] for key in ("sk-a", "sk-b")]  # fmt: skip
        url = f"http://127.0.0.1:{app.port}/v1/chat/completions"
        said = []
        for key, fields in (("sk-a", {}), ("sk-b", {}), ("sk-b", {"lora": AS_ROBOT}), ("sk-a", {"lora": [{"id": 0, "scale": 1}]})):  # fmt: skip
            body = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 24} | fields  # fmt: skip
            async with app.session.post(url, json=body, headers={"Authorization": f"Bearer {key}"}) as response:  # fmt: skip
                said.append((await response.json())["choices"][0]["message"]["content"])

    assert [(0, PIRATE, 1.0), (1, ROBOT, 0.0)] == [(one["id"], one["path"], one["scale"]) for one in before[1]]  # fmt: skip
    assert (200, {"success": True}) == done
    assert [[0.0, 1.0], [1.0, 0.0]] == listed
    assert said[0] == said[2]
    assert said[1] == said[3] != said[0]


@in_one_loop
@pytest.mark.parametrize(
    ("sent", "param"),
    [
        (b"{}", None),
        (b"[", None),
        (b"\xff", None),
        (b'[{"id": 0}]', "[0].scale"),
        (b'[{"id": 0, "scale": 1e9}]', "[0].scale"),
        (b'[{"id": -1, "scale": 1}]', "[0].id"),
        (b'[{"id": 1, "scale": 1}, {"id": 2, "scale": 1}]', "[1].id"),
    ],
)
async def test_scales_that_are_refused(app: App, sent: bytes, param: str | None) -> None:
    """What is no list of scales, or names no adapter, is told by its place and changes nothing."""
    status, told = await asked(app, "POST", data=sent)

    assert (400, param) == (status, told["error"]["param"])
    assert [1.0, 0.0] == [one["scale"] for one in (await asked(app, "GET"))[1]]


@in_one_loop
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"lora": [{"id": 2, "scale": 1}]}, "lora[0].id"),
        ({"lora": [{"id": 0}]}, "lora[0].scale"),
        ({"lora": AS_ROBOT, "echo": True, "logprobs": 1}, "echo"),
    ],
)
async def test_requests_that_are_refused(app: App, fields: dict[str, Any], param: str) -> None:
    """An adapter that there is not is refused, and so are log probabilities of a prompt, which would need the cache."""
    async with app.post("/v1/completions", prompt="a", **fields) as response:
        told = await response.json()

    assert (400, param) == (response.status, told["error"]["param"])


async def test_a_model_without_adapters() -> None:
    """It lists none, and what would set their scales is refused."""
    async with engine(context=512) as running, serving(running) as app:
        listed = await asked(app, "GET")
        status, told = await asked(app, "POST", json=AS_ROBOT)
        async with app.post("/completion", prompt="a", lora=AS_ROBOT) as response:
            refused = await response.json()

    assert (200, []) == listed
    assert (501, "unsupported_operation") == (status, told["error"]["code"])
    assert (400, "lora") == (response.status, refused["error"]["param"])
