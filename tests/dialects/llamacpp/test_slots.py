"""The slots of a model's engine: each caller is shown what its own requests do there, and of others whether they do something."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.backends.engine import engine, made
from support.servers.appserver import App, serving, upstream
from unilect.config.server import Config

in_one_loop = pytest.mark.asyncio(loop_scope="module")
OF_ALL = {"id", "n_ctx", "speculative", "is_processing"}
SECRET = "my secret is 4711"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app() -> AsyncIterator[App]:
    """An application for two callers, in front of a model with two slots."""
    config = Config(api_keys=["sk-a", "sk-b"])
    async with engine(context=2048, parallel=2) as running, serving(running, config) as app:
        yield app


async def ask(app: App, path: str, key: str = "sk-a", method: str = "GET") -> tuple[int, Any]:
    """The status and the body of a request."""
    headers = {"Authorization": f"Bearer {key}"}
    async with app.session.request(method, f"http://127.0.0.1:{app.port}{path}", headers=headers) as response:  # fmt: skip
        return response.status, await response.json()


@in_one_loop
async def test_what_is_shown(app: App) -> None:
    """A running request is shown to its caller with its parameters, and to others as a slot that is busy; no prompt is shown."""
    body = {"prompt": SECRET, "stream": True, "ignore_eos": True, "temperature": 0.25}
    url, headers = f"http://127.0.0.1:{app.port}/completion", {"Authorization": "Bearer sk-a"}
    async with app.session.post(url, json=body, headers=headers) as response:
        await response.content.readuntil(b"\n\n")
        (_, mine), (_, theirs) = [await ask(app, "/slots", key) for key in ("sk-a", "sk-b")]
        response.close()

    assert [2048, 2048] == [slot["n_ctx"] for slot in mine]
    assert [[True, False]] * 2 == [[slot["is_processing"] for slot in seen] for seen in (mine, theirs)]  # fmt: skip
    assert 0.25 == mine[0]["params"]["temperature"]
    assert 0 < mine[0]["next_token"][0]["n_decoded"]
    assert [OF_ALL] * 2 == [set(slot) for slot in theirs]
    assert SECRET not in str(mine)


@in_one_loop
async def test_what_a_slot_has_done(app: App) -> None:
    """A slot whose last request was another caller's shows nothing of it afterwards."""
    url, headers = f"http://127.0.0.1:{app.port}/completion", {"Authorization": "Bearer sk-b"}
    body = {"prompt": "Hello", "n_predict": 2}
    async with app.session.post(url, json=body, headers=headers) as response:
        assert 200 == response.status
        slot = (await response.json())["id_slot"]
    seen = {key: (await ask(app, "/slots", key))[1][slot] for key in ("sk-a", "sk-b")}

    assert set(seen["sk-a"]) == OF_ALL
    assert 2 == seen["sk-b"]["params"]["n_predict"]


@in_one_loop
async def test_no_free_slot(app: App) -> None:
    """`fail_on_no_slot` asks whether there is a free one, which is 503 where there is none."""
    free, _ = await ask(app, "/slots?fail_on_no_slot=1")
    body = {"prompt": "a", "n": 2, "stream": True, "ignore_eos": True}
    url, headers = f"http://127.0.0.1:{app.port}/completion", {"Authorization": "Bearer sk-a"}
    async with app.session.post(url, json=body, headers=headers) as response:
        begun = set[bytes]()
        while len(begun) < 2:  # a piece of each choice
            begun.add((await response.content.readuntil(b"\n\n"))[:17])
        busy, told = await ask(app, "/slots?fail_on_no_slot=1", "sk-b")
        response.close()

    assert (200, 503) == (free, busy)
    assert "no free slot" in told["error"]["message"]


async def change(app: App, slot: Any, action: str, key: str = "sk-a", **body: Any) -> tuple[int, Any]:  # fmt: skip
    """The status and the answer of an action on a slot."""
    url = f"http://127.0.0.1:{app.port}/slots/{slot}?action={action}"
    headers = {"Authorization": f"Bearer {key}"}
    async with app.session.post(url, json=body or None, headers=headers) as response:
        return response.status, await response.json()


