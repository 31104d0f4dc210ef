"""Anthropic's Messages API."""

from unilect.dialects.messages import _api as api
from unilect.dialects.messages import _models
from unilect.web.route import Route
from unilect.web.site import Site


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    return [route for part in (api, _models) for route in part.routes(site)]
