"""OpenAI's Responses API: https://platform.openai.com/docs/api-reference/responses"""

from unilect.dialects.responses import _api, _conversations
from unilect.dialects.responses._background import ResponseService
from unilect.web.route import Route
from unilect.web.site import Site


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    responses = ResponseService(site.answers, site.inflight, site.background)
    return [*_api.routes(site.service, responses), *_conversations.routes(responses)]
