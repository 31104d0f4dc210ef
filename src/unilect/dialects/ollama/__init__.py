"""Ollama's API."""

from unilect.dialects.ollama import _chat, _embed, _models
from unilect.web.route import Route
from unilect.web.site import Site


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    return [route for part in (_chat, _embed, _models) for route in part.routes(site)]
