"""FastChat's APIs: of its server, of a worker, of a controller."""

from aiohttp import web

from unilect.dialects.fastchat import _api, _controller, _worker
from unilect.dialects.fastchat._admission import Admission
from unilect.dialects.fastchat._registration import FastChatRegistration
from unilect.dialects.fastchat._workers import Workers
from unilect.web.route import Route
from unilect.web.site import Site


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect; those of a worker and of a controller as far as the configuration asks for them."""
    config, own = site.config, _api.routes(site)
    if not config.fastchat_controller and config.fastchat_register is None:
        return own
    work = _worker.WorkerState(site.service, config.fastchat_worker_concurrency)
    calls = _worker.routes(site.service, work)
    if config.fastchat_register is not None:
        site.background_services.append(
            FastChatRegistration(config.fastchat_register, work, config.fastchat_worker_address)
        )
    if not config.fastchat_controller:
        return own + calls
    keys, workers = site.keys, Workers(site.service.registry, config.fastchat_dispatch)
    site.background_services.append(workers)
    admission = Admission(config, keys.knows)
    is_worker = config.fastchat_register is not None

    def is_open(request: web.Request) -> bool:
        """Return True for who may ask our own models: they need a key, where there are keys, unless this is a worker; who may register needs none."""
        return is_worker or not keys.required or admission.is_trusted(request)

    handlers = {route.path: route.handler for route in calls}
    here = _controller.Own(handlers, work.names_of, is_open)
    return own + _controller.routes(workers, admission, here)
