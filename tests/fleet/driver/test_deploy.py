"""Tests of unilect.fleet.driver.rollout.deploy against a Serve of this module: which settings it is left with, whatever fails or comes in between."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from support.servers.clusters import need_serve

need_serve()

from ray import serve

from unilect.config.model import ModelConfig, Replicas
from unilect.core.errors import BackendUnavailable
from unilect.fleet import wire
from unilect.fleet.driver import rollout
from unilect.fleet.driver.rollout import Settings, deploy

LOADED, FAILED, NO_ROOM = 1, 2, 3


class Serve:
    """
    What Serve has of one model: settings of so many threads are loaded, fail, or find no room.

    Attributes:
        state: Of the application.
        told: What it keeps to.
        log: The threads of all settings that it was told, and "deleted".
    """

    def __init__(self) -> None:
        self.state: str | None = None
        self.told = Settings("", b"")
        self.log = list[int | str]()
        self.in_between: Callable[[], None] = lambda: None

    def tell(self, made: wire.Deployment, told: Settings) -> None:
        """As `rollout._run`: the same version changes nothing."""
        self.log.append(made.config.threads or 0)
        if self.state in (None, "DELETING") or told.version != self.told.version:
            self.state = "DEPLOYING"
        self.told = told

    def look(self, _: str) -> str | None:
        """As `rollout.state`: each look finds the model one step further."""
        now = self.state
        if now == "DEPLOYING":
            threads = msgspec.msgpack.decode(self.told.body, type=wire.Deployment).config.threads
            self.state = {LOADED: "RUNNING", FAILED: "DEPLOY_FAILED"}.get(threads or 0, now)
            self.in_between()
        return now

    def delete(self, _: str, _blocking: bool) -> None:
        """As `serve.delete`."""
        self.log.append("deleted")
        self.state = "DELETING"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """A Serve without any model."""
    made = Serve()
    monkeypatch.setattr(rollout, "_run", made.tell)
    monkeypatch.setattr(rollout, "find_settings", lambda *_: made.told)
    monkeypatch.setattr(rollout, "state", made.look)
    monkeypatch.setattr(rollout, "_failure_reason", lambda _: "the file is broken")
    monkeypatch.setattr(rollout, "missing_resources", lambda _: None)
    monkeypatch.setattr(rollout, "_LOOK_S", 0.001)
    monkeypatch.setattr(serve, "delete", made.delete)
    monkeypatch.setattr(serve, "get_app_handle", lambda app: app)
    return made


def settings(threads: int, parallel: int = 4) -> tuple[wire.Deployment, bytes]:
    """Settings whose fate `threads` says, and as they are told."""
    config = ModelConfig(threads=threads, parallel=parallel, start_timeout_s=0.05)
    made = wire.Deployment("m", "1", config, Replicas(), {})
    return made, msgspec.msgpack.encode(made)


async def brought(*of: Any) -> Any:
    """What `deploy` says of settings."""
    return await deploy(*settings(*of))


async def refused(*of: Any) -> str:
    """Why settings are not brought."""
    with pytest.raises(BackendUnavailable) as why:
        await brought(*of)
    return why.value.message


async def test_the_same_settings(there: Serve) -> None:
    """The same settings are the same version, so that Serve changes nothing, also where they had failed once before they were loaded."""
    assert "unilect m" == await brought(LOADED)
    first = there.told
    await brought(LOADED)
    assert first == there.told

    await brought(LOADED, 5)
    there.state = "DEPLOY_FAILED"
    await brought(LOADED, 5)
    again = there.told
    assert again.version.partition(" ")[0] != again.version
    await brought(LOADED, 5)
    assert again == there.told


@pytest.mark.parametrize(("fate", "why"), [(FAILED, "the file is broken"), (NO_ROOM, "did not load within")])  # fmt: skip
async def test_an_update_that_fails(there: Serve, fate: int, why: str) -> None:
    """Where new settings fail or find no room Serve is left with those before, whose replicas it goes on to look after."""
    await brought(LOADED)
    good = there.told

    assert why in await refused(fate)
    assert good == there.told
    assert [LOADED, fate, LOADED] == there.log
    assert "RUNNING" == there.look("") or "RUNNING" == there.look("")


async def test_an_update_that_another_gateway_takes_back(there: Serve) -> None:
    """Whoever has told the same settings as another gateway, which has found them broken and taken them back, does not take the old ones for its own."""
    await brought(LOADED)
    good = there.told

    def take_back() -> None:
        there.told, there.state = good, "RUNNING"

    there.in_between = take_back
    assert "another gateway could not start them" in await refused(NO_ROOM)


async def test_a_first_start_that_fails(there: Serve) -> None:
    """A model that fails at its first start is another attempt when it is told again; one without room is taken off, so that it takes none from others."""
    assert "the file is broken" == await refused(FAILED)
    before = there.told.version
    assert "the file is broken" == await refused(FAILED)
    assert before != there.told.version

    there.state = None
    assert "did not load within" in await refused(NO_ROOM)
    assert [FAILED, FAILED, NO_ROOM, "deleted"] == there.log


async def test_no_room_for_another_one(there: Serve) -> None:
    """A gateway that gives a model up leaves it alone where another one has told other settings since."""

    def tell() -> None:
        there.told = Settings("other", settings(NO_ROOM, 9)[1])

    there.in_between = tell
    assert "did not load within" in await refused(NO_ROOM)
    assert [NO_ROOM] == there.log


@pytest.mark.parametrize("state", [None, "DELETING"])
async def test_a_removal_while_it_starts(there: Serve, state: str | None) -> None:
    """A model that is taken off while it starts is told as that at once."""

    def remove() -> None:
        there.state = state

    there.in_between = remove
    assert "`unilect fleet remove`" in await refused(NO_ROOM)


async def test_who_leaves(there: Serve) -> None:
    """A caller that leaves stops what it has begun: nothing is told or deleted for it any more."""
    looked = asyncio.Event()
    loop = asyncio.get_running_loop()
    there.in_between = lambda: loop.call_soon_threadsafe(looked.set)
    bringing = asyncio.create_task(brought(NO_ROOM))
    await looked.wait()
    bringing.cancel()
    await asyncio.wait({bringing})

    assert bringing.cancelled()
    await brought(LOADED)
    assert [NO_ROOM, LOADED] == there.log
