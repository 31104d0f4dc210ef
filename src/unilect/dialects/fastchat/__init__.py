"""FastChat's APIs: of its server, of a worker, of a controller."""

from aiohttp import web

from unilect.config.server import Config
from unilect.dialects.fastchat import _api, _controller, _worker
from unilect.dialects.fastchat._admission import Admission
from unilect.dialects.fastchat._registration import FastChatRegistration
from unilect.dialects.fastchat._workers import Workers
from unilect.gateway.keys import Keys
from unilect.web.route import Route
from unilect.web.site import Resident, Site, reachable


def routes(site: Site) -> list[Route]:
    """The URLs of this dialect; those of a worker and of a controller as far as the configuration asks for them."""
    config, own = site.config, _api.routes(site)
    if not config.fastchat_controller and config.fastchat_register is None:
        return own
    work = _worker.WorkerState(site.service, config.fastchat_worker_concurrency)
    calls = _worker.routes(site.service, work)
    if config.fastchat_register is not None:
        site.residents.append(_Registered(config, work))
    if not config.fastchat_controller:
        return own + calls
    keys, workers = Keys(config.api_keys), Workers(site.service.registry, config.fastchat_dispatch)
    site.residents.append(workers)
    admission = Admission(config, keys.knows)
    is_worker = config.fastchat_register is not None

    def is_open(request: web.Request) -> bool:
        """Our own models need a key, where there are keys, unless this is a worker; those who may register need none."""
        return is_worker or not keys or admission.is_trusted(request)

    handlers = {route.path: route.handler for route in calls}
    here = _controller.Own(handlers, work.names_of, is_open)
    return own + _controller.routes(workers, admission, here)


class _Registered(Resident):
    """Our worker's place in a controller, while the address is open."""

    def __init__(self, config: Config, work: _worker.WorkerState) -> None:
        self._config = config
        self._work = work
        self._registration: FastChatRegistration | None = None

    async def open(self, url: str) -> None:
        """Register."""
        config, work = self._config, self._work
        work.address = config.fastchat_worker_address or reachable(url)
        self._registration = FastChatRegistration(
            config.fastchat_register or "", work.address, work.status, work.multimodal
        )
        self._registration.start()

    async def shut(self) -> None:
        """Leave the controller."""
        if self._registration is not None:
            await self._registration.aclose()

    aclose = shut
