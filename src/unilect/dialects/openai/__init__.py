"""OpenAI's API."""

from unilect.dialects.openai import chat, completions, embeddings, models
from unilect.web.route import Route
from unilect.web.site import Site


def routes(site: Site) -> list[Route]:
    """Return the URLs of this dialect."""
    parts = (chat, completions, embeddings, models)
    return [route for part in parts for route in part.routes(site)]
