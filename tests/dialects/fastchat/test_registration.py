"""Tests of unilect.dialects.fastchat._registration: our worker's place in a controller."""

import asyncio
from typing import Any

import pytest

from support.backends.fastchat import FakeFastChat, fake_fastchat
from support.backends.scripted import Exchange, answer, scripted
from unilect.core.errors import ConfigError
from unilect.dialects.fastchat import _registration as fastchat_registration
from unilect.dialects.fastchat._registration import FastChatRegistration
from unilect.dialects.fastchat._worker import WorkerState

STATUS = {"model_names": ["m"], "speed": 1, "queue_length": 2}


class Work(WorkerState):
    """A worker that sees images and has two requests."""

    multimodal = True

    def __init__(self) -> None:
        self.address = ""

    def status(self) -> dict[str, Any]:
        """What a controller asks for."""
        return STATUS


class Controller(FakeFastChat):
    """A controller that forgets a worker after some heart beats, and tells when it is asked."""

    def __init__(self, exist: list[bool]) -> None:
        super().__init__()
        self.exist = exist
        self.calls: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

    async def script(self, exchange: Exchange) -> None:
        """Answer one request."""
        path = exchange.head.split(b" ")[1].decode()
        told = b"null" if path == "/register_worker" else b'{"exist":%s}'
        if path == "/receive_heart_beat":
            told = told % (b"true" if self.exist.pop(0) else b"false")
        await exchange.send(answer(told))
        exchange.close()
        self.calls.put_nowait((path, exchange.json()))


async def calls(controller: Controller, number: int) -> list[tuple[str, Any]]:
    """The next calls."""
    async with asyncio.timeout(60):
        return [await controller.calls.get() for _ in range(number)]


async def registered(controller: Controller, url: str) -> FastChatRegistration:
    """A registration that beats all the time."""
    registration = FastChatRegistration(url, Work(), "http://me:1", 0.001)
    await registration.open("http://listener:1")
    return registration


async def test_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker registers, beats, registers again where it is not known, and leaves by having no models."""
    controller = Controller([True, False, *[True] * 10_000])
    async with scripted(controller.script) as server:
        registration = await registered(controller, f"http://127.0.0.1:{server.port}")
        first, beat, second_beat, again = await calls(controller, 4)
        await registration.aclose()
        await registration.aclose()
    rest = [controller.calls.get_nowait() for _ in range(controller.calls.qsize())]

    asked = {
        "worker_name": "http://me:1",
        "check_heart_beat": True,
        "worker_status": STATUS,
        "multimodal": True,
    }
    assert ("/register_worker", asked) == first == again
    assert ("/receive_heart_beat", {"worker_name": "http://me:1", "queue_length": 2}) == beat
    assert beat == second_beat
    left = asked | {"worker_status": STATUS | {"model_names": []}}
    assert [left] == [body for path, body in rest if path == "/register_worker"]


async def test_a_controller_that_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that cannot be reached is tried again, and a worker that leaves does not wait for it."""
    monkeypatch.setattr(fastchat_registration, "RETRY_S", 0.001)
    async with fake_fastchat() as fake:
        port = fake.server.port
    lost = FastChatRegistration(f"http://127.0.0.1:{port}", Work(), "http://me:1")
    await lost.open("http://listener:1")
    await lost.aclose()

    failing = True
    controller = Controller([True] * 10_000)

    async def script(exchange: Exchange) -> None:
        nonlocal failing
        if failing:
            failing = False
            exchange.reset()
        else:
            await controller.script(exchange)

    async with scripted(script) as server:
        registration = await registered(controller, f"http://127.0.0.1:{server.port}")
        ((path, _),) = await calls(controller, 1)
        await registration.aclose()

    assert "/register_worker" == path


def test_a_controller_is_a_url() -> None:
    """What is no URL is a mistake in the configuration."""
    with pytest.raises(ConfigError, match="expected a URL"):
        FastChatRegistration("controller", Work())
