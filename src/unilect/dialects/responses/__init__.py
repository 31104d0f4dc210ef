"""OpenAI's Responses API: https://platform.openai.com/docs/api-reference/responses"""

from unilect.dialects.responses import _api, _conversations
from unilect.dialects.responses._kept import Kept
from unilect.web.route import Route
from unilect.web.site import Site


def routes(site: Site) -> list[Route]:
    """The URLs of this dialect."""
    kept = Kept(site.answers, site.background, site.requests)
    return [*_api.routes(site.service, kept), *_conversations.routes(kept)]
