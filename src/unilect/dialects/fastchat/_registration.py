"""
Registration with a FastChat controller: at start, kept with heartbeats, and withdrawn on shutdown.

The protocol has no call to leave: a worker that goes registers once more, with no models.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/base_model_worker.py)
"""

import asyncio
import logging
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from unilect.core.errors import BackendError, UnilectError
from unilect.dialects.fastchat._worker import WorkerState
from unilect.http.client import HttpServer
from unilect.runtime.redact import redact
from unilect.web.site import BackgroundService, reachable

log = logging.getLogger("unilect")
HEART_BEAT_S = 45.0
RETRY_S = 5.0
TIMEOUT_S = 5.0


class _Beat(Struct):
    exist: bool = True


class FastChatRegistration(BackgroundService):
    """
    Our worker's registration, while the address is open.

    Args:
        controller: The controller's URL.
        work: Our worker; it is told the address by which the controller knows it.
        address: Our URL, as the controller and its servers reach us; None for the address that is listened on.
        heart_beat_s: The time between two heart beats.

    Raises:
        ConfigError: The controller's URL is none.
    """

    def __init__(
        self,
        controller: str,
        work: WorkerState,
        address: str | None = None,
        heart_beat_s: float = HEART_BEAT_S,
    ) -> None:
        self._controller = HttpServer(controller, timeout_s=TIMEOUT_S)
        self._work = work
        self._address = address
        self._heart_beat_s = heart_beat_s
        self._task: asyncio.Task[None] | None = None

    async def open(self, url: str) -> None:
        """Register, and go on sending heart beats."""
        self._work.address = self._address or reachable(url)
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def shut(self) -> None:
        """Leave: register with no models, whether the controller hears it or not. Idempotent."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        with suppress(UnilectError):
            await self._register(self._work.status() | {"model_names": []})

    aclose = shut

    async def _keep(self) -> None:
        """Register until it works, then beat until we are not known; and so on."""
        known = failing = False
        while True:
            try:
                if known:
                    known = await self._beat()
                if not known:
                    await self._register(self._work.status())
                    address = redact(self._work.address)
                    log.info("registered with the FastChat controller as %s", address)
                    known = True
                failing = False
            except UnilectError as error:
                if not failing:
                    log.warning(
                        "the FastChat controller: %s It is tried again.", error.for_operator
                    )
                failing = True
            await asyncio.sleep(RETRY_S if failing else self._heart_beat_s)

    async def _register(self, status: dict[str, Any]) -> None:
        await self._post(
            "/register_worker",
            check_heart_beat=True,
            worker_status=status,
            multimodal=self._work.multimodal,
        )

    async def _beat(self) -> bool:
        length = self._work.status()["queue_length"]
        body = await self._post("/receive_heart_beat", queue_length=length)
        try:
            return msgspec.json.decode(body, type=_Beat).exist
        except msgspec.DecodeError as error:
            raise BackendError(
                "It does not have FastChat's protocol. Name the address of a controller."
            ) from error

    async def _post(self, path: str, **fields: Any) -> bytes:
        body = msgspec.json.encode({"worker_name": self._work.address} | fields)
        return await self._controller.post(path, body)
