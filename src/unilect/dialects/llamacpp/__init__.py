"""llama.cpp's native API, and that of its `api_like_OAI.py`."""

from unilect.dialects.llamacpp import _adapters, _slots, native
from unilect.web.route import Route
from unilect.web.site import Site


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    return [*native.routes(site), *_adapters.routes(site), *_slots.routes(site)]
