"""
Our worker's place in a FastChat controller: taken, kept with heart beats, and given up.

The protocol has no call to leave: a worker that goes registers once more, with no models.

Source: https://github.com/lm-sys/FastChat (fastchat/serve/base_model_worker.py)
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from unilect.errors import BackendError, UnilectError
from unilect.http.client import HttpServer
from unilect.redact import redacted

log = logging.getLogger("unilect")
HEART_BEAT_S = 45.0
RETRY_S = 5.0
TIMEOUT_S = 5.0


class _Beat(Struct):
    exist: bool = True


class FastChatRegistration:
    """
    One worker's registration.

    Args:
        controller: The controller's URL.
        address: Our URL, as the controller and its servers reach us.
        status: What the worker says of itself.
        multimodal: Whether one of its models sees images.
        heart_beat_s: The time between two heart beats.

    Raises:
        ConfigError: The controller's URL is none.
    """

    def __init__(
        self,
        controller: str,
        address: str,
        status: Callable[[], dict[str, Any]],
        multimodal: bool = False,
        heart_beat_s: float = HEART_BEAT_S,
    ) -> None:
        self._controller = HttpServer(controller, timeout_s=TIMEOUT_S)
        self._address = address
        self._status = status
        self._multimodal = multimodal
        self._heart_beat_s = heart_beat_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Register, and go on sending heart beats."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def aclose(self) -> None:
        """Leave: register with no models, whether the controller hears it or not. Idempotent."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        with suppress(UnilectError):
            await self._register(self._status() | {"model_names": []})

    async def _keep(self) -> None:
        """Register until it works, then beat until we are not known; and so on."""
        known = failing = False
        while True:
            try:
                if known:
                    known = await self._beat()
                if not known:
                    await self._register(self._status())
                    log.info(
                        "registered with the FastChat controller as %s", redacted(self._address)
                    )
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
            worker_name=self._address,
            check_heart_beat=True,
            worker_status=status,
            multimodal=self._multimodal,
        )

    async def _beat(self) -> bool:
        length = self._status()["queue_length"]
        body = await self._post(
            "/receive_heart_beat", worker_name=self._address, queue_length=length
        )
        try:
            return msgspec.json.decode(body, type=_Beat).exist
        except msgspec.DecodeError as error:
            raise BackendError("It does not speak FastChat's protocol.") from error

    async def _post(self, path: str, **fields: Any) -> bytes:
        return await self._controller.post(path, msgspec.json.encode(fields))