async def read(app: App, prompt: str, key: str = "sk-a") -> tuple[int, int]:
    """The slot that answered a prompt, and how much of it was in the cache."""
    body = {"prompt": prompt, "n_predict": 1, "temperature": 0}
    url, headers = f"http://127.0.0.1:{app.port}/completion", {"Authorization": f"Bearer {key}"}
    async with app.session.post(url, json=body, headers=headers) as response:
        told = await response.json()
        return told["id_slot"], told["timings"]["cache_n"]


@in_one_loop
@pytest.mark.parametrize(
    ("slot", "action", "filename", "status", "param"),
    [
        (0, "copy", "x", 400, "action"),
        (0, "", "x", 400, "action"),
        ("x", "save", "x", 400, "slot_id"),
        (99, "save", "x", 400, "slot_id"),
        (99, "restore", "x", 400, "slot_id"),
        ("9" * 30, "erase", "x", 400, "slot_id"),
        (0, "save", "x", 501, None),
        (0, "restore", "x", 501, None),
        (0, "save", 5, 400, "filename"),
    ],
)
async def test_what_is_refused(
    app: App, slot: Any, action: str, filename: Any, status: int, param: str | None
) -> None:
    """An action, a slot or a file that is none is refused by name; without a folder of the operator's nothing is saved."""
    await read(app, "Hello")
    found, told = await change(app, slot, action, filename=filename)

    assert (status, param) == (found, told["error"]["param"]), told


async def test_saved_slots(tmp_path: Path) -> None:
    """What a caller has saved is there after a restart of the engine, for that caller alone; an emptied slot holds nothing."""
    folder, config = tmp_path / "slots", Config(api_keys=["sk-a", "sk-b"])
    prompt = "The capital of France is Paris, and the capital of Germany is"
    async with engine(context=512, parallel=2, cache_ram_mib=0, slot_save_path=str(folder)) as running:  # fmt: skip
        async with serving(running, config) as app:
            slot, _ = await read(app, prompt)
            saved = await change(app, slot, "save", filename="a.bin")
            theirs = await change(app, slot, "save", "sk-b", filename="b.bin")
            emptied = await change(app, slot, "erase")
            _, cached_after_erase = await read(app, prompt)
            (file,) = folder.iterdir()
            mode = file.stat().st_mode & 0o777
            await running.aclose()
            await running.start()
            not_theirs = await change(app, 1, "restore", "sk-b", filename="a.bin")
            restored = await change(app, 1, "restore", filename="a.bin")
            stolen = await change(app, 1, "erase", "sk-b")
            after = await read(app, prompt)
            names = [await change(app, 1, "save", filename=name) for name in ("../x", "/tmp/x", ".x", "", "a/b", "x\0", "a" * 129)]  # fmt: skip
            file.write_bytes(file.read_bytes()[:100])
            torn = await change(app, 1, "restore", filename="a.bin")
            well = await read(app, prompt)

    count = saved[1]["n_saved"]
    assert (200, slot, "a.bin", file.name) == (saved[0], saved[1]["id_slot"], saved[1]["filename"], file.name)  # fmt: skip
    assert 10 < count == emptied[1]["n_erased"] == restored[1]["n_restored"]
    assert (0o600, 0) == (mode, cached_after_erase)
    assert [400, 400] == [theirs[0], stolen[0]]
    assert (404, "filename") == (not_theirs[0], not_theirs[1]["error"]["param"])
    assert (200, "a.bin", 1) == (restored[0], restored[1]["filename"], after[0])
    assert 10 < after[1] <= count
    assert [(400, "filename")] * 7 == [(found[0], found[1]["error"]["param"]) for found in names]
    assert 400 == torn[0]
    assert 0 <= well[1]
    assert [file] == [*folder.iterdir()]


async def test_a_model_that_does_not_run() -> None:
    """It is not loaded to show its slots."""
    model = made("gguf", context=512, parallel=3)
    async with serving(model) as app:
        status, found = await ask(app, "/slots")

        assert 200 == status
        assert [(0, False), (1, False), (2, False)] == [(one["id"], one["is_processing"]) for one in found]  # fmt: skip
        assert model._generator.process.pid is None


async def test_a_backend_without_slots() -> None:
    """A model that another server answers for shows none."""
    async with serving(upstream("http://127.0.0.1:9"), runs_locally=False) as app:
        status, told = await ask(app, "/slots")

    assert 501 == status
    assert "/metrics" in told["error"]["message"]
