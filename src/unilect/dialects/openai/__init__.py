"""OpenAI's API."""

from unilect.dialects.openai import _models, chat, completions, embeddings
from unilect.web.route import Route
from unilect.web.site import Site


def routes(site: Site) -> list[Route]:
    """The URLs of this dialect."""
    parts = (chat, completions, embeddings, _models)
    return [route for part in parts for route in part.routes(site)]
